"""One line search for many problems at once, on logits: a trial costs no product with the features."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes.logistic.design import Targets

SUFFICIENT = 1e-4
MAX_TRIALS = 25
GROWTH = 4.0


@dataclass(frozen=True)
class Ray:
    """The objective of `G` problems along a line.

    Attributes:
        logits: Where the line begins.
        step: Change of the logits per unit of the line.
        value: Float64 objective where the line begins.
        slope: Float64 derivative there; below 0, or 0 for a problem that stays.
        penalty: Float64 coefficients of the penalty: constant, linear, quadratic.
        targets: What the problems should predict.
    """

    logits: Float[Tensor, "G R N"]
    step: Float[Tensor, "G R N"]
    value: Float[Tensor, " G"]
    slope: Float[Tensor, " G"]
    penalty: Float[Tensor, "G 3"]
    targets: Targets

    def select(self, index: Tensor) -> "Ray":
        """Take some of the problems."""
        logits, step, penalty = self.logits[index], self.step[index], self.penalty[index]
        return Ray(logits, step, self.value[index], self.slope[index], penalty, self.targets.select(index))

    def at(self, length: Float[Tensor, " G"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Evaluate: objective and derivative `(G,)` in float64, logits and residuals `(G, R, N)`."""
        logits = torch.addcmul(self.logits, self.step, length.to(self.step.dtype)[:, None, None])
        loss, residual = self.targets.loss(logits)
        constant, linear, quadratic = self.penalty.unbind(1)
        value = loss + constant + length * (linear + length * quadratic)
        slope = dot(residual, self.step).double() + linear + 2 * length * quadratic
        return value, slope, logits, residual


@dataclass
class Landing:
    """Where the line searches ended.

    Attributes:
        length: Float64 step lengths; 0 where none was found.
        value: Float64 objectives.
        logits: Those of the rows there.
        residual: Derivatives of the loss by them.
        is_found: Whether the length satisfies the conditions.
    """

    length: Float[Tensor, " G"]
    value: Float[Tensor, " G"]
    logits: Float[Tensor, "G R N"]
    residual: Float[Tensor, "G R N"]
    is_found: Bool[Tensor, " G"]


def dot(a: Float[Tensor, "G R M"], b: Float[Tensor, "G R M"]) -> Float[Tensor, " G"]:
    """Inner products of two batches of matrices."""
    products: Tensor = torch.linalg.vecdot(a.flatten(1), b.flatten(1))
    return products


def search(ray: Ray, *, curvature: float) -> Landing:
    """Find lengths that satisfy the strong Wolfe conditions, each problem its own; one without stays where it was.

    The objective is convex along the line, so the sign of its derivative brackets the minimum; inside the bracket the
    secant of the derivative is followed. The decrease is asked for up to rounding (Hager and Zhang, 2005, section 3).
    `curvature` is the largest share of the first derivative that may be left.
    """
    slack = 20 * torch.finfo(ray.logits.dtype).eps * ray.value.abs()
    length, low = torch.ones_like(ray.value), torch.zeros_like(ray.value)
    high, low_slope, high_slope = torch.full_like(low, torch.inf), ray.slope.clone(), torch.zeros_like(low)
    value, slope, logits, residual = ray.at(length)
    landing = Landing(length.clone(), value, logits, residual, torch.zeros_like(low, dtype=torch.bool))
    pending, part = torch.arange(len(low), device=low.device), ray
    for _ in range(MAX_TRIALS):
        tried = length[pending]
        is_lower = value <= part.value + SUFFICIENT * tried * part.slope + slack[pending]
        is_found = is_lower & (slope.abs() <= -curvature * part.slope)
        landing.is_found[pending] = is_found
        is_past = slope > 0
        rising, falling = pending[is_past], pending[~is_past]
        high[rising], high_slope[rising] = length[rising], slope[is_past]
        low[falling], low_slope[falling] = length[falling], slope[~is_past]
        pending = pending[~is_found]
        if not len(pending):
            return landing
        bracket = torch.stack([low, high, low_slope, high_slope, ray.slope])
        length[pending] = _next_length(bracket[:, pending])
        part = ray.select(pending)
        value, slope, logits, residual = part.at(length[pending])
        landing.length[pending], landing.value[pending] = length[pending], value
        landing.logits[pending], landing.residual[pending] = logits, residual
    _stay(landing, ray, pending)
    return landing


def _next_length(bracket: Float[Tensor, "5 G"]) -> Float[Tensor, " G"]:
    """Follow the secant of the derivative, inside the bracket or on from its lower end."""
    low, high, low_slope, high_slope, first_slope = bracket
    inside = low + (high - low) * (-low_slope / (high_slope - low_slope)).clamp(0.1, 0.9)
    beyond = low * (first_slope / (first_slope - low_slope)).clamp(1.5, GROWTH)
    # A derivative that does not rise (or falls by rounding) gives no secant: go on by the largest factor.
    beyond = torch.where(low_slope > first_slope, beyond, GROWTH * low)
    return torch.where(torch.isinf(high), beyond, inside)


def _stay(landing: Landing, ray: Ray, pending: Tensor) -> None:
    """Put back the problems for which no length was found."""
    part = ray.select(pending)
    value, _, logits, residual = part.at(torch.zeros_like(part.value))
    landing.length[pending] = 0.0
    landing.value[pending] = value
    landing.logits[pending], landing.residual[pending] = logits, residual
