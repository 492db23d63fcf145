"""Reading stretches of a word cache into memory that is used again and again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extract.errors import HeadError
from extract.store.cache import LatentCache
from probes.latents.channels import Channels
from probes.latents.chunks import Chunk

Prepare = Callable[[Tensor], None]
"""Changes latents `(L, W, D)` in place, in the thread that reads them."""


class WordBatch(NamedTuple):
    """Words with their latents; valid until the next batch is drawn, which takes the same memory.

    Attributes:
        latents: `(L, W, D)` float32.
        words: `(W,)` int64 positions of the words in their split.
        labels: `(W,)` int64 classes; None where the words are to be predicted.
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
        """Return how many words are mixed; computed from all layers of the cache, so that no choice changes the order.

        Args:
            cache: The cache.

        Returns:
            A number of words, at least one chunk.
        """
        word_bytes = 4 * len(cache.layers) * cache.width
        return max(self.chunk_words, self.buffer_mb * 2**20 // (2 * word_bytes))


@dataclass(frozen=True, eq=False)
class WordReader:
    """Reads stretches of a word cache.

    Attributes:
        cache: The cache.
        channels: Which latents, `L` of them.
        prepare: What is done to them; nothing when None.
    """

    cache: LatentCache
    channels: Channels
    prepare: Prepare | None = None

    def empty(self, n_words: int) -> Float[Tensor, "L W D"]:
        """Reserve memory for latents of a number of words."""
        return torch.empty(len(self.channels.names), n_words, self.cache.width)

    def read(self, chunk: Chunk, out: Float[Tensor, "L W D"]) -> None:
        """Read a chunk, and prepare it.

        Args:
            chunk: The chunk, `W` places long.
            out: Where its latents go.
        """
        layers = self.channels.layers
        for k, pooling in enumerate(self.channels.poolings):
            part = out[k * len(layers) : (k + 1) * len(layers)]
            self.cache.read(chunk.start, chunk.stop, pooling, layers=layers, out=part)
        if self.prepare is not None:
            self.prepare(out)
