"""Multinomial L2 logistic regression of every layer, C and fold at once."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from math import ceil

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from extract.errors import HeadError
from probes.logistic.problem import (
    ConvergenceReport,
    Designs,
    LogisticFit,
    SolverOptions,
    Targets,
    build_design,
    check_codes,
    check_finite,
    check_strengths,
    check_weights,
    standardise_rows,
)

SUFFICIENT = 1e-4
MAX_TRIALS = 25
GROWTH = 4.0


@dataclass(frozen=True)
class Ray:
    """The objective of `G` problems along a line."""

    logits: Float[Tensor, "G R N"]
    """Where the line begins."""
    step: Float[Tensor, "G R N"]
    """Change of the logits per unit of the line."""
    value: Float[Tensor, " G"]
    """Float64 objective where the line begins."""
    slope: Float[Tensor, " G"]
    """Float64 derivative there; below 0, or 0 for a problem that stays."""
    penalty: Float[Tensor, "G 3"]
    """Float64 coefficients of the penalty: constant, linear, quadratic."""
    targets: Targets
    """What the problems should predict."""

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
    """Where the line searches ended."""

    length: Float[Tensor, " G"]
    """Float64 step lengths; 0 for a problem without one."""
    value: Float[Tensor, " G"]
    """Float64 objectives."""
    logits: Float[Tensor, "G R N"]
    """Those of the rows there."""
    residual: Float[Tensor, "G R N"]
    """Derivatives of the loss by them."""
    is_found: Bool[Tensor, " G"]
    """Whether the length satisfies the conditions."""


def dot(a: Float[Tensor, "G R M"], b: Float[Tensor, "G R M"]) -> Float[Tensor, " G"]:
    """Inner products of two batches of matrices."""
    if a.device.type == "cpu":  # where the batched form writes all products down before it sums them
        pairs = zip(a.flatten(1), b.flatten(1), strict=True)
        return torch.stack([torch.dot(x, y) for x, y in pairs])
    products: Tensor = torch.linalg.vecdot(a.flatten(1), b.flatten(1))
    return products


def search(ray: Ray, *, curvature: float) -> Landing:
    """Find a length for each problem that satisfies the strong Wolfe conditions; a problem without one stays.

    Trials cost no product with the features. The sign of the derivative brackets the minimum, inside which the search
    follows the secant. The decrease is required up to rounding (Hager and Zhang, 2005, section 3).
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
    # without a secant, because the derivative does not rise, go on by the largest factor
    beyond = torch.where(low_slope > first_slope, beyond, GROWTH * low)
    return torch.where(torch.isinf(high), beyond, inside)


def _stay(landing: Landing, ray: Ray, pending: Tensor) -> None:
    """Put back the problems without a length."""
    part = ray.select(pending)
    value, _, logits, residual = part.at(torch.zeros_like(part.value))
    landing.length[pending] = 0.0
    landing.value[pending] = value
    landing.logits[pending], landing.residual[pending] = logits, residual


Pair = tuple[Tensor, Tensor, Tensor]


@dataclass
class History:
    """The last steps and gradient changes of `G` problems."""

    limit: int
    """Most pairs."""
    pairs: list[Pair] = field(default_factory=list)
    """Oldest first: step and gradient change, each `(G, R, P)`, and `(G,)` 1 over their product, or 0 where a problem
    has no usable pair."""
    retired: dict[int, list[Pair]] = field(default_factory=dict)
    """Pairs of problems that are done, by their number."""

    def push(self, step: Float[Tensor, "G R P"], change: Float[Tensor, "G R P"], *, usable: Bool[Tensor, " G"]) -> None:
        """Remember a pair."""
        self.pairs = [*self.pairs, (step, change, _inverse_product(step, change) * usable)][-self.limit :]

    def forget(self, which: Bool[Tensor, " G"]) -> None:
        """Forget the pairs of some problems."""
        for _, _, weight in self.pairs:
            weight[which] = 0.0

    def retire(self, numbers: Int[Tensor, " A"], index: Int[Tensor, " A"]) -> None:
        """Move the pairs of finished problems to `retired`, under their numbers."""
        for number, i in zip(numbers.tolist(), index.tolist(), strict=True):
            # clones, because a view would keep the pairs of all its neighbours in memory
            self.retired[number] = [(s[i].clone(), y[i].clone(), weight[i].clone()) for s, y, weight in self.pairs]

    def select(self, index: Int[Tensor, " A"]) -> None:
        """Keep some of the problems."""
        self.pairs = [(step[index], change[index], weight[index]) for step, change, weight in self.pairs]

    def reunited(self) -> "History":
        """Join the pairs of all retired problems, the newest side by side."""
        columns = [self.retired[number] for number in sorted(self.retired)]
        longest = max(columns, key=len)
        if not longest:
            return History(self.limit)
        step, change, weight = (torch.zeros_like(part) for part in longest[0])
        filled = [[(step, change, weight)] * (len(longest) - len(column)) + column for column in columns]
        pairs = [tuple(torch.stack(parts) for parts in zip(*row, strict=True)) for row in zip(*filled, strict=True)]
        return History(self.limit, [(step, change, weight) for step, change, weight in pairs])

    def under(self, change_of_penalty: Float[Tensor, "1 1 P"]) -> "History":
        """Return the same steps with the gradient changes they would have had under another penalty."""
        pairs = []
        for step, change, weight in self.pairs:
            changed = torch.addcmul(change, change_of_penalty, step)
            pairs.append((step, changed, _inverse_product(step, changed) * (weight > 0)))
        return History(self.limit, pairs)

    def direction(self, gradient: Float[Tensor, "G R P"], inverse: Float[Tensor, "G 1 P"]) -> Float[Tensor, "G R P"]:
        """Apply the two-loop recursion (Nocedal, 1980) with a diagonal first guess of the inverse Hessian."""
        rest, shares = gradient.clone(), []
        for step, change, weight in reversed(self.pairs):
            share = (weight * dot(step, rest))[:, None, None]
            shares.append(share)
            rest.addcmul_(share, change, value=-1)
        rest *= inverse
        for (step, change, weight), share in zip(self.pairs, reversed(shares), strict=True):
            rest.addcmul_(share - (weight * dot(change, rest))[:, None, None], step)
        return rest.neg_()


def _inverse_product(step: Float[Tensor, "G R P"], change: Float[Tensor, "G R P"]) -> Float[Tensor, " G"]:
    """Return 1 over the product, or 0 where it is only rounding error."""
    product = dot(step, change)
    floor = torch.finfo(step.dtype).eps * (dot(step, step) * dot(change, change)).sqrt()
    return torch.where(product > floor, 1 / product, torch.zeros_like(product))


CURVATURE = 0.5
"""Largest remaining share of the slope after a line search: nearly exact, because its trials are cheap."""
SCALE_CURVATURE = 0.1
PATIENCE = 15
"""Iterations without progress in objective or gradient after which only rounding remains."""
COMPACT_SHARE = 0.1
"""Share of finished problems at which the others are copied together; below it the copy costs more than it saves."""
MARGIN = 0.95
"""Share of `tol` to aim at, so that the gradient recomputed at the end keeps to `tol` too."""


@dataclass(frozen=True)
class Point:
    """The state of `G` problems."""

    weight: Float[Tensor, "G R P"]
    """Weights on turned features, intercept last."""
    logits: Float[Tensor, "G R N"]
    """Of every training row."""
    gradient: Float[Tensor, "G R P"]
    """Of the objective."""
    value: Float[Tensor, " G"]
    """Float64 objective: summed loss plus half the squared weights over C."""
    curvature: Float[Tensor, " G"]
    """Mean curvature `a` of the loss by a logit: `1 / (a energy + 1 / C)` is the first guess of the inverse Hessian."""
    n_iterations: Int[Tensor, " G"]
    """Iterations so far."""
    gap: Float[Tensor, " G"]
    """Float64 decrease still expected, as a share of the objective."""

    def select(self, index: Tensor) -> "Point":
        """Take some of the problems."""
        return Point(*(getattr(self, column.name)[index] for column in fields(self)))

    def put(self, index: Tensor, part: "Point") -> None:
        """Write some of the problems."""
        for column in fields(self):
            getattr(self, column.name)[index] = getattr(part, column.name)


@dataclass
class Progress:
    """What decides when a problem is done."""

    drop: Float[Tensor, " G"]
    """Float64 last decrease as a share of the objective; infinite before the first."""
    best: Float[Tensor, " G"]
    """Smallest gradient norm so far."""
    n_stale: Int[Tensor, " G"]
    """Iterations without progress."""
    is_done: Bool[Tensor, " G"]
    """Whether it is done."""

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
    """Run L-BFGS until every problem is done, or out of iterations."""
    whole = Point(*(getattr(point, field.name).clone() for field in fields(point)))
    numbers = torch.arange(len(point.value), device=point.value.device)
    progress, penalty = Progress.at_start(point), penalties(point.weight, ridge)
    for _ in range(options.max_iterations):
        inverse = 1 / (point.curvature[:, None, None] * designs.energy + penalty)
        direction, slope = _descend(history, point.gradient, inverse)
        point = replace(point, gap=-slope / (2 * point.value))
        is_new = _is_done(designs, point, progress, options) & ~progress.is_done
        if bool(is_new.any()):
            _retire(whole, point, history, numbers=numbers, is_new=is_new)
            progress.is_done |= is_new
            pending = (~progress.is_done).nonzero()[:, 0]
            if not len(pending):
                return whole, history.reunited()
            if len(pending) <= (1 - COMPACT_SHARE) * len(numbers):
                numbers, designs, point = numbers[pending], designs.select(pending), point.select(pending)
                direction, slope, progress = direction[pending], slope[pending], progress.select(pending)
                history.select(pending)
        direction[progress.is_done], slope[progress.is_done] = 0.0, 0.0
        point = _advance(designs, point, direction, slope=slope, penalty=penalty, state=(history, progress))
    _retire(whole, point, history, numbers=numbers, is_new=~progress.is_done)
    return whole, history.reunited()


def _retire(whole: Point, point: Point, history: History, *, numbers: Tensor, is_new: Bool[Tensor, " G"]) -> None:
    index = is_new.nonzero()[:, 0]
    whole.put(numbers[index], point.select(index))
    history.retire(numbers[index], index)


def _slide(designs: Designs, point: Point, direction: Tensor, logits: Tensor, *, ridge: float) -> Point:
    """Go forth or back to the lowest objective along a direction whose logits are known."""
    slope = dot(point.gradient, direction).double()
    sign = torch.where(slope > 0, -1.0, 1.0).to(direction.dtype)[:, None, None]
    ray = _ray(designs, point, sign * direction, sign * logits, -slope.abs(), penalties(point.weight, ridge))
    landing = search(ray, curvature=SCALE_CURVATURE)
    step = landing.length.to(direction.dtype)[:, None, None] * sign * direction
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
    # the largest entry is at least the norm over the root of the number of entries, so most need no exact check
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
    """Take one step of every problem, and update history and progress."""
    history, progress = state
    ray = _ray(designs, point, direction, designs.logits(direction), slope, penalty)
    landing = search(ray, curvature=CURVATURE)
    step = landing.length.to(direction.dtype)[:, None, None] * direction
    moved = _land(designs, point, step, landing, penalty)
    change = moved.gradient - point.gradient
    history.push(step, change, usable=landing.is_found)
    history.forget(~landing.is_found)
    # the secant equation gives the one free number of the first guess
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


@torch.no_grad()
def follow_path(designs: Designs, *, Cs: Sequence[float], options: SolverOptions) -> list[Tensor]:
    """Follow the solutions of `G` designs from the smallest C to the largest, all designs at once."""
    path: dict[float, tuple[Tensor, ...]] = {}
    last, ridge, history = _origin(designs), 0.0, History(options.history)
    point = last
    for C in sorted(set(Cs)):
        point, history = _change_ridge(point, by=1 / C - ridge), history.under(penalties(point.weight, 1 / C - ridge))
        ridge = 1 / C
        before, last = last, point
        if path:  # the weights of another C, stretched to the lowest objective: directions hardly change with C
            point = _slide(designs, point, point.weight, point.logits, ridge=ridge)
        if len(path) > 1:  # solutions move on along the line through the last two
            point = _slide(designs, point, last.weight - before.weight, last.logits - before.logits, ridge=ridge)
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
    zeros = designs.n_rows.new_zeros(len(weight))
    curvature = features.new_full((len(weight),), 1 / targets.n_classes)
    point = Point(weight, weight, weight, zeros, curvature, zeros.long(), zeros)
    return _recompute(designs, point, ridge=0.0)


def _priors(designs: Designs) -> Float[Tensor, "G R"]:
    logarithms = designs.targets.class_weights().log()
    if designs.targets.n_outputs == 1:
        return logarithms[:, 1:] - logarithms[:, :1]
    is_present = torch.isfinite(logarithms)
    zeroed = torch.where(is_present, logarithms, 0.0)
    return torch.where(is_present, zeroed - (zeroed.sum(1) / is_present.sum(1))[:, None], 0.0)


def _change_ridge(point: Point, *, by: float) -> Point:
    """Return objective and gradient under another penalty, without a product."""
    features = torch.cat([point.weight[..., :-1], torch.zeros_like(point.weight[..., -1:])], -1)
    value = point.value + by / 2 * features.square().sum((1, 2), dtype=torch.float64)
    return replace(point, value=value, gradient=point.gradient + by * features)


def _recompute(designs: Designs, point: Point, *, ridge: float) -> Point:
    """Recompute logits, objective and gradient from the weights, without accumulated rounding errors."""
    logits = designs.logits(point.weight)
    value, residual = designs.targets.loss(logits)
    plain = replace(point, logits=logits, value=value, gradient=designs.gradient(residual))
    return _change_ridge(plain, by=ridge)


def _solution(designs: Designs, point: Point, C: float) -> tuple[Tensor, ...]:
    """Return weights on standardised features for one C, and the convergence of each problem."""
    weight, bias = designs.unrotated(point.weight), point.weight[..., -1]
    if designs.targets.n_outputs == 1:
        weight, bias = (torch.cat([-part, part], 1) / 2 for part in (weight, bias))
    elif designs.targets.offset is not None:
        bias = bias + designs.targets.offset[..., 0]
    # in float64, because the loss of a well-separated row is below the resolution of float32 beside 1
    loss, _ = designs.targets.loss(point.logits.double())
    half_square = point.weight[..., :-1].square().sum((1, 2), dtype=torch.float64) / 2
    return weight, bias, C * loss + half_square, designs.gradient_norm(point.gradient), point.gap, point.n_iterations


DEFAULT = SolverOptions()


@dataclass(frozen=True)
class Rows:
    """Class codes of all rows, float64 weights of each fold, and the number of classes."""

    codes: Int[Tensor, " N"]
    weights: Float[Tensor, "F N"]
    n_classes: int

    @property
    def n_padded(self) -> int:
        """Rows of the largest fold."""
        return int((self.weights > 0).sum(1).max())


def fit_logistic(
    latents: Float[Tensor, "_ _ D"] | Iterable[Float[Tensor, "_ _ D"]],
    labels: Int[Tensor, " N"],
    *,
    Cs: Sequence[float],
    weights: Tensor | None = None,
    n_classes: int | None = None,
    options: SolverOptions = DEFAULT,
) -> LogisticFit:
    """Fit a logistic probe for every layer, C and fold.

    The objective is scikit-learn's: `C * summed log-loss + 0.5 * squared weights`, the intercept free, on features
    standardised by the training rows of the fold; two classes are one sigmoid. Layers and folds are solved together,
    from the strongest penalty to the weakest, each from the solution before. A HeadError names what cannot be fitted.

    Example:
        >>> latents = torch.tensor([[[0.0], [1.0], [2.0], [3.0]]])
        >>> fit = fit_logistic(latents, torch.tensor([0, 0, 1, 1]), Cs=[1.0, 100.0])
        >>> fit.logits(latents).argmax(-1)[0, 0].tolist()
        [0, 0, 1, 1]
    """
    check_strengths(Cs)
    rows = _rows(labels, weights, n_classes)
    solved: list[list[Tensor]] = []
    n_layers = 0
    for chunk in [latents] if isinstance(latents, Tensor) else latents:
        if chunk.shape[1] != len(labels):
            raise HeadError(
                f"latents have {chunk.shape[1]} rows for {len(labels)} labels; allowed: one label per row. "
                "Check that both come from the same split."
            )
        check_finite(chunk, rows=(rows.weights > 0).any(0), first_layer=n_layers)
        solved += _solve(chunk, rows, Cs=Cs, options=options)
        n_layers += len(chunk)
    if not n_layers:
        raise HeadError("there are 0 layers of latents; allowed: 1 or more. Check the selected layers.")
    return _collect(solved, n_layers=n_layers, Cs=Cs, options=options)


def _rows(labels: Tensor, weights: Tensor | None, n_classes: int | None) -> Rows:
    codes = labels.cpu().long()
    folds = torch.ones(1, len(codes)) if weights is None else weights.cpu()
    if folds.ndim != 2 or folds.shape[1] != len(codes):
        raise HeadError(
            f"weights have shape {tuple(folds.shape)}; allowed: (folds, {len(codes)}). Give one row per fold."
        )
    folds = folds.double()
    check_weights(folds)
    n_classes = n_classes if n_classes is not None else int(codes.max()) + 1 if len(codes) else 0
    check_codes(codes, n_classes=n_classes, folds=folds > 0)
    return Rows(codes, folds, n_classes)


def _solve(chunk: Tensor, rows: Rows, *, Cs: Sequence[float], options: SolverOptions) -> list[list[Tensor]]:
    """Solve every layer and fold of a chunk of layers, in order; on a CPU groups of them in a thread each.

    The products of one problem are too small for several threads.
    """
    pairs = [(layer, fold) for layer in range(len(chunk)) for fold in range(len(rows.weights))]

    def solve(some: list[tuple[int, int]]) -> list[Tensor]:
        designs, *moments = _designs(chunk, rows, some, options)
        return [*moments, *follow_path(designs, Cs=Cs, options=options)]

    n_threads = max(1, min(torch.get_num_threads(), len(pairs))) if options.device == "cpu" else 1
    size = max(1, _n_together(chunk, rows, options) // n_threads)
    n_groups = min(len(pairs), n_threads * ceil(len(pairs) / size / n_threads))
    groups = [pairs[k * len(pairs) // n_groups : (k + 1) * len(pairs) // n_groups] for k in range(n_groups)]
    if n_threads == 1:
        return [solve(group) for group in groups]
    pool = ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        return list(pool.map(solve, groups))
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt waits for what is being solved, and not for the rest
        torch.set_num_threads(torch.get_num_threads())  # MKL has one number for all threads


def _n_together(chunk: Tensor, rows: Rows, options: SolverOptions) -> int:
    """Count the problems that the memory allows at a time."""
    n_outputs = 1 if rows.n_classes == 2 else rows.n_classes
    n_padded, width = rows.n_padded, chunk.shape[2]
    n_columns = min(n_padded, width) + 1
    # rows, five sets of logits, and a step and a change for each iteration of the history
    n_numbers = n_padded * (n_columns + 5 * n_outputs) + n_columns * n_outputs * (2 * options.history + 6)
    return options.chunk_bytes // (n_numbers * options.dtype.itemsize)


@torch.no_grad()
def _designs(
    chunk: Tensor, rows: Rows, pairs: list[tuple[int, int]], options: SolverOptions
) -> tuple[Designs, Tensor, Tensor]:
    device, n_padded = torch.device(options.device), rows.n_padded
    built, moments, codes, weights = [], [], [], []
    for layer, fold in pairs:
        is_used = rows.weights[fold] > 0
        weight = rows.weights[fold, is_used].to(device)
        x = chunk[layer][is_used.to(chunk.device)].to(device, torch.float64)
        moments.append(standardise_rows(x, weight, is_standardised=options.is_standardised))
        built.append(build_design(x, weight, n_padded=n_padded, dtype=options.dtype))
        filling = (0, n_padded - len(x))
        codes.append(torch.nn.functional.pad(rows.codes[is_used].to(device), filling))
        weights.append(torch.nn.functional.pad(weight, filling))
    features, energy, rotation = (torch.stack(parts) for parts in zip(*built, strict=True))
    targets = _targets(torch.stack(codes), torch.stack(weights).to(options.dtype), rows.n_classes)
    total = torch.stack(weights).sum(1)
    mean, scale = (torch.stack(parts).cpu() for parts in zip(*moments, strict=True))
    return Designs(features, energy, rotation, total, targets, tuple(range(len(pairs)))), mean, scale


def _targets(codes: Tensor, weights: Tensor, n_classes: int) -> Targets:
    plain = Targets(codes, None if bool((weights == 1).all()) else weights, None, n_classes)
    is_absent = plain.class_weights()[..., None] == 0
    if not bool(is_absent.any()):
        return plain
    return replace(plain, offset=torch.zeros_like(is_absent, dtype=weights.dtype).masked_fill_(is_absent, -torch.inf))


def _collect(solved: list[list[Tensor]], *, n_layers: int, Cs: Sequence[float], options: SolverOptions) -> LogisticFit:
    """Arrange designs, which are layers times folds, in the order of the result."""
    whole = [torch.cat(parts) for parts in zip(*solved, strict=True)]
    mean, scale, *by_c = (part.reshape(n_layers, -1, *part.shape[1:]) for part in whole)
    weight, bias, objective, norm, gap, n_iterations = (part.transpose(1, 2) for part in by_c)
    is_converged = (norm <= options.tol) & (gap <= options.gap_tol)
    report = ConvergenceReport(objective, norm, gap, n_iterations, is_converged)
    return LogisticFit(weight.contiguous(), bias.contiguous(), mean, scale, tuple(Cs), report)
