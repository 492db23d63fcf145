"""Systems compared on the same rows: every system is scored on the same resamples, so that differences are paired."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from probes.metrics.bootstrap import DEFAULT, Resampling, number_units, resample, score_counts
from probes.metrics.class_metrics import score_classes
from probes.metrics.correlation import CORRELATIONS
from probes.metrics.intervals import resample_correlations, resample_scores
from probes.metrics.spans import count_tag_spans, f1_of_counts

SPAN_F1 = "span-f1"


class Difference(NamedTuple):
    """How much better one system is than another, on the same rows."""

    value: float
    low: float
    high: float
    n_units: int
    """Units that were resampled."""


def paired_scores(
    predicted: Sequence[Sequence[Any]], gold: Sequence[Any], *, metric: str, units: Sequence[str],
    sentences: Sequence[str] = (), resampling: Resampling = DEFAULT,
) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S R"]]:  # fmt: skip
    """Score `S` systems on all rows, and on the same `R` resamples of whole units.

    Args:
        predicted: Of every system, a number or a name per row; an empty name is no prediction.
        gold: A number or a name per row.
        metric: A correlation, a metric of classes, or `span-f1` of tags.
        units: The unit of each row, which is drawn whole: the row itself, its group, sentence or document.
        sentences: The sentence of each word, for `span-f1`.
        resampling: How units are drawn.

    Raises:
        UnknownNameError: Another metric.
        TaskError: Not one unit per row.
    """
    numbers = number_units(units, len(gold))
    if metric in CORRELATIONS:
        rows, target = np.array(predicted, np.float64), np.array(gold, np.float64)
        groups = list(units) if len(set(units)) < len(units) else None  # single rows are drawn much faster
        values = np.array([CORRELATIONS[metric](row, target) for row in rows])
        return values, resample_correlations(rows, target, metric=metric, groups=groups, resampling=resampling)
    if metric == SPAN_F1:
        counts = np.stack([_span_counts(tags, gold, numbers, sentences) for tags in predicted])
        values = np.asarray(f1_of_counts(counts.sum(1).astype(np.float64)))
        return values, resample(score_counts(counts, f1_of_counts), n_units=counts.shape[1], resampling=resampling)
    names = {name: code for code, name in enumerate(dict.fromkeys((*gold, *(n for row in predicted for n in row))))}
    codes = np.array([[names[name] for name in row] for row in (gold, *predicted)])
    values = score_classes(codes[1:], codes[0], metric=metric)
    return values, resample_scores(codes[1:], codes[0], metric=metric, groups=list(units), resampling=resampling)


def difference(
    values: Float[np.ndarray, " S"], resampled: Float[np.ndarray, "S R"], one: int, other: int, *, n_units: int,
    confidence: float = 0.95,
) -> Difference:  # fmt: skip
    """Return what system `one` has over system `other`, with the percentile interval of the paired differences.

    Resamples without a value, as of constant predictions, are left out; the ends are NaN where none has one.
    """
    tail = (1 - confidence) / 2
    gaps = resampled[one] - resampled[other]
    known = gaps[np.isfinite(gaps)]
    low, high = np.quantile(known, [tail, 1 - tail]) if len(known) else (np.nan, np.nan)
    return Difference(float(values[one] - values[other]), float(low), float(high), n_units)


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
