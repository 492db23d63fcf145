"""The HDF5 store, written so that no kill can harm it.

Every array is laid out and given its disk space before the first row is computed. From then on HDF5 itself is out of
play: rows are written with plain positioned writes into the arrays' places, so the file's structure never changes
again and a kill at any moment leaves a readable file. A row's done flag is written after its data. Several processes
write disjoint rows of one file the same way. docs/cache_format.md is the contract.
"""

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from extract.digest import DIGEST_BYTES
from extract.errors import CacheError, CacheLockedError, DiskFullError, unknown_name
from extract.manifest import SCHEMA, Manifest

STORAGE_DTYPES: dict[str, type[np.generic]] = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
ALIGNMENT = 4096  # bytes; arrays start on page borders, so that views of them are aligned for every dtype
CERTIFICATE_BYTES = 1 << 16
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class ArrayPlace:
    """Where one array lies in the file.

    Attributes:
        offset: First byte.
        shape: Shape; the first axis counts rows.
        dtype: NumPy dtype as stored (bfloat16 as uint16).
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def n_bytes(self) -> int:
        """Bytes of the array."""
        return self.shape[0] * self.row_bytes


def array_shapes(manifest: Manifest) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
    """List the arrays of a store, by their HDF5 path, with shape and stored dtype.

    Args:
        manifest: The manifest; its identity names rows, poolings, layers, width and storage dtype.

    Returns:
        Path to (shape, dtype).

    Raises:
        UnknownNameError: A storage dtype that stands in no table.
    """
    identity = manifest.identity
    storage = identity["storage_dtype"]
    if storage not in STORAGE_DTYPES:
        raise unknown_name("storage dtype", storage, STORAGE_DTYPES)
    n_rows, width = int(identity["n_rows"]), int(identity["decoder"]["width"])
    shapes: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
        f"/latents/{pooling}/{layer}": ((n_rows, width), STORAGE_DTYPES[storage])
        for pooling in identity["poolings"]
        for layer in identity["layers"]
    }
    shapes["/rows/digest"] = ((n_rows, DIGEST_BYTES), np.uint8)
    shapes["/rows/n_tokens"] = ((n_rows,), np.int32)
    shapes["/rows/is_truncated"] = ((n_rows,), np.uint8)
    shapes["/rows/is_done"] = ((n_rows,), np.uint8)
    shapes["/certificate"] = ((CERTIFICATE_BYTES,), np.uint8)
    return shapes


def create_store(path: Path, manifest: Manifest) -> None:
    """Lay out an empty store, all of its disk space reserved, and put it in place in one step.

    Args:
        path: Where the store goes; a store that another process puts there first is left alone.
        manifest: What it will hold.

    Raises:
        DiskFullError: Not enough space; nothing is left behind.
        CacheError: The folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep_leftovers(path)
    draft = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        with draft.open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # tells a living draft from a leftover
            _lay_out(draft, manifest)
            _reserve(draft)
            try:
                os.link(draft, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                draft.replace(path)
    except OSError as error:
        raise _explain(error, path, needed=sum(_size(item) for item in array_shapes(manifest).values())) from error
    finally:
        draft.unlink(missing_ok=True)


def _lay_out(draft: Path, manifest: Manifest) -> None:
    with h5py.File(draft, "w", locking=False, alignment_threshold=1, alignment_interval=ALIGNMENT) as file:
        file.attrs["icecore_schema"] = SCHEMA
        file.attrs["identity"] = manifest.id
        file.attrs["manifest"] = manifest.to_json()
        for name, (shape, dtype) in array_shapes(manifest).items():
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_layout(h5py.h5d.CONTIGUOUS)
            plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            # Latents are not zeroed twice: the done map says which rows count.
            is_latent = name.startswith("/latents/")
            plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER if is_latent else h5py.h5d.FILL_TIME_ALLOC)
            parent = file.require_group(name.rsplit("/", 1)[0] or "/")
            space = h5py.h5s.create_simple(shape)
            made = h5py.h5d.create(
                parent.id, name.rsplit("/", 1)[1].encode(), h5py.h5t.py_create(np.dtype(dtype)), space, plist
            )
            if is_latent:
                h5py.Dataset(made).attrs["dtype"] = manifest.identity["storage_dtype"]


def _reserve(draft: Path) -> None:
    with draft.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        os.fsync(file.fileno())


def _sweep_leftovers(path: Path) -> None:
    for leftover in path.parent.glob(f".{path.name}.new-*"):
        try:
            with leftover.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                leftover.unlink(missing_ok=True)
        except OSError:
            continue  # held by a process that is alive


def _size(item: tuple[tuple[int, ...], type[np.generic]]) -> int:
    shape, dtype = item
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def read_layout(path: Path) -> tuple[Manifest, dict[str, ArrayPlace]]:
    """Read the manifest of a store and where its arrays lie; the file is closed again.

    Args:
        path: The store.

    Returns:
        The manifest and the place of every array by its HDF5 path.

    Raises:
        CacheError: No such file, no HDF5 file, not one of ours, of another schema, or shorter than it should be.
    """
    if not path.is_file():
        raise CacheError(f"there is no cache {str(path)!r}; make it with: icecore extract.")
    try:
        with h5py.File(path, "r", locking=False) as file:
            schema = file.attrs.get("icecore_schema")
            if schema is None:
                raise CacheError(f"{str(path)!r} is an HDF5 file but no icecore cache (no attribute icecore_schema).")
            if schema != SCHEMA:
                raise CacheError(f"cache {str(path)!r} has schema {schema}; this version reads schema {SCHEMA}.")
            manifest = Manifest.from_json(str(file.attrs["manifest"]))
            places = {name: _place(file, name, path) for name in array_shapes(manifest)}
    except (OSError, RuntimeError, KeyError) as error:
        raise CacheError(
            f"{str(path)!r} is no readable HDF5 file ({str(error).splitlines()[0]}); "
            "if it was cut short in copying, copy it again, else delete it and extract anew."
        ) from error
    end = max(place.offset + place.n_bytes for place in places.values())
    if path.stat().st_size < end:
        raise CacheError(
            f"cache {str(path)!r} is truncated: {path.stat().st_size} of {end} bytes; copy it again or extract anew."
        )
    return manifest, places


def _place(file: h5py.File, name: str, path: Path) -> ArrayPlace:
    dataset = file[name]
    offset = dataset.id.get_offset()
    if offset is None:
        raise CacheError(f"array {name} of cache {str(path)!r} is not contiguous; it was rewritten by another program.")
    return ArrayPlace(int(offset), tuple(dataset.shape), dataset.dtype)


class StoreWriter:
    """Writes rows into a laid-out store with positioned writes.

    Args:
        path: The store.

    Raises:
        CacheError: As `read_layout`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest, self._places = read_layout(path)
        self._fd = os.open(path, os.O_RDWR)

    def close(self) -> None:
        """Close the file; a lock held through it ends."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the store for one writing process (or one group of them) until the block ends.

        Raises:
            CacheLockedError: Another process holds it.
        """
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CacheLockedError(
                f"cache {str(self.path)!r} is being written by another process; wait for it, "
                "or stop it and run again (nothing it wrote is lost)."
            ) from error
        try:
            yield
        finally:
            if self._fd >= 0:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def done_rows(self) -> NDArray[np.bool_]:
        """Read the done map: `(N,)` bool."""
        place = self._places["/rows/is_done"]
        raw = os.pread(self._fd, place.n_bytes, place.offset)
        return np.frombuffer(raw, np.uint8).astype(np.bool_)

    def write_rows(
        self, first: int, latents: NDArray[Any], *, poolings: Sequence[str], layers: Sequence[str],
        rows: dict[str, NDArray[Any]],
    ) -> None:  # fmt: skip
        """Write consecutive rows: latents, then what is known of them, then, once that is on disk, the done flags.

        Args:
            first: Position of the first row.
            latents: `(L, P, B, D)` in the stored dtype.
            poolings: Names along `P`.
            layers: Names along `L`.
            rows: `digest` `(B, 16)`, `n_tokens` `(B,)` and `is_truncated` `(B,)`.

        Raises:
            DiskFullError: No space left; rows written before stay done.
            CacheError: Another write error.
        """
        try:
            for k, layer in enumerate(layers):
                for p, pooling in enumerate(poolings):
                    self._write(f"/latents/{pooling}/{layer}", first, latents[k, p])
            for name, values in rows.items():
                self._write(f"/rows/{name}", first, values)
            os.fdatasync(self._fd)
            self._write("/rows/is_done", first, np.ones(latents.shape[2], np.uint8))
        except OSError as error:
            raise _explain(error, self.path, needed=None) from error

    def write_certificate(self, certificate: dict[str, Any]) -> None:
        """Write the certificate, as JSON padded with zero bytes.

        Raises:
            CacheError: It does not fit.
        """
        text = json.dumps(certificate, sort_keys=True).encode()
        if len(text) > CERTIFICATE_BYTES:
            raise CacheError(f"the certificate has {len(text)} bytes; at most {CERTIFICATE_BYTES} fit.")
        self._write("/certificate", 0, np.frombuffer(text.ljust(CERTIFICATE_BYTES, b"\0"), np.uint8))
        os.fdatasync(self._fd)

    def _write(self, name: str, first: int, values: NDArray[Any]) -> None:
        place = self._places[name]
        view = memoryview(np.ascontiguousarray(values, place.dtype)).cast("B")
        offset = place.offset + first * place.row_bytes
        while view:
            written = os.pwrite(self._fd, view, offset)
            view, offset = view[written:], offset + written


def _explain(error: OSError, path: Path, *, needed: int | None) -> CacheError:
    if error.errno not in NO_SPACE:
        return CacheError(f"cache {str(path)!r} cannot be written: {error.strerror}. Check the folder and its rights.")
    free = os.statvfs(path.parent).f_bavail * os.statvfs(path.parent).f_frsize
    need = f"it needs {needed / 1e6:,.1f} MB and " if needed is not None else ""
    kept = "nothing was written" if needed is not None else "the rows written so far are kept"
    return DiskFullError(
        f"no space for cache {str(path)!r}: {need}{free / 1e6:,.1f} MB are free; {kept}. "
        "Free some space (or choose another folder, fewer layers, or storage_dtype float16) and run again to go on."
    )
