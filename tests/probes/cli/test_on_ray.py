"""`icecore extract --ray` starts Ray on this machine, and leaves nothing of it behind. Needs the extra."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from extract.store.cache import ShardedCache
from probes.cli.main import INTERRUPTED, main
from tests.extract.tiny_decoders import assert_same_arrays, make_texts

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def place() -> Iterator[Path]:
    """A temporary folder of these tests alone, with a short name; nothing may be left in it."""
    pytest.importorskip("ray", reason="needs the extra: pip install '.[ray]'")
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
        assert not list(Path(folder).iterdir())


# A shell's background job ignores SIGINT, and so do its children unless they set a handler.
COMMAND = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from probes.cli.main import main; sys.exit(main())"
)


def start(arguments: list[str], place: Path) -> subprocess.Popen[str]:
    """Start `icecore extract` in a group of its own, as a shell does, with one thread for every process."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "extract", *arguments, "--quiet"],
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(place)},
    )


def processes_of(group: int) -> list[psutil.Process]:
    """Find the processes of a group that are at work."""
    return [
        each for each in psutil.process_iter() if os.getsid(each.pid) == group and each.status() != psutil.STATUS_ZOMBIE
    ]


def wait_for_end(group: int) -> None:
    """Wait until no process of a group is left."""
    deadline = time.monotonic() + 10
    while left := processes_of(group):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def arguments(tmp_path: Path, decoder_folder: Path, *, n_texts: int, to: str) -> list[str]:
    (tmp_path / "texts.txt").write_text("\n".join(make_texts(n_texts)), encoding="utf-8")
    options = ["--texts", str(tmp_path / "texts.txt"), "--shards", str(tmp_path / to), "--window", "20"]
    return [*options, "--decoder.name", str(decoder_folder), "--extraction.batch_tokens", "256"]


def test_shards_are_those_of_one_process(decoder_folder: Path, tmp_path: Path, place: Path) -> None:
    assert main(["extract", *arguments(tmp_path, decoder_folder, n_texts=60, to="alone")]) == 0
    child = start([*arguments(tmp_path, decoder_folder, n_texts=60, to="shards"), "--ray", "2"], place)
    out, err = child.communicate(timeout=300)
    assert (child.returncode, out.splitlines()) == (0, [str(tmp_path / "shards")]), err
    assert not err, "Ray said something"
    wait_for_end(child.pid)
    for path in (tmp_path / "alone").glob("*.h5"):
        assert_same_arrays(path, tmp_path / "shards" / path.name)
    assert ShardedCache(tmp_path / "shards").n_shards == 3


def test_stopped_it_ends_its_workers_and_goes_on_later(decoder_folder: Path, tmp_path: Path, place: Path) -> None:
    n_texts = 1000
    options = arguments(tmp_path, decoder_folder, n_texts=n_texts, to="shards")
    child = start([*options, "--ray", "2"], place)
    while not list((tmp_path / "shards").glob("*.h5")):
        assert child.poll() is None, child.communicate()
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal sends Ctrl-C, to all
    out, err = child.communicate(timeout=100)
    assert (child.returncode, out) == (INTERRUPTED, ""), err
    assert err == "icecore: interrupted; every row and head that is done is kept. Run the same command to go on.\n"
    wait_for_end(child.pid)
    n_done = len(ShardedCache(tmp_path / "shards", allow_partial=True))
    assert 0 < n_done < n_texts
    assert main(["extract", *options]) == 0
    ShardedCache(tmp_path / "shards").verify()
