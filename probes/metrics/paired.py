"""Systems compared on the same rows: every system is scored on the same resamples, so that differences are paired."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from probes.metrics.bootstrap import DEFAULT, Resampling, number_units, resample, score_counts
from probes.metrics.correlation import CORRELATIONS, spearman
from probes.metrics.intervals import resample_correlations
from probes.metrics.significance import OfSums
from probes.metrics.spans import count_tag_spans, f1_of_counts
from probes.metrics.unit_scorer import class_scorer, correlation_scorer, mean_scorer
from probes.metrics.zero_shot.scorers import ROW_METRICS, cluster_scorer, precision_scorer

SPAN_F1 = "span-f1"
Rows = Sequence[Any] | NDArray[Any]
"""A number or a name per row."""


class Difference(NamedTuple):
    """How much better one system is than another, on the same rows."""

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

    Args:
        predicted: Of every system, a number or a name per row; an empty name is no prediction.
        gold: A number or a name per row.
        metric: A metric of `METRICS`. Those of single rows are predicted themselves.
        units: The unit of each row, which is drawn whole: the row itself, its group, sentence or document.
        sentences: The sentence of each word, for `span-f1`.
        resampling: How units are drawn.

    Raises:
        UnknownNameError: Another metric.
        TaskError: Not one unit per row.
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
) -> tuple[Float[np.ndarray, "S U C"], OfSums]:
    """Count what a metric needs of every unit, and return what computes it from sums; arguments as in `paired_scores`.

    Predictions that a correlation compares are standardised, or ranked, system by system.
    """
    numbers = number_units(units, len(gold))
    if metric == SPAN_F1:
        spans = [_span_counts(list(tags), list(gold), numbers, sentences) for tags in predicted]
        return np.stack(spans).astype(np.float64), f1_of_counts
    if metric in CORRELATIONS:
        scorer = correlation_scorer(np.array(gold, np.float64), metric=metric, groups=_groups(units))
        return scorer.count(np.array(predicted, np.float64)), scorer.of_sums
    if metric in ROW_METRICS:
        scorer = mean_scorer(numbers, metric=metric, unit="rows")
        return scorer.count(np.array(predicted, np.float64)), scorer.of_sums
    if metric == "average-precision":
        scorer = precision_scorer(np.array(gold, np.float64).astype(np.int64), _groups(units))
        return scorer.count(np.array(predicted, np.float64)), scorer.of_sums
    if metric == "v-measure":
        codes = np.stack([np.unique(np.array(row, str), return_inverse=True)[1] for row in (gold, *predicted)])
        scorer = cluster_scorer(codes[0], n_clusters=int(codes[1:].max()) + 1, groups=_groups(units))
        return scorer.count(codes[1:]), scorer.of_sums
    names = {name: code for code, name in enumerate(dict.fromkeys((*gold, *(n for row in predicted for n in row))))}
    codes = np.array([[names[name] for name in row] for row in (gold, *predicted)])
    scorer = class_scorer(codes[0], metric=metric, groups=list(units))
    return scorer.count(codes[1:]), scorer.of_sums


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
    """Return what system `one` has over system `other`, with the symmetric interval of the paired differences.

    Its ends are as far from the difference as the resampled differences are, at the confidence (Hall 1988), so that it
    leaves 0 out where `bootstrap_p_value` is below the level. Resamples without a value, as of constant predictions,
    are left out; the ends are NaN where none has one.
    """
    gap, gaps = float(values[one] - values[other]), resampled[one] - resampled[other]
    known = gaps[np.isfinite(gaps)]
    reach = float(np.quantile(np.abs(known - gap), confidence)) if len(known) else float("nan")
    return Difference(gap, gap - reach, gap + reach, n_units)


def _span_counts(
    tags: Sequence[str], gold: Sequence[str], units: Int[np.ndarray, " W"], sentences: Sequence[str]
) -> Int[np.ndarray, "U 3"]:
    """Count the spans of the sentences of each unit."""
    starts = [k for k in range(len(gold)) if k == 0 or sentences[k] != sentences[k - 1]]
    ends = [*starts[1:], len(gold)]
    parts = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
    found = count_tag_spans(
        [list(gold[part]) for part in parts], [[tag or None for tag in tags[part]] for part in parts]
    ).by_sentence()
    sums = np.zeros((int(units.max()) + 1, found.shape[1]), np.int64)
    np.add.at(sums, units[starts], found)
    return sums
