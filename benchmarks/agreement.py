"""How two solutions of the same logistic probes agree: ours and scikit-learn's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from probes.logistic.problem import LogisticFit, SolverOptions
from probes.logistic.solver import fit_logistic

TIGHT: dict[str, Any] = {"tol": 1e-9, "gap_tol": 1e-11, "precision": "float64", "max_iterations": 5000}
TIGHT_C = 1.0
MOST_ITERATIONS = 5000


@dataclass(frozen=True, eq=False)
class ProbeRows:
    """The rows that probes are fitted on, and held-out rows.

    Attributes:
        latents: `(L, N, D)` float32 latents of training rows.
        codes: `(N,)` their classes.
        held_out: `(L, M, D)` latents of validation rows.
    """

    latents: Float[Tensor, "L N D"]
    codes: Int[Tensor, " N"]
    held_out: Float[Tensor, "L M D"]


@dataclass(frozen=True)
class Agreement:
    """How the solutions of both sides compare, over all problems.

    Attributes:
        n_problems: Layers times C.
        n_lower: Problems whose objective is lower at our solution.
        worst_excess: Largest of (our objective - theirs) / theirs; below 0 where ours is lower everywhere.
        share_equal: Share of held-out rows that both sides assign to the same class.
        lowest_equal: The same for the problem with the fewest such rows.
        share_converged: Share of our problems that are reported as converged.
    """

    n_problems: int
    n_lower: int
    worst_excess: float
    share_equal: float
    lowest_equal: float
    share_converged: float


@dataclass(frozen=True)
class TightAgreement:
    """How the solutions of both sides compare when both converge to float64 precision.

    Attributes:
        n_problems: Layers.
        worst_excess: As of `Agreement`.
        share_equal: Share of held-out rows that both sides assign to the same class, for the layer with the fewest.
        coefficient_difference: Largest difference between two coefficients.
        largest_coefficient: The scale to compare it with.
        is_converged: Whether every problem of ours is reported as converged.
    """

    n_problems: int
    worst_excess: float
    share_equal: float
    coefficient_difference: float
    largest_coefficient: float
    is_converged: bool


@dataclass(frozen=True)
class _OneProblem:
    excess: float
    share_equal: float
    difference: float


def describe_agreement(facts: dict[str, Any]) -> str:
    """Describe how the solutions agree, with default and with tight tolerances."""
    tight = facts["tight"]
    return (
        f"objective lower on {facts['n_lower']} of {facts['n_problems']} problems (worst excess "
        f"{facts['worst_excess']:+.1e} of scikit-learn's), {facts['share_equal']:.2%} equal predictions on held-out "
        f"rows (fewest {facts['lowest_equal']:.2%}), {facts['share_converged']:.1%} converged; "
        f"to a tolerance of {TIGHT['tol']:g} in float64: {tight['share_equal']:.2%} equal predictions, coefficients "
        f"within {tight['coefficient_difference']:.1e} (largest {tight['largest_coefficient']:.2g})"
    )


def agreement(
    rows: ProbeRows, theirs: dict[tuple[int, int], LogisticRegression], fit: LogisticFit, *, Cs: Sequence[float]
) -> Agreement:
    """Evaluate both sides' weights on the same rows in float64, scaled as scikit-learn's were.

    Args:
        rows: What both were fitted on.
        theirs: Their models by layer and position in `Cs`.
        fit: Ours.
        Cs: The values of C.

    Returns:
        How they compare over all problems.
    """
    each = []
    for layer in range(len(rows.latents)):
        scaled, others = _scaled(rows, layer)
        for c, C in enumerate(Cs):
            each.append(_compare(rows, scaled, others, theirs[layer, c], _solution(fit, layer, c), C))
    return Agreement(
        n_problems=len(each),
        n_lower=sum(one.excess < 0 for one in each),
        worst_excess=max(one.excess for one in each),
        share_equal=float(np.mean([one.share_equal for one in each])),
        lowest_equal=min(one.share_equal for one in each),
        share_converged=float(fit.report.is_converged.float().mean()),
    )


def agree_tightly(rows: ProbeRows, *, options: SolverOptions | None = None) -> TightAgreement:
    """Compare solutions when both sides converge to float64 precision, scikit-learn's by another algorithm (Newton).

    Args:
        rows: What to fit on, and what to compare predictions on.
        options: Where our solver computes; its tolerances and precision are replaced.

    Returns:
        The differences between the solutions at the lowest, the middle and the highest layer.
    """
    options = replace(options or SolverOptions(), **TIGHT)
    layers = sorted({0, len(rows.latents) // 2, len(rows.latents) - 1})
    fit = fit_logistic(rows.latents[layers].double(), rows.codes, Cs=(TIGHT_C,), options=options)
    each = []
    for k, layer in enumerate(layers):
        scaled, others = _scaled(rows, layer)
        model = LogisticRegression(C=TIGHT_C, solver="newton-cg", tol=options.tol, max_iter=MOST_ITERATIONS)
        model.fit(scaled, rows.codes.numpy())
        each.append(_compare(rows, scaled, others, model, _solution(fit, k, 0), TIGHT_C))
    return TightAgreement(
        n_problems=len(each),
        worst_excess=max(one.excess for one in each),
        share_equal=min(one.share_equal for one in each),
        coefficient_difference=max(one.difference for one in each),
        largest_coefficient=float(fit.weight.abs().max()),
        is_converged=bool(fit.report.is_converged.all()),
    )


def _scaled(rows: ProbeRows, layer: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x = rows.latents[layer].double().numpy()
    scaler = StandardScaler().fit(x)
    return scaler.transform(x), scaler.transform(rows.held_out[layer].double().numpy())


def _solution(fit: LogisticFit, layer: int, c: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    weight, bias = fit.weight[layer, c, 0].double().numpy(), fit.bias[layer, c, 0].double().numpy()
    if len(weight) == 2:  # scikit-learn keeps one row for two classes
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    return weight, bias


def _compare(
    rows: ProbeRows,
    scaled: NDArray[np.float64],
    others: NDArray[np.float64],
    model: LogisticRegression,
    solution: tuple[NDArray[np.float64], NDArray[np.float64]],
    C: float,
) -> _OneProblem:
    gold, both = rows.codes.numpy(), (solution, (model.coef_, model.intercept_))
    own, other = (_objective(scaled, gold, *pair, C=C) for pair in both)
    given = [_logits(others, *pair).argmax(1) for pair in both]
    return _OneProblem(
        excess=(own - other) / other,
        share_equal=float((given[0] == given[1]).mean()),
        difference=float(np.abs(solution[0] - model.coef_).max()),
    )


def _objective(
    x: NDArray[np.float64], gold: NDArray[np.int64], weight: NDArray[Any], bias: NDArray[Any], *, C: float
) -> float:
    """Compute scikit-learn's objective in float64."""
    logits = _logits(x, weight, bias)
    losses = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(gold)), gold]
    return float(C * losses.sum() + 0.5 * np.square(weight, dtype=np.float64).sum())


def _logits(x: NDArray[np.float64], weight: NDArray[Any], bias: NDArray[Any]) -> NDArray[np.float64]:
    logits = x @ weight.T.astype(np.float64) + bias
    return np.hstack([np.zeros_like(logits), logits]) if logits.shape[1] == 1 else logits
