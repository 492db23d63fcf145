"""Windows shared out among processes: each done once, none waited for, whatever becomes of a process."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from extract.errors import CacheError, InputError
from extract.run import extraction
from extract.run.extraction_spec import ExtractionSpec
from extract.run.shards import DRAFTS, PATIENCE, Claim, Ledger, Window, extract_shards, map_windows, read_windows
from extract.store.cache import ShardedCache
from extract.store.reader import INDEX, Shard, ShardIndex, parse_index
from tests.extract.recorder import Recorder
from tests.extract.tiny_decoders import assert_same_arrays, make_decoder, make_manifest, make_texts

MANIFEST = make_manifest(["Ice!"])
N_TEXTS, N_WINDOWS = 72, 6
SPEC = ExtractionSpec(poolings=("last", "mean"), batch_tokens=64)


def windows(n: int = N_WINDOWS) -> Iterator[Window]:
    """Windows of a text each."""
    return read_windows([f"Core {i}." for i in range(n)], 1)


def write(window: Window, claim: Claim) -> tuple[Shard, Path]:
    """Write the texts of a window in place of a cache."""
    draft = claim.drafts / f"{window.number}.h5"
    content = str(window.texts).encode()
    draft.write_bytes(content)
    name = f"shard-{window.number:06d}.h5"
    return Shard(window.number, name, 1, 0, len(content), sha256(content).hexdigest(), window.digest, 1, 0, {}), draft


def ledger_in(folder: Path, patience: float = PATIENCE) -> Ledger:
    return Ledger(folder, MANIFEST, 1, patience=patience)


def listed(folder: Path) -> list[int]:
    return [shard.window for shard in ledger_in(folder).index.shards]


class Worker(Thread):
    """Does windows with a ledger of its own, in a thread; `numbers` are those it did."""

    def __init__(self, folder: Path, do: Callable[[Window, Claim], tuple[Shard, Path]] = write) -> None:
        super().__init__(daemon=True)
        self.ledger, self.do, self.numbers = ledger_in(folder), do, list[int]()
        self.start()

    def run(self) -> None:
        for shard in map_windows(self.do, windows(), self.ledger):
            self.numbers.append(shard.window)


def test_each_window_is_done_once(tmp_path: Path) -> None:
    workers = [Worker(tmp_path) for _ in range(3)]
    for worker in workers:
        worker.join(30)
    assert sorted(number for worker in workers for number in worker.numbers) == [*range(N_WINDOWS)]
    assert ledger_in(tmp_path).index.find(2) is not None
    assert not list((tmp_path / DRAFTS).iterdir()), "a claim or a draft is left"
    assert workers[0].ledger.complete().is_complete
    assert not (tmp_path / DRAFTS).exists()


def test_an_index_is_read_back_only_where_another_process_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, n_read = ledger_in(tmp_path), ledger_in(tmp_path), list[str]()

    def counted(text: bytes, *, where: str) -> ShardIndex:
        n_read.append(where)
        return parse_index(text, where=where)

    def list_next(ledger: Ledger, window: Window) -> list[int]:
        with ledger.claimed(window) as claim:
            assert claim is not None
            ledger.list_shard(*write(window, claim))
        n_before = len(n_read)
        numbers = [shard.window for shard in ledger.index.shards]
        assert len(n_read) == n_before, "what was just written was read"
        assert ledger.index == parse_index((tmp_path / INDEX).read_bytes(), where="")
        return numbers

    monkeypatch.setattr("extract.run.shards.parse_index", counted)
    turns = zip((one, one, other, one), windows(4), strict=True)
    assert [list_next(ledger, window) for ledger, window in turns] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert len(n_read) == 3, "one begins, the other joins, and the first sees what the other wrote"


def test_a_slow_one_costs_its_window_alone(tmp_path: Path) -> None:
    """The others do all the rest while it is at work on its one window, and wait for that."""
    at_end: list[list[int]] = []

    def slowly(window: Window, claim: Claim) -> tuple[Shard, Path]:
        fast = Worker(tmp_path)
        while len(listed(tmp_path)) < N_WINDOWS - 1:
            time.sleep(0.01)
        at_end.append(fast.numbers)
        assert fast.is_alive(), "it did not wait for the last window"
        return write(window, claim)

    shards = list(map_windows(slowly, windows(), ledger_in(tmp_path)))
    assert [shard.window for shard in shards] == [0]
    assert at_end == [[1, 2, 3, 4, 5]]
    assert listed(tmp_path) == [*range(N_WINDOWS)]


def test_the_window_of_one_that_ended_is_done_by_another(tmp_path: Path) -> None:
    with ledger_in(tmp_path).claimed(next(windows())):
        other = Worker(tmp_path)
        while len(listed(tmp_path)) < N_WINDOWS - 1:
            time.sleep(0.01)
    other.join(30)
    assert other.numbers == [1, 2, 3, 4, 5, 0]


def test_a_claim_without_a_sign_of_life_is_passed_over(tmp_path: Path) -> None:
    first = next(windows())
    stuck, other = ledger_in(tmp_path), ledger_in(tmp_path, patience=0.0)
    with stuck.claimed(first) as claim:
        assert claim is not None
        assert str(os.getpid()) in claim.file.read_text()
        shard, draft = write(first, claim)
        for _ in range(2):
            time.sleep(0.02)  # more than a tick of the file system's clock
            claim.beat()
            with other.claimed(first) as none:
                assert none is None, "a claim of a process that shows batches was passed over"
        assert [each.window for each in map_windows(write, windows(1), other)] == [0]
        index = (tmp_path / INDEX).read_bytes()
        stuck.list_shard(shard, draft)
        assert (tmp_path / INDEX).read_bytes() == index
        assert not draft.exists()


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_failure_matters_unless_another_has_done_the_window(is_listed: bool, tmp_path: Path) -> None:
    def fail(window: Window, claim: Claim) -> tuple[Shard, Path]:
        if is_listed:
            ledger_in(tmp_path).list_shard(*write(window, claim))
        raise InputError("no")

    done = map_windows(fail, windows(1), ledger_in(tmp_path))
    if is_listed:
        assert list(done) == []
    else:
        with pytest.raises(InputError, match="no"):
            list(done)


def test_a_lost_entry_of_the_index_is_named(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    list(map_windows(write, windows(), ledger))
    ledger.index.without(3).write(tmp_path)
    with pytest.raises(CacheError, match=r"has lost window 3, .* run the extraction again"):
        ledger.complete()
    assert [shard.window for shard in map_windows(write, windows(), ledger)] == [3]
    assert ledger.complete().is_complete


def extract(folder: str, report: str, pause: float = 0, end: int = 0, at_batch: int = 0) -> None:
    """Extract, or help to, in a process of its own: slowed down, or sent a signal after some batches."""
    encoded: set[str] = set()
    make = vars(extraction)["make_encoder"]

    def make_recording(*args: Any, **kwargs: Any) -> Any:
        encode = make(*args, **kwargs)

        def recording(texts: Any, **more: Any) -> Any:
            encoded.update(texts)
            return encode(texts, **more)

        return recording

    def act(n_batches: int) -> None:
        time.sleep(pause)
        if n_batches == at_batch:
            os.kill(os.getpid(), end)

    pytest.MonkeyPatch().setattr(extraction, "make_encoder", make_recording)
    watch = Recorder(on_advance=act)
    decoder = make_decoder(adds_bos=True)
    extract_shards(
        decoder, make_texts(N_TEXTS), folder=folder, spec=SPEC, window=N_TEXTS // N_WINDOWS, progress=watch, patience=1
    )
    Path(report).write_text(f"{watch.n_written} {len(encoded)}", encoding="utf-8")


def start(*arguments: object) -> ForkServerProcess:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    child = server.Process(target=extract, args=arguments)
    child.start()
    return child


def finish(child: ForkServerProcess, code: int = 0) -> None:
    child.join(300)
    assert child.exitcode == code


def assert_same_shards(folder: Path, whole: Path) -> None:
    """Compare two folders of shards bit for bit, and each with its index."""
    ShardedCache(folder).verify()
    names = [path.name for path in ShardedCache(whole).files]
    assert [path.name for path in ShardedCache(folder).files] == names
    for name in names[1:]:
        assert_same_arrays(folder / name, whole / name)
    assert not (folder / DRAFTS).exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards that one process makes."""
    place = tmp_path_factory.mktemp("whole")
    finish(start(str(place), str(place.parent / "report")))
    return place


@pytest.mark.long
def test_one_killed_and_one_slow(whole: Path, tmp_path: Path) -> None:
    """The killed one is in the middle of a window; nobody tokenises what another computes."""
    folder = tmp_path / "shards"
    reports = [tmp_path / "killed", tmp_path / "slow", tmp_path / "fast"]
    killed = start(str(folder), str(reports[0]), 0, signal.SIGKILL, 2)
    finish(killed, -signal.SIGKILL)
    assert listed_claims(folder), "it was not killed within a window"
    slow = start(str(folder), str(reports[1]), 0.5)
    fast = start(str(folder), str(reports[2]))
    finish(fast)
    finish(slow)
    assert_same_shards(folder, whole)
    counts = [[int(number) for number in report.read_text().split()] for report in reports[1:]]
    assert 0 < counts[0][0] <= N_TEXTS // N_WINDOWS < counts[1][0], "the slow one held the fast one"
    assert all(written <= encoded <= written + N_TEXTS // N_WINDOWS for written, encoded in counts)
    assert sum(encoded for _, encoded in counts) == N_TEXTS, "a text was tokenised by two processes, or by none"


def listed_claims(folder: Path) -> list[Path]:
    return list((folder / DRAFTS).glob("*.claim"))


@pytest.mark.long
def test_one_that_hangs_is_passed_over_and_may_wake(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    hung = start(str(folder), str(tmp_path / "hung"), 0, signal.SIGSTOP, 2)
    try:
        while not listed_claims(folder):
            time.sleep(0.05)
        finish(start(str(folder), str(tmp_path / "other")))
        assert_same_shards(folder, whole)
        index = (folder / INDEX).read_bytes()
        assert hung.is_alive()
        assert hung.pid is not None
        os.kill(hung.pid, signal.SIGCONT)
        finish(hung)
        assert (folder / INDEX).read_bytes() == index
        assert_same_shards(folder, whole)
    finally:
        hung.kill()
        hung.join()
