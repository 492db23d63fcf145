"""The arrays of a store, mapped or read, and the rows of texts by their digests. Nothing here is POSIX only."""

import errno
import hashlib
import json
import mmap
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, UInt64
from numpy.typing import NDArray

from extract.errors import CacheError, CacheIncompleteError, IcecoreError, first_line
from extract.files import canonical_json, digest_json, digest_text, write_file
from extract.inputs.joined_text import WORD_CUT, WORD_LOST, JoinedText, digest_texts
from extract.store.format import (
    CERTIFICATE,
    CHECKSUMS,
    ArrayPlace,
    LatentRange,
    array_shapes,
    checked_arrays,
    read_layout,
    rows_that_count,
)
from extract.store.manifest import Manifest, of_all_texts

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
        flags: `(W,)` uint8, bits `WORD_SHARED` (1), `WORD_CUT` (2) and `WORD_LOST` (4) of `extract.inputs.joined_text`.
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


# A CRC-32 for every array of every block of rows, written with the rows: finds what changed on the disk since.


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


# The files of shards: on a disk, mapped or read by ranges, or at an address that fsspec reads by ranges.

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


# The index of shards: what all hold, and where every array of each is; docs/cache_format.md is the contract.

INDEX = "index.json"
INDEX_SCHEMA = 1
NONSENSE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, IcecoreError)
"""What a field of the wrong kind raises."""
Layout = dict[str, ArrayPlace]


@dataclass(frozen=True)
class Shard:
    """One shard: a whole cache file of one window of texts."""

    window: int  # which window of the texts
    file: str  # name beside the index
    n_rows: int
    n_words: int  # 0 for whole texts
    n_bytes: int  # of the file
    sha256: str  # of the file
    text_digest: str  # as in its identity: the digests of its texts, in the order they were given
    n_tokens: int
    n_truncated: int
    layout: Layout  # where its arrays are, by HDF5 path


@dataclass(frozen=True)
class ShardIndex:
    """What a folder of shards holds.

    Attributes:
        identity: That of every shard, without what depends on its texts.
        provenance: That of the first shard.
        window_texts: Texts of a window, repeats included; the last has fewer.
        shards: Those that are there, by window.
        is_complete: Whether they hold all texts.
    """

    identity: dict[str, Any]
    provenance: dict[str, Any]
    window_texts: int
    shards: tuple[Shard, ...] = ()
    is_complete: bool = False

    @property
    def n_rows(self) -> int:
        """Rows of all shards."""
        return sum(shard.n_rows for shard in self.shards)

    @property
    def manifest(self) -> Manifest:
        """The manifest of all shards together; its text digest is over those of the shards."""
        text_digest = digest_text("".join(shard.text_digest for shard in self.shards))
        return self._manifest(self.n_rows, sum(shard.n_words for shard in self.shards), text_digest)

    def manifest_of(self, shard: Shard) -> Manifest:
        """Return the manifest that one shard has."""
        return self._manifest(shard.n_rows, shard.n_words, shard.text_digest)

    def _manifest(self, n_rows: int, n_words: int, text_digest: str) -> Manifest:
        of_texts: dict[str, Any] = {"n_rows": n_rows, "text_digest": text_digest}
        if "words" in self.identity:
            of_texts["words"] = {**self.identity["words"], "n_words": n_words}
        return Manifest({**self.identity, **of_texts}, self.provenance)

    def find(self, window: int) -> Shard | None:
        """Return the shard of a window, if it is listed."""
        return next((shard for shard in self.shards if shard.window == window), None)

    def with_shard(self, shard: Shard) -> "ShardIndex":
        """List a shard, in place of another of its window; further ones may follow."""
        layout = next((each.layout for each in self.shards if each.layout == shard.layout), shard.layout)
        kept = self.without(shard.window)
        shards = sorted([*kept.shards, replace(shard, layout=layout)], key=lambda each: each.window)
        return replace(kept, shards=tuple(shards))

    def without(self, window: int) -> "ShardIndex":
        """Take the shard of a window from the list."""
        kept = tuple(shard for shard in self.shards if shard.window != window)
        return replace(self, shards=kept, is_complete=False)

    def write(self, folder: Path) -> None:
        """Write the index into a folder in one step; raises as `replacing_file`."""
        write_file(folder / INDEX, self.to_json())

    def to_json(self) -> str:
        """Return the index as JSON text, with its own digest."""
        layouts: list[Layout] = []
        shards, first_row = [], 0
        for shard in self.shards:
            if shard.layout not in layouts:
                layouts.append(shard.layout)
            shards.append({**vars(shard), "first_row": first_row, "layout": layouts.index(shard.layout)})
            first_row += shard.n_rows
        value = {
            "icecore_index": INDEX_SCHEMA,
            "is_complete": self.is_complete,
            "n_rows": self.n_rows,
            "window_texts": self.window_texts,
            "identity": self.identity,
            "provenance": self.provenance,
            "layouts": [
                {name: [place.offset, place.dtype.str, list(place.shape)] for name, place in layout.items()}
                for layout in layouts
            ],
            "shards": shards,
        }
        text = canonical_json(value)  # written once for both: it is long, and there is one for every shard
        return f'{text[:-1]},"digest":"{digest_text(text)}"}}'


def parse_index(text: str | bytes, *, where: str) -> ShardIndex:
    """Read an index back from the text of `ShardIndex.to_json`; CacheError names the file `where`."""
    try:
        value = json.loads(text)
        schema = value["icecore_index"]
    except (ValueError, KeyError, TypeError) as error:
        raise CacheError(
            f"{where!r} is no index of shards ({type(error).__name__}); give the {INDEX} that an extraction into "
            "shards wrote, or the folder it is in."
        ) from error
    if schema != INDEX_SCHEMA:
        raise CacheError(f"index {where!r} has schema {schema}; this version reads schema {INDEX_SCHEMA}.")
    if digest_json({key: each for key, each in value.items() if key != "digest"}) != value.get("digest"):
        raise CacheError(
            f"index {where!r} is damaged: it does not match its digest; copy it again, or delete it and extract again."
        )
    try:
        return _read_index(value)
    except NONSENSE as error:
        raise _nonsense(where, error) from error


def _read_index(value: dict[str, Any]) -> ShardIndex:
    layouts = [
        {name: ArrayPlace(offset, tuple(shape), np.dtype(dtype)) for name, (offset, dtype, shape) in layout.items()}
        for layout in value["layouts"]
    ]
    shards = []
    for each in value["shards"]:
        own = {key: item for key, item in each.items() if key != "first_row"}
        shards.append(Shard(**{**own, "layout": layouts[each["layout"]]}))
        if each["file"] != shard_file(each["window"]):  # perhaps one outside the folder
            raise ValueError(f"the shard of window {each['window']} is {each['file']!r}")
    return ShardIndex(
        value["identity"], value["provenance"], value["window_texts"], tuple(shards), value["is_complete"]
    )


def require_arrays(index: ShardIndex, *, where: str) -> None:
    """Refuse an index, which may be a stranger's, whose arrays are not those of its identity: `CacheError`."""
    known: dict[tuple[int, int, int], int] = {}  # bytes that a layout needs
    try:
        for shard in index.shards:
            key = id(shard.layout), shard.n_rows, shard.n_words
            if key not in known:
                known[key] = _end_of(index.manifest_of(shard), shard.layout)
            if known[key] > shard.n_bytes:
                raise ValueError(f"arrays of {shard.file} end at byte {known[key]} of {shard.n_bytes}")
    except NONSENSE as error:
        raise _nonsense(where, error) from error


def _nonsense(where: str, error: Exception) -> CacheError:
    return CacheError(f"index {where!r} says what no index does ({first_line(error)}); delete it and extract again.")


def _end_of(manifest: Manifest, layout: Layout) -> int:
    """Return the byte at which the arrays of a layout end, which must be those that the manifest says."""
    for name, (shape, dtype) in array_shapes(manifest).items():
        place = layout[name]
        if place.shape != shape or place.dtype != dtype or type(place.offset) is not int or place.offset < 0:
            raise ValueError(f"array {name} is {place}")
    return max(place.offset + place.n_bytes for place in layout.values())


def shard_file(window: int) -> str:
    """Name the file of the shard of a window."""
    return f"shard-{window:06d}.h5"


def shared_identity(identity: dict[str, Any]) -> dict[str, Any]:
    """Return what the shards of one extraction have in common: an identity without what depends on the texts."""
    shared = of_all_texts(identity)
    if "words" in identity:
        shared["words"] = {key: each for key, each in identity["words"].items() if key != "n_words"}
    return shared


# The arrays of all shards of an index as those of one store.


def require_shard(files: ShardFiles, shard: Shard, index: ShardIndex, *, where: str) -> None:
    """Refuse a shard whose file is not what its index lists: `CacheError` names it. Reads the file whole."""
    digest = digest_file(files, shard.file)
    if digest == shard.sha256:
        return
    other = next((listed.file for listed in index.shards if listed.sha256 == digest), None)
    if other is not None:
        raise CacheError(
            f"shard {shard.file!r} of cache {where!r} holds what the index lists as {other!r}; give the files their "
            f"own names again, or delete {shard.file!r} and run the extraction again."
        )
    raise CacheError(
        f"shard {shard.file!r} of cache {where!r} is damaged: it is not what the index lists; delete this one file and "
        "run the extraction again."
    )


class ShardsReader(StoreReader):
    """Reads the arrays of shards, one after the other by their rows.

    Opening reads the index alone. `map` reads into new memory, and keeps what is not latents.

    Args:
        place: The folder or address of the index and its shards.
    """

    def __init__(self, place: str) -> None:
        self.path = Path(place)
        self.files = open_files(place)
        self.index = parse_index(self.files.read(INDEX), where=f"{place}/{INDEX}")
        require_arrays(self.index, where=f"{place}/{INDEX}")
        self.manifest = self.index.manifest
        self._maps: dict[str, NDArray[Any]] = {}
        self._names = [shard.file for shard in self.index.shards]
        self._rows = np.cumsum([0, *(shard.n_rows for shard in self.index.shards)])
        self._words = np.cumsum([0, *(shard.n_words for shard in self.index.shards)])

    @property
    def has_checksums(self) -> bool:
        """Always: the index has the SHA-256 of every shard."""
        return True

    @property
    def shard_of_row(self) -> Int[np.ndarray, " N"]:
        """Which shard each row is in."""
        return np.repeat(np.arange(len(self._names), dtype=np.int32), np.diff(self._rows))

    def n_rows_of(self, name: str) -> int:
        """Length of the first axis of an array over all shards."""
        return int(self._starts(name)[-1])

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Read rows of an array, all of them unless told otherwise, into new memory."""
        place = self.index.shards[0].layout[name]
        n_rows = self.n_rows_of(name) if stop is None else stop
        found = np.empty((n_rows - start, *place.shape[1:]), place.dtype)
        self.read_into(found, name, start)
        return found

    def map(self, name: str) -> NDArray[Any]:
        """Read an array into memory; the certificate is that of the first shard."""
        if name == "/certificate":
            return self._read_certificate()
        if name in self._maps:
            return self._maps[name]
        found = self.read(name)
        if name == "/rows/first_word":
            found += np.repeat(self._words[:-1], np.diff(self._rows))
        if name.count("/") < 3:  # no latents
            self._maps[name] = found
        return found

    def read_into(self, buffer: NDArray[Any], name: str, first: int) -> None:
        """Read the rows of an array from `first` on into contiguous memory, one range of each shard.

        Raises:
            CacheError: A shard that is not there or was cut short; names it.
        """
        starts, last = self._starts(name), first + len(buffer)
        for k in range(int(np.searchsorted(starts, first, side="right")) - 1, len(self._names)):
            start, stop = max(first, int(starts[k])), min(last, int(starts[k + 1]))
            if start >= stop:
                break
            place = self.index.shards[k].layout[name]
            view = buffer[start - first : stop - first].view(np.uint8).reshape(-1).data
            self.files.read_into(self._names[k], place.offset + (start - int(starts[k])) * place.row_bytes, view)

    def take(self, names: list[str], rows: Int[np.ndarray, " B"]) -> NDArray[Any]:
        """Gather rows of arrays of one width and dtype into new memory `(L, B, D)`, as they are stored."""
        starts = self._starts(names[0])
        owners = np.searchsorted(starts, rows, side="right") - 1
        layouts = [[shard.layout[name] for shard in self.index.shards] for name in names]
        first = np.array([[place.offset for place in layout] for layout in layouts])
        place = layouts[0][0]
        found = np.empty((len(names), len(rows), *place.shape[1:]), place.dtype)
        if len(rows):
            offsets = first[:, owners] + (rows - starts[owners]) * place.row_bytes
            self.files.take(self._names, owners, offsets, found)
        return found

    def _starts(self, name: str) -> Int[np.ndarray, " K"]:
        return self._words if name.startswith("/words/") else self._rows

    def _read_certificate(self) -> NDArray[Any]:
        if not self._names:
            raise CacheError(f"cache {str(self.path)!r} has no shards yet; run the extraction again to go on.")
        place = self.index.shards[0].layout["/certificate"]
        found = np.empty(place.shape, place.dtype)
        self.files.read_into(self._names[0], place.offset, found.data)
        return found
