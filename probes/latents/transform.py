"""Read-out transforms of latents for cosines and distances, fitted on training texts or a corpus, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from extract.errors import HeadError, unknown_name
from extract.store.cache import LatentCache
from probes.latents.channels import Channels
from probes.latents.standardise import CHUNK_ROWS, standardise_chunks

TRANSFORMS = {
    "none": "x",
    "centre": "x - mean",
    "standardise": "(x - mean) / standard deviation, dimension by dimension",
    "abtt": "x - mean without its first principal components (All-but-the-Top, arXiv 1702.01417, algorithm 1)",
    "whiten": "(x - mean) U S^-1/2 of the covariance U S U' (arXiv 2103.15316, section 3)",
}
"""Every transform, and its formula."""
LEAST = 1e-8
"""Share of the largest eigenvalue below which a direction has no variance to divide by."""


@dataclass(frozen=True)
class TransformOptions:
    """Which transform, and its parameters."""

    transform: str = "none"
    """A name from `TRANSFORMS`, or several joined by `+`, of which validation chooses one."""
    components: int = 0
    """Principal components that `abtt` removes (0: a hundredth of the width, at least 1) or `whiten` keeps (0: all that
    vary)."""
    shrinkage: float | None = None
    """How far `whiten` draws the covariance towards a multiple of the identity, 0 to 1; null is 0 where there are more
    rows than dimensions, and otherwise Ledoit and Wolf's (2004) estimate."""

    def __post_init__(self) -> None:
        """Refuse unknown transforms and values out of their ranges."""
        split_names("transform", self.transform, TRANSFORMS)
        if self.components < 0:
            raise HeadError(f"components is {self.components}; allowed: a whole number of at least 0.")
        if self.shrinkage is not None and not 0 <= self.shrinkage <= 1:
            raise HeadError(f"shrinkage is {self.shrinkage}; allowed: a number from 0 to 1, or null.")

    @property
    def transforms(self) -> tuple[str, ...]:
        """The transforms to choose from."""
        return tuple(self.transform.split("+"))


def split_names(noun: str, text: str, table: Sequence[str] | dict[str, Any]) -> tuple[str, ...]:
    """Read names of a table joined by `+`, each once; UnknownNameError for another name, HeadError for one twice."""
    names = tuple(text.split("+"))
    for name in names:
        if name not in table:
            raise unknown_name(noun, name, table)
    if len(set(names)) < len(names):
        raise HeadError(f"{noun} is {text!r}; allowed: names joined by '+', each once.")
    return names


@dataclass(frozen=True, eq=False)
class Transform:
    """A fitted transform of `L` layers. `basis` has no columns where the transform needs none."""

    name: str
    mean: Float[Tensor, "L D"]
    scale: Float[Tensor, "L D"]
    basis: Float[Tensor, "L D k"]

    def __call__(self, latents: Float[Tensor, "L N D"]) -> Float[Tensor, "L N E"]:
        """Transform latents of every layer; `E` is `D`, or for `whiten` the number of components kept."""
        if self.name == "none":
            return latents
        centred = (latents - self.mean.unsqueeze(1)) / self.scale.unsqueeze(1)
        if self.name == "abtt":
            return centred - centred @ self.basis @ self.basis.mT
        return centred @ self.basis if self.name == "whiten" else centred

    def of(self, layer: int) -> "Transform":
        """Return the transform of one layer, by its position."""
        here = slice(layer, layer + 1) if layer >= 0 else slice(layer, None)
        return Transform(self.name, self.mean[here], self.scale[here], self.basis[here])


def no_transform(n_layers: int, width: int) -> Transform:
    """Return the transform that changes nothing."""
    return Transform("none", torch.zeros(n_layers, width), torch.ones(n_layers, width), torch.zeros(n_layers, width, 0))


def fit_transform(
    name: str, cache: LatentCache, rows: Tensor, *, channels: Channels, options: TransformOptions
) -> Transform:
    """Fit a transform on rows of a cache, at least two, a layer and a chunk of rows at a time, in float64.

    Raises:
        HeadError: Fewer than two rows, a latent that is not finite, or more components than vary.
    """
    if name == "none":
        return no_transform(len(channels.names), cache.width_of(channels.layers))
    chunks = torch.unique(rows).split(CHUNK_ROWS)
    if sum(map(len, chunks)) < 2:
        raise HeadError(f"transform {name!r} is fitted on {sum(map(len, chunks))} texts; give at least 2.")
    fit = partial(_fit_layer, name, [part for part in chunks if len(part)], cache, options)
    found = [fit(Channels((pooling,), (layer,))) for pooling in channels.poolings for layer in channels.layers]
    most = max(each.basis.shape[2] for each in found)
    bases = [torch.nn.functional.pad(each.basis, (0, most - each.basis.shape[2])) for each in found]
    mean, scale = (torch.cat([getattr(each, key) for each in found]) for key in ("mean", "scale"))
    return Transform(name, mean, scale, torch.cat(bases))


def _fit_layer(
    name: str, chunks: Sequence[Tensor], cache: LatentCache, options: TransformOptions, one: Channels
) -> Transform:
    moments = standardise_chunks(one.gather(cache, chunk) for chunk in chunks)
    mean, width = moments.mean, moments.mean.shape[1]
    if not torch.isfinite(mean).all():
        raise HeadError(
            "a latent is NaN or infinite, so no transform can be fitted; extract again, with dtype float32."
        )
    none = torch.zeros(1, width, 0)
    if name == "standardise":
        return Transform(name, mean, moments.scale, none)
    if name == "centre":
        return Transform(name, mean, torch.ones_like(mean), none)
    gram, fourth, n_rows = torch.zeros(width, width, dtype=torch.float64), 0.0, 0
    for chunk in chunks:
        centred = one.gather(cache, chunk)[0].double() - mean.double()
        gram += centred.T @ centred
        fourth += float(((centred**2).sum(1) ** 2).sum())
        n_rows += len(centred)
    covariance = gram / (n_rows - 1)
    if name == "whiten":
        share = options.shrinkage
        if share is None:
            share = 0.0 if n_rows > width else ledoit_wolf(gram, fourth, n_rows)
        covariance = (1 - share) * covariance + share * covariance.trace() / width * torch.eye(width).double()
    values, vectors = (part.flip(-1) for part in torch.linalg.eigh(covariance))
    n_vary = int((values > LEAST * values[0]).sum()) if values[0] > 0 else 0
    n_kept = options.components or (max(1, width // 100) if name == "abtt" else n_vary)
    if not 0 < n_kept <= n_vary:
        raise HeadError(
            f"transform {name!r} takes {n_kept} components at {one.layers[0]}, but latents of {n_rows} texts vary in "
            f"{n_vary} directions; give fewer components, more texts, or a shrinkage."
        )
    basis = vectors[:, :n_kept] / (values[:n_kept].sqrt() if name == "whiten" else 1.0)
    return Transform(name, mean, torch.ones_like(mean), basis.float()[None])


def ledoit_wolf(gram: Float[Tensor, "D D"], fourth: float, n_rows: int) -> float:
    """Estimate the best shrinkage of a covariance towards a multiple of the identity (Ledoit and Wolf 2004, section 3).

    Args:
        gram: Sum of the outer products of centred rows.
        fourth: Sum of the fourth powers of their norms.
        n_rows: How many rows.
    """
    covariance = gram / n_rows
    level = float(covariance.trace()) / len(covariance)
    squared = float((covariance**2).sum())
    spread = squared - len(covariance) * level**2
    error = (fourth / n_rows - squared) / n_rows
    return max(0.0, min(1.0, error / spread)) if spread > 0 else 0.0
