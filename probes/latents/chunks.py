"""Where the words of a split lie in a cache, and the stretches of the cache in which they are read."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Int, UInt8
from numpy.typing import NDArray

PIECE_WORDS = 256
"""A longer sentence is read in pieces of this many words, so that no sentence decides how much memory is used."""
GAP_WORDS = 64
"""Words of other texts that are read along at most, where reading on is cheaper than looking elsewhere."""


@dataclass(frozen=True, eq=False)
class WordRows:
    """The words of one split, sentence after sentence.

    Attributes:
        places: `(W,)` place of each word in the cache; equal sentences have equal places.
        offsets: `(N + 1,)` where each sentence starts in `places`; the last entry is the number of words.
        flags: `(W,)` what befell each word in extraction.
        has_latent: `(W,)` whether the cache holds a latent: False for words that were cut off or lost.
    """

    places: Int[np.ndarray, " W"]
    offsets: Int[np.ndarray, " N_1"]
    flags: UInt8[np.ndarray, " W"]
    has_latent: Bool[np.ndarray, " W"]

    def __len__(self) -> int:
        """Number of sentences."""
        return len(self.offsets) - 1

    @property
    def n_words(self) -> int:
        """Number of words."""
        return len(self.places)


@dataclass(frozen=True, eq=False)
class Chunk:
    """A stretch of the cache that is read at once.

    Attributes:
        start: First place.
        stop: The place after the last.
        pieces: Words that lie in it, by their position in the split: a sentence, or a part of one, each.
    """

    start: int
    stop: int
    pieces: tuple[NDArray[np.int64], ...]

    def __len__(self) -> int:
        """Places that are read."""
        return self.stop - self.start


def plan_chunks(rows: WordRows, *, chunk_words: int) -> list[Chunk]:
    """Cut the words of a split into stretches of the cache, in the order of the file.

    Args:
        rows: The words; those without a latent are left out.
        chunk_words: Places that are read at once, at most; at least 1.

    Returns:
        Chunks that hold every word with a latent exactly once. Equal sentences lie in one chunk, each a piece of its
        own; a sentence whose words all lack a latent is in none.
    """
    chunks: list[Chunk] = []
    pieces: list[NDArray[np.int64]] = []
    start = stop = 0
    for piece in _pieces(rows, min(chunk_words, PIECE_WORDS)):
        first, end = int(rows.places[piece[0]]), int(rows.places[piece[-1]]) + 1
        if pieces and (end - start > chunk_words or first - stop > GAP_WORDS):
            chunks.append(Chunk(start, stop, tuple(pieces)))
            pieces = []
        if not pieces:
            start = stop = first
        pieces.append(piece)
        stop = max(stop, end)
    if pieces:
        chunks.append(Chunk(start, stop, tuple(pieces)))
    return chunks


def _pieces(rows: WordRows, most_words: int) -> Iterator[NDArray[np.int64]]:
    """Return the words of every sentence, or of a part of it, by their place in the cache.

    A sentence is cut where its words do not follow each other in the cache, as at the seams of windows.
    """
    found = []
    for begin, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True):
        seams = begin + 1 + np.flatnonzero(np.diff(rows.places[begin:end]) != 1)
        for first, last in pairwise([begin, *seams, end]):
            parts = (np.arange(at, min(at + most_words, last)) for at in range(first, last, most_words))
            found += [words for part in parts if len(words := part[rows.has_latent[part]])]
    return iter(sorted(found, key=lambda piece: int(rows.places[piece[0]])))
