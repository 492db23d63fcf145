"""Reading the arrays of a cache, from one file or from an index of many shards. Nothing here is POSIX only."""

import errno
import hashlib
import json
import mmap
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from extract.errors import CacheError, IcecoreError, first_line
from extract.files import canonical_json, digest_json, digest_text, write_file
from extract.store.format import (
    CERTIFICATE,
    CHECKSUMS,
    ArrayPlace,
    Layout,
    StoredArray,
    array_shapes,
    checked_arrays,
    read_layout,
    rows_that_count,
)
from extract.store.manifest import CacheIdentity, Manifest, Plain, of_all_texts

INDEX = "index.json"
"""Name of the file, beside the shards."""
INDEX_SCHEMA = 1
NONSENSE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, IcecoreError)
"""What a field of the wrong kind raises."""


@dataclass(frozen=True)
class Shard:
    """One shard: a whole cache file of one window of texts."""

    window: int
    """Which window of the texts."""
    file: str
    """Name beside the index."""
    n_rows: int
    n_words: int
    """0 for whole texts."""
    n_bytes: int
    """Of the file."""
    sha256: str
    """Of the file."""
    text_digest: str
    """As in its identity: the digests of its texts, in the order they were given."""
    n_tokens: int
    n_truncated: int
    layout: Layout
    """Where its arrays are, by HDF5 path."""


@dataclass(frozen=True)
class ShardIndex:
    """What a folder of shards holds."""

    identity: Plain
    """Of every shard, without what depends on its texts."""
    provenance: Plain
    """Of the first shard."""
    window_texts: int
    """Texts of a window, repeats included; the last has fewer."""
    shards: tuple[Shard, ...] = ()
    """Those that are there, by window."""
    is_complete: bool = False
    """Whether they hold all texts."""

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
        words = {"words": {**self.identity["words"], "n_words": n_words}} if "words" in self.identity else {}
        identity = {**self.identity, "n_rows": n_rows, "text_digest": text_digest, **words}
        return Manifest(CacheIdentity.from_plain(identity), self.provenance)

    def find(self, window: int) -> Shard | None:
        """Return the shard of a window, if it is listed."""
        return next((shard for shard in self.shards if shard.window == window), None)

    def with_shard(self, shard: Shard) -> "ShardIndex":
        """List a shard, in place of another of its window; further ones may follow."""
        layout = next((other.layout for other in self.shards if other.layout == shard.layout), shard.layout)
        others = self.without(shard.window)
        shards = sorted([*others.shards, replace(shard, layout=layout)], key=lambda listed: listed.window)
        return replace(others, shards=tuple(shards))

    def without(self, window: int) -> "ShardIndex":
        """Take the shard of a window from the list."""
        shards = tuple(shard for shard in self.shards if shard.window != window)
        return replace(self, shards=shards, is_complete=False)

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
                {name: [array.offset, array.dtype.str, list(array.shape)] for name, array in layout.items()}
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
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CacheError(
            f"{where!r} is no index of shards ({type(error).__name__}); give the {INDEX} that an extraction into "
            "shards wrote, or the folder it is in."
        ) from error
    if schema != INDEX_SCHEMA:
        raise CacheError(f"index {where!r} has schema {schema}; this version reads schema {INDEX_SCHEMA}.")
    if digest_json({key: item for key, item in value.items() if key != "digest"}) != value.get("digest"):
        raise CacheError(
            f"index {where!r} is damaged: it does not match its digest; copy it again, or delete it and extract again."
        )
    try:
        return _read_index(value)
    except NONSENSE as error:
        raise _nonsense(where, error) from error


def _read_index(value: Plain) -> ShardIndex:
    layouts = [
        {name: ArrayPlace(offset, tuple(shape), np.dtype(dtype)) for name, (offset, dtype, shape) in layout.items()}
        for layout in value["layouts"]
    ]
    shards = []
    for item in value["shards"]:
        item.pop("first_row", None)  # for readers in other programs
        for field in fields(Shard):
            if field.name != "layout" and type(item[field.name]) is not field.type:
                raise TypeError(f"{field.name} of a shard is {item[field.name]!r}")
        shards.append(Shard(**{**item, "layout": layouts[item["layout"]]}))
        if item["file"] != shard_file(item["window"]):  # perhaps one outside the folder
            raise ValueError(f"the shard of window {item['window']} is {item['file']!r}")
    return ShardIndex(
        value["identity"], value["provenance"], value["window_texts"], tuple(shards), value["is_complete"]
    )


def require_arrays(index: ShardIndex, *, where: str) -> None:
    """Refuse an index, which may be a stranger's, whose arrays are not those of its identity: `CacheError`."""
    ends: dict[tuple[int, int, int], int] = {}  # bytes that a layout needs
    try:
        for shard in index.shards:
            key = id(shard.layout), shard.n_rows, shard.n_words
            if key not in ends:
                ends[key] = _end_of(index.manifest_of(shard), shard.layout)
            if ends[key] > shard.n_bytes:
                raise ValueError(f"arrays of {shard.file} end at byte {ends[key]} of {shard.n_bytes}")
    except NONSENSE as error:
        raise _nonsense(where, error) from error


def _nonsense(where: str, error: Exception) -> CacheError:
    return CacheError(f"index {where!r} is not valid ({first_line(error)}); delete it and extract again.")


def _end_of(manifest: Manifest, layout: Layout) -> int:
    """Return the byte at which the arrays of a layout end, which must be those of the manifest."""
    for name, expected in array_shapes(manifest).items():
        array = layout[name]
        if type(array.offset) is not int or array.offset < 0 or replace(array, offset=0) != expected:
            raise ValueError(f"array {name} is {array}")
    return max(array.offset + array.n_bytes for array in layout.values())


def shard_file(window: int) -> str:
    """Name the file of the shard of a window."""
    return f"shard-{window:06d}.h5"


def shared_identity(identity: CacheIdentity) -> Plain:
    """Return what the shards of one extraction have in common: the plain identity without what depends on the texts."""
    shared = of_all_texts(identity)
    if identity.words is not None:
        del shared["words"]["n_words"]
    return shared


class StoreReader:
    """Reads the arrays of a cache by their rows; a cache in one file is one shard.

    `layouts` are those of the shards by file name, in the order of the rows, and `name` is for messages. No file is
    held open. A reader can be pickled; another process makes its own maps.
    """

    def __init__(
        self, files: "ShardFiles", manifest: Manifest, layouts: Mapping[str, Layout], *, name: str | Path
    ) -> None:
        self.files, self.manifest, self.name = files, manifest, str(name)
        self.layouts = list(layouts.values())
        self.names = list(layouts)
        self._rows = np.cumsum([0, *(layout["/rows/digest"].shape[0] for layout in self.layouts)])
        n_words = (layout["/words/flags"].shape[0] if "/words/flags" in layout else 0 for layout in self.layouts)
        self._words = np.cumsum([0, *n_words])
        self._maps: dict[str, StoredArray] = {}

    @classmethod
    def of_file(cls, path: Path) -> "StoreReader":
        """Open a cache in one file; raises as `read_layout`."""
        manifest, layout = read_layout(path)
        return cls(LocalFiles(path.parent), manifest, {path.name: layout}, name=path)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_maps": {}}

    @property
    def shard_of_row(self) -> Int[np.ndarray, " N"]:
        """Which shard each row is in."""
        return np.repeat(np.arange(len(self.names), dtype=np.int32), np.diff(self._rows))

    def n_rows_of(self, name: str) -> int:
        """Length of the first axis of an array over all shards."""
        return int(self._starts(name)[-1])

    def map(self, name: str) -> StoredArray:
        """Return a whole array: a copy-on-write map of a single file, else new memory, kept unless it holds latents.

        The first words of rows are counted over all shards.
        """
        if name in self._maps:
            return self._maps[name]
        if len(self.layouts) == 1 and isinstance(self.files, LocalFiles):
            array = self.files.map(self.names[0], self.layouts[0][name])
        else:
            array = self.read(name)
            if name == "/rows/first_word":
                array += np.repeat(self._words[:-1], np.diff(self._rows))
            if name.count("/") == 3:  # /latents/POOLING/LAYER or /words/POOLING/LAYER
                return array
        self._maps[name] = array
        return array

    def read(self, name: str, start: int = 0, stop: int | None = None) -> StoredArray:
        """Read rows of an array, by default all of them, into new memory."""
        array = self._first(name)
        n_rows = self.n_rows_of(name) if stop is None else stop
        rows = np.empty((n_rows - start, *array.shape[1:]), array.dtype)
        self.read_into(rows, name, start)
        return rows

    def read_into(self, buffer: StoredArray, name: str, first: int) -> None:
        """Read the rows of an array from `first` on into contiguous memory of the stored dtype; nothing is mapped."""
        starts, end = self._starts(name), first + len(buffer)
        for k in range(int(np.searchsorted(starts, first, side="right")) - 1, len(starts) - 1):
            start, stop = max(first, int(starts[k])), min(end, int(starts[k + 1]))
            if start >= stop:
                break
            array = self.layouts[k][name]
            view = buffer[start - first : stop - first].view(np.uint8).reshape(-1).data
            self.files.read_into(self.names[k], array.offset + (start - int(starts[k])) * array.row_bytes, view)

    def take(self, names: Sequence[str], rows: Int[np.ndarray, " B"]) -> StoredArray:
        """Gather rows of arrays of one width into new memory `(L, B, D)` of the stored dtype, in any order."""
        starts, array = self._starts(names[0]), self._first(names[0])
        taken = np.empty((len(names), len(rows), *array.shape[1:]), array.dtype)
        if len(rows):
            shards = np.searchsorted(starts, rows, side="right") - 1
            first = np.array([[layout[name].offset for layout in self.layouts] for name in names])
            offsets = first[:, shards] + (rows - starts[shards]) * array.row_bytes
            self.files.take(self.names, shards, offsets, taken)
        return taken

    def _first(self, name: str) -> ArrayPlace:
        """Say where an array is in the first shard."""
        if not self.layouts:
            raise CacheError(f"cache {self.name!r} has no shards yet; run the extraction again to go on.")
        return self.layouts[0][name]

    def _starts(self, name: str) -> Int[np.ndarray, " K"]:
        """Return the row of an array at which each shard begins, and the number of all; a certificate is the first."""
        if name in ("/certificate", CERTIFICATE):
            return np.array([0, *self._first(name).shape])
        return self._words if name.startswith("/words/") else self._rows


MAPPED_BYTES = 2 << 30
"""Bytes of files that gathering leaves mapped: a smaller cache stays mapped whole."""
FAULT_BYTES = 64 << 10
"""Bytes that a touched row is taken to map where the system does not say how many are: with its neighbours."""
MOST_MAPS = 512
"""Files that are mapped at once; each takes a descriptor, of which a process often has no more than 1,024."""
DENSE = 0.25
"""Share of the rows of a range from which on the whole range is read."""
CHUNK = 1 << 22  # bytes read at a time to digest a file


class RowMaps:
    """Read-only maps of files that scattered rows are gathered from.

    Every page that is touched, perhaps one of 2 MB, counts as memory of the process. So pages are released before they
    are many, and training takes no more memory on a larger cache.
    """

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}
        self._n_bytes = self._n_touched = 0

    def __reduce__(self) -> "tuple[type[RowMaps], tuple[()]]":
        return RowMaps, ()

    def map(self, path: Path) -> NDArray[np.uint8]:
        """Map a file whole; no row brings its neighbours from the disk. Raises OSError or ValueError."""
        if path not in self._maps:
            with open_plain(path) as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if hasattr(mmap, "MADV_RANDOM"):
                mapped.madvise(mmap.MADV_RANDOM)
            if len(self._maps) == MOST_MAPS:
                self._n_bytes -= len(self._maps.pop(next(iter(self._maps))))  # closed with the last view of it
            self._maps[path] = mapped
            self._n_bytes += len(mapped)
        return np.frombuffer(self._maps[path], np.uint8)

    def touched(self, n_rows: int) -> None:
        """Release all pages where the rows that were read since may have left too many."""
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
    around = range(int(rows.min()), int(rows.max()) + 1)
    return around if len(rows) >= DENSE * len(around) else None


class LocalFiles:
    """Files of a folder. Scattered rows are read through maps; ranges, and rows close together, with plain reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._maps = RowMaps()

    def read(self, name: str) -> bytes:
        """Read a file whole."""
        with self._open(name) as file:
            return file.read()

    def exists(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        return (self.folder / name).is_file()

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        try:
            return (self.folder / name).stat().st_size
        except OSError as error:
            raise _unreadable(str(self.folder / name), error) from error

    def map(self, name: str, array: ArrayPlace) -> StoredArray:
        """Map an array copy-on-write: bytes are read when they are touched, changing one never changes the file."""
        try:
            return np.memmap(self.folder / name, array.dtype, "c", offset=array.offset, shape=array.shape)
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) == errno.EMFILE:
                raise _unreadable(str(self.folder / name), error) from error
            raise CacheError(
                f"cache {str(self.folder / name)!r} cannot be mapped into memory ({first_line(error)}); copy it to a "
                "disk that allows it, and check the limits of this process."
            ) from error

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
        self, names: list[str], shards: Int[np.ndarray, " B"], offsets: Int[np.ndarray, "L B"], taken: StoredArray
    ) -> None:
        """Fill `taken` with rows; all layers of the rows of one file are gathered at once."""
        width = taken.shape[2]
        row_bytes = width * taken.itemsize
        order = np.argsort(shards, kind="stable")
        for columns in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            name, starts = names[shards[columns[0]]], offsets[:, columns]
            rows = (starts[0] - starts[0].min()) // row_bytes
            dense = dense_range(rows)
            if dense is not None:
                block = np.empty((len(dense), width), taken.dtype)
                for k, first in enumerate(starts.min(axis=1).tolist()):
                    self.read_into(name, first, block.view(np.uint8).reshape(-1).data)
                    taken[k, columns] = block[rows]
                continue
            try:
                raw = self._maps.map(self.folder / name)
            except (OSError, ValueError) as error:
                raise _unreadable(str(self.folder / name), error) from error
            if int(starts.max()) + row_bytes > len(raw):
                raise _cut_short(str(self.folder / name), len(raw))
            # Every row begins at a multiple of `step`, so that one index over overlapping rows names them all.
            step = int(np.gcd.reduce(starts.ravel(), initial=row_bytes))
            values = raw[: len(raw) // taken.itemsize * taken.itemsize].view(taken.dtype)
            shape = ((len(raw) - row_bytes) // step + 1, width)
            overlapping = np.lib.stride_tricks.as_strided(values, shape, (step, taken.itemsize), writeable=False)
            taken[:, columns] = overlapping[starts // step]
            self._maps.touched(starts.size)

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
        content: bytes = self._ask(name, self._system.cat_file)
        return content

    def exists(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        return bool(self._ask(name, self._system.exists))

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        n_bytes: int = self._ask(name, self._system.size)
        return n_bytes

    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        """Fill memory with the bytes of a file from `offset` on, in one request."""
        content = self._ask(name, partial(self._system.cat_file, start=offset, end=offset + len(view)))
        if len(content) != len(view):
            raise _cut_short(f"{self._root}/{name}", offset + len(content))
        view[:] = content

    def take(
        self, names: list[str], shards: Int[np.ndarray, " B"], offsets: Int[np.ndarray, "L B"], taken: StoredArray
    ) -> None:
        """Fill `taken` with rows, all of which are asked for at once."""
        n_bytes = taken.shape[2] * taken.itemsize
        paths = [f"{self._root}/{names[shard]}" for shard in shards] * len(offsets)
        starts = offsets.ravel().tolist()
        rows = self._system.cat_ranges(paths, starts, [start + n_bytes for start in starts], on_error="return")
        for slot, path, row in zip(taken.reshape(-1, taken.shape[2]), paths, rows, strict=True):
            if isinstance(row, Exception):
                raise _unreadable(path, row) from row
            if len(row) != n_bytes:
                raise _cut_short(path, len(row))
            slot[:] = np.frombuffer(row, taken.dtype)

    def _ask(self, name: str, question: Callable[[str], Any]) -> Any:
        try:
            return question(f"{self._root}/{name}")
        except Exception as error:  # every file system has its own
            raise _unreadable(f"{self._root}/{name}", error) from error


ShardFiles = LocalFiles | RemoteFiles


def open_files(folder: str) -> ShardFiles:
    """Open a folder, or an address with `://` in it."""
    return RemoteFiles(folder) if "://" in folder else LocalFiles(Path(folder))


def _unreadable(path: str, error: Exception) -> CacheError:
    if getattr(error, "errno", None) == errno.EMFILE:
        return CacheError(f"cache file {path!r} cannot be opened: this process may open no more files (ulimit -n).")
    return CacheError(f"cache file {path!r} cannot be read ({first_line(error)}); copy it again or extract again.")


def _cut_short(path: str, n_bytes: int) -> CacheError:
    return CacheError(f"cache file {path!r} ends at byte {n_bytes}, inside an array: it was cut short; copy it again.")


def require_sound(path: Path) -> None:
    """Compare a cache in one file with its checksums (`CacheError`); one that was written without them passes.

    The result is kept for as long as the file stays as it is, so asking again costs nothing.
    """
    stat = path.stat()
    problem = _find_damage(path, (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    if problem:
        raise CacheError(f"cache {str(path)!r} is damaged: {problem}; delete the file and extract again.")


@lru_cache(maxsize=4096)
def _find_damage(path: Path, stamp: tuple[int, ...]) -> str:  # noqa: ARG001
    """Say what in a cache is not what was written, if anything; `stamp` distinguishes states of the file."""
    reader = StoreReader.of_file(path)
    if f"{CHECKSUMS}/blocks" not in reader.layouts[0]:
        return ""
    certificate = reader.read("/certificate")
    is_done = rows_that_count(reader.read("/rows/is_done"), certificate)
    n_damaged = int(np.count_nonzero(is_done & ~sound_rows(reader)))
    if n_damaged:
        return f"{n_damaged} of {int(is_done.sum())} finished rows do not match their checksums"
    if certificate.any() and zlib.crc32(certificate.data) != reader.read(CERTIFICATE)[0]:
        return "its certificate does not match its checksum"
    if certificate.any() and not is_done.all():
        return "it has a certificate, but rows are missing"
    return ""


def sound_rows(reader: StoreReader) -> NDArray[np.bool_]:
    """Mark the rows in a block whose checksums match, in a cache that has checksums."""
    n_rows, sums = reader.read(f"{CHECKSUMS}/n_rows"), reader.read(f"{CHECKSUMS}/blocks")
    is_sound = np.zeros(len(n_rows), np.bool_)
    for first in np.flatnonzero(n_rows):
        end = int(first) + int(n_rows[first])
        if n_rows[first] > 0 and end <= len(is_sound) and _is_block_sound(reader, int(first), end, sums[first]):
            is_sound[first:end] = True
    return is_sound


def _is_block_sound(reader: StoreReader, first: int, end: int, sums: NDArray[np.uint32]) -> bool:
    first_word = last_word = 0
    if reader.manifest.words is not None:
        first_word = int(reader.read("/rows/first_word", first, first + 1)[0])
        last_word = first_word + int(reader.read("/rows/n_words", first, end).sum(dtype=np.int64))
    for name, expected in zip(checked_arrays(reader.manifest), sums, strict=True):
        start, stop = (first_word, last_word) if name.startswith("/words/") else (first, end)
        if not 0 <= start <= stop <= reader.n_rows_of(name):
            return False
        if zlib.crc32(reader.read(name, start, stop).data) != expected:
            return False
    return True


def require_shard(files: ShardFiles, shard: Shard, index: ShardIndex, *, where: str) -> None:
    """Refuse a shard whose file, which is read whole, is not what its index lists: `CacheError` names it."""
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


def digest_file(files: ShardFiles, name: str) -> str:
    """Return the SHA-256 of a file, hexadecimal, which reads all of it."""
    digest, size = hashlib.sha256(), files.size(name)
    buffer = memoryview(bytearray(min(CHUNK, size)))
    for start in range(0, size, CHUNK):
        part = buffer[: size - start]
        files.read_into(name, start, part)
        digest.update(part)
    return digest.hexdigest()
