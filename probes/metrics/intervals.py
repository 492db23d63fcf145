"""Every metric over seeds with its bootstrap interval: correlations over pairs, classes over rows, tags over text."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from extract.errors import unknown_name
from probes.metrics.bootstrap import (
    DEFAULT,
    Resampling,
    Score,
    SeedSummary,
    number_units,
    resample,
    score_counts,
    summarise,
    summarise_counts,
)
from probes.metrics.class_metrics import ClassCounts, class_metric, count_by_unit
from probes.metrics.correlation import CORRELATIONS
from probes.metrics.spans import f1_of_counts


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

    Raises:
        UnknownNameError: Another metric.
        TaskError: Not one group name per row.
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
    """Return what correlates resamples of rows or groups, and their number."""
    if metric not in CORRELATIONS:
        raise unknown_name("metric", metric, CORRELATIONS)
    correlate = CORRELATIONS[metric]
    rows, target = predicted.astype(np.float64), gold.astype(np.float64)
    units = number_units(groups, len(gold))
    order, sizes = np.argsort(units, kind="stable"), np.bincount(units)
    starts = np.cumsum(sizes) - sizes

    def score(drawn: Int[np.ndarray, "R U"]) -> Float[np.ndarray, "S R"]:
        if groups is None:
            return np.stack([correlate(row[drawn], target[drawn]) for row in rows])
        counts = sizes[drawn]
        shifts = starts[drawn] - np.cumsum(counts, axis=1) + counts  # from a place among the rows drawn to `order`
        whole = [
            order[np.repeat(shift, count) + np.arange(count.sum())] for shift, count in zip(shifts, counts, strict=True)
        ]  # of unequal length
        return np.array([[float(correlate(row[each], target[each])) for each in whole] for row in rows])

    return score, len(sizes)


def summarise_class_seeds(
    predicted: Int[np.ndarray, "S N"],
    gold: Int[np.ndarray, " N"],
    *,
    metric: str,
    groups: Sequence[str] | None = None,
    resampling: Resampling = DEFAULT,
) -> SeedSummary:
    """Summarise a metric of `CLASS_METRICS` over seeds, with an interval over rows or named groups.

    Classes count from 0; a group is the abstract, document or question of a row. Errors are as in `summarise_seeds`.
    """
    return summarise_counts(_class_counts(predicted, gold, groups), _of_classes(metric), resampling=resampling)


def resample_scores(
    predicted: Int[np.ndarray, "S N"],
    gold: Int[np.ndarray, " N"],
    *,
    metric: str,
    groups: Sequence[str] | None = None,
    resampling: Resampling = DEFAULT,
) -> Float[np.ndarray, "S R"]:
    """Score `S` systems on the same bootstrap resamples, so that differences between rows of the result are paired.

    Arguments and errors are as in `summarise_class_seeds`.
    """
    counts = _class_counts(predicted, gold, groups)
    return resample(score_counts(counts, _of_classes(metric)), n_units=counts.shape[1], resampling=resampling)


def summarise_span_f1(
    counts: Int[np.ndarray, "S N 3"], *, documents: Sequence[str] | None = None, resampling: Resampling = DEFAULT
) -> SeedSummary:
    """Summarise the micro F1 of spans over seeds, with an interval over sentences or over named documents.

    Counts are `SpanCounts.by_sentence` of `S` seeds; a resample without any span scores 0, as in conlleval.

    Raises:
        TaskError: `documents` has another length.
    """
    return summarise_counts(_by_unit(counts, documents), f1_of_counts, resampling=resampling)


def summarise_accuracy(
    right: Bool[np.ndarray, "S W"],
    *,
    offsets: Int[np.ndarray, " N_1"],
    documents: Sequence[str] | None = None,
    resampling: Resampling = DEFAULT,
) -> SeedSummary:
    """Summarise the accuracy of words over seeds, with an interval over sentences or documents.

    `right` says whether each word has the right tag, False for a word without a prediction; sentences start at
    `offsets`, whose last entry is the number of words. The rest is as in `summarise_span_f1`.
    """
    sums = np.concatenate([np.zeros((len(right), 1), np.int64), right.cumsum(axis=1)], axis=1)
    n_right = np.diff(sums[:, offsets], axis=1)
    counts = np.stack([n_right, np.broadcast_to(np.diff(offsets), n_right.shape)], axis=2)
    return summarise_counts(
        _by_unit(counts, documents), lambda sums: sums[..., 0] / np.maximum(sums[..., 1], 1), resampling=resampling
    )


def _by_unit(counts: Int[np.ndarray, "S N C"], documents: Sequence[str] | None) -> Int[np.ndarray, "S U C"]:
    """Add up the counts of the sentences of each document."""
    if documents is None:
        return counts
    units = number_units([str(name) for name in documents], counts.shape[1], is_sorted=True)
    sums = np.zeros((int(units.max(initial=-1)) + 1, counts.shape[0], counts.shape[2]), dtype=np.int64)
    np.add.at(sums, units, counts.swapaxes(0, 1))
    return sums.swapaxes(0, 1)


def _class_counts(
    predicted: Int[np.ndarray, "S N"], gold: Int[np.ndarray, " N"], groups: Sequence[str] | None
) -> Float[np.ndarray, "S U C"]:
    """Count hits, predictions and gold rows of each unit and class, side by side: `C` is three times the classes."""
    return count_by_unit(predicted, gold, number_units(groups, len(gold)))


def _of_classes(metric: str) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    compute = class_metric(metric)
    return lambda sums: compute(ClassCounts(*np.split(sums, 3, axis=-1)))
