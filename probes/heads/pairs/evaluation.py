"""Scoring a head over its seeds: the part of a run that depends on one head alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32

from probes.fitting.keep_best import EpochReport
from probes.fitting.protocols import PROTOCOLS
from probes.heads.contributions import average_contributions, layer_contributions
from probes.heads.options import resolve_options
from probes.heads.pairs.fitting import Setting, fit_seed
from probes.heads.registry import head_entry
from probes.latents.pair_latents import PairLatents
from probes.metrics.bootstrap import Resampling
from probes.metrics.correlation import CORRELATIONS
from probes.metrics.intervals import summarise_seeds
from probes.networks.layer_cosine import KINDS, LayerCosine
from probes.tasks.pairs.leakage import subsets

MIN_SUBSET = 30
"""Fewer rows than this have no correlation worth an interval."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What came of a head.

    Attributes:
        scores: Plain values, as they stand in scores.json.
        calibrated: Split to predictions `(N,)` in the units of the gold, the mean over seeds.
    """

    scores: dict[str, Any]
    calibrated: dict[str, Float[np.ndarray, " N"]]


def evaluate_head(
    name: str, options: dict[str, Any], setting: Setting, *, watch: Callable[[int], EpochReport] | None = None
) -> Evaluation:
    """Fit a head for every seed, choose as the protocol says, and read the test split once.

    A fitted head that was kept under the very same circumstances is loaded instead of fitted again.

    Args:
        name: A head from the registry.
        options: Its options, as in a config.
        setting: What all heads of the run share.
        watch: Gives, for a seed, the function that is told of every epoch.

    Returns:
        Scores: per seed the epoch, history and correlations per split; per split the mean, spread and interval over
        seeds, on test also for subsets; contributions of the layers; for the layer cosine its curves. And the
        calibrated predictions.

    Raises:
        HeadError: The head could not be fitted.
        TaskError: The task has no training or no selection split.
    """
    resolved = resolve_options(name, options)
    is_trained = head_entry(name).head.is_trained
    seeds = setting.seeds if is_trained else setting.seeds[:1]
    fitted = [fit_seed(name, resolved, setting, seed=seed, watch=watch) for seed in seeds]
    first = fitted[0]
    stacked = {split: np.stack([each.predictions[split] for each in fitted]) for split in setting.task.splits}
    scores: dict[str, Any] = {
        "pooling": first.data.pooling,
        "layers": list(first.data.layers),
        "options": {**resolved.arguments, **vars(resolved.fit)} if is_trained else {},
        "is_optimistic": is_trained and PROTOCOLS[setting.protocol].is_optimistic,
        "seeds": [each.describe() for each in fitted],
        "summary": {
            split: {metric: _summarise(rows, setting, split, metric=metric) for metric in CORRELATIONS}
            for split, rows in stacked.items()
        },
        "subsets": _subset_scores(stacked, setting),
    }
    if isinstance(first.head, LayerCosine):
        scores["curves"] = _curves(first.head, first.data)
        kind, layer = first.head.chosen.tolist()
        scores["chosen"] = {"kind": KINDS[kind], "layer": first.data.layers[layer]}
    else:
        scores["contributions"] = average_contributions([layer_contributions(each.head, each.data) for each in fitted])
    calibrated = {split: np.asarray(np.mean([each.calibrated(split) for each in fitted], axis=0)) for split in stacked}
    return Evaluation(scores, calibrated)


def _summarise(
    rows: Float32[np.ndarray, "S N"], setting: Setting, split: str, *, metric: str,
    marks: Bool[np.ndarray, " N"] | None = None,
) -> dict[str, object]:  # fmt: skip
    gold = setting.task.gold01(split)
    if marks is not None:
        rows, gold = rows[:, marks], gold[marks]
    return summarise_seeds(rows, gold, metric=metric, resampling=Resampling(setting.n_resamples)).to_dict()


def _subset_scores(stacked: dict[str, Float32[np.ndarray, "S N"]], setting: Setting) -> dict[str, Any]:
    """Score the subsets of test that its training split gives away, or that the tokens set apart."""
    splits = setting.task.splits
    if not setting.has_subsets or not {"train", "test"} <= set(splits):
        return {}
    tables = {
        split: {column: list(splits[split][column]) for column in ("sentence1", "sentence2", "score")}
        for split in ("train", "test")
    }
    found = {}
    for name, marks in subsets(tables["test"], tables["train"]).items():
        n_rows = int(marks.sum())
        found[name] = dict[str, Any](n=n_rows)
        if MIN_SUBSET <= n_rows < len(marks) and len(np.unique(setting.task.gold01("test")[marks])) > 1:
            found[name] |= {
                metric: _summarise(stacked["test"], setting, "test", metric=metric, marks=marks)
                for metric in CORRELATIONS
            }
    return found


def _curves(head: LayerCosine, data: PairLatents) -> dict[str, Any]:
    """Collect the layer curve of every split."""
    found = {split: head.curves(data, split) for split in data.splits}
    return {
        split: {metric: dict(zip(KINDS, values.tolist(), strict=True)) for metric, values in curves.items()}
        for split, curves in found.items()
    }
