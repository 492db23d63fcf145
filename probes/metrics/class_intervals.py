"""Bootstrap intervals of class metrics, over rows or over whole groups (abstracts, documents, questions)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from extract.errors import TaskError
from probes.metrics.bootstrap import SeedSummary
from probes.metrics.class_metrics import ClassCounts, class_metric, score_classes

BATCH = 100
"""Resamples held at once."""


@dataclass(frozen=True)
class Resampling:
    """How the bootstrap draws."""

    n_resamples: int = 1000
    """Resamples behind the interval."""
    confidence: float = 0.95
    """Confidence level, 0 to 1."""
    seed: int = 0
    """Seed of the draws: equal seeds draw the same rows, so differences of two systems are paired."""


def resample_scores(
    predicted: Int[np.ndarray, "S N"],
    gold: Int[np.ndarray, " N"],
    *,
    metric: str,
    groups: Sequence[str] | None = None,
    resampling: Resampling | None = None,
) -> Float[np.ndarray, "S R"]:
    """Score every set of predictions on the same bootstrap resamples of the rows.

    Args:
        predicted: `(S, N)` predicted classes, from 0: seeds of one system, or systems to compare.
        gold: `(N,)` gold classes, from 0.
        metric: A key of `CLASS_METRICS`.
        groups: One name per row: groups are drawn whole; None draws single rows.
        resampling: How many, and from which seed; None is 1,000 from seed 0.

    Returns:
        `(S, R)` scores; row by row differences are paired differences.

    Raises:
        UnknownNameError: If the metric stands in no table.
        TaskError: If there is not one group name per row.

    Example:
        >>> gold = np.array([0, 1] * 20)
        >>> resample_scores(gold[None], gold, metric="f1-macro").min()
        np.float64(1.0)
    """
    resampling = resampling or Resampling()
    found = class_metric(metric)
    units = _number_units(groups, len(gold))
    n_units = int(units.max()) + 1 if len(units) else 0
    if not n_units:
        return np.full((len(predicted), resampling.n_resamples), np.nan)
    n_classes = 1 + int(max(predicted.max(), gold.max()))
    n_gold = _tally(units, gold, (n_units, n_classes))
    tallies = [
        (_tally(units[row == gold], gold[row == gold], n_gold.shape), _tally(units, row, n_gold.shape), n_gold)
        for row in predicted
    ]
    rng = np.random.default_rng(resampling.seed)
    parts = []
    for start in range(0, resampling.n_resamples, BATCH):
        n_drawn = min(BATCH, resampling.n_resamples - start)
        drawn = rng.integers(0, n_units, (n_drawn, n_units)) + n_units * np.arange(n_drawn)[:, None]
        times = np.bincount(drawn.ravel(), minlength=n_drawn * n_units).reshape(n_drawn, n_units).astype(np.float64)
        parts.append(np.stack([found.compute(ClassCounts(*(times @ table for table in each))) for each in tallies]))
    return np.concatenate(parts, axis=1)


def summarise_class_seeds(
    predicted: Int[np.ndarray, "S N"],
    gold: Int[np.ndarray, " N"],
    *,
    metric: str,
    groups: Sequence[str] | None = None,
    resampling: Resampling | None = None,
) -> SeedSummary:
    """Mean and spread of a class metric over seeds, with a bootstrap interval over rows or groups.

    Rows are resampled, the same for every seed, and the mean over seeds is taken in each resample (percentile
    interval), as `probes.metrics.bootstrap.summarise_seeds` does for correlations.

    Args:
        predicted: `(S, N)` predictions of `S` seeds.
        gold: `(N,)` gold classes, from 0.
        metric: A key of `CLASS_METRICS`.
        groups: One name per row, drawn whole; None draws single rows.
        resampling: Resamples, confidence and seed; None is 1,000, 0.95 and 0.

    Returns:
        The summary; the interval is NaN when there are fewer than two rows or groups to draw from.

    Raises:
        UnknownNameError: If the metric stands in no table.
        TaskError: If there is not one group name per row.

    Example:
        >>> gold = np.array([0, 1] * 20)
        >>> summarise_class_seeds(gold[None], gold, metric="accuracy").mean
        1.0
    """
    resampling = resampling or Resampling()
    values = tuple(float(value) for value in score_classes(predicted, gold, metric=metric))
    low, high = float("nan"), float("nan")
    n_units = len(set(groups)) if groups is not None else len(gold)
    if n_units > 1:
        scores = resample_scores(predicted, gold, metric=metric, groups=groups, resampling=resampling).mean(0)
        tail = (1 - resampling.confidence) / 2
        low, high = (float(end) for end in np.quantile(scores, [tail, 1 - tail]))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return SeedSummary(float(np.mean(values)), spread, low, high, resampling.confidence, values)


def _number_units(groups: Sequence[str] | None, n_rows: int) -> NDArray[np.int64]:
    if groups is None:
        return np.arange(n_rows)
    if len(groups) != n_rows:
        raise TaskError(f"`groups` names {len(groups)} rows, but there are {n_rows}: give one group name per row.")
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups], dtype=np.int64)


def _tally(units: NDArray[np.int64], classes: NDArray[np.integer], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Count rows per unit and class; a resample's counts are a weighted sum of these."""
    table = np.zeros(shape)
    np.add.at(table, (units, classes), 1)
    return table
