"""Files are written whole or not at all, and never through links."""

import errno
import gzip
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from extract import files
from extract.errors import ConfigError, DiskFullError
from extract.files import read_file, refuse_links, remove_file, unpack, write_file


def fail(number: int) -> object:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("content", ["Eis\n", b"\x00\xff", ""])
def test_a_file_holds_what_was_written(content: str | bytes, tmp_path: Path) -> None:
    for _ in range(2):
        write_file(tmp_path / "a.txt", content)
    assert (tmp_path / "a.txt").read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(("where", "step"), [(os, "open"), (os, "fsync"), (Path, "replace")])
def test_an_interrupted_writing_leaves_the_old_content(
    where: object, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(where, step, interrupt)
        write_file(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert names(tmp_path) == ["a.txt"]


def test_the_draft_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    write = (
        "import os, sys, time; from pathlib import Path; import extract.files\n"
        "def stop(_): sys.stdout.write('x'); sys.stdout.flush(); time.sleep(60)\n"
        "os.fsync = stop\n"
        "extract.files.write_file(Path(sys.argv[1]), 'half')"
    )
    child = subprocess.Popen([sys.executable, "-c", write, str(tmp_path / "a.txt")], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.read(1) == b"x"
        [draft] = names(tmp_path)
        assert draft.startswith(f".new-{child.pid}-")
        write_file(tmp_path / "a.txt", "whole")
        assert names(tmp_path) == [draft, "a.txt"]
    finally:
        child.kill()
        child.communicate()
    assert names(tmp_path) == [draft, "a.txt"]
    write_file(tmp_path / "b.txt", "another file")
    write_file(tmp_path / "a.txt", "whole")
    assert names(tmp_path) == ["a.txt", "b.txt"]


def test_threads_that_write_one_file_leave_the_content_of_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: write_file(tmp_path / "a.txt", f"{n}"), range(200)))
    assert names(tmp_path) == ["a.txt"]
    assert int((tmp_path / "a.txt").read_text(encoding="utf-8")) in range(200)


def test_a_draft_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may see it in the moment between."""
    swept: list[Path] = []

    def lock_late(descriptor: int, *, waits: bool = False) -> bool:
        if len(swept) < 2:
            swept.extend(tmp_path.glob(".new-*"))
            swept[-1].unlink()
        return lock(descriptor, waits=waits)

    lock = files._lock
    monkeypatch.setattr(files, "_lock", lock_late)
    write_file(tmp_path / "a.txt", "whole")
    assert len(swept) == 2
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "whole"
    assert names(tmp_path) == ["a.txt"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine", encoding="utf-8")
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "scores.json"
    path.symlink_to(tmp_path / "victim")
    (tmp_path / "run" / f".new-{os.getpid()}-scores.json").symlink_to(tmp_path / "victim")
    write_file(path, "theirs")
    assert (tmp_path / "victim").read_text(encoding="utf-8") == "mine"
    assert path.read_text(encoding="utf-8") == "theirs"
    assert not path.is_symlink()
    assert names(tmp_path / "run") == ["scores.json"]


@pytest.mark.parametrize("place", ["", "heads", "heads/probe/seed_0", "figures/a.png"])
def test_a_folder_with_a_link_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    folder = tmp_path / "run"
    refuse_links(folder)  # not there yet
    link = folder / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match=f"{link}' is a link, and nothing is written through links; allowed"):
        refuse_links(folder)
    link.unlink()
    refuse_links(folder)


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (errno.ENOSPC, DiskFullError, r"no space for '.*a.txt' \(No space left on device\); the old content is kept"),
        (errno.EFBIG, DiskFullError, r"no space for '.*a.txt' \(File too large\)"),
        (errno.EROFS, ConfigError, r"file '.*a.txt' cannot be written \(Read-only file system\); allowed"),
    ],
)
def test_why_a_file_cannot_be_written(
    number: int, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("old", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", fail(number))
    with pytest.raises(error, match=message):
        write_file(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"f/a.txt' cannot be written \(Not a directory\)"):
        write_file(tmp_path / "f" / "a.txt", "new")


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "gone"):
        with pytest.raises(OSError, match=r"not a plain file|directory"):
            read_file(tmp_path / name)
    remove_file(tmp_path / "gone")


def test_a_little_gzip_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Ice and iron are in this text, and snow.\n" * 2_000
    assert unpack(gzip.compress(text.encode())) == text.encode()
    assert unpack(gzip.compress(b"a") + gzip.compress(b"b")) == b"ab"
    monkeypatch.setattr(files, "PACKED_BYTES", 1_000)
    bomb = gzip.compress(bytes(1 << 22))
    assert len(bomb) * files.PACKED_TIMES < 1 << 22
    with pytest.raises(ValueError, match="it holds more than 100 times its size"):
        unpack(bomb)
