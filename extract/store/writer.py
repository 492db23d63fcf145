"""Writing rows into a store such that no kill can damage it.

Every array is laid out and given its disk space before the first row is computed. After that HDF5 writes nothing:
rows go into the arrays with positioned writes, so the file's structure never changes again and a kill at any moment
leaves a readable file. A row is marked as written after its data, and as done once the weights that computed it were
compared with their digest. Several processes write disjoint rows of one file the same way. POSIX only.
docs/cache_format.md is the contract, docs/decisions/hdf5-writes.md says why.
"""

import glob
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from extract.errors import CacheError, CacheLockedError
from extract.store.format import (
    CERTIFICATE,
    CERTIFICATE_BYTES,
    CHECKSUMS,
    CLOSED,
    WRITTEN,
    StoredArray,
    checked_arrays,
    explained_errors,
    latent_path,
    locked_file,
    read_layout,
    rows_that_count,
)
from extract.store.manifest import Plain

_sync = getattr(os, "fdatasync", os.fsync)  # not every system has the cheaper one


class StoreWriter:
    """Writes rows into a laid-out store with positioned writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest, self._layout = read_layout(path)
        with explained_errors(path):
            self._fd = os.open(path, os.O_RDWR)
        for draft in path.parent.glob(f".{glob.escape(path.name)}.new-*"):  # a kill left the store its first name
            with suppress(OSError):
                if draft.samefile(path) and not draft.is_symlink():
                    draft.unlink()

    def close(self) -> None:
        """Close the file; a lock held through it ends."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the store for one writing process (or one group of them) until the block ends."""
        try:
            with locked_file(self._fd):
                yield
        except BlockingIOError as error:
            raise CacheLockedError(
                f"cache {str(self.path)!r} is being written by another process; wait for it, "
                "or stop it and run again (nothing it wrote is lost)."
            ) from error

    def done_rows(self) -> NDArray[np.bool_]:
        """Read which rows count."""
        return rows_that_count(self._read("/rows/is_done"), self._read("/certificate"))

    def write_rows(
        self,
        first: int,
        latents: StoredArray | Sequence[Sequence[StoredArray]],
        *,
        rows: dict[str, StoredArray],
        words: tuple[int, NDArray[np.uint8]] | None = None,
    ) -> None:
        """Write consecutive rows: latents, then the columns of the rows, then, once both are on disk, a mark.

        They count from `close_rows` on.
        """
        start = first if words is None else words[0]
        arrays = [
            (latent_path(self.manifest, pooling, layer), start, latents[k][p][:, : self.manifest.width(layer)])
            for k, layer in enumerate(self.manifest.layers)
            for p, pooling in enumerate(self.manifest.poolings)
        ]
        if words is not None:
            arrays.append(("/words/flags", start, words[1]))
        arrays += [(f"/rows/{name}", first, values) for name, values in rows.items()]
        n_rows = len(rows["digest"])
        with explained_errors(self.path):
            sums = {name: self._write(name, start, values) for name, start, values in arrays}
            if f"{CHECKSUMS}/blocks" in self._layout:  # a store that an earlier version laid out has no arrays for them
                ordered = np.array([[sums[name] for name in checked_arrays(self.manifest)]], np.uint32)
                self._write(f"{CHECKSUMS}/blocks", first, ordered)
                self._write(f"{CHECKSUMS}/n_rows", first, np.array([n_rows], np.int32))
            _sync(self._fd)
            self._write("/rows/is_done", first, np.full(n_rows, WRITTEN, np.uint8))

    def write_certificate(self, certificate: Plain) -> None:
        """Write the certificate, as JSON padded with zero bytes."""
        text = json.dumps(certificate, sort_keys=True).encode()
        if len(text) > CERTIFICATE_BYTES:
            raise CacheError(f"the certificate has {len(text)} bytes; at most {CERTIFICATE_BYTES} fit.")
        with explained_errors(self.path):
            crc = self._write("/certificate", 0, np.frombuffer(text.ljust(CERTIFICATE_BYTES, b"\0"), np.uint8))
            if CERTIFICATE in self._layout:
                self._write(CERTIFICATE, 0, np.array([crc], np.uint32))
            _sync(self._fd)

    def close_rows(self, first: int, n_rows: int) -> None:
        """Let consecutive rows that were written count."""
        self._write("/rows/is_done", first, np.full(n_rows, CLOSED, np.uint8))

    def _read(self, name: str) -> NDArray[np.uint8]:
        array = self._layout[name]
        return np.frombuffer(os.pread(self._fd, array.n_bytes, array.offset), np.uint8)

    def _write(self, name: str, first: int, values: StoredArray) -> int:
        """Write rows of an array and return the CRC-32 of their bytes."""
        array = self._layout[name]
        view = np.ascontiguousarray(values, array.dtype).view(np.uint8).reshape(-1).data
        offset, crc = array.offset + first * array.row_bytes, zlib.crc32(view)
        while view:
            written = os.pwrite(self._fd, view, offset)
            view, offset = view[written:], offset + written
        return crc
