"""A CRC-32 for every array of every block of rows, written with the rows: finds what changed on the disk since."""

import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extract.errors import CacheError
from extract.store.layout import CERTIFICATE, CHECKSUMS, LatentRange, checked_arrays, rows_that_count
from extract.store.reader import StoreReader


def require_sound(file: StoreReader) -> None:
    """Compare a store with its checksums; one that was written without them passes.

    The result is kept for as long as the file stays as it is, so asking again costs nothing.

    Raises:
        CacheError: Rows, words or the certificate are not what was written.
    """
    stat = file.path.stat()
    problem = _find_damage(file.path, (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    if problem:
        raise CacheError(f"cache {str(file.path)!r} is damaged: {problem}; delete the file and extract again.")


@lru_cache(maxsize=4096)
def _find_damage(path: Path, stamp: tuple[int, ...]) -> str:  # noqa: ARG001
    """Say what in a store is not what was written, if anything; `stamp` tells states of the file apart."""
    file = StoreReader(path)
    if not file.has_checksums:
        return ""
    certificate = file.read("/certificate")
    is_done = rows_that_count(file.read("/rows/is_done"), certificate)
    n_damaged = int(np.count_nonzero(is_done & ~sound_rows(file)))
    if n_damaged:
        return f"{n_damaged} of {int(is_done.sum())} finished rows do not match their checksums"
    if certificate.any() and zlib.crc32(certificate.data) != file.read(CERTIFICATE)[0]:
        return "its certificate does not match its checksum"
    if certificate.any() and not is_done.all():
        return "it has a certificate, but rows are missing"
    return ""


def sound_rows(file: StoreReader) -> NDArray[np.bool_]:
    """Mark the rows in a block whose checksums match, in a store that has checksums."""
    n_rows, sums = file.read(f"{CHECKSUMS}/n_rows"), file.read(f"{CHECKSUMS}/blocks")
    is_sound = np.zeros(len(n_rows), np.bool_)
    for first in np.flatnonzero(n_rows):
        end = int(first) + int(n_rows[first])
        if n_rows[first] > 0 and end <= len(is_sound) and _is_block_sound(file, int(first), end, sums[first]):
            is_sound[first:end] = True
    return is_sound


def _is_block_sound(file: StoreReader, first: int, end: int, sums: NDArray[np.uint32]) -> bool:
    words = _words_of(file, first, end)
    for name, expected in zip(checked_arrays(file.manifest), sums, strict=True):
        start, stop = words if name.startswith("/words/") else (first, end)
        if not 0 <= start <= stop <= file.n_rows_of(name) or zlib.crc32(file.read(name, start, stop).data) != expected:
            return False
    return True


def _words_of(file: StoreReader, first: int, end: int) -> LatentRange:
    if file.manifest.words is None:
        return 0, 0
    start: Any = file.read("/rows/first_word", first, first + 1)[0]
    return int(start), int(start) + int(file.read("/rows/n_words", first, end).sum(dtype=np.int64))
