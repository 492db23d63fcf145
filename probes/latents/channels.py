"""Channels: what a head reads of a text, one latent per (pooling, layer); usually the layers of one pooling."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from extract.decoders.layers import select_from
from extract.store.cache import LatentCache
from probes.latents.poolings import JOIN, split_poolings


@dataclass(frozen=True)
class Channels:
    """Which latents of a cache a head reads, in order: every pooling gives all of the layers, bottom up."""

    poolings: tuple[str, ...]
    layers: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the channels: layers, with their pooling in front where there are several."""
        if len(self.poolings) == 1:
            return self.layers
        return tuple(f"{pooling}/{layer}" for pooling in self.poolings for layer in self.layers)

    @property
    def pooling(self) -> str:
        """The poolings as they stand in a config: `mean`, or `mean+last`."""
        return JOIN.join(self.poolings)

    def gather(self, cache: LatentCache, rows: Tensor) -> Float[Tensor, "L B D"]:
        """Gather rows of every channel, `L` being their number."""
        parts = [cache.gather(rows, pooling, layers=self.layers) for pooling in self.poolings]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def channels_of(cache: LatentCache, pooling: str, layers: str | Sequence[str] = "all") -> Channels:
    """Choose channels of a cache; a pooling or layer that it does not have raises `UnknownNameError`."""
    chosen = Channels(split_poolings(pooling), select_from(layers, cache.layers))
    for name in chosen.poolings:
        cache.gather([], name, layers=chosen.layers[:1])  # rejects an unknown pooling
    return chosen
