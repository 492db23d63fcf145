"""The store as others see it: plain HDF5, whole or refused, and never harmed by a full disk."""

import errno
import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from extract.errors import CacheError, CacheIncompleteError, CacheLockedError, DiskFullError, UnknownNameError
from extract.inputs.joined_text import digest_texts
from extract.store.cache import LatentCache
from extract.store.format import ALIGNMENT, CERTIFICATE_BYTES, array_shapes, create_store, read_layout
from extract.store.manifest import Manifest
from extract.store.writer import StoreWriter
from tests.extract.tiny_decoders import make_manifest, make_texts, write_cache

TEXTS = make_texts(9)


def write_some(path: Path, n_rows: int, *, closes: bool = True) -> None:
    """Write the first rows of a store with zeros."""
    writer = StoreWriter(path)
    identity = writer.manifest.identity
    latents = np.zeros((len(identity.layers), 2, n_rows, 6), np.float32)
    rows: dict[str, NDArray[Any]] = {"digest": digest_texts(TEXTS[:n_rows]), "n_tokens": np.ones(n_rows, np.int32)}
    rows["is_truncated"] = np.zeros(n_rows, np.uint8)
    writer.write_rows(0, latents, rows=rows)
    if closes:
        writer.close_rows(0, n_rows)
    writer.close()


def test_h5py_alone_reads_everything(tmp_path: Path) -> None:
    latents = write_cache(tmp_path / "a.h5", TEXTS)
    with h5py.File(tmp_path / "a.h5", "r") as file:
        assert file.attrs["icecore_schema"] == 1
        manifest = json.loads(file.attrs["manifest"])
        assert manifest["identity"]["poolings"] == ["mean", "last"]
        assert file.attrs["identity"] == make_manifest(TEXTS).id
        for p, pooling in enumerate(manifest["identity"]["poolings"]):
            for k, layer in enumerate(manifest["identity"]["layers"]):
                dataset = file[f"latents/{pooling}/{layer}"]
                assert dataset.attrs["dtype"] == "float32"
                assert np.array_equal(dataset[()], latents[k, p])
        assert np.array_equal(file["rows/digest"][()], digest_texts(TEXTS))
        assert file["rows/n_tokens"][()].tolist() == list(range(1, 10))
        assert file["rows/is_truncated"][()].tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
        assert file["rows/is_done"][()].all()
        certificate = file["certificate"][()].tobytes().rstrip(b"\0")
        assert json.loads(certificate) == {"frozen": {"is_bit_identical": True}}


def test_arrays_are_contiguous_and_aligned(tmp_path: Path) -> None:
    manifest = make_manifest(TEXTS)
    create_store(tmp_path / "a.h5", manifest)
    with h5py.File(tmp_path / "a.h5", "r") as file:
        for name in array_shapes(manifest):
            assert file[name].chunks is None
            assert file[name].id.get_offset() % ALIGNMENT == 0
    stat = (tmp_path / "a.h5").stat()
    assert stat.st_blocks * 512 >= stat.st_size  # reserved, no holes
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]


def test_bfloat16_is_stored_as_named_uint16(tmp_path: Path) -> None:
    latents = write_cache(tmp_path / "a.h5", TEXTS, storage_dtype="bfloat16")
    with h5py.File(tmp_path / "a.h5", "r") as file:
        dataset = file["latents/mean/block_01"]
        assert (dataset.dtype, dataset.attrs["dtype"]) == (np.uint16, "bfloat16")
        widened = (dataset[()].astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(widened, latents[1, 0])


def test_a_store_that_is_there_is_left_alone(tmp_path: Path) -> None:
    write_cache(tmp_path / "a.h5", TEXTS)
    before = (tmp_path / "a.h5").read_bytes()
    create_store(tmp_path / "a.h5", make_manifest(TEXTS))
    assert (tmp_path / "a.h5").read_bytes() == before


def test_leftovers_are_swept_and_living_drafts_are_not(tmp_path: Path) -> None:
    dead, living = tmp_path / ".a[1].h5.new-1", tmp_path / ".a[1].h5.new-2"
    dead.touch()
    with living.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        create_store(tmp_path / "a[1].h5", make_manifest(TEXTS))
        assert (dead.exists(), living.exists()) == (False, True)


@pytest.mark.parametrize("name", [".a.h5.new-PID", ".a.h5.new-PID-00000000", ".b.h5.new-1"])
def test_a_link_in_the_place_of_a_draft_is_removed_and_not_followed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious, folder = tmp_path / "thesis.txt", tmp_path / "caches"
    precious.write_text("mine", encoding="utf-8")
    folder.mkdir()
    (folder / name.replace("PID", str(os.getpid()))).symlink_to(precious)
    monkeypatch.setattr("secrets.token_hex", lambda _: "00000000")
    create_store(folder / "a.h5", make_manifest(TEXTS))
    assert precious.read_text(encoding="utf-8") == "mine"
    assert [path.name for path in folder.iterdir()] == ["a.h5"]
    assert not (folder / "a.h5").is_symlink()


def test_a_draft_is_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious, link = tmp_path / "thesis.txt", tmp_path / "link"
    precious.write_text("mine", encoding="utf-8")
    link.symlink_to(precious)
    monkeypatch.setattr("extract.store.format.draft_path", lambda _: link)
    with pytest.raises(CacheError, match="cannot be written: File exists"):
        create_store(tmp_path / "a.h5", make_manifest(TEXTS))
    assert precious.read_text(encoding="utf-8") == "mine"


def test_done_rows_grow(tmp_path: Path) -> None:
    create_store(tmp_path / "a.h5", make_manifest(TEXTS))
    write_some(tmp_path / "a.h5", 4, closes=False)
    writer = StoreWriter(tmp_path / "a.h5")
    assert not writer.done_rows().any()  # until the weights are compared with their digest
    partial = LatentCache(tmp_path / "a.h5", allow_partial=True)
    assert partial.n_done == 0
    with pytest.raises(CacheError, match=r"\(4 of 4 are missing\)"):
        partial.rows_of(TEXTS[:4])
    writer.close_rows(2, 2)
    assert writer.done_rows().tolist() == [False] * 2 + [True] * 2 + [False] * 5
    assert LatentCache(tmp_path / "a.h5", allow_partial=True).rows_of(TEXTS[2:4]).tolist() == [2, 3]
    writer.close()
    writer.close()
    with pytest.raises(CacheIncompleteError, match="is half done: 2 of 9 rows, the rest is missing"):
        LatentCache(tmp_path / "a.h5")
    assert LatentCache(tmp_path / "a.h5", allow_partial=True).n_done == 2


def test_no_certificate_no_whole_cache(tmp_path: Path) -> None:
    create_store(tmp_path / "a.h5", make_manifest(TEXTS))
    write_some(tmp_path / "a.h5", 9)
    with pytest.raises(CacheIncompleteError, match="is half done: 9 of 9 rows, no certificate yet"):
        LatentCache(tmp_path / "a.h5")


def test_a_certificate_must_fit(tmp_path: Path) -> None:
    write_cache(tmp_path / "a.h5", TEXTS)
    writer = StoreWriter(tmp_path / "a.h5")
    with pytest.raises(CacheError, match=f"at most {CERTIFICATE_BYTES} fit"):
        writer.write_certificate({"a": "b" * CERTIFICATE_BYTES})
    writer.close()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    create_store(tmp_path / "a.h5", make_manifest(TEXTS))
    one, other = StoreWriter(tmp_path / "a.h5"), StoreWriter(tmp_path / "a.h5")
    with (
        one.locked(),
        pytest.raises(CacheLockedError, match=r"a\.h5' is being written by another process"),
        other.locked(),
    ):
        raise AssertionError("both hold the lock")
    with other.locked():
        pass
    one.close()
    other.close()


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"there is no cache '.*nothing\.h5'"):
        read_layout(tmp_path / "nothing.h5")


def test_a_text_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_text("score,sentence1\n")
    with pytest.raises(CacheError, match=r"a\.h5' is not a readable HDF5 file"):
        read_layout(tmp_path / "a.h5")


def test_a_foreign_hdf5_file_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros(3)
    with pytest.raises(CacheError, match="is an HDF5 file but not an icecore cache"):
        read_layout(tmp_path / "a.h5")


def test_another_schema_is_refused(tmp_path: Path) -> None:
    write_cache(tmp_path / "a.h5", TEXTS)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file.attrs["icecore_schema"] = 7
    with pytest.raises(CacheError, match="has schema 7; this version reads schema 1"):
        read_layout(tmp_path / "a.h5")


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 0.9999])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    write_cache(tmp_path / "a.h5", TEXTS)
    os.truncate(tmp_path / "a.h5", int((tmp_path / "a.h5").stat().st_size * share))
    with pytest.raises(CacheError, match=r"a\.h5' is (not a readable HDF5 file|truncated)"):
        LatentCache(tmp_path / "a.h5")


@pytest.mark.parametrize("how", ["shape", "dtype", "chunked", "missing"])
def test_rewritten_arrays_are_refused(tmp_path: Path, how: str) -> None:
    write_cache(tmp_path / "a.h5", TEXTS)
    name = "latents/mean/block_01"
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        values = file[name][()]
        del file[name]
        if how == "shape":
            file[name] = values[:-1]
        elif how == "dtype":
            file[name] = values.astype(np.float64)
        elif how == "chunked":
            file.create_dataset(name, data=values, chunks=(3, 6))
    named = {
        "shape": r"is \(8, 6\) float32, its manifest says \(9, 6\) float32",
        "dtype": r"is \(9, 6\) float64, its manifest says \(9, 6\) float32",
        "chunked": "array /latents/mean/block_01 .* is not contiguous",
        "missing": "is not a readable HDF5 file .*block_01",
    }
    with pytest.raises(CacheError, match=named[how]):
        read_layout(tmp_path / "a.h5")


def test_an_unknown_storage_dtype_is_refused() -> None:
    identity = replace(make_manifest(TEXTS).identity, storage_dtype="float8")
    with pytest.raises(UnknownNameError, match="unknown storage dtype 'float8': did you mean 'float32'"):
        array_shapes(Manifest(identity))


def test_no_room_up_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        DiskFullError, match=r"no space for cache '.*a\.h5': it needs 0\.1 MB and .* nothing was written"
    ):
        create_store(tmp_path / "a.h5", make_manifest(TEXTS))
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_disk_holds_is_refused_before_hdf5(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match=r"it needs 2,620,000,000\.1 MB"):
        create_store(tmp_path / "a.h5", Manifest(replace(make_manifest(TEXTS).identity, n_rows=10**13)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError("Can't write"), RuntimeError("Unable to flush")])
def test_hdf5_failing_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(h5py.h5d, "create", fail)
    monkeypatch.setattr("extract.store.format.free_bytes", lambda _: 0)  # HDF5 keeps the system's number to itself
    with pytest.raises(DiskFullError, match=r"no space for cache '.*a\.h5'"):
        create_store(tmp_path / "a.h5", make_manifest(TEXTS))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=r"file/a\.h5' cannot be written: (File exists|Not a directory)"):
        create_store(tmp_path / "file" / "a.h5", make_manifest(TEXTS))


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, DiskFullError, "the rows written so far are kept"),
        (errno.EDQUOT, DiskFullError, "the rows written so far are kept"),
        (errno.EIO, CacheError, "cannot be written: Input/output error"),
    ],
)
def test_a_failed_write_leaves_rows_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[CacheError], message: str
) -> None:
    create_store(tmp_path / "a.h5", make_manifest(TEXTS))
    write_some(tmp_path / "a.h5", 2)

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(kind, match=message):
            write_some(tmp_path / "a.h5", 5)
        writer = StoreWriter(tmp_path / "a.h5")
        with pytest.raises(kind, match=message):
            writer.write_certificate({"a": 1})
        writer.close()
    assert LatentCache(tmp_path / "a.h5", allow_partial=True).n_done == 2


def test_short_writes_are_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, view, offset: write(fd, view[:7], offset))
    latents = write_cache(tmp_path / "a.h5", TEXTS)
    assert np.array_equal(LatentCache(tmp_path / "a.h5").layer("block_02", "last").numpy(), latents[2, 1])
