"""Where the arrays of a store are in its file; docs/cache_format.md is the contract."""

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from extract.errors import CacheError, DiskFullError, IcecoreError, first_line, looked_in, require_name
from extract.files import DIGEST_BYTES, NO_SPACE, digest_text
from extract.store.manifest import SCHEMA, STORAGE_DTYPES, Manifest
from extract.store.structure import Structure, ask_hdf5, read_structure, seal_structure

WRITTEN, CLOSED = 1, 2
"""Values of the done map: a row that is there, and one whose weights were compared with their digest afterwards."""
CERTIFICATE_BYTES = 1 << 16
DRAFT_SECONDS = 60  # after which the draft of another store is a leftover
ALIGNMENT = 4096  # bytes; arrays start on page borders, so that views of them are aligned for every dtype
STRUCTURE_BYTES = 1 << 20  # more than HDF5 adds to the arrays
CHECKSUMS = "/checksums"
CERTIFICATE = f"{CHECKSUMS}/certificate"


@dataclass(frozen=True)
class ArrayPlace:
    """Where one array is in the file."""

    offset: int
    """First byte."""
    shape: tuple[int, ...]
    """The first axis counts rows."""
    dtype: np.dtype[Any]
    """As stored (bfloat16 as uint16)."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def n_bytes(self) -> int:
        """Bytes of the array."""
        return self.shape[0] * self.row_bytes


StoredArray = NDArray[Any]
"""Rows of an array of a store, of the dtype that its layout says."""
Layout = dict[str, ArrayPlace]
"""Where the arrays of one file are, by HDF5 path."""


def array_shapes(manifest: Manifest) -> Layout:
    """List the arrays of a store with their shapes and stored dtypes, all at offset 0."""
    require_name("storage dtype", manifest.storage_dtype, STORAGE_DTYPES)
    n_rows, n_latents = manifest.n_rows, manifest.n_latents
    arrays: list[tuple[str, tuple[int, ...], str]] = [
        (
            latent_path(manifest, pooling, layer),
            (n_latents, manifest.width(layer)),
            STORAGE_DTYPES[manifest.storage_dtype],
        )
        for pooling in manifest.poolings
        for layer in manifest.layers
    ]
    if manifest.words is not None:
        arrays += [
            ("/words/flags", (n_latents,), "uint8"),
            ("/rows/first_word", (n_rows,), "int64"),
            ("/rows/n_words", (n_rows,), "int32"),
            ("/rows/word_start", (n_rows,), "int32"),
        ]
    arrays += [
        ("/rows/digest", (n_rows, DIGEST_BYTES), "uint8"),
        ("/rows/n_tokens", (n_rows,), "int32"),
        ("/rows/is_truncated", (n_rows,), "uint8"),
    ]
    n_checked = len(arrays)
    arrays += [
        ("/rows/is_done", (n_rows,), "uint8"),
        ("/certificate", (CERTIFICATE_BYTES,), "uint8"),
        (f"{CHECKSUMS}/blocks", (n_rows, n_checked), "uint32"),
        (f"{CHECKSUMS}/n_rows", (n_rows,), "int32"),
        (CERTIFICATE, (1,), "uint32"),
    ]
    return {name: ArrayPlace(0, shape, np.dtype(dtype)) for name, shape, dtype in arrays}


def rows_that_count(done_map: NDArray[np.uint8], certificate: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Read off a done map which rows count; a certificate closes those of caches of earlier versions too."""
    counts: NDArray[np.bool_] = done_map >= (WRITTEN if certificate.any() else CLOSED)
    return counts


def checked_arrays(manifest: Manifest) -> list[str]:
    """List the arrays whose rows have checksums, in the order of the columns of `/checksums/blocks`."""
    return [
        name for name in array_shapes(manifest) if not name.startswith((CHECKSUMS, "/rows/is_done", "/certificate"))
    ]


def latent_path(manifest: Manifest, pooling: str, layer: str) -> str:
    """Name the array of one layer under one pooling: of words where the store holds words, else of texts."""
    return f"/{'latents' if manifest.words is None else 'words'}/{pooling}/{layer}"


def read_layout(path: Path) -> tuple[Manifest, Layout]:
    """Read the manifest of a store and where its arrays are, then close the file."""
    if not path.is_file():
        noun = "a pipe, folder or other special file at" if path.exists() else "no cache"
        raise CacheError(f"there is {noun} {str(path)!r}; make a cache with: icecore extract{looked_in(path)}.")
    try:
        structure = read_structure(path)
        manifest = _read_manifest(structure, path)
        layout = _read_arrays(structure, manifest, path)
    except IcecoreError:
        raise
    except Exception as error:  # h5py raises a dozen unrelated types on a damaged file
        reason = str(error) if isinstance(error, ValueError) else first_line(error)
        raise CacheError(
            f"{str(path)!r} is not a readable HDF5 file ({reason}); "
            "if it was cut short in copying, copy it again, else delete it and extract again."
        ) from error
    end = max(array.offset + array.n_bytes for array in layout.values())
    if path.stat().st_size < end:
        raise CacheError(
            f"cache {str(path)!r} is truncated: {path.stat().st_size} of {end} bytes; copy it again or extract again."
        )
    return manifest, layout


def _read_manifest(structure: Structure, path: Path) -> Manifest:
    if structure.schema is None:
        raise CacheError(f"{str(path)!r} is an HDF5 file but not an icecore cache (no attribute icecore_schema).")
    if structure.schema != SCHEMA:
        raise CacheError(f"cache {str(path)!r} has schema {structure.schema}; this version reads schema {SCHEMA}.")
    text, digest = structure.manifest, structure.manifest_digest
    # Caches of earlier versions have neither a digest of the manifest nor checksums.
    is_whole = (digest is not None) == _has_checksums(structure) and digest in (None, digest_text(text))
    manifest = Manifest.from_json(text) if is_whole else None
    if manifest is None or manifest.id != structure.identity:
        raise CacheError(
            f"the manifest of cache {str(path)!r} is damaged: it does not match its digest; delete the file and "
            "extract again."
        )
    return manifest


def _has_checksums(structure: Structure) -> bool:
    return any(name.startswith(f"{CHECKSUMS}/") for name, *_ in structure.arrays)


def _read_arrays(structure: Structure, manifest: Manifest, path: Path) -> Layout:
    arrays = {name: (offset, shape, np.dtype(dtype)) for name, offset, shape, dtype in structure.arrays}
    layout = {}
    for name, expected in array_shapes(manifest).items():
        if name.startswith(CHECKSUMS) and not _has_checksums(structure):
            continue
        if name not in arrays:
            raise ValueError(f"array {name} is missing")
        offset, shape, dtype = arrays[name]
        if offset is None:
            raise CacheError(
                f"array {name} of cache {str(path)!r} is not contiguous; it was rewritten by another program."
            )
        if (shape, dtype) != (expected.shape, expected.dtype):
            raise CacheError(
                f"array {name} of cache {str(path)!r} is {shape} {dtype}, its manifest says {expected.shape} "
                f"{expected.dtype}; it was rewritten by another program. Delete it and extract again."
            )
        layout[name] = ArrayPlace(offset, shape, dtype)
    return layout


def require_locks() -> None:
    """Refuse to write caches on a system (Windows) that has no POSIX locks: `CacheError`."""
    try:
        import fcntl  # noqa: F401
    except ImportError as error:
        raise CacheError(
            "icecore cannot write caches on this system: that takes POSIX file locks and positioned writes, which "
            "Windows lacks. Extract under WSL 2 or Linux; the cache can then be read here."
        ) from error


@contextmanager
def locked_file(descriptor: int, *, waits: bool = False) -> Iterator[None]:
    """Hold the exclusive lock of an open file until the `with` block ends or the process dies.

    The file may be closed inside the block.
    """
    require_locks()
    import fcntl  # absent on Windows

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError as error:
        raise CacheError(
            f"a cache cannot be written here, because its file system has no file locks ({first_line(error)}); choose "
            "another folder for caches, on a local disk."
        ) from error
    try:
        yield
    finally:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except OSError as error:
            if error.errno != errno.EBADF:  # closing the file released the lock
                raise


def free_bytes(folder: Path) -> int:
    """Return the bytes that this process may still write to a folder, or to its nearest existing parent."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def explain_write_error(error: Exception, path: Path, *, needed: int | None = None) -> CacheError:
    """Build the error for a failed write: a `DiskFullError` if space ran out, else a `CacheError`."""
    number = error.errno if isinstance(error, OSError) else None
    free = free_bytes(path.parent)
    if number not in NO_SPACE and (number or needed is None or free >= needed):
        reason = os.strerror(number) if number else first_line(error)
        return CacheError(f"cache {str(path)!r} cannot be written: {reason}. Check the folder and its permissions.")
    if number == errno.EFBIG:
        return DiskFullError(
            f"cache {str(path)!r} exceeds the file-size limit of this process or of the file system; raise the limit "
            "(ulimit -f), or choose fewer layers or storage_dtype float16, and run again to continue."
        )
    need = f"it needs {needed / 1e6:,.1f} MB and " if needed is not None else ""
    state = "nothing was written" if needed is not None else "the rows written so far are kept"
    return DiskFullError(
        f"no space for cache {str(path)!r}: {need}{free / 1e6:,.1f} MB are free; {state}. "
        "Free some space (or choose another folder, fewer layers, or storage_dtype float16) and run again to continue."
    )


@contextmanager
def explained_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` of writing a file into what `explain_write_error` builds."""
    try:
        yield
    except OSError as error:
        raise explain_write_error(error, path) from error


def draft_path(path: Path) -> Path:
    """Name a new draft of a store, so that nothing can be put in its place before."""
    return path.with_name(f".{path.name}.new-{os.getpid()}-{secrets.token_hex(4)}")


def create_store(path: Path, manifest: Manifest) -> None:
    """Lay out an empty store at `path`, with all of its disk space, in one step that no kill can leave half done.

    A store that another process puts there first is left alone.
    """
    arrays = array_shapes(manifest)
    needed = sum(array.n_bytes for array in arrays.values())
    draft = draft_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep_leftovers(path)
        if free_bytes(path.parent) < needed:  # checked first: HDF5 handles a full disk badly
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with draft.open("xb") as file, locked_file(file.fileno(), waits=True):  # a leftover has no lock
            # Tried first, and sparse: HDF5 ends the process where it meets a limit on the size of files.
            file.truncate(needed + 2 * ALIGNMENT * len(arrays) + STRUCTURE_BYTES)
            _lay_out(draft, manifest)
            offsets = [(name, offset) for name, offset, *_ in ask_hdf5(draft).arrays if offset is not None]
            seal_structure(draft, [(offset, arrays[name].n_bytes) for name, offset in offsets])
            with draft.open("r+b") as whole:
                if hasattr(os, "posix_fallocate"):  # elsewhere a full disk shows when rows are written
                    os.posix_fallocate(whole.fileno(), 0, os.fstat(whole.fileno()).st_size)
                os.fsync(whole.fileno())
            try:
                os.link(draft, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                if not path.exists():
                    draft.replace(path)
    except (OSError, RuntimeError) as error:  # HDF5 raises either
        raise explain_write_error(error, path, needed=needed) from error
    finally:
        with suppress(OSError):
            draft.unlink()


def _lay_out(draft: Path, manifest: Manifest) -> None:
    with h5py.File(draft, "w", locking=False, alignment_threshold=1, alignment_interval=ALIGNMENT) as file:
        file.attrs["icecore_schema"] = SCHEMA
        file.attrs["identity"] = manifest.id
        file.attrs["manifest"] = text = manifest.to_json()
        file.attrs["manifest_digest"] = digest_text(text)
        layers = set(manifest.layers)
        for name, array in array_shapes(manifest).items():
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_layout(h5py.h5d.CONTIGUOUS)
            plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            # Latents are not zeroed: the done map says which rows count.
            is_latent = name.rsplit("/", 1)[1] in layers
            plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER if is_latent else h5py.h5d.FILL_TIME_ALLOC)
            folder, _, last = name.rpartition("/")
            dtype, space = h5py.h5t.py_create(array.dtype), h5py.h5s.create_simple(array.shape)
            dataset = h5py.h5d.create(file.require_group(folder or "/").id, last.encode(), dtype, space, plist)
            if is_latent:
                h5py.Dataset(dataset).attrs["dtype"] = manifest.storage_dtype


def _sweep_leftovers(path: Path) -> None:
    """Remove the drafts that killed processes left in a folder; those of other stores once they have aged.

    A draft is held by its lock, but for a moment after it is made.
    """
    for leftover in path.parent.glob(".*.h5.new-*"):
        is_of_store = leftover.name.startswith(f".{path.name}.new-")
        try:
            if leftover.is_symlink():  # never ours
                leftover.unlink()
                continue
            if not is_of_store and time.time() - leftover.stat().st_mtime < DRAFT_SECONDS:
                continue
            descriptor = os.open(
                leftover, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
            )  # a FIFO would wait for a writer
            with os.fdopen(descriptor, "rb") as file, locked_file(file.fileno()):
                leftover.unlink(missing_ok=True)
        except OSError:
            continue  # held by a process that is alive
