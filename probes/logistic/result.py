"""What a fit gives back: weights of every problem, and how well each was solved."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from extract.errors import HeadError


@dataclass(frozen=True)
class ConvergenceReport:
    """How each problem ended.

    Attributes:
        objective: `C * summed log-loss + 0.5 * squared weights`, on standardised features: scikit-learn's.
        gradient_norm: Largest entry of the gradient of that objective over `C` and the total weight of the rows, by
            weights and intercepts: what scikit-learn compares with `tol`. Recomputed from the returned weights.
        gap: Decrease of the objective still expected, as a share of it: half of gradient times quasi-Newton step.
        n_iterations: L-BFGS iterations, from the solution of the next smaller C.
        is_converged: Whether gradient norm and gap are within `tol` and `gap_tol`.
    """

    objective: Float[Tensor, "L C F"]
    gradient_norm: Float[Tensor, "L C F"]
    gap: Float[Tensor, "L C F"]
    n_iterations: Int[Tensor, "L C F"]
    is_converged: Bool[Tensor, "L C F"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name).tolist() for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class LogisticFit:
    """Probes of every layer, C and fold.

    Weights belong to standardised features `(x - mean) / scale`: in raw latents a dimension of large mean would cost
    the intercept its digits. `raw` gives the weights of raw latents in float64.

    Attributes:
        weight: The rows of two classes are opposites, half of scikit-learn's `coef_` each.
        bias: Minus infinity for a class of which a fold has no row.
        mean: Float64.
        scale: Float64.
        Cs: Inverse strengths of the penalty, as they were given.
        report: How each problem ended.
    """

    weight: Float[Tensor, "L C F K D"]
    bias: Float[Tensor, "L C F K"]
    mean: Float[Tensor, "L F D"]
    scale: Float[Tensor, "L F D"]
    Cs: tuple[float, ...]
    report: ConvergenceReport

    def logits(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, "L C B K"]:
        """Score raw latents by the probes of the first fold, every layer and C."""
        mean, scale = self.mean[:, 0, None].to(latents.device), self.scale[:, 0, None].to(latents.device)
        rows = ((latents - mean) / scale).to(self.weight.dtype)
        weight, bias = self.weight[:, :, 0].to(latents.device), self.bias[:, :, 0].to(latents.device)
        return torch.einsum("lbd,lckd->lcbk", rows, weight) + bias[:, :, None]

    def raw(self, layer: int, c: int) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"]]:
        """Give weights and intercepts of a probe of the first fold, for raw latents, in float64."""
        weight = self.weight[layer, c, 0].double() / self.scale[layer, 0]
        return weight, self.bias[layer, c, 0].double() - weight @ self.mean[layer, 0]

    def before(self, mean: Float[Tensor, "L D"], scale: Float[Tensor, "L D"]) -> "LogisticFit":
        """Give the probes, of one fold, for raw latents that were standardised before the fit (as before SMOTE)."""
        if self.mean.shape[1] != 1:
            raise HeadError(
                f"the fit has {self.mean.shape[1]} folds; allowed: 1, whose rows were standardised before. "
                "Fit each fold alone."
            )
        inner, outer = self.mean[:, 0], scale.double()
        return replace(self, mean=(mean.double() + outer * inner)[:, None], scale=(outer * self.scale[:, 0])[:, None])
