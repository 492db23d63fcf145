"""A full disk and a second writer: a sentence, and nothing is lost."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from extract.decoders.decoder import Decoder
from extract.errors import CacheError, CacheLockedError, DiskFullError
from extract.run.extraction import describe_extraction, extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache, cache_path
from extract.store.format import create_store, explain_write_error, free_bytes
from tests.extract.recorder import Recorder
from tests.extract.tiny_decoders import assert_same_arrays, make_decoder, make_texts

SPEC = ExtractionSpec(poolings=("last", "mean"), batch_tokens=64)


@pytest.fixture(scope="module")
def whole(decoder: Decoder, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of an uninterrupted extraction."""
    return extract_latents(decoder, texts, spec=SPEC, folder=tmp_path_factory.mktemp("whole")).path


def test_no_room_up_front(decoder: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFullError, match=r"it needs \d\.\d MB and .* MB are free; nothing was written"):
        extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "n_writes", [0, 30, pytest.param(5, marks=pytest.mark.long), pytest.param(61, marks=pytest.mark.long)]
)
def test_full_in_the_middle_then_resumed(
    decoder: Decoder, texts: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_writes: int
) -> None:
    write, calls = os.pwrite, iter(range(n_writes))

    def some(fd: int, view: memoryview, offset: int) -> int:
        takes_space = bytes(view).strip(b"\2") != b""  # rows that are there are closed in their place
        if takes_space and next(calls, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, view, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: None)
        patch.setattr(os, "pwrite", some)
        with pytest.raises(DiskFullError, match=r"no space for cache .* MB are free; the rows written so far are kept"):
            extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    assert (LatentCache(path, allow_partial=True).n_done > 0) == (n_writes > 20)
    assert_same_arrays(whole, extract_latents(decoder, texts, spec=SPEC, folder=tmp_path).path)


def test_another_write_error_surfaces(
    decoder: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", fail)
    recorder = Recorder()
    with pytest.raises(CacheError, match="cannot be written: Input/output error"):
        extract_latents(decoder, texts, spec=SPEC, folder=tmp_path, progress=recorder)
    assert (recorder.n_batches, recorder.n_finished) == (0, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, or a skip that says why there is none."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_up(folder: Path) -> None:
    """Fill a file system to its last byte."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC


def test_a_small_disk_up_front(decoder: Decoder, small_disk: Path) -> None:
    texts = make_texts(1500)
    with pytest.raises(DiskFullError, match=r"it needs 2\.\d MB and 1\.0 MB are free; nothing was written"):
        extract_latents(decoder, texts, spec=SPEC, folder=small_disk)
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_disk_full_to_the_last_byte(
    decoder: Decoder, texts: list[str], small_disk: Path, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    fill_up(small_disk)
    if not is_asked:  # the disk filled up between the question and HDF5's first write
        answers = iter([1 << 40])
        monkeypatch.setattr("extract.store.format.free_bytes", lambda folder: next(answers, None) or free_bytes(folder))
    with pytest.raises(DiskFullError, match=r"no space for cache .* 0\.0 MB are free; nothing was written"):
        extract_latents(decoder, texts, spec=SPEC, folder=small_disk)
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


@pytest.mark.long
def test_a_small_disk_fills_in_the_middle_and_grows(
    decoder: Decoder, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = make_texts(1500)
    spec = ExtractionSpec(poolings=("last", "mean"))
    with monkeypatch.context() as patch:  # as on a file system that promises space it does not have
        patch.setattr(os, "posix_fallocate", lambda *_: None)
        patch.setattr("extract.store.format.free_bytes", lambda _: 1 << 40)
        with pytest.raises(DiskFullError, match="the rows written so far are kept"):
            extract_latents(decoder, texts, spec=spec, folder=small_disk)
    (path,) = small_disk.iterdir()
    assert 0 < LatentCache(path, allow_partial=True).n_done < 1500
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    resumed = extract_latents(decoder, texts, spec=spec, folder=small_disk)
    uninterrupted = extract_latents(decoder, texts, spec=spec, folder=tmp_path / "whole")
    assert_same_arrays(uninterrupted.path, resumed.path)


def test_a_second_process_is_refused(texts: list[str], tmp_path: Path) -> None:
    decoder = make_decoder()
    path = cache_path(tmp_path, describe_extraction(decoder, texts, SPEC))
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.flock(file, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )

    def hold_from_outside(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_latents(decoder, texts, spec=SPEC, folder=tmp_path, progress=Recorder(on_advance=hold_from_outside))
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CacheLockedError, match=rf"cache '.*{path.name}' is being written by another process"):
            extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
        holder.communicate("")
    assert len(extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)) == 40


def test_a_system_without_posix_locks_cannot_write_but_can_read(
    decoder: Decoder, texts: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pwrite", "pread", "preadv", "posix_fallocate"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    with pytest.raises(CacheError, match=r"cannot write caches on this system: .* Windows lacks\. Extract under WSL 2"):
        extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    cache = LatentCache(whole)
    assert torch.equal(cache.read(0, 40, "mean")[2], cache.layer(cache.layers[2], "mean"))


@pytest.mark.parametrize("kind", [RuntimeError, OSError])
def test_an_error_of_hdf5_without_a_number_is_judged_by_the_free_space(kind: type[Exception], tmp_path: Path) -> None:
    found = explain_write_error(kind("file write failed"), tmp_path / "a.h5", needed=1 << 60)
    assert isinstance(found, DiskFullError)
    found = explain_write_error(kind("file write failed"), tmp_path / "a.h5", needed=1)
    assert not isinstance(found, DiskFullError)
    assert "file write failed. Check the folder" in str(found)


def test_a_file_system_without_locks_or_maps_is_one_sentence(
    decoder: Decoder, texts: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", fail)
        with pytest.raises(
            CacheError, match=r"its file system has no file locks \(OSError: .*\); choose another folder"
        ):
            extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("numpy.memmap", fail)
    with pytest.raises(CacheError, match="cannot be mapped into memory"):
        LatentCache(whole)


def test_a_file_size_limit_is_one_sentence(decoder: Decoder, texts: list[str], tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(CacheError, match=r"exceeds the file-size limit"):
            extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_may_not_be_written_is_one_sentence(
    decoder: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cache_path(tmp_path, describe_extraction(decoder, texts, SPEC))
    create_store(path, describe_extraction(decoder, texts, SPEC))

    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(CacheError, match="cannot be written: Read-only file system"):
        extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
