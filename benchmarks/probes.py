"""Logistic probes of all layers and C at once against scikit-learn's loop over layers x C."""

import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from torch import Tensor

from benchmarks.timing import Comparison, compare, seconds_of
from probes.logistic.options import SolverOptions
from probes.logistic.result import LogisticFit
from probes.logistic.solver import fit_logistic

CS = (0.01, 0.1, 1.0, 10.0, 100.0)
SKLEARN_ITERATIONS = 5000
TIE = 1e-8
"""Share of an objective within which two are the same: both sides compute in float32."""


@dataclass(frozen=True)
class Agreement:
    """How the solutions of either side compare.

    Attributes:
        worst_excess: Largest of (our objective - theirs) / theirs over all problems; below 0 where ours is lower.
        share_equal: Share of rows that both sides give to the same class, over all problems.
        share_converged: Share of our problems that are reported as converged.
    """

    worst_excess: float
    share_equal: float
    share_converged: float


def planted_latents(
    n_layers: int, n_rows: int, width: int, *, n_classes: int
) -> tuple[Float[Tensor, "L N D"], Int[Tensor, " N"]]:
    """Draw latents with class means, correlated dimensions of very different scale, and noise.

    Args:
        n_layers: Layers `L`.
        n_rows: Rows `N`.
        width: Dimension `D`.
        n_classes: Classes `K`.

    Returns:
        Latents and labels.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(n_classes, (n_rows,), generator=generator)
    spectrum = torch.arange(1, width + 1) ** -0.75  # about that of a decoder's latents
    noise = torch.randn(n_layers, n_rows, width, generator=generator)
    means = 0.7 * torch.randn(n_layers, n_classes, width, generator=generator)
    turned = torch.linalg.qr(torch.randn(n_layers, width, width, generator=generator))[0]
    return (noise + means[:, labels]) * spectrum @ turned, labels


def compare_probes(
    latents: Float[Tensor, "L N D"],
    labels: Int[Tensor, " N"],
    *,
    repeats: int,
    held_out: Float[Tensor, "L M D"] | None = None,
    options: SolverOptions | None = None,
) -> tuple[Comparison, Agreement]:
    """Compare fitting every layer and C at once with scikit-learn's `LogisticRegression` in a loop.

    Both standardise, and both get float32, in which scikit-learn is the faster one too. Its tolerance is its default,
    with iterations enough to reach it, and its BLAS gets as many threads as make it fastest: beside its own OpenMP
    loops, more of them can be several times slower than one.

    Args:
        latents: `(L, N, D)` float32 latents.
        labels: `(N,)` class codes.
        repeats: Timed pairs.
        held_out: `(L, M, D)` rows on which to compare predictions; the training rows by default.
        options: Options of our solver.

    Returns:
        The comparison, and how the solutions agree.

    Raises:
        RuntimeError: An objective of ours that is not at least as low.
    """
    options = options or SolverOptions()
    rows, gold = latents.numpy(), labels.numpy()
    theirs: dict[tuple[int, int], LogisticRegression] = {}
    ours: list[LogisticFit] = []
    n_threads = _fastest_blas(rows[0], gold)

    def one_by_one() -> None:
        with threadpool_limits(n_threads, user_api="blas"):
            for layer in range(len(rows)):
                x = StandardScaler().fit_transform(rows[layer])
                for c, C in enumerate(CS):
                    theirs[layer, c] = LogisticRegression(C=C, max_iter=SKLEARN_ITERATIONS).fit(x, gold)

    def at_once() -> None:
        ours[:] = [fit_logistic(latents, labels, Cs=CS, options=options)]

    name = f"{len(rows)} layers x {len(CS)} C, {rows.shape[1]} rows: scikit-learn's loop vs at once"
    sides = (("scikit-learn", one_by_one), ("at once", at_once))
    comparison = compare(name, sides, bar=">= 2" if options.device == "cpu" else ">= 20", repeats=repeats)
    agreement = _agreement(latents, gold, theirs, ours[0], held_out=latents if held_out is None else held_out)
    if agreement.worst_excess > TIE:
        raise RuntimeError(f"an objective is higher than scikit-learn's by {agreement.worst_excess:g} of it")
    equal = f"{agreement.share_equal:.2%} equal predictions, objective at least {-agreement.worst_excess:.1e} lower"
    sys.stderr.write(f"  {equal}, {agreement.share_converged:.1%} converged\n")
    return replace(comparison, name=f"{name} ({equal})"), agreement


def _fastest_blas(x: NDArray[np.float32], gold: NDArray[np.int64]) -> int:
    """Tell with how many BLAS threads scikit-learn is fastest on one problem."""
    scaled = StandardScaler().fit_transform(x)

    def fit() -> None:
        LogisticRegression(C=1.0, max_iter=SKLEARN_ITERATIONS).fit(scaled, gold)

    seconds = {}
    for n_threads in sorted({1, torch.get_num_threads()}):
        with threadpool_limits(n_threads, user_api="blas"):
            fit()
            seconds[n_threads] = seconds_of(fit)
    return min(seconds, key=lambda n: seconds[n])


def _agreement(
    latents: Float[Tensor, "L N D"],
    gold: NDArray[np.int64],
    theirs: dict[tuple[int, int], LogisticRegression],
    fit: LogisticFit,
    *,
    held_out: Float[Tensor, "L M D"],
) -> Agreement:
    excess, equal = [], []
    for layer, x in enumerate(latents.double().numpy()):
        scaler = StandardScaler().fit(x)
        scaled, other_rows = scaler.transform(x), scaler.transform(held_out[layer].double().numpy())
        for c, C in enumerate(CS):
            model = theirs[layer, c]
            weight, bias = fit.weight[layer, c, 0].double().numpy(), fit.bias[layer, c, 0].double().numpy()
            if len(weight) == 2:  # scikit-learn keeps one row for two classes
                weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
            own = _objective(scaled, gold, weight, bias, C=C)
            other = _objective(scaled, gold, model.coef_, model.intercept_, C=C)
            excess.append((own - other) / other)
            both = [_logits(other_rows, *pair).argmax(1) for pair in ((weight, bias), (model.coef_, model.intercept_))]
            equal.append(float((both[0] == both[1]).mean()))
    converged = float(fit.report.is_converged.float().mean())
    return Agreement(max(excess), float(np.mean(equal)), converged)


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
