"""L-BFGS on many problems at once, each with its own steps, and each leaving when it is done."""

from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.logistic.design import Designs
from probes.logistic.history import History
from probes.logistic.line_search import Landing, Ray, dot, search
from probes.logistic.options import SolverOptions

CURVATURE = 0.5
"""Share of the slope that a line search may leave: nearly exact, for its trials are cheap."""
SCALE_CURVATURE = 0.1
PATIENCE = 15
"""Iterations without progress in objective or gradient, after which rounding is all that is left."""
COMPACT_SHARE = 0.1
"""Share of finished problems at which the others are gathered: below it the copy costs more than it saves."""
MARGIN = 0.95
"""Share of `tol` to aim at, so that the gradient recomputed at the end keeps to `tol` too."""


@dataclass(frozen=True)
class Point:
    """Where `G` problems stand.

    Attributes:
        weight: Weights on turned features, intercept last.
        logits: Of every training row.
        gradient: Of the objective.
        value: Float64 objective: summed loss plus half the squared weights over C.
        curvature: Mean curvature `a` of the loss by a logit: `1 / (a energy + 1 / C)` is the first guess of the inverse
            Hessian.
        n_iterations: Iterations so far.
        gap: Float64 decrease still expected, as a share of the objective.
    """

    weight: Float[Tensor, "G R P"]
    logits: Float[Tensor, "G R N"]
    gradient: Float[Tensor, "G R P"]
    value: Float[Tensor, " G"]
    curvature: Float[Tensor, " G"]
    n_iterations: Int[Tensor, " G"]
    gap: Float[Tensor, " G"]

    def select(self, index: Tensor) -> "Point":
        """Take some of the problems."""
        return Point(*(getattr(self, field.name)[index] for field in fields(self)))

    def put(self, index: Tensor, part: "Point") -> None:
        """Write problems back to their places."""
        for field in fields(self):
            getattr(self, field.name)[index] = getattr(part, field.name)


@dataclass
class Progress:
    """What decides when a problem is done.

    Attributes:
        drop: Float64 last decrease as a share of the objective; infinite before the first.
        best: Smallest gradient norm so far.
        n_stale: Iterations without progress.
        is_done: Whether it is done.
    """

    drop: Float[Tensor, " G"]
    best: Float[Tensor, " G"]
    n_stale: Int[Tensor, " G"]
    is_done: Bool[Tensor, " G"]

    @classmethod
    def at_start(cls, point: Point) -> "Progress":
        """Begin."""
        nothing, weight = torch.zeros_like(point.n_iterations), point.weight.new_zeros(len(point.value))
        return cls(point.value + torch.inf, weight + torch.inf, nothing, nothing.bool())

    def select(self, index: Tensor) -> "Progress":
        """Take some of the problems."""
        return Progress(self.drop[index], self.best[index], self.n_stale[index], self.is_done[index])


def minimise(
    designs: Designs, point: Point, history: History, *, ridge: float, options: SolverOptions
) -> tuple[Point, History]:
    """Run L-BFGS until every problem is done, or out of iterations.

    Args:
        designs: The training rows.
        point: Where to begin, its gradient and objective those of this `ridge`.
        history: Steps and gradient changes of this `ridge` that are known, or none.
        ridge: `1 / C`.
        options: When to stop.

    Returns:
        Where every problem ended, and what was learnt of its curvature.
    """
    whole = Point(*(getattr(point, field.name).clone() for field in fields(point)))
    places = torch.arange(len(point.value), device=point.value.device)
    progress, penalty = Progress.at_start(point), penalties(point.weight, ridge)
    for _ in range(options.max_iterations):
        inverse = 1 / (point.curvature[:, None, None] * designs.energy + penalty)
        direction, slope = _descend(history, point.gradient, inverse)
        point = replace(point, gap=-slope / (2 * point.value))
        is_new = _is_done(designs, point, progress, options) & ~progress.is_done
        if bool(is_new.any()):
            _retire(whole, point, history, places=places, is_new=is_new)
            progress.is_done |= is_new
            kept = (~progress.is_done).nonzero()[:, 0]
            if not len(kept):
                return whole, history.reunited()
            if len(kept) <= (1 - COMPACT_SHARE) * len(places):
                places, designs, point = places[kept], designs.select(kept), point.select(kept)
                direction, slope, progress = direction[kept], slope[kept], progress.select(kept)
                history.select(kept)
        direction[progress.is_done], slope[progress.is_done] = 0.0, 0.0
        point = _advance(designs, point, direction, slope=slope, penalty=penalty, state=(history, progress))
    _retire(whole, point, history, places=places, is_new=~progress.is_done)
    return whole, history.reunited()


def _retire(whole: Point, point: Point, history: History, *, places: Tensor, is_new: Bool[Tensor, " G"]) -> None:
    index = is_new.nonzero()[:, 0]
    whole.put(places[index], point.select(index))
    history.retire(places[index], index)


def rescale(designs: Designs, point: Point, *, ridge: float) -> Point:
    """Stretch the weights of another C to where the objective is lowest; the directions hardly change with C.

    Gradient and objective of the point are those of this `ridge` (`1 / C`) already. Problems without weights stay.
    """
    slope = dot(point.gradient, point.weight).double()
    sign = torch.where(slope > 0, -1.0, 1.0).to(point.weight.dtype)[:, None, None]
    ray = _ray(designs, point, sign * point.weight, sign * point.logits, -slope.abs(), penalties(point.weight, ridge))
    landing = search(ray, curvature=SCALE_CURVATURE)
    step = landing.length.to(point.weight.dtype)[:, None, None] * sign * point.weight
    return _land(designs, point, step, landing, penalties(point.weight, ridge))


def penalties(weight: Float[Tensor, "G R P"], ridge: float) -> Float[Tensor, "1 1 P"]:
    """Return the factor of every column's square in the penalty, doubled."""
    penalty = torch.full((1, 1, weight.shape[2]), ridge, dtype=weight.dtype, device=weight.device)
    penalty[..., -1] = 0.0  # the intercept is free
    return penalty


def _descend(history: History, gradient: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Find directions of descent; a problem whose history gives none forgets it."""
    direction = history.direction(gradient, inverse)
    slope = dot(gradient, direction).double()
    is_lost = ~(slope < 0)
    if bool(is_lost.any()):
        history.forget(is_lost)
        direction[is_lost] = (-inverse * gradient)[is_lost]
        slope = dot(gradient, direction).double()
    return direction, slope


def _is_done(designs: Designs, point: Point, progress: Progress, options: SolverOptions) -> Bool[Tensor, " G"]:
    is_still = progress.n_stale >= PATIENCE
    is_close = (point.gap <= options.gap_tol) & (progress.drop <= options.gap_tol)
    # The largest entry is at least the length over the root of the number of entries: most need no exact look.
    floor = point.gradient.flatten(1).norm(dim=1).double() / point.gradient[0].numel() ** 0.5
    is_close &= floor <= options.tol * designs.n_rows
    if bool((is_close & ~progress.is_done).any()):
        is_close &= designs.gradient_norm(point.gradient) <= MARGIN * options.tol
    return is_close | is_still


def _ray(designs: Designs, point: Point, direction: Tensor, step: Tensor, slope: Tensor, penalty: Tensor) -> Ray:
    weighted = penalty * direction
    parts = (dot(penalty * point.weight, point.weight) / 2, dot(weighted, point.weight), dot(weighted, direction) / 2)
    terms = torch.stack([part.double() for part in parts], 1)
    return Ray(point.logits, step, point.value, slope, terms, designs.targets)


def _land(designs: Designs, point: Point, step: Tensor, landing: Landing, penalty: Tensor) -> Point:
    weight = point.weight + step
    gradient = designs.gradient(landing.residual) + penalty * weight
    return replace(point, weight=weight, logits=landing.logits, gradient=gradient, value=landing.value)


def _advance(
    designs: Designs,
    point: Point,
    direction: Float[Tensor, "G R P"],
    *,
    slope: Float[Tensor, " G"],
    penalty: Float[Tensor, "1 1 P"],
    state: tuple[History, Progress],
) -> Point:
    """Take one step of every problem, and learn from it."""
    history, progress = state
    ray = _ray(designs, point, direction, designs.logits(direction), slope, penalty)
    landing = search(ray, curvature=CURVATURE)
    step = landing.length.to(direction.dtype)[:, None, None] * direction
    moved = _land(designs, point, step, landing, penalty)
    change = moved.gradient - point.gradient
    history.push(step, change, usable=landing.is_found)
    history.forget(~landing.is_found)
    # The secant equation gives the one free number of the first guess.
    secant = (dot(step, change) - dot(penalty * step, step)) / dot(designs.energy * step, step)
    is_sound = landing.is_found & (secant > 1e-12) & (secant < 1)
    norm = moved.gradient.flatten(1).norm(dim=1)
    progress.drop = (point.value - moved.value) / moved.value
    eps = torch.finfo(direction.dtype).eps
    is_progress = (progress.drop > eps) | (norm < 0.99 * progress.best)
    progress.n_stale = torch.where(is_progress, 0, progress.n_stale + 1)
    progress.best = torch.minimum(progress.best, norm)
    return replace(
        moved,
        curvature=torch.where(is_sound, secant, point.curvature),
        n_iterations=point.n_iterations + (~progress.is_done).long(),
    )
