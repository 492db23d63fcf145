"""Kills, memory and many processes, each in processes of their own."""

import multiprocessing
import random
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import h5py
import numpy as np
import pytest

from extract.errors import CacheError
from extract.store.cache import LatentCache, ShardedCache
from extract.store.format import CLOSED
from tests.extract import child_extraction
from tests.extract.tiny_decoders import assert_same_arrays, read_arrays

ROOT = Path(__file__).resolve().parents[3]
N_TEXTS, N_KILLS, N_EARLY_KILLS = 3000, 12, 3
N_WORD_TEXTS, N_WORD_KILLS = 800, 6
SMALL_BATCHES = 256  # tokens

pytestmark = pytest.mark.slow


def command(
    folder: Path, *, n_texts: int = N_TEXTS, batch_tokens: int = SMALL_BATCHES, width: int = 32, kind: str = "texts"
) -> list[str]:
    """Build the arguments of a child."""
    return ["-m", "tests.extract.child_extraction", str(folder), str(n_texts), str(batch_tokens), str(width), kind]


def run(arguments: list[str], *, launcher: tuple[str, ...] = ()) -> list[str]:
    """Run a child to its end; return its lines."""
    done = subprocess.run(
        [sys.executable, *launcher, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def store_in(folder: Path) -> Path | None:
    """Return the store in a folder, if it is there already."""
    return next(iter(folder.glob("*.h5")), None)


def count_done(folder: Path) -> int:
    """Count the rows that are done; 0 while there is no store."""
    path = store_in(folder)
    return LatentCache(path, allow_partial=True).n_done if path else 0


def start(arguments: list[str]) -> ForkServerProcess:
    """Start an extraction, forked from a server that has the imports behind it, so that starting costs little."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([child_extraction.__name__])
    child = server.Process(target=child_extraction.main, args=tuple(arguments[2:]))
    child.start()
    return child


def wait_for_rows(child: ForkServerProcess, folder: Path, n_rows: int) -> None:
    """Wait until so many rows are done; with 0, until the child has begun to lay out its store."""
    while count_done(folder) < n_rows or not any(folder.iterdir()):
        assert child.is_alive(), "the extraction ended before it could be killed"
        time.sleep(0.002)


def assert_unharmed(folder: Path, whole: Path) -> None:
    """Check that a store just killed is readable, refuses to pass as whole, and that its done rows are right."""
    path = store_in(folder)
    if path is None:
        return
    with h5py.File(path, "r") as file:
        is_done = file["rows/is_done"][()] == CLOSED
    with pytest.raises(CacheError, match=f"is half done: {is_done.sum()} of {len(is_done)} rows"):
        LatentCache(path)
    expected = read_arrays(whole)
    n_words = expected.get("rows/n_words", np.zeros(0, np.int32))
    places = np.argsort(expected.get("rows/first_word", np.zeros(0, np.int64)))
    word_is_done = np.repeat(is_done[places], n_words[places])
    for name, values in read_arrays(path).items():
        counts = word_is_done if name.startswith("words/") else is_done
        assert values[counts].tobytes() == expected[name][counts].tobytes(), name


@pytest.mark.parametrize(
    ("kind", "n_texts", "n_kills"), [("texts", N_TEXTS, N_KILLS), ("words", N_WORD_TEXTS, N_WORD_KILLS)]
)
def test_killed_at_any_moment(tmp_path: Path, kind: str, n_texts: int, n_kills: int) -> None:
    (line,) = run(command(tmp_path / "whole", kind=kind, n_texts=n_texts))
    whole = Path(line.split()[1])
    n_rows = len(LatentCache(whole))
    folder = tmp_path / "killed"
    folder.mkdir()
    chance = random.Random(20)
    for kill in range(n_kills):
        n_before = count_done(folder)
        child = start(command(folder, kind=kind, n_texts=n_texts))
        try:
            wait_for_rows(child, folder, 0 if kill < N_EARLY_KILLS else n_before + chance.randint(1, 120))
            time.sleep(chance.uniform(0, 0.01))
        finally:
            child.kill()
            child.join()
        assert child.exitcode == -signal.SIGKILL
        assert kill < N_EARLY_KILLS or n_before < count_done(folder) < n_rows
        assert_unharmed(folder, whole)
    run(command(folder, kind=kind, n_texts=n_texts))
    assert [path.suffix for path in folder.iterdir()] == [".h5"]
    resumed = store_in(folder)
    assert resumed is not None
    assert_same_arrays(whole, resumed)


def test_shards_killed_at_any_moment(tmp_path: Path) -> None:
    """Whatever is listed at the moment of a kill is whole; in the end all shards hold what they would have held."""
    n_texts, n_shards = 600, 6
    run(command(tmp_path / "whole", kind="shards", n_texts=n_texts))
    folder = tmp_path / "killed"
    folder.mkdir()
    chance = random.Random(21)
    for kill in range(N_WORD_KILLS):
        child = start(command(folder, kind="shards", n_texts=n_texts))
        try:
            while len(list(folder.glob("*.h5"))) <= kill * (n_shards - 1) // N_WORD_KILLS:
                assert child.is_alive(), "the extraction ended before it could be killed"
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.1))
        finally:
            child.kill()
            child.join()
        assert child.exitcode == -signal.SIGKILL
        if (folder / "index.json").exists():
            ShardedCache(folder, allow_partial=True).verify()
    run(command(folder, kind="shards", n_texts=n_texts))
    assert len(list(folder.glob("*.h5"))) == n_shards
    for path in folder.glob("*.h5"):
        assert_same_arrays(tmp_path / "whole" / path.name, path)
    ShardedCache(folder).verify()


def test_peak_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    peaks = {}
    for n_texts in (300, 3000):
        (line,) = run(command(tmp_path / str(n_texts), n_texts=n_texts, batch_tokens=SMALL_BATCHES, width=512))
        peaks[n_texts] = int(line.split()[2]) * 1024
    path = store_in(tmp_path / "3000")
    assert path is not None
    n_bytes = path.stat().st_size
    assert 0.9 * n_bytes > 0.05 * peaks[300]  # kept latents of 2,700 more rows would break the bound
    assert peaks[3000] < 1.05 * peaks[300]


@pytest.mark.parametrize("kind", ["texts", "words"])
def test_two_processes_write_one_store(tmp_path: Path, kind: str) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    lines = run(command(tmp_path / "two", n_texts=300, kind=kind), launcher=launcher)
    assert sorted(line.split()[0] for line in lines) == ["0", "1"]
    (path,) = {Path(line.split()[1]) for line in lines}
    (line,) = run(command(tmp_path / "one", n_texts=300, kind=kind))
    assert_same_arrays(Path(line.split()[1]), path)
    assert LatentCache(path).is_complete
