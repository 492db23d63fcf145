"""The bootstrap: scorers of predictions, and intervals by resampling rows, groups, sentences or documents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from extract.errors import TaskError, require_name
from probes.metrics.prediction_metrics import (
    CORRELATIONS,
    ClassCounts,
    class_metric,
    count_by_unit,
    count_tag_spans,
    f1_of_counts,
    pearson,
    score_classes,
    spearman,
)

if TYPE_CHECKING:
    from probes.metrics.significance import OfSums

Score = Callable[[Int[np.ndarray, "R U"]], Float[np.ndarray, "S R"]]
"""Scores `S` seeds on `R` resamples of units."""
Number = TypeVar("Number", bound=np.number[Any])
BATCH = 100
"""Resamples in memory at once."""


@dataclass(frozen=True)
class Resampling:
    """The draws of the bootstrap. Equal seeds draw the same units, so differences between two systems are paired."""

    n_resamples: int = 1000
    confidence: float = 0.95
    seed: int = 0


DEFAULT = Resampling()


@dataclass(frozen=True)
class SeedSummary:
    """One metric over several seeds."""

    mean: float
    std: float
    """Standard deviation over seeds (n - 1); 0 for one seed."""
    low: float
    high: float
    confidence: float
    """Confidence level of the interval from `low` to `high`."""
    values: tuple[float, ...]
    """One per seed."""


def summarise(
    values: Float[np.ndarray, " S"],
    score: Score,
    *,
    n_units: int,
    resampling: Resampling = DEFAULT,
    is_centred: bool = False,
) -> SeedSummary:
    """Return mean and spread of a metric over seeds, with a bootstrap interval over `n_units` units.

    Units are drawn with replacement, the same for every seed, and the mean over seeds is taken in each resample
    (percentile interval): the interval reflects the sampling of the units, `std` that of the seeds. The interval is NaN
    for fewer than two units, or where a value is NaN; a resample without a value (constant predictions have no
    correlation) is left out. Where units that are drawn twice raise a metric, `is_centred` moves the resamples so that
    their mean is the metric on all units.
    """
    means = np.empty(0)
    if n_units > 1 and np.isfinite(values).all():
        means = resample(score, n_units=n_units, resampling=resampling).mean(axis=0)
    return summarise_resamples(values, means, confidence=resampling.confidence, is_centred=is_centred)


def summarise_resamples(
    values: Float[np.ndarray, " S"], means: Float[np.ndarray, " R"], *, confidence: float, is_centred: bool = False
) -> SeedSummary:
    """Return mean and spread of a metric over seeds, with the interval of its resampled means, as in `summarise`."""
    low = high = float("nan")
    if np.isfinite(means).any():
        tail = (1 - confidence) / 2
        if is_centred:
            means = means - np.nanmean(means) + values.mean()
        low, high = (float(end) for end in np.nanquantile(means, [tail, 1 - tail]))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return SeedSummary(float(np.mean(values)), spread, low, high, confidence, tuple(map(float, values)))


def resample(score: Score, *, n_units: int, resampling: Resampling = DEFAULT) -> Float[np.ndarray, "S R"]:
    """Score every seed or system on the same resamples, so that differences between rows are paired."""
    rng = np.random.default_rng(resampling.seed)
    starts = range(0, resampling.n_resamples, BATCH)
    sizes = [min(BATCH, resampling.n_resamples - start) for start in starts]
    return np.concatenate([score(rng.integers(0, n_units, (size, n_units))) for size in sizes], axis=1)


def summarise_counts(
    counts: NDArray[np.number],
    compute: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    resampling: Resampling = DEFAULT,
) -> SeedSummary:
    """Summarise a metric that is computed from sums of the counts of each seed and unit."""
    values = np.asarray(compute(counts.sum(axis=1).astype(np.float64)))
    return summarise(values, score_counts(counts, compute), n_units=counts.shape[1], resampling=resampling)


def score_counts(counts: NDArray[np.number], compute: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Score:
    """Turn a metric of sums of counts into a score of resamples."""
    counts, n_units = counts.astype(np.float64, copy=False), counts.shape[1]

    def score(drawn: Int[np.ndarray, "R U"]) -> Float[np.ndarray, "S R"]:
        sums = np.einsum("ru,suc->src", _times_drawn(drawn, n_units), counts, optimize=True)  # exact: whole numbers
        return np.asarray(compute(np.ascontiguousarray(sums)))

    return score


def number_units(groups: Sequence[str] | None, n_rows: int, *, is_sorted: bool = False) -> Int[np.ndarray, " N"]:
    """Number the unit of each row from 0: its group, or the row itself where there are no groups.

    Units are numbered by name if `is_sorted`, else by first appearance; the draws depend on it.
    """
    if groups is None:
        return np.arange(n_rows)
    if len(groups) != n_rows:
        raise TaskError(f"{len(groups)} group names for {n_rows} rows: give one name per row.")
    names = sorted(set(groups)) if is_sorted else dict.fromkeys(groups)
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[group] for group in groups], dtype=np.int64)


def _units_of(groups: Sequence[str] | None, n_rows: int) -> tuple[Int[np.ndarray, " N"], int, str]:
    """Return the unit of each row, the number of units, and their noun."""
    units = number_units(groups, n_rows)
    return units, int(units.max(initial=-1)) + 1, "rows" if groups is None else "groups"


def _times_drawn(drawn: Int[np.ndarray, "R U"], n_units: int) -> Float[np.ndarray, "R U"]:
    """Count how often every unit is drawn."""
    cells = drawn + n_units * np.arange(len(drawn))[:, None]
    return np.bincount(cells.ravel(), minlength=len(drawn) * n_units).reshape(len(drawn), n_units).astype(np.float64)


def summarise_seeds(
    predicted: Float[np.ndarray, "S N"],
    gold: Float[np.ndarray, " N"],
    *,
    metric: str,
    groups: Sequence[str] | None = None,
    resampling: Resampling = DEFAULT,
) -> SeedSummary:
    """Summarise a correlation of `CORRELATIONS` over seeds, with an interval over rows or named groups.

    Constant predictions make every value NaN.
    """
    score, n_units = _of_correlation(predicted, gold, metric, groups)
    values = np.array([CORRELATIONS[metric](row, gold) for row in predicted])
    return summarise(values, score, n_units=n_units, resampling=resampling)


def resample_correlations(
    predicted: Float[np.ndarray, "S N"],
    gold: Float[np.ndarray, " N"],
    *,
    metric: str,
    groups: Sequence[str] | None = None,
    resampling: Resampling = DEFAULT,
) -> Float[np.ndarray, "S R"]:
    """Correlate `S` systems with gold on the same resamples; arguments and errors are as in `summarise_seeds`."""
    score, n_units = _of_correlation(predicted, gold, metric, groups)
    return resample(score, n_units=n_units, resampling=resampling)


def _of_correlation(
    predicted: Float[np.ndarray, "S N"], gold: Float[np.ndarray, " N"], metric: str, groups: Sequence[str] | None
) -> tuple[Score, int]:
    """Return the score of resamples of rows or groups, and the number of these units."""
    require_name("metric", metric, CORRELATIONS)
    gather = _rank_draws if metric == "spearman" else _draw
    rows, target = [gather(row) for row in predicted.astype(np.float64)], gather(gold.astype(np.float64))
    units = number_units(groups, len(gold))
    order, sizes = np.argsort(units, kind="stable"), np.bincount(units)
    starts = np.cumsum(sizes) - sizes

    def score(drawn: Int[np.ndarray, "R U"]) -> Float[np.ndarray, "S R"]:
        if groups is None:
            known = target(drawn)
            return np.stack([pearson(row(drawn), known) for row in rows])
        counts = sizes[drawn]
        shifts = starts[drawn] - np.cumsum(counts, axis=1) + counts  # from an index of the resample to one of `order`
        scores = []
        for shift, count in zip(shifts, counts, strict=True):  # of unequal length
            sample = order[np.repeat(shift, count) + np.arange(count.sum())]
            known = target(sample)
            scores.append([float(pearson(row(sample), known)) for row in rows])
        return np.array(scores).T

    return score, len(sizes)


def _draw(values: Float[np.ndarray, " N"]) -> Callable[[NDArray[np.integer]], NDArray[np.float64]]:
    return lambda drawn: values[drawn]


def _rank_draws(values: Float[np.ndarray, " N"]) -> Callable[[NDArray[np.integer]], NDArray[np.float64]]:
    """Rank drawn values along the last axis as `rankdata` does, by counting them: only `values` are sorted."""
    if np.isnan(values).any():
        return lambda drawn: _ranked(values[drawn], "spearman")
    distinct, places = np.unique(values, return_inverse=True)

    def ranks(drawn: NDArray[np.integer]) -> NDArray[np.float64]:
        cells = places[drawn].reshape(-1, drawn.shape[-1])
        cells = cells + len(distinct) * np.arange(len(cells))[:, None]
        counts = np.bincount(cells.ravel(), minlength=len(cells) * len(distinct)).reshape(len(cells), -1)
        mean_ranks = counts.cumsum(axis=1) - (counts - 1) / 2
        return np.asarray(mean_ranks.ravel()[cells].reshape(drawn.shape))

    return ranks


AT_ONCE = 1 << 24
"""Counts in memory at once."""
TINY = 1e-12
MOST_COUNTS = 100
"""Most counts of a unit for errors within resamples, whose cost grows with the square of the counts."""


@dataclass(frozen=True)
class UnitScorer:
    """Scores predictions of the rows of one split, and resamples of their units, from counts of each unit."""

    metric: str
    unit: str
    """Noun of the units: rows, groups, sentences or documents."""
    n_units: int
    n_counts: int
    """Counts of a unit; more where classes are predicted that gold has not."""
    count: Callable[[NDArray[np.generic]], Float[np.ndarray, "M U C"]]
    """Counts every unit for `(M, N)` predictions."""
    of_sums: "OfSums"
    quick: Callable[[NDArray[np.generic]], NDArray[np.float64]] | None = None
    """Scores `(M, N)` predictions without counts of units; None where that is no faster."""
    is_lifted: bool = False
    """Whether units that are drawn twice raise the metric, so that its intervals are centred."""

    def score(self, predicted: NDArray[np.generic]) -> Float[np.ndarray, " M"]:
        """Score `(M, N)` predictions on all rows."""
        if self.quick is not None:
            return np.asarray(self.quick(predicted))
        return np.concatenate([self.of_sums(self.count(part).sum(1)) for part in self._parts(predicted)])

    def resample(self, predicted: NDArray[np.generic], resampling: Resampling = DEFAULT) -> Float[np.ndarray, "M R"]:
        """Score `(M, N)` predictions on the same `R` resamples of the units."""
        scores = [
            resample(score_counts(self.count(part), self.of_sums), n_units=self.n_units, resampling=resampling)
            for part in self._parts(predicted)
        ]
        return np.concatenate(scores)

    def summarise(self, predicted: NDArray[np.generic], resampling: Resampling = DEFAULT) -> SeedSummary:
        """Summarise the scores of the `(S, N)` predictions of `S` seeds."""
        return summarise(
            self.score(predicted),
            score_counts(self.count(predicted), self.of_sums),
            n_units=self.n_units,
            resampling=resampling,
            is_centred=self.is_lifted,
        )

    def lead_errors(
        self, predicted: NDArray[np.generic], resampling: Resampling = DEFAULT
    ) -> Float[np.ndarray, "R_1 L L"] | None:
        """Estimate the standard error of the lead of every system over every other, on all units and in each resample.

        Predictions are those of `S` seeds, of which the mean leads. A score changes with a unit by the product of its
        counts and the slope of the metric in them (its influence, or infinitesimal jackknife). Correlations are on
        Fisher's z. None for a metric of more than `MOST_COUNTS` counts.
        """
        n_seeds, n_systems = predicted.shape[:2]
        flat = predicted.reshape(n_seeds * n_systems, -1)
        if self.n_counts > MOST_COUNTS or (counts := self.count(flat)).shape[-1] > MOST_COUNTS:
            return None
        step = max(1, AT_ONCE // (len(counts) * self.n_units))

        def errors(drawn: NDArray[np.int64]) -> NDArray[np.float64]:
            times = _times_drawn(drawn, self.n_units)
            values, slopes = self._slopes(np.einsum("ru,muc->mrc", times, counts, optimize=True))
            influences = np.matmul(counts, slopes.swapaxes(1, 2))  # of a unit on a score: M U R
            influence = influences.reshape(n_seeds, n_systems, *influences.shape[1:]).mean(0)
            if self.metric in CORRELATIONS:
                value = values.reshape(n_seeds, n_systems, -1).mean(0)
                influence = influence / np.maximum(1 - value**2, TINY)[:, None]
            weighted = influence.transpose(2, 0, 1) * np.sqrt(times)[:, None]
            products = weighted @ weighted.swapaxes(1, 2)
            variances = np.diagonal(products, axis1=1, axis2=2)
            squares = variances[:, :, None] + variances[:, None] - 2 * products
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
        for count in range(sums.shape[-1]):
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
    """Score numbers by a correlation of `CORRELATIONS`; ranks are those among all rows, also in resamples."""
    require_name("metric", metric, CORRELATIONS)
    units, n_units, unit = _units_of(groups, len(gold))
    target = _standard(_ranked(gold, metric))

    def count(predicted: NDArray[np.generic]) -> Float[np.ndarray, "M U 6"]:
        rows = _standard(_ranked(predicted, metric))
        ones = np.ones_like(rows)
        parts = np.stack([ones, rows, ones * target, rows**2, ones * target**2, rows * target], axis=-1)
        return parts if groups is None else add_up(parts, units, n_units)

    return UnitScorer(
        metric,
        unit,
        n_units,
        6,
        count,
        _correlation_of_sums,
        quick=lambda predicted: np.asarray(CORRELATIONS[metric](np.asarray(predicted, np.float64), gold)),
    )


def _ranked(values: NDArray[np.generic], metric: str) -> NDArray[np.float64]:
    from scipy.stats import rankdata  # half a second, which reading a finished run saves

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
        correlation = (ab - a * b / n) / np.sqrt(np.where(square > 1e-12 * n * n, square, np.nan))
    return np.asarray(correlation.clip(-1.0, 1.0))


def class_scorer(gold: Int[np.ndarray, " N"], *, metric: str, groups: Sequence[str] | None = None) -> UnitScorer:
    """Score classes, numbered from 0, by a metric of `CLASS_METRICS`; errors are as of `correlation_scorer`."""
    compute = class_metric(metric)
    units, n_units, unit = _units_of(groups, len(gold))
    n_classes = int(gold.max(initial=0)) + 1
    if metric == "accuracy":
        return mean_scorer(
            units, metric=metric, unit=unit, score_rows=lambda predicted: np.asarray(predicted, np.int64) == gold
        )
    return UnitScorer(
        metric,
        unit,
        n_units,
        3 * n_classes,
        lambda predicted: count_by_unit(np.asarray(predicted, np.int64), gold, units),
        lambda sums: np.asarray(compute(ClassCounts(*np.split(sums, 3, axis=-1)))),
        quick=lambda predicted: score_classes(np.asarray(predicted, np.int64), gold, metric=metric),
    )


def mean_scorer(
    units: Int[np.ndarray, " N"],
    *,
    metric: str,
    unit: str,
    score_rows: Callable[[NDArray[np.generic]], NDArray[np.generic]] = np.asarray,
) -> UnitScorer:
    """Score rows by the mean of their scores, which the predictions are unless `score_rows` says otherwise."""
    n_units = int(units.max(initial=-1)) + 1

    def score(predicted: NDArray[np.generic]) -> Float[np.ndarray, "M N"]:
        return np.asarray(score_rows(predicted), np.float64)

    def count(predicted: NDArray[np.generic]) -> Float[np.ndarray, "M U 2"]:
        scores = score(predicted)
        return add_up(np.stack([scores, np.ones_like(scores)], axis=-1), units, n_units)

    return UnitScorer(
        metric, unit, n_units, 2, count, share_of_sums, quick=lambda predicted: np.asarray(score(predicted).mean(-1))
    )


def share_of_sums(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide the first of two sums by the second."""
    return np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1))


def add_up(parts: NDArray[Number], units: Int[np.ndarray, " N"], n_units: int) -> NDArray[Number]:
    """Add up the counts `(M, N, C)` of the rows of each unit to `(M, U, C)`."""
    if n_units == len(units) and (units == np.arange(n_units)).all():
        return parts
    sums = np.zeros((n_units, len(parts), parts.shape[2]), parts.dtype)
    np.add.at(sums, units, parts.swapaxes(0, 1))
    return sums.swapaxes(0, 1)


ROW_METRICS = {
    "ndcg@10": "normalised discounted gain of the first 10 documents, 0 to 1",
    "recall@10": "share of the relevant documents among the first 10, 0 to 1",
    "recall@100": "share of the relevant documents among the first 100, 0 to 1",
    "map": "mean average precision of the candidates of a query, 0 to 1",
    "mrr": "1 / rank of the first relevant candidate, 0 to 1",
    "bitext-f1": "weighted F1 of nearest neighbours, the mean of both directions, 0 to 1",
    "threshold-accuracy": "share of pairs on the right side of the threshold chosen on validation, 0 to 1",
    "bitext-accuracy": "share of texts whose nearest neighbour is the translation, both directions, 0 to 1",
}
"""Metrics that are the mean of a score of each row; the predictions are these scores."""
MOST_STEPS = 1000
"""Most steps of equal size in which similarities are counted for resamples; exact where fewer values differ."""


def precision_scorer(gold: Int[np.ndarray, " N"], groups: Sequence[str] | None = None) -> UnitScorer:
    """Score similarities of pairs, alike (1) or not (0), by average precision; equal ones are one step."""
    units, n_units, unit = _units_of(groups, len(gold))
    n_steps = min(len(gold), MOST_STEPS)

    def count(predicted: NDArray[np.generic]) -> Float[np.ndarray, "M U C"]:
        parts = np.zeros((len(predicted), len(gold), 2 * n_steps))
        rows = np.arange(len(gold))
        for part, values in zip(parts, predicted, strict=True):
            different, steps = np.unique(-values.astype(np.float64), return_inverse=True)
            steps = steps * n_steps // max(len(different), n_steps)
            part[rows, steps] = gold
            part[rows, n_steps + steps] = 1
        return add_up(parts, units, n_units)

    def quick(predicted: NDArray[np.generic]) -> NDArray[np.float64]:
        return np.array([average_precision(values, gold) for values in predicted])

    return UnitScorer("average-precision", unit, n_units, 2 * n_steps, count, _precision_of_sums, quick)


def average_precision(similarities: NDArray[np.generic], gold: NDArray[np.generic]) -> Float[np.ndarray, ""]:
    """Add up, over thresholds, the gain in recall times the precision; 0 without a pair that is alike."""
    _, steps = np.unique(-similarities.astype(np.float64), return_inverse=True)
    return _precision_of_sums(np.concatenate([np.bincount(steps, weights=gold), np.bincount(steps)]))


def _precision_of_sums(sums: NDArray[np.floating]) -> NDArray[np.float64]:
    alike, every = np.split(np.asarray(sums, np.float64), 2, axis=-1)
    precision = alike.cumsum(-1) / np.maximum(every.cumsum(-1), 1)
    return np.asarray((alike * precision).sum(-1) / np.maximum(alike.sum(-1), 1))


def cluster_scorer(
    gold: Int[np.ndarray, " N"], *, n_clusters: int = 0, groups: Sequence[str] | None = None
) -> UnitScorer:
    """Score clusters, numbered from 0, by the V-measure with the labels in `gold` (Rosenberg and Hirschberg 2007).

    There are as many clusters as labels, unless `n_clusters` says more.
    """
    units, n_units, unit = _units_of(groups, len(gold))
    n_labels = int(gold.max(initial=0)) + 1
    n_clusters = n_clusters or n_labels
    n_cells = n_labels * n_clusters

    def cells(predicted: NDArray[np.generic]) -> Int[np.ndarray, "M N"]:
        return np.asarray(gold * n_clusters + np.asarray(predicted, np.int64))

    def count(predicted: NDArray[np.generic]) -> Float[np.ndarray, "M U C"]:
        parts = np.zeros((len(predicted), len(gold), n_cells))
        np.put_along_axis(parts, cells(predicted)[..., None], 1.0, axis=-1)
        return add_up(parts, units, n_units)

    def of_sums(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        return v_measure(sums.reshape(*sums.shape[:-1], n_labels, n_clusters))

    def quick(predicted: NDArray[np.generic]) -> NDArray[np.float64]:
        return of_sums(np.stack([np.bincount(row, minlength=n_cells) for row in cells(predicted)]).astype(np.float64))

    return UnitScorer("v-measure", unit, n_units, n_cells, count, of_sums, quick, is_lifted=True)


def v_measure(counts: Float[np.ndarray, "*S K C"]) -> Float[np.ndarray, "*S"]:
    """Give the harmonic mean of homogeneity and completeness, from how many rows of a label are in a cluster."""
    total = np.asarray(counts.sum((-2, -1)))
    labels, clusters = _entropy(counts.sum(-1), total), _entropy(counts.sum(-2), total)
    mutual = labels + clusters - _entropy(counts.reshape(*counts.shape[:-2], -1), total)
    both = labels + clusters
    return np.asarray(np.where(both > 0, 2 * mutual / np.where(both > 0, both, 1), 1.0).clip(0.0, 1.0))


def _entropy(counts: NDArray[np.float64], total: NDArray[np.float64]) -> NDArray[np.float64]:
    share = counts / total[..., None]
    return np.asarray(-(share * np.log(np.where(share > 0, share, 1.0))).sum(-1))


SPAN_F1 = "span-f1"
Rows = Sequence[Any] | NDArray[Any]
"""A number or a name per row."""


class Difference(NamedTuple):
    """The lead of one system over another on the same rows."""

    value: float
    low: float
    high: float
    n_units: int
    """Units that were resampled."""


def paired_scores(
    predicted: Sequence[Rows],
    gold: Rows,
    *,
    metric: str,
    units: Sequence[str],
    sentences: Sequence[str] = (),
    resampling: Resampling = DEFAULT,
) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S R"]]:
    """Score `S` systems on all rows, and on the same `R` resamples of whole units.

    Predictions are a number or a name per row, empty for none, and scores of rows for `ROW_METRICS`. `span-f1` needs
    the sentence of each word.
    """
    if metric == "spearman":  # ranks are those within a resample
        rows, target = np.array(predicted, np.float64), np.array(gold, np.float64)
        values = np.array([spearman(row, target) for row in rows])
        groups = _groups(units)
        return values, resample_correlations(rows, target, metric=metric, groups=groups, resampling=resampling)
    counts, of_sums = unit_counts(predicted, gold, metric=metric, units=units, sentences=sentences)
    score = score_counts(counts, of_sums)
    return np.asarray(of_sums(counts.sum(1))), resample(score, n_units=counts.shape[1], resampling=resampling)


def unit_counts(
    predicted: Sequence[Rows],
    gold: Rows,
    *,
    metric: str,
    units: Sequence[str],
    sentences: Sequence[str] = (),
) -> tuple[Float[np.ndarray, "S U C"], "OfSums"]:
    """Count every unit for a metric, and return the function of sums of counts; arguments as in `paired_scores`."""
    numbers, groups = number_units(units, len(gold)), _groups(units)
    if metric == SPAN_F1:
        spans = [_span_counts(list(tags), list(gold), numbers, sentences) for tags in predicted]
        return np.stack(spans).astype(np.float64), f1_of_counts
    if metric == "v-measure":
        codes = np.stack([np.unique(np.array(row, str), return_inverse=True)[1] for row in (gold, *predicted)])
        scorer = cluster_scorer(codes[0], n_clusters=int(codes[1:].max()) + 1, groups=groups)
        return scorer.count(codes[1:]), scorer.of_sums
    if metric in CORRELATIONS:
        scorer = correlation_scorer(np.array(gold, np.float64), metric=metric, groups=groups)
    elif metric in ROW_METRICS:
        scorer = mean_scorer(numbers, metric=metric, unit="rows")
    elif metric == "average-precision":
        scorer = precision_scorer(np.array(gold, np.float64).astype(np.int64), groups)
    else:
        names = {name: code for code, name in enumerate(dict.fromkeys((*gold, *(n for row in predicted for n in row))))}
        codes = np.array([[names[name] for name in row] for row in (gold, *predicted)])
        scorer = class_scorer(codes[0], metric=metric, groups=list(units))
        return scorer.count(codes[1:]), scorer.of_sums
    return scorer.count(np.array(predicted, np.float64)), scorer.of_sums


def _groups(units: Sequence[str]) -> list[str] | None:
    """Return None where every row is a unit: single rows are drawn much faster."""
    return list(units) if len(set(units)) < len(units) else None


def difference(
    values: Float[np.ndarray, " S"],
    resampled: Float[np.ndarray, "S R"],
    one: int,
    other: int,
    *,
    n_units: int,
    confidence: float = 0.95,
) -> Difference:
    """Return the lead of system `one` over system `other`, with the symmetric interval of the paired differences.

    The half-width is the quantile of the distances of resampled differences from the difference (Hall 1988), so that
    the interval excludes 0 where `bootstrap_p_value` is below the level. Resamples without a value, as of constant
    predictions, are left out; the ends are NaN where no resample has one.
    """
    gap, gaps = float(values[one] - values[other]), resampled[one] - resampled[other]
    gaps = gaps[np.isfinite(gaps)]
    reach = float(np.quantile(np.abs(gaps - gap), confidence)) if len(gaps) else float("nan")
    return Difference(gap, gap - reach, gap + reach, n_units)


def _span_counts(
    tags: Sequence[str], gold: Sequence[str], units: Int[np.ndarray, " W"], sentences: Sequence[str]
) -> Int[np.ndarray, "U 3"]:
    """Count the spans of the sentences of each unit."""
    starts = [k for k in range(len(gold)) if k == 0 or sentences[k] != sentences[k - 1]]
    ends = [*starts[1:], len(gold)]
    parts = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
    counts = count_tag_spans(
        [list(gold[part]) for part in parts], [[tag or None for tag in tags[part]] for part in parts]
    ).by_sentence()
    return np.asarray(add_up(counts[None], units[starts], int(units.max()) + 1)[0])
