"""The solutions of a batch of designs for one C after the other."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from probes.logistic.design import Designs
from probes.logistic.history import History
from probes.logistic.lbfgs import Point, minimise, penalties, rescale
from probes.logistic.options import SolverOptions


@torch.no_grad()
def follow_path(designs: Designs, *, Cs: Sequence[float], options: SolverOptions) -> list[Tensor]:
    """Follow the solutions of `G` designs from the smallest C to the largest, all designs at once.

    Returns:
        On the CPU, each `(G, C, ...)` in the order of `Cs`: weights, bias, objective, gradient norm, gap, iterations;
        see `LogisticFit`.
    """
    path: dict[float, tuple[Tensor, ...]] = {}
    point, ridge, history = _origin(designs), 0.0, History(options.history)
    for C in sorted(set(Cs)):
        point, history = _change_ridge(point, by=1 / C - ridge), history.under(penalties(point.weight, 1 / C - ridge))
        ridge = 1 / C
        point = rescale(designs, point, ridge=ridge) if path else point
        start = replace(point, n_iterations=torch.zeros_like(point.n_iterations))
        point, history = minimise(designs, start, history, ridge=ridge, options=options)
        point = _recompute(designs, point, ridge=ridge)
        path[C] = _solution(designs, point, C)
    return [torch.stack(parts, 1).cpu() for parts in zip(*(path[C] for C in Cs), strict=True)]


def _origin(designs: Designs) -> Point:
    """Begin with the intercepts that give each class its share: the minimum as C goes to 0."""
    targets, features = designs.targets, designs.features
    weight = features.new_zeros(len(designs.which), targets.n_outputs, features.shape[2])
    weight[..., -1] = _priors(designs).to(weight.dtype)
    nothing = designs.n_rows.new_zeros(len(weight))
    curvature = features.new_full((len(weight),), 1 / targets.n_classes)
    point = Point(weight, weight, weight, nothing, curvature, nothing.long(), nothing)
    return _recompute(designs, point, ridge=0.0)


def _priors(designs: Designs) -> Float[Tensor, "G R"]:
    logarithms = designs.targets.class_weights().log()
    if designs.targets.n_outputs == 1:
        return logarithms[:, 1:] - logarithms[:, :1]
    is_there = torch.isfinite(logarithms)
    zeroed = torch.where(is_there, logarithms, 0.0)
    return torch.where(is_there, zeroed - (zeroed.sum(1) / is_there.sum(1))[:, None], 0.0)


def _change_ridge(point: Point, *, by: float) -> Point:
    """Return objective and gradient under another penalty, without a product."""
    features = torch.cat([point.weight[..., :-1], torch.zeros_like(point.weight[..., -1:])], -1)
    value = point.value + by / 2 * features.square().sum((1, 2), dtype=torch.float64)
    return replace(point, value=value, gradient=point.gradient + by * features)


def _recompute(designs: Designs, point: Point, *, ridge: float) -> Point:
    """Compute logits, objective and gradient from the weights, without what rounding added up on the way."""
    logits = designs.logits(point.weight)
    value, residual = designs.targets.loss(logits)
    plain = replace(point, logits=logits, value=value, gradient=designs.gradient(residual))
    return _change_ridge(plain, by=ridge)


def _solution(designs: Designs, point: Point, C: float) -> tuple[Tensor, ...]:
    """Turn one C's weights back, and say how well each problem was solved."""
    weight, bias = designs.unrotated(point.weight), point.weight[..., -1]
    if designs.targets.n_outputs == 1:
        weight, bias = (torch.cat([-part, part], 1) / 2 for part in (weight, bias))
    elif designs.targets.offset is not None:
        bias = bias + designs.targets.offset[..., 0]
    # Once in float64: a well-separated row's loss is far below what float32 keeps beside 1.
    loss, _ = designs.targets.loss(point.logits.double())
    half_square = point.weight[..., :-1].square().sum((1, 2), dtype=torch.float64) / 2
    return weight, bias, C * loss + half_square, designs.gradient_norm(point.gradient), point.gap, point.n_iterations
