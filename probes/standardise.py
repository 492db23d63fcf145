"""Per-layer standardisation, fitted on training rows only."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from extract.cache import LatentCache
from probes.channels import Channels

CHUNK_ROWS = 1024


@dataclass(frozen=True)
class Standardiser:
    """Mean and scale of every dimension of every layer.

    Attributes:
        mean: `(L, D)` float32.
        scale: `(L, D)` float32, the standard deviation; 1 where a dimension is constant.
    """

    mean: Float[Tensor, "L D"]
    scale: Float[Tensor, "L D"]


def fit_standardiser(cache: LatentCache, rows: Tensor, *, channels: Channels) -> Standardiser:
    """Fit mean and scale of every dimension in one pass over the rows, a chunk at a time.

    Args:
        cache: The cache.
        rows: `(N,)` int64 rows, at least 2.
        channels: The channels, `L` of them.

    Returns:
        The standardiser.
    """
    count = 0
    mean = torch.zeros(len(channels.names), cache.width, dtype=torch.float64)
    squares = torch.zeros_like(mean)
    for chunk in torch.unique(rows).split(CHUNK_ROWS):  # sorted rows read the file in order
        latents = channels.gather(cache, chunk).double()
        n = latents.shape[1]
        chunk_mean = latents.mean(1)
        delta = chunk_mean - mean
        squares += ((latents - chunk_mean.unsqueeze(1)) ** 2).sum(1) + delta**2 * (count * n / (count + n))
        mean += delta * (n / (count + n))
        count += n
    scale = (squares / max(count - 1, 1)).sqrt()
    scale = torch.where(scale > 1e-6 * mean.abs().clamp(min=1e-6), scale, 1.0)
    return Standardiser(mean.float(), scale.float())
