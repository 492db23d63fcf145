"""What the latents of a cache are of: texts, one a row, or the words of texts; and texts kept beside a cache."""

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt8, UInt64
from numpy.typing import NDArray

from extract.errors import CacheError, CacheIncompleteError, first_line
from extract.files import read_file, unpack, write_file
from extract.inputs.joined_text import WORD_CUT, WORD_LOST, WORD_SHARED, JoinedText, digest_texts, plain_text
from extract.store.format import rows_that_count
from extract.store.reader import StoreReader

if TYPE_CHECKING:
    from extract.store.reader import ShardFiles


Columns = dict[str, Any]
"""Columns of a table: name to an array or list."""


@dataclass(frozen=True, eq=False)
class WordPlaces:
    """Where the words of texts are in a cache."""

    positions: NDArray[np.int64]
    """`(W,)` position of each word in the cache, texts one after the other, words in text order."""
    offsets: NDArray[np.int64]
    """`(N + 1,)` where the words of each text start in `positions`."""
    flags: NDArray[np.uint8]
    """`(W,)` bits `WORD_SHARED` (1), `WORD_CUT` (2) and `WORD_LOST` (4) of `extract.inputs.joined_text`."""

    @property
    def n_words(self) -> int:
        """Number of words."""
        return len(self.positions)

    @property
    def has_latent(self) -> Bool[np.ndarray, " W"]:
        """Whether each word has a latent: it was neither truncated nor lost."""
        return have_latents(self.flags)


class CachedTexts:
    """The texts of a cache: the latent of a text has the position of its row."""

    noun: ClassVar[str] = "row"

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        """Number of latents of every layer."""
        return self.reader.n_rows_of("/rows/digest")

    @cached_property
    def lookup(self) -> "RowLookup":
        """Rows by text."""
        return RowLookup(self.reader)

    def positions_of(self, texts: Sequence[str | JoinedText]) -> Int64[np.ndarray, " B"]:
        """Find the latents of texts, or of all their words where those are stored."""
        return self.lookup.rows(list(map(plain_text, texts)))[0]

    def words_of(self, texts: Sequence[str | JoinedText]) -> WordPlaces:
        """Find the words of texts; `CacheError` where whole texts are stored."""
        del texts
        raise CacheError(f"cache {self.reader.name!r} holds whole texts and no words; ask it with rows_of.")

    @property
    def flags(self) -> UInt8[np.ndarray, " W"]:
        """Bits of `extract.inputs.joined_text` for every word; `CacheError` where whole texts are stored."""
        return self.words_of(()).flags

    @property
    def has_latent(self) -> Bool[np.ndarray, " P"]:
        """Whether each position has a latent."""
        return np.ones(len(self), np.bool_)

    @property
    def keys(self) -> UInt64[np.ndarray, "P 3"]:
        """Two numbers of the digest of each latent's text, and the number of its word, else 0."""
        return np.column_stack([row_keys(self.reader), np.zeros(len(self), np.uint64)])

    @property
    def row_of_latent(self) -> Int64[np.ndarray, " P"]:
        """Row that each latent was read in."""
        return np.arange(len(self))

    def columns(self, positions: NDArray[np.int64] | slice) -> Columns:
        """Describe words; texts need no further columns."""
        del positions
        return {}

    def text_columns(self, texts: Sequence[str | JoinedText]) -> Columns:
        """Write texts into columns with a line for each of their latents."""
        return {"text": list(map(plain_text, texts))}


class CachedWords(CachedTexts):
    """The words of the texts of a cache; a row is a text, or one of the windows that a text was read in."""

    noun = "word"

    def __init__(self, reader: StoreReader, flags: NDArray[np.uint8] | None = None) -> None:
        super().__init__(reader)
        self._flags = flags

    def __len__(self) -> int:
        return self.reader.n_rows_of("/words/flags")

    def positions_of(self, texts: Sequence[str | JoinedText]) -> Int64[np.ndarray, " B"]:
        return self.words_of(texts).positions

    def words_of(self, texts: Sequence[str | JoinedText]) -> WordPlaces:
        rows, counts = self.lookup.rows(texts)
        n_words = self.reader.map("/rows/n_words")[rows].astype(np.int64)
        positions = ranges(self.reader.map("/rows/first_word")[rows], n_words)
        if len(positions) != sum(len(text.spans) for text in texts if isinstance(text, JoinedText)):
            raise CacheIncompleteError(f"cache {self.reader.name!r} is half done and holds only some of these words.")
        ends = np.concatenate([[0], np.cumsum(n_words)])[np.cumsum(counts)]
        return WordPlaces(positions, np.concatenate([[0], ends]), self.flags[positions])

    @property
    def flags(self) -> UInt8[np.ndarray, " W"]:
        return self.reader.map("/words/flags") if self._flags is None else self._flags

    @property
    def has_latent(self) -> Bool[np.ndarray, " P"]:
        return have_latents(self.flags)

    @property
    def keys(self) -> UInt64[np.ndarray, "P 3"]:
        first, start, n_words = self._columns_of_rows("first_word", "word_start", "n_words")
        keys = np.zeros((len(self), 3), np.uint64)
        keys[ranges(first, n_words)] = np.column_stack(
            [np.repeat(row_keys(self.reader), n_words, axis=0), ranges(start, n_words).astype(np.uint64)]
        )
        return keys

    @property
    def row_of_latent(self) -> Int64[np.ndarray, " P"]:
        first, n_words = self._columns_of_rows("first_word", "n_words")
        rows = np.zeros(len(self), np.int64)
        rows[ranges(first, n_words)] = np.repeat(np.arange(len(n_words)), n_words)
        return rows

    def columns(self, positions: NDArray[np.int64] | slice) -> Columns:
        flags, numbers = self.flags[positions], self.keys[positions, 2].astype(np.int64)
        return {"word_number": numbers, "has_latent": have_latents(flags), "is_shared": (flags & WORD_SHARED) != 0}

    def text_columns(self, texts: Sequence[str | JoinedText]) -> Columns:
        words = [(text.text, text.text[a:b]) for text in texts if isinstance(text, JoinedText) for a, b in text.spans]
        return {"text": [text for text, _ in words], "word": [word for _, word in words]}

    def _columns_of_rows(self, *names: str) -> list[Int64[np.ndarray, " N"]]:
        return [self.reader.map(f"/rows/{name}").astype(np.int64) for name in names]


class RowLookup:
    """The rows of a cache by the digests of their texts; rows of one digest are the windows of one text."""

    def __init__(self, reader: StoreReader) -> None:
        self._name = reader.name
        keys = row_keys(reader)
        windows = np.zeros(len(keys), np.int32) if reader.manifest.words is None else reader.map("/rows/word_start")
        shards = reader.shard_of_row
        self._order = np.lexsort((windows, shards, keys[:, 1], keys[:, 0]))
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

    def find(self, texts: Sequence[str | JoinedText]) -> tuple[Int64[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
        """Find the position of each text among the different ones, and whether it is there at all."""
        keys = digest_texts(texts).view(np.uint64)
        group = np.searchsorted(self._keys[:, 0], keys[:, 0]).clip(max=len(self._keys) - 1)
        return group, (self._keys[group] == keys).all(axis=1)

    def rows(self, texts: Sequence[str | JoinedText]) -> tuple[Int64[np.ndarray, " R"], Int[np.ndarray, " N"]]:
        """Find the rows of texts, which may repeat, and how many rows each has; a text in windows has several."""
        group, is_here = self.find(texts)
        if not is_here.all():
            missing = texts[int(np.argmin(is_here))]
            noun = "the text" if isinstance(missing, str) else f"these {len(missing.spans)} words of the text"
            raise CacheError(
                f"cache {self._name!r} does not hold {noun} {plain_text(missing)[:60]!r} "
                f"({int((~is_here).sum())} of {len(texts)} are missing); extract a cache for these texts."
            )
        counts = self._counts[group]
        return self._order[ranges(self._begins[group], counts)], counts


def have_latents(flags: UInt8[np.ndarray, " W"]) -> Bool[np.ndarray, " W"]:
    """Read off the flags of words whether each has a latent: it was neither truncated nor lost."""
    return np.asarray((flags & (WORD_CUT | WORD_LOST)) == 0)


def row_keys(reader: StoreReader) -> UInt64[np.ndarray, "N 2"]:
    """Read the digests of the texts as two numbers each; zeros for rows that do not count."""
    keys, certificate = np.ascontiguousarray(reader.map("/rows/digest")).view(np.uint64), reader.map("/certificate")
    if certificate.any():  # a whole cache
        return keys
    return np.where(rows_that_count(reader.map("/rows/is_done"), certificate)[:, None], keys, np.uint64(0))


def ranges(starts: Int[np.ndarray, " N"], counts: Int[np.ndarray, " N"]) -> Int64[np.ndarray, " M"]:
    """Write out ranges of `counts` values from `starts` on, one after the other.

    Example:
        >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
        [5, 6, 0, 1, 2]
    """
    before = np.cumsum(counts) - counts
    return np.asarray(np.arange(int(counts.sum())) + np.repeat(starts - before, counts))


# Texts kept beside a cache on demand, in a file of their own: arrays are laid out before any text is read.
#
# `x.texts.jsonl.gz` beside `x.h5` has a line of JSON for each text, a string, or a list of text and spans of words. The
# digests in the cache say which row a text is of, and that it is as it was. docs/cache_format.md is the contract.


SUFFIX = ".texts.jsonl.gz"
UNREADABLE = (OSError, EOFError, ValueError, TypeError, IndexError, RecursionError, zlib.error)
"""What reading a damaged file of texts may raise."""


def texts_file(name: str) -> str:
    """Name the file of the texts of a cache or shard by its own."""
    return name.removesuffix(".h5") + SUFFIX


def keep_texts(cache: Path, texts: Sequence[str | JoinedText]) -> None:
    """Write the texts of a cache beside it, unless they are there."""
    path = cache.with_name(texts_file(cache.name))
    lines = [text if isinstance(text, str) else [text.text, list(map(list, text.spans))] for text in texts]
    content = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()
    try:
        if path.is_file() and unpack(read_file(path)) == content:
            return
    except UNREADABLE:
        pass  # damaged: written again
    write_file(path, gzip.compress(content, mtime=0))


def move_texts(cache: Path, to: Path) -> None:
    """Move the texts of a cache, if they are kept, with it."""
    path = cache.with_name(texts_file(cache.name))
    if path.is_file():
        path.replace(to.with_name(texts_file(to.name)))


def remove_cache(path: Path) -> None:
    """Remove a cache with the texts that are kept beside it."""
    for file in (path, path.with_name(texts_file(path.name))):
        file.unlink(missing_ok=True)


def read_kept(files: "ShardFiles", name: str) -> list[str | JoinedText] | None:
    """Read the texts of a cache or shard; None where none are kept, `CacheError` where they cannot be read."""
    file = texts_file(name)
    if not files.exists(file):
        return None
    content = files.read(file)
    try:
        lines = [json.loads(line) for line in unpack(content).decode().split("\n") if line]
        return [_text(line) for line in lines]
    except UNREADABLE as error:
        raise CacheError(
            f"the texts in {file!r} cannot be read ({first_line(error)}); delete the file, and extract again with "
            "store_texts to write it again: latents are kept."
        ) from error


def _text(line: object) -> str | JoinedText:
    if isinstance(line, str):
        return line
    if not isinstance(line, list) or not isinstance(line[0], str):
        raise TypeError(f"{line!r} is no text")
    return JoinedText(line[0], tuple((int(start), int(end)) for start, end in line[1]))
