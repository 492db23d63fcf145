"""Scores of many predictions of the same rows, and of resamples of their units, from sums of counts over units."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.stats import rankdata

from extract.errors import unknown_name
from probes.metrics.bootstrap import DEFAULT, Resampling, number_units, resample, score_counts
from probes.metrics.class_metrics import ClassCounts, class_metric, count_by_unit, score_classes
from probes.metrics.correlation import CORRELATIONS

Counts = Callable[[NDArray[np.generic]], Float[np.ndarray, "M U C"]]
AT_ONCE = 1 << 24
"""Counts in memory at once."""
TINY = 1e-12
MOST_COUNTS = 100
"""Of a unit, for errors within resamples: their cost grows with the square of the counts."""


@dataclass(frozen=True)
class UnitScorer:
    """How predictions of the rows of one split are scored.

    Attributes:
        metric: Name of the metric.
        unit: What is resampled: rows, groups, sentences or documents.
        n_units: How many of them.
        n_counts: Counts of a unit.
        count: Counts, for `(M, N)` predictions, what the metric needs of every unit: `(M, U, C)`.
        of_sums: Computes the metric from sums `(..., C)` of counts.
        quick: Scores `(M, N)` predictions without counting unit by unit; None where that is no faster.
        is_lifted: Whether units that are drawn twice lift the metric, so that its intervals must be moved back.
    """

    metric: str
    unit: str
    n_units: int
    n_counts: int
    count: Counts
    of_sums: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    quick: Callable[[NDArray[np.generic]], NDArray[np.float64]] | None = None
    is_lifted: bool = False

    def score(self, predicted: NDArray[np.generic]) -> Float[np.ndarray, " M"]:
        """Score `(M, N)` predictions on all rows."""
        if self.quick is not None:
            return np.asarray(self.quick(predicted))
        return np.concatenate([self.of_sums(self.count(part).sum(1)) for part in self._parts(predicted)])

    def resample(self, predicted: NDArray[np.generic], resampling: Resampling = DEFAULT) -> Float[np.ndarray, "M R"]:
        """Score `(M, N)` predictions on the same `R` resamples of the units."""
        found = [
            resample(score_counts(self.count(part), self.of_sums), n_units=self.n_units, resampling=resampling)
            for part in self._parts(predicted)
        ]
        return np.concatenate(found)

    def lead_errors(
        self, predicted: NDArray[np.generic], resampling: Resampling = DEFAULT
    ) -> Float[np.ndarray, "R_1 L L"] | None:
        """Estimate the standard error of the lead of every system over every other, within each resample.

        A score changes with a unit by the product of its counts and the slope of the metric in them (its influence, or
        infinitesimal jackknife). Correlations are on Fisher's z.

        Args:
            predicted: `(S, L, N)` predictions of `L` systems, of which the mean over `S` seeds leads.
            resampling: As in `resample`, for the same resamples.

        Returns:
            First those on all units, then those of every resample; None for a metric of more than `MOST_COUNTS` counts.
        """
        if self.n_counts > MOST_COUNTS:
            return None
        n_seeds, n_systems = predicted.shape[:2]
        counts = self.count(predicted.reshape(n_seeds * n_systems, -1))
        step = max(1, AT_ONCE // (len(counts) * self.n_units))

        def errors(drawn: NDArray[np.int64]) -> NDArray[np.float64]:
            times = np.stack([np.bincount(row, minlength=self.n_units) for row in drawn]).astype(np.float64)
            values, slopes = self._slopes(np.einsum("ru,muc->mrc", times, counts, optimize=True))
            influences = np.matmul(counts, slopes.swapaxes(1, 2))  # of a unit on a score: M U R
            influence = influences.reshape(n_seeds, n_systems, *influences.shape[1:]).mean(0)
            if self.metric in CORRELATIONS:
                value = values.reshape(n_seeds, n_systems, -1).mean(0)
                influence = influence / np.maximum(1 - value**2, TINY)[:, None]
            weighted = influence.transpose(2, 0, 1) * np.sqrt(times)[:, None]
            products = weighted @ weighted.swapaxes(1, 2)
            own = np.diagonal(products, axis1=1, axis2=2)
            squares = own[:, :, None] + own[:, None] - 2 * products
            return np.asarray(np.sqrt(np.maximum(squares, 0)).reshape(len(drawn), -1).T)

        def score(drawn: NDArray[np.int64]) -> NDArray[np.float64]:
            return np.concatenate([errors(drawn[k : k + step]) for k in range(0, len(drawn), step)], axis=1)

        whole = errors(np.arange(self.n_units)[None])
        drawn = resample(score, n_units=self.n_units, resampling=resampling)
        return np.asarray(np.concatenate([whole, drawn], axis=1).T.reshape(-1, n_systems, n_systems))

    def _slopes(self, sums: Float[np.ndarray, "M R C"]) -> tuple[Float[np.ndarray, "M R"], Float[np.ndarray, "M R C"]]:
        """Return the metric of sums, and its slope in each of them by central differences."""
        reach = 1e-5 * np.maximum(np.abs(sums), 1.0)
        slopes = np.empty_like(sums)
        for count in range(self.n_counts):
            step = np.zeros_like(sums)
            step[..., count] = reach[..., count]
            slopes[..., count] = (self.of_sums(sums + step) - self.of_sums(sums - step)) / (2 * reach[..., count])
        return np.asarray(self.of_sums(sums)), np.nan_to_num(slopes)

    def _parts(self, predicted: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        step = max(1, AT_ONCE // (self.n_units * self.n_counts))
        return [predicted[start : start + step] for start in range(0, len(predicted), step)]


def correlation_scorer(
    gold: Float[np.ndarray, " N"], *, metric: str, groups: Sequence[str] | None = None
) -> UnitScorer:
    """Score numbers by a correlation of `CORRELATIONS`; ranks of Spearman are those among all rows, also in resamples.

    Raises:
        UnknownNameError: Another metric.
        TaskError: Not one group per row.
    """
    if metric not in CORRELATIONS:
        raise unknown_name("metric", metric, CORRELATIONS)
    units = number_units(groups, len(gold))
    n_units = int(units.max(initial=-1)) + 1
    target = _standard(_ranked(gold, metric))

    def count(predicted: NDArray[np.generic]) -> Float[np.ndarray, "M U 6"]:
        rows = _standard(_ranked(predicted, metric))
        ones = np.ones_like(rows)
        parts = np.stack([ones, rows, ones * target, rows**2, ones * target**2, rows * target], axis=-1)
        return parts if groups is None else add_up(parts, units, n_units)

    return UnitScorer(
        metric,
        "rows" if groups is None else "groups",
        n_units,
        6,
        count,
        _correlation_of_sums,
        quick=lambda predicted: np.asarray(CORRELATIONS[metric](np.asarray(predicted, np.float64), gold)),
    )


def _ranked(values: NDArray[np.generic], metric: str) -> NDArray[np.float64]:
    wide = np.asarray(values, np.float64)
    return np.asarray(rankdata(wide, axis=-1)) if metric == "spearman" else wide


def _standard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centre and scale: sums of squares of raw numbers would lose digits; a constant becomes 0."""
    centred = values - values.mean(-1, keepdims=True)
    spread = np.where(np.ptp(values, axis=-1, keepdims=True) == 0, np.inf, centred.std(-1, keepdims=True))
    return np.asarray(centred / spread)


def _correlation_of_sums(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    n, a, b, aa, bb, ab = np.moveaxis(sums, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        square = (aa - a * a / n) * (bb - b * b / n)
        found = (ab - a * b / n) / np.sqrt(np.where(square > 1e-12 * n * n, square, np.nan))
    return np.asarray(found.clip(-1.0, 1.0))


def class_scorer(gold: Int[np.ndarray, " N"], *, metric: str, groups: Sequence[str] | None = None) -> UnitScorer:
    """Score classes, which count from 0, by a metric of `CLASS_METRICS`; errors are as of `correlation_scorer`."""
    compute = class_metric(metric)
    units = number_units(groups, len(gold))
    n_units, n_classes = int(units.max(initial=-1)) + 1, int(gold.max(initial=0)) + 1
    unit = "rows" if groups is None else "groups"
    if metric == "accuracy":
        return right_scorer(gold, units, unit=unit)

    return UnitScorer(
        metric,
        unit,
        n_units,
        3 * n_classes,
        lambda predicted: count_by_unit(np.asarray(predicted, np.int64), gold, units),
        lambda sums: np.asarray(compute(ClassCounts(*np.split(sums, 3, axis=-1)))),
        quick=lambda predicted: score_classes(np.asarray(predicted, np.int64), gold, metric=metric),
    )


def right_scorer(gold: Int[np.ndarray, " N"], units: Int[np.ndarray, " N"], *, unit: str) -> UnitScorer:
    """Score names, as numbers, by the share that is right; `units` numbers the unit of each row from 0."""
    n_units = int(units.max(initial=-1)) + 1

    def count(predicted: NDArray[np.generic]) -> Float[np.ndarray, "M U 2"]:
        right = (np.asarray(predicted, np.int64) == gold).astype(np.float64)
        return add_up(np.stack([right, np.ones_like(right)], axis=-1), units, n_units)

    return UnitScorer(
        "accuracy",
        unit,
        n_units,
        2,
        count,
        lambda sums: np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1)),
        quick=lambda predicted: np.asarray((np.asarray(predicted, np.int64) == gold).mean(-1)),
    )


def mean_scorer(units: Int[np.ndarray, " N"], *, metric: str, unit: str) -> UnitScorer:
    """Score rows that are scores themselves, such as a loss of each row, by their mean."""
    n_units = int(units.max(initial=-1)) + 1

    def count(rows: NDArray[np.generic]) -> Float[np.ndarray, "M U 2"]:
        wide = np.asarray(rows, np.float64)
        return add_up(np.stack([wide, np.ones_like(wide)], axis=-1), units, n_units)

    return UnitScorer(
        metric,
        unit,
        n_units,
        2,
        count,
        lambda sums: np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1)),
        quick=lambda rows: np.asarray(np.asarray(rows, np.float64).mean(-1)),
    )


def add_up(parts: Float[np.ndarray, "M N C"], units: Int[np.ndarray, " N"], n_units: int) -> Float[np.ndarray, "M U C"]:
    """Add up the counts of the rows of each unit."""
    if n_units == len(units) and (units == np.arange(n_units)).all():
        return parts
    sums = np.zeros((n_units, len(parts), parts.shape[2]))
    np.add.at(sums, units, parts.swapaxes(0, 1))
    return sums.swapaxes(0, 1)
