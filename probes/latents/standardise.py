"""Per-layer standardisation, fitted on training rows only."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from extract.store.cache import LatentCache
from probes.latents.channels import Channels

CHUNK_ROWS = 1024


@dataclass(frozen=True)
class Standardiser:
    """Mean and scale of every dimension: the standard deviation, or 1 where a dimension is constant."""

    mean: Float[Tensor, "L D"]
    scale: Float[Tensor, "L D"]


def fit_standardiser(cache: LatentCache, rows: Tensor, *, channels: Channels) -> Standardiser:
    """Fit mean and scale of every dimension in one pass over at least two rows, a chunk at a time."""
    chunks = torch.unique(rows).split(CHUNK_ROWS)  # sorted rows read the file in order
    return standardise_chunks(channels.gather(cache, chunk) for chunk in chunks)


def standardise_chunks(chunks: Iterable[Float[Tensor, "L B D"]]) -> Standardiser:
    """Fit mean and scale of every dimension in one pass over chunks of any lengths, at least one, in float64."""
    count = 0
    means, squares = torch.zeros(2, 0)
    for chunk in chunks:
        n_layers, n, width = chunk.shape
        if not count:
            means, squares = torch.zeros(2, n_layers, width, dtype=torch.float64)
        for latents, mean, square in zip(chunk, means, squares, strict=True):  # a layer at a time, for memory
            exact = latents.double()
            chunk_mean = exact.mean(0)
            delta = chunk_mean - mean
            square.add_(((exact - chunk_mean) ** 2).sum(0) + delta**2 * (count * n / (count + n)))
            mean.add_(delta * (n / (count + n)))
        count += n
    scale = (squares / max(count - 1, 1)).sqrt()
    scale = torch.where(scale > 1e-6 * means.abs().clamp(min=1e-6), scale, 1.0)
    return Standardiser(means.float(), scale.float())
