"""The files of shards: on a disk, mapped or read by ranges, or at an address that fsspec reads by ranges."""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from extract.errors import CacheError, first_line
from extract.store.reader import RowMaps, dense_range, open_plain

CHUNK = 1 << 22  # bytes read at a time to digest a file


class LocalFiles:
    """Files of a folder. Scattered rows are read through maps; ranges, and rows close together, with plain reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._maps = RowMaps()

    def read(self, name: str) -> bytes:
        """Read a file whole."""
        with self._open(name) as file:
            return file.read()

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        try:
            return (self.folder / name).stat().st_size
        except OSError as error:
            raise _unreadable(str(self.folder / name), error) from error

    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        """Fill memory with the bytes of a file from `offset` on."""
        with self._open(name) as file:
            file.seek(offset)
            while view:
                n_read = file.readinto(view)
                if not n_read:
                    raise _cut_short(str(self.folder / name), self.size(name))
                view = view[n_read:]

    def take(
        self, names: list[str], owners: Int[np.ndarray, " B"], offsets: Int[np.ndarray, "L B"], found: NDArray[Any]
    ) -> None:
        """Fill `found` with rows; all layers of the rows of one file are gathered at once."""
        width = found.shape[2]
        row_bytes = width * found.itemsize
        for where in _groups(owners):
            name, some = names[owners[where[0]]], offsets[:, where]
            places = (some[0] - some[0].min()) // row_bytes
            dense = dense_range(places)
            if dense is not None:
                part = np.empty((len(dense), width), found.dtype)
                for k, first in enumerate(some.min(axis=1).tolist()):
                    self.read_into(name, first, part.view(np.uint8).reshape(-1).data)
                    found[k, where] = part[places]
                continue
            raw = self._map(name)
            if int(some.max()) + row_bytes > len(raw):
                raise _cut_short(str(self.folder / name), len(raw))
            # Every row begins at a multiple of `step`, so that one index over overlapping rows names them all.
            step = int(np.gcd.reduce(some.ravel(), initial=row_bytes))
            values = raw[: len(raw) // found.itemsize * found.itemsize].view(found.dtype)
            shape = ((len(raw) - row_bytes) // step + 1, width)
            rows = np.lib.stride_tricks.as_strided(values, shape, (step, found.itemsize), writeable=False)
            found[:, where] = rows[some // step]
            self._maps.touched(some.size)

    def _map(self, name: str) -> NDArray[np.uint8]:
        try:
            return self._maps.map(self.folder / name)
        except (OSError, ValueError) as error:
            raise _unreadable(str(self.folder / name), error) from error

    def _open(self, name: str) -> FileIO:
        try:
            return open_plain(self.folder / name)
        except OSError as error:
            raise _unreadable(str(self.folder / name), error) from error


class RemoteFiles:
    """Files at an address of any file system that fsspec knows, such as `s3://` or `https://`."""

    def __init__(self, address: str) -> None:
        from fsspec.core import url_to_fs

        try:
            self._system, self._root = url_to_fs(address.rstrip("/"))
        except (ImportError, ValueError) as error:
            raise CacheError(
                f"address {address!r} cannot be opened ({first_line(error)}); install the fsspec package of its "
                "protocol, or copy the shards to a disk."
            ) from error

    def read(self, name: str) -> bytes:
        """Read a file whole."""
        found: bytes = self._ask(name, self._system.cat_file)
        return found

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        found: int = self._ask(name, self._system.size)
        return found

    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        """Fill memory with the bytes of a file from `offset` on, in one request."""
        found = self._ask(name, partial(self._system.cat_file, start=offset, end=offset + len(view)))
        if len(found) != len(view):
            raise _cut_short(self._path(name), offset + len(found))
        view[:] = found

    def take(
        self, names: list[str], owners: Int[np.ndarray, " B"], offsets: Int[np.ndarray, "L B"], found: NDArray[Any]
    ) -> None:
        """Fill `found` with rows, all of which are asked for at once."""
        n_bytes = found.shape[2] * found.itemsize
        paths = [self._path(names[owner]) for owner in owners] * len(offsets)
        starts = offsets.ravel().tolist()
        parts = self._system.cat_ranges(paths, starts, [start + n_bytes for start in starts], on_error="return")
        for slot, path, part in zip(found.reshape(-1, found.shape[2]), paths, parts, strict=True):
            if isinstance(part, Exception):
                raise _unreadable(path, part) from part
            if len(part) != n_bytes:
                raise _cut_short(path, len(part))
            slot[:] = np.frombuffer(part, found.dtype)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _ask(self, name: str, question: Callable[[str], Any]) -> Any:
        try:
            return question(self._path(name))
        except Exception as error:  # every file system has its own
            raise _unreadable(self._path(name), error) from error


ShardFiles = LocalFiles | RemoteFiles


def open_files(place: str) -> ShardFiles:
    """Open a folder, or an address with `://` in it."""
    return RemoteFiles(place) if "://" in place else LocalFiles(Path(place))


def digest_file(files: ShardFiles, name: str) -> str:
    """Return the SHA-256 of a file, hexadecimal, which reads all of it."""
    found, size = hashlib.sha256(), files.size(name)
    buffer = memoryview(bytearray(min(CHUNK, size)))
    for start in range(0, size, CHUNK):
        part = buffer[: size - start]
        files.read_into(name, start, part)
        found.update(part)
    return found.hexdigest()


def _groups(owners: Int[np.ndarray, " B"]) -> Iterator[Int[np.ndarray, " b"]]:
    """Yield the places of each value."""
    order = np.argsort(owners, kind="stable")
    yield from filter(len, np.split(order, np.flatnonzero(np.diff(owners[order])) + 1))


def _unreadable(path: str, error: Exception) -> CacheError:
    return CacheError(f"cache file {path!r} cannot be read ({first_line(error)}); copy it again or extract again.")


def _cut_short(path: str, n_bytes: int) -> CacheError:
    return CacheError(f"cache file {path!r} ends at byte {n_bytes}, inside an array: it was cut short; copy it again.")
