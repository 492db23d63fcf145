"""The arrays of a store, mapped or read, and the rows of texts by their digests. Nothing here is POSIX only."""

import errno
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, UInt64
from numpy.typing import NDArray

from extract.errors import CacheError, CacheIncompleteError, first_line
from extract.inputs.alignment import WORD_CUT, WORD_LOST
from extract.inputs.joined import JoinedText, digest_texts
from extract.store.layout import CHECKSUMS, ArrayPlace, read_layout, rows_that_count

MAPPED_BYTES = 2 << 30
"""Bytes of files that gathering leaves mapped: a smaller cache stays mapped whole."""
FAULT_BYTES = 64 << 10
"""Bytes that a touched row is taken to map where the system does not say how many are: with its neighbours."""
DENSE = 0.25
"""Share of the rows of a range from which on the whole range is read."""


class RowMaps:
    """Read-only maps of files that scattered rows are gathered from.

    Every page that is touched counts as memory of the process, as if it were its own, and a page may be one of 2 MB.
    So pages are let go of before they are many: the system keeps them as long as it has room, and training takes no
    more memory on a larger cache.
    """

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}
        self._n_bytes = self._n_touched = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave the maps behind."""
        return {"_maps": {}, "_n_bytes": 0, "_n_touched": 0}

    def map(self, path: Path) -> NDArray[np.uint8]:
        """Map a file whole; no row brings its neighbours from the disk. Raises OSError or ValueError."""
        if path not in self._maps:
            with open_plain(path) as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if hasattr(mmap, "MADV_RANDOM"):
                mapped.madvise(mmap.MADV_RANDOM)
            self._maps[path] = mapped
            self._n_bytes += len(mapped)
        return np.frombuffer(self._maps[path], np.uint8)

    def touched(self, n_rows: int) -> None:
        """Let go of all pages where the rows that were read since may have left too many."""
        if self._n_bytes <= MAPPED_BYTES or not hasattr(mmap, "MADV_DONTNEED"):
            return
        self._n_touched += n_rows * FAULT_BYTES
        if (_resident_of_files() or self._n_touched) > MAPPED_BYTES:
            self._n_touched = 0
            for mapped in self._maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)


def open_plain(path: Path) -> FileIO:
    """Open a plain file for reading; anything else, such as a pipe that would be waited for, is an `OSError`."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return FileIO(path)


def _resident_of_files() -> int:
    """Return the bytes of files that are resident in this process, on Linux; 0 elsewhere."""
    try:
        with FileIO("/proc/self/statm") as file:
            return int(file.read().split()[2]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


def dense_range(rows: Int[np.ndarray, " B"]) -> range | None:
    """Return the range that rows are in where they are most of it, so that reading it whole is cheaper.

    Example:
        >>> dense_range(np.array([7, 5, 8])), dense_range(np.array([5, 5000]))
        (range(5, 9), None)
    """
    if len(rows) < 2:
        return None
    found = range(int(rows.min()), int(rows.max()) + 1)
    return found if len(rows) >= DENSE * len(found) else None


class StoreReader:
    """Reads the arrays of a laid-out store, which is never held open.

    It can be pickled; another process makes its own maps.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest, self._places = read_layout(path)
        self._maps: dict[str, NDArray[Any]] = {}
        self._row_maps = RowMaps()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the maps behind."""
        return {**self.__dict__, "_maps": {}}

    @property
    def has_checksums(self) -> bool:
        """Whether the store was written with checksums, as those of early versions were not."""
        return f"{CHECKSUMS}/blocks" in self._places

    @property
    def shard_of_row(self) -> Int[np.ndarray, " N"]:
        """Which file each row is in, where there are several."""
        return np.zeros(self.n_rows_of("/rows/digest"), np.int32)

    def n_rows_of(self, name: str) -> int:
        """Length of the first axis of an array."""
        return self._places[name].shape[0]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Read rows of an array, all of them unless told otherwise, into new memory."""
        place = self._places[name]
        n_rows = place.shape[0] if stop is None else stop
        found = np.empty((n_rows - start, *place.shape[1:]), place.dtype)
        self.read_into(found, name, start)
        return found

    def map(self, name: str) -> NDArray[Any]:
        """Map an array copy-on-write: bytes are read when they are touched, changing one never changes the file."""
        if name not in self._maps:
            place = self._places[name]
            try:
                self._maps[name] = np.memmap(self.path, place.dtype, "c", offset=place.offset, shape=place.shape)
            except (OSError, ValueError) as error:
                raise self._unmapped(error) from error
        return self._maps[name]

    def pick(self, name: str, rows: Int[np.ndarray, " B"]) -> NDArray[Any]:
        """Gather rows of an array, in any order, into new memory: what stays resident does not grow with the file."""
        place, dense = self._places[name], dense_range(rows)
        if dense is not None:
            near: NDArray[Any] = self.read(name, dense.start, dense.stop)[rows - dense.start]
            return near
        try:
            raw = self._row_maps.map(self.path)[place.offset : place.offset + place.n_bytes]
            found: NDArray[Any] = raw.view(place.dtype).reshape(place.shape)[rows]
        except (OSError, ValueError) as error:
            raise self._unmapped(error) from error
        self._row_maps.touched(len(rows))
        return found

    def _unmapped(self, error: Exception) -> CacheError:
        return CacheError(
            f"cache {str(self.path)!r} cannot be mapped into memory ({first_line(error)}); copy it to a disk that "
            "allows it, and check the limits of this process."
        )

    def read_into(self, buffer: NDArray[Any], name: str, first: int) -> None:
        """Read the rows of an array from `first` on into contiguous memory of the stored dtype; nothing is mapped.

        Raises:
            CacheError: The file ends before these rows do.
        """
        place: ArrayPlace = self._places[name]
        view = buffer.view(np.uint8).reshape(-1).data
        with self._open() as file:
            file.seek(place.offset + first * place.row_bytes)
            while view:
                n_read = file.readinto(view)
                if not n_read:
                    raise CacheError(
                        f"cache {str(self.path)!r} ends at byte {file.tell()}, inside {name}: it was cut short while "
                        "it was read; copy it again or extract again."
                    )
                view = view[n_read:]

    def _open(self) -> FileIO:
        try:
            return FileIO(self.path)
        except OSError as error:
            raise CacheError(f"cache {str(self.path)!r} cannot be read ({first_line(error)}).") from error


@dataclass(frozen=True, eq=False)
class WordPlaces:
    """Where the words of texts are in a cache.

    Attributes:
        positions: `(W,)` int64 place of each word in the cache, texts one after the other, words in text order.
        offsets: `(N + 1,)` int64 where the words of each text start in `positions`.
        flags: `(W,)` uint8, bits `WORD_SHARED` (1), `WORD_CUT` (2) and `WORD_LOST` (4) of `extract.inputs.alignment`.
    """

    positions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    flags: NDArray[np.uint8]

    @property
    def n_words(self) -> int:
        """Number of words."""
        return len(self.positions)

    @property
    def has_latent(self) -> Bool[np.ndarray, " W"]:
        """Whether each word has a latent: it was neither truncated nor lost."""
        has_latent: NDArray[np.bool_] = (self.flags & (WORD_CUT | WORD_LOST)) == 0
        return has_latent


class RowLookup:
    """The rows of a store by the digests of their texts; rows of one digest are the pieces of one text."""

    def __init__(self, file: StoreReader) -> None:
        self._file = file
        keys = row_keys(file)
        pieces = np.zeros(len(keys), np.int32) if file.manifest.words is None else file.map("/rows/word_start")
        shards = file.shard_of_row
        self._order = np.lexsort((pieces, shards, keys[:, 1], keys[:, 0]))
        self._group(keys)
        # Of a text that is in several shards, the rows of the first count.
        self._order = self._order[shards[self._order] == np.repeat(shards[self._order[self._begins]], self._counts)]
        self._group(keys)

    def _group(self, keys: UInt64[np.ndarray, "N 2"]) -> None:
        """Find where the rows of each text begin in the order, and how many they are."""
        ordered = keys[self._order]
        self._begins = np.flatnonzero(np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1)))
        self._counts = np.diff(np.append(self._begins, len(ordered)))
        self._keys = ordered[self._begins]

    @property
    def n_split(self) -> int:
        """Number of texts that take more than one row."""
        return int(np.count_nonzero(self._counts > 1))

    def rows(self, texts: Sequence[str | JoinedText]) -> tuple[Int[np.ndarray, " R"], Int[np.ndarray, " N"]]:
        """Find all rows of texts, which may repeat; names the first text that is not there.

        Returns:
            The rows, texts one after the other, the pieces of a text in its order; and how many rows each text has.
        """
        keys = digest_texts(texts).view(np.uint64)
        group = np.searchsorted(self._keys[:, 0], keys[:, 0]).clip(max=len(self._keys) - 1)
        is_found = (self._keys[group] == keys).all(axis=1)
        if not is_found.all():
            missing = texts[int(np.argmin(is_found))]
            text = missing if isinstance(missing, str) else missing.text
            what = "the text" if isinstance(missing, str) else f"these {len(missing.spans)} words of the text"
            raise CacheError(
                f"cache {str(self._file.path)!r} does not hold {what} {text[:60]!r} "
                f"({int((~is_found).sum())} of {len(texts)} are missing); extract a cache for these texts."
            )
        counts = self._counts[group]
        return self._order[ranges(self._begins[group], counts)], counts

    def words(self, texts: Sequence[JoinedText]) -> WordPlaces:
        """Find the words of texts in a store that holds words; CacheIncompleteError if some pieces are not done."""
        rows, n_rows = self.rows(texts)
        n_words = self._file.map("/rows/n_words")[rows].astype(np.int64)
        positions = ranges(self._file.map("/rows/first_word")[rows], n_words)
        if len(positions) != sum(len(text.spans) for text in texts):
            raise CacheIncompleteError(
                f"cache {str(self._file.path)!r} is half done and holds only some of these words."
            )
        ends = np.concatenate([[0], np.cumsum(n_words)])[np.cumsum(n_rows)]
        return WordPlaces(positions, np.concatenate([[0], ends]), self._file.map("/words/flags")[positions])


def row_keys(file: StoreReader) -> UInt64[np.ndarray, "N 2"]:
    """Read the digests of the texts as two numbers each; zeros for rows that do not count."""
    keys, certificate = np.ascontiguousarray(file.map("/rows/digest")).view(np.uint64), file.map("/certificate")
    if certificate.any():  # a whole cache
        return keys
    return np.where(rows_that_count(file.map("/rows/is_done"), certificate)[:, None], keys, np.uint64(0))


def place_keys(file: StoreReader) -> UInt64[np.ndarray, "P 3"]:
    """Name the latents of a store: the digest of the text as two numbers, and the number of the word in it, else 0."""
    digests = row_keys(file)
    if file.manifest.words is None:
        return np.column_stack([digests, np.zeros(len(digests), np.uint64)])
    first, start, n_words = (
        file.map(f"/rows/{name}").astype(np.int64) for name in ("first_word", "word_start", "n_words")
    )
    keys = np.zeros((len(file.map("/words/flags")), 3), np.uint64)
    keys[ranges(first, n_words)] = np.column_stack(
        [np.repeat(digests, n_words, axis=0), ranges(start, n_words).astype(np.uint64)]
    )
    return keys


def ranges(starts: Int[np.ndarray, " N"], counts: Int[np.ndarray, " N"]) -> Int[np.ndarray, " M"]:
    """Write out ranges of `counts` values from `starts` on, one after the other.

    Example:
        >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
        [5, 6, 0, 1, 2]
    """
    before = np.cumsum(counts) - counts
    written: NDArray[np.int64] = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return written
