"""The stretches of a word cache in which the words of a split are read, and the reader."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from extract.errors import HeadError
from extract.store.cache import LatentCache
from extract.store.reader import WordPlaces
from probes.latents.channels import Channels

PIECE_WORDS = 256
"""A longer sentence is read in pieces of this many words, so that no sentence decides how much memory is used."""
GAP_WORDS = 64
"""Words of other texts that are read along at most, where reading on is cheaper than looking elsewhere."""

Prepare = Callable[[Tensor], None]
"""Changes latents `(L, W, D)` in place, in the thread that reads them."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """A stretch of the cache that is read at once: places from `start` to before `stop`.

    A piece is a sentence in it, or a part of one: the positions of its words in the split.
    """

    start: int
    stop: int
    pieces: tuple[NDArray[np.int64], ...]

    def __len__(self) -> int:
        """Places that are read."""
        return self.stop - self.start


def plan_chunks(rows: WordPlaces, *, chunk_words: int) -> list[Chunk]:
    """Cut the words of a split into stretches of at most `chunk_words` places, in the order of the file.

    The chunks hold every word with a latent exactly once. Equal sentences are in one chunk, each a piece of its own.
    """
    chunks: list[Chunk] = []
    pieces: list[NDArray[np.int64]] = []
    start = stop = 0
    for piece in _pieces(rows, min(chunk_words, PIECE_WORDS)):
        first, end = int(rows.positions[piece[0]]), int(rows.positions[piece[-1]]) + 1
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


def _pieces(rows: WordPlaces, most_words: int) -> list[NDArray[np.int64]]:
    """Return the words of every sentence, or of a part of it, by their place in the cache.

    A sentence is cut where its words do not follow each other in the cache, as at the seams of windows.
    """
    found, has_latent = [], rows.has_latent
    for begin, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True):
        seams = begin + 1 + np.flatnonzero(np.diff(rows.positions[begin:end]) != 1)
        for first, last in pairwise([begin, *seams, end]):
            parts = (np.arange(at, min(at + most_words, last)) for at in range(first, last, most_words))
            found += [words for part in parts if len(words := part[has_latent[part]])]
    return sorted(found, key=lambda piece: int(rows.positions[piece[0]]))


class WordBatch(NamedTuple):
    """Words by their positions in their split; labels are None where they are to be predicted.

    The batch is valid until the next one is drawn, which takes the same memory.
    """

    latents: Float[Tensor, "L W D"]
    words: Int[Tensor, " W"]
    labels: Int[Tensor, " W"] | None = None


@dataclass(frozen=True)
class Streaming:
    """How much is read at once, and how much is mixed."""

    chunk_words: int = 512
    """Words that are read at once; neighbours in the file."""
    buffer_mb: int = 1024
    """Memory in MB for mixing chunks: one half is trained on while the other is filled."""

    def __post_init__(self) -> None:
        """Refuse sizes below one."""
        for name in ("chunk_words", "buffer_mb"):
            if getattr(self, name) < 1:
                raise HeadError(f"{name} is {getattr(self, name)}; allowed: a whole number of at least 1.")

    def buffer_words(self, cache: LatentCache) -> int:
        """Return how many words are mixed; computed from all layers, so that no choice of them changes the order."""
        word_bytes = 4 * sum(cache.width_of([layer]) for layer in cache.layers)
        return max(self.chunk_words, self.buffer_mb * 2**20 // (2 * word_bytes))


@dataclass(frozen=True, eq=False)
class WordReader:
    """Reads stretches of a word cache into memory that is used again and again."""

    cache: LatentCache
    channels: Channels
    prepare: Prepare | None = None
    """What is done to the latents."""

    def empty(self, n_words: int) -> Float[Tensor, "L W D"]:
        """Reserve memory for latents of a number of words."""
        return torch.empty(len(self.channels.names), n_words, self.cache.width_of(self.channels.layers))

    def read(self, chunk: Chunk, out: Float[Tensor, "L W D"]) -> None:
        """Read a chunk of `W` places, and prepare it."""
        layers = self.channels.layers
        for k, pooling in enumerate(self.channels.poolings):
            part = out[k * len(layers) : (k + 1) * len(layers)]
            self.cache.read(chunk.start, chunk.stop, pooling, layers=layers, out=part)
        if self.prepare is not None:
            self.prepare(out)
