"""Baselines of a run: predicted without the decoder, or by one with random weights, and scored beside its heads."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from probes.data.task import Task
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import (
    Resampling,
    SeedSummary,
    difference,
    paired_scores,
    summarise_resamples,
)
from probes.metrics.correlation import CORRELATIONS
from probes.report.document import KindReport, SplitRows, best_result
from probes.report.kind_reports import cosine_kind
from probes.report.scores import BaselineScores, Lead

if TYPE_CHECKING:  # scikit-learn is imported when baselines are computed
    from probes.heads.baselines import Baseline

LIFTED = ("v-measure",)
"""Metrics that units drawn twice raise, so that their resamples are centred."""


def score_baselines(
    baselines: "Mapping[str, Baseline]",
    heads: Mapping[str, HeadResult],
    *,
    task: Task,
    report: KindReport,
    n_resamples: int,
) -> dict[str, BaselineScores]:
    """Score baselines on validation and test, and by how much every head leads them on the same resamples.

    Args:
        baselines: Name to baseline, whose predictions are in the form of those of the heads.
        heads: The heads of a run with their predictions, or of a sweep on their chosen plans.
        task: The task of the run.
        report: What is particular to its kind: gold and units of rows.
        n_resamples: Resamples behind every interval, those that the intervals of the heads draw.

    Returns:
        Name to scores.
    """
    best, resampling = best_result(heads.values()), Resampling(n_resamples)
    metrics = list(CORRELATIONS) if best.metric in CORRELATIONS else [best.metric]
    metrics = sorted(metrics, key=lambda metric: metric != best.metric)
    splits = {
        split: SplitRows(report.inputs(task, split), report.gold(task, split), report.units(task, split))
        for split in best.summary
        if split != "train"
    }
    scored = {}
    for name, baseline in baselines.items():
        predicted = {split: _named(baseline.predictions[split], best.names.get(split)) for split in splits}
        summary: dict[str, dict[str, SeedSummary]] = {split: {} for split in splits}
        for split, metric in product(splits, metrics):
            values, resampled = _scores([predicted[split]], splits[split], metric, resampling)
            if np.isnan(values[0]):  # a constant, which has no correlation
                values[0] = resampled[0] = 0.0
            summary[split][metric] = summarise_resamples(
                values, resampled[0], confidence=resampling.confidence, is_centred=metric in LIFTED
            )
        leads = {
            head: _lead(result, [predicted[split]], splits[split], resampling)
            for head, result in heads.items()
            for split in [result.reported_split]
            if result.metric in metrics
        }
        scored[name] = BaselineScores(baseline.note, summary, leads)
    return scored


def leads_over_cosine(
    heads: Mapping[str, HeadResult], *, task: Task, report: KindReport, n_resamples: int
) -> dict[str, Lead]:
    """Return the lead of every head over the cosine of the top layer, of latents prepared as its own; as baselines'."""
    kinds = next((result.top_cosines for result in heads.values() if result.top_cosines), {})
    leads = {}
    for name, result in heads.items():
        if (kind := cosine_kind(result)) in kinds:
            split = result.reported_split
            rows = SplitRows(report.inputs(task, split), report.gold(task, split), report.units(task, split))
            leads[name] = _lead(result, [kinds[kind].tolist()], rows, Resampling(n_resamples))
    return leads


def lead_over_plan(
    result: HeadResult, default: HeadResult, *, task: Task, report: KindReport, n_resamples: int
) -> Lead:
    """Return the lead of a head under one plan over the same head under another, on test."""
    rows = SplitRows(report.inputs(task, "test"), report.gold(task, "test"), report.units(task, "test"))
    over = default.mean("test", result.metric)
    return _lead(result, _fits(default, "test"), rows, Resampling(n_resamples), over=over)


def _named(predicted: NDArray[Any], names: Sequence[str] | None) -> Sequence[object]:
    """Return predicted numbers, or the names at predicted positions."""
    values: list[Any] = predicted.tolist()
    return values if names is None else [names[code] for code in values]


def _scores(
    predicted: Sequence[Sequence[object]], rows: SplitRows, metric: str, resampling: Resampling
) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S R"]]:
    """Score predictions on all rows, and on the resamples that all intervals of the split draw."""
    sentences = [str(row) for row in rows.inputs["row"]]
    units = [str(unit) for unit in rows.units] if rows.units is not None else sentences
    return paired_scores(predicted, rows.gold, metric=metric, units=units, sentences=sentences, resampling=resampling)


def _fits(result: HeadResult, split: str) -> list[Sequence[object]]:
    """Return the predictions of every fit of a head, numbers or names."""
    fits = result.scored[split] if split in result.scored else result.predictions[split][None]
    names = (*result.names[split], "") if split in result.names else None  # -1 is no prediction
    return [_named(row, names) for row in fits]


def _lead(
    result: HeadResult,
    others: Sequence[Sequence[object]],
    rows: SplitRows,
    resampling: Resampling,
    *,
    over: float | None = None,
) -> Lead:
    """Return the lead of a head over other predictions, each the mean over its fits, around the difference of scores.

    `over` is the score of the others where it is on record.
    """
    split, n = result.reported_split, len(others)
    values, resampled = _scores([*others, *_fits(result, split)], rows, result.metric, resampling)
    if np.isnan(values[:n]).any():
        values[:n] = resampled[:n] = 0.0
    scores = np.array([values[:n].mean(), values[n:].mean()])
    draws = np.stack([resampled[:n].mean(axis=0), resampled[n:].mean(axis=0)])
    gap = difference(scores, draws, 1, 0, n_units=len(set(rows.units or rows.inputs["row"])))
    value, reach = result.mean(split) - (float(scores[0]) if over is None else over), gap.high - gap.value
    return Lead(value, value - reach, value + reach, gap.n_units)
