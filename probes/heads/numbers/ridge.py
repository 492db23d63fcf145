"""Ridge regression of one layer, for every strength of the penalty at once, and the probe that is kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extract.errors import HeadError


class RidgeProbe(nn.Module):
    """A linear regression of latents, with the standardisation it was fitted under, in float64.

    Args:
        width: Dimension `D` of a latent.
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        for name in ("weight", "mean", "scale"):
            self.register_buffer(name, torch.zeros(width, dtype=torch.float64))
        self.register_buffer("bias", torch.zeros((), dtype=torch.float64))

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {"width": self.width}

    def forward(self, latents: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """Predict the number of each raw latent."""
        return ((latents.double() - self.mean) / self.scale) @ self.weight + self.bias


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """Ridge regressions of one layer under `A` penalties.

    Attributes:
        weight: `(A, D)` coefficients of standardised features.
        bias: Mean of the gold, which no penalty shrinks.
        mean: `(D,)` means of the features over training rows.
        scale: `(D,)` standard deviations; 1 for a constant feature.
    """

    weight: Float[Tensor, "A D"]
    bias: Float[Tensor, ""]
    mean: Float[Tensor, " D"]
    scale: Float[Tensor, " D"]

    def predict(self, latents: Float[Tensor, "N D"]) -> Float[Tensor, "A N"]:
        """Predict the number of each raw latent under every penalty."""
        return self.weight @ ((latents.double() - self.mean) / self.scale).T + self.bias

    def probe(self, place: int) -> RidgeProbe:
        """Give the probe of one penalty, by its position."""
        probe = RidgeProbe(len(self.mean))
        probe.load_state_dict({"weight": self.weight[place], "bias": self.bias, "mean": self.mean, "scale": self.scale})
        return probe.eval()


def fit_ridge(latents: Float[Tensor, "N D"], gold: Float[Tensor, " N"], alphas: Sequence[float]) -> RidgeFit:
    """Minimise the sum of squared errors plus `alpha` times the squared norm of the weights, for each alpha.

    One singular value decomposition of the standardised features solves all of them.

    Args:
        latents: `(N, D)` raw latents of the training rows.
        gold: `(N,)` numbers.
        alphas: `A` penalties above 0.

    Returns:
        The fits, in float64.

    Raises:
        HeadError: A latent is NaN or infinite.

    Example:
        >>> fit = fit_ridge(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0, 3.0]), (2.0,))
        >>> fit.weight.round(decimals=6).tolist(), round(fit.bias.item(), 6)
        ([[0.5]], 2.0)
    """
    raw, target = latents.double(), gold.double()
    if not torch.isfinite(raw).all():
        raise HeadError("a latent is NaN or infinite, so no probe can be fitted; extract again, with dtype float32.")
    mean = raw.mean(0)
    is_constant = raw.amax(0) == raw.amin(0)  # rounding in the mean must not make a constant vary
    scale = torch.where(is_constant, 1.0, raw.std(0, correction=0))
    left, values, right = torch.linalg.svd((raw - mean) / scale, full_matrices=False)
    bias = target.mean()
    shrunk = values / (values**2 + torch.tensor(alphas, dtype=torch.float64)[:, None])
    return RidgeFit((shrunk * (left.T @ (target - bias))) @ right, bias, mean, scale)
