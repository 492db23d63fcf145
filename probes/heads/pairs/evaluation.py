"""Scoring a pair head over its seeds: choose as the protocol says, then read test once."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float32

from probes.heads.contributions import average_contributions, layer_contributions
from probes.heads.options import HeadOptions
from probes.heads.pairs.fitting import FittedHead, fit_options, fit_seed
from probes.heads.pairs.residuals import residuals_of
from probes.heads.result import Curve, HeadResult
from probes.heads.setting import Setting, Watch
from probes.metrics.bootstrap import Resampling, SeedSummary
from probes.metrics.correlation import CORRELATIONS
from probes.metrics.intervals import summarise_seeds
from probes.networks.layer_cosine import KINDS, LayerCosine
from probes.networks.pair_head import PairHead
from probes.tasks.pairs.leakage import subsets

METRIC = "pearson"
MIN_SUBSET = 30
"""Fewer rows than this have no correlation worth an interval."""


def evaluate_pair_head(network: type[PairHead], resolved: HeadOptions, setting: Setting, watch: Watch) -> HeadResult:
    """Fit a head for every seed, choose as the protocol says, and read the test split once.

    A fitted head that was kept under the very same circumstances is loaded instead of fitted again.

    Args:
        network: The head's class.
        resolved: Its options.
        setting: What all heads of the run share.
        watch: Makes, for a seed, the function that receives every epoch.

    Returns:
        The result. Predictions are calibrated, in the units of the gold, the mean over seeds. Extras: `subsets` of
        test, `residuals` per split, and `contributions` of the layers for a trained head.

    Raises:
        HeadError: The head could not be fitted.
        TaskError: The task has no training or no selection split.
    """
    seeds = setting.seeds if network.is_trained else setting.seeds[:1]
    fitted = [fit_seed(network, resolved, setting, seed=seed, watch=watch) for seed in seeds]
    data, splits = fitted[0].data, list(setting.task.splits)
    stacked = {split: np.stack([each.predictions[split] for each in fitted]) for split in splits}
    summary = {split: _summarise(rows, setting, split) for split, rows in stacked.items()}
    calibrated = {split: np.asarray(np.mean([each.calibrated(split) for each in fitted], axis=0)) for split in splits}
    residuals = {split: residuals_of(setting.task, split, found) for split, found in calibrated.items()}
    chosen, curves, extras = _layer_choice(fitted)
    return HeadResult(
        name=resolved.name,
        pooling=data.pooling,
        layers=data.layers,
        options={**resolved.own[0], **vars(fit_options(resolved))} if network.is_trained else {},
        metric=METRIC,
        selection=f"{setting.rules.selection} (epoch)" if network.is_trained else "validation (layer and kind)",
        selection_score=summary["validation"][METRIC].mean if "validation" in summary else float("nan"),
        chosen=chosen,
        summary=summary,
        curves=curves,
        seeds=tuple(each.describe() for each in fitted),
        optimistic_because=setting.rules.optimistic_because if network.is_trained else "",
        extras={
            "subsets": _subset_scores(stacked, setting),
            "residuals": {
                split: each.to_dict() for split, each in residuals.items() if split != "train" and setting.has_details
            },
            **extras,
        },
        predictions=calibrated,
        row_scores={split: -np.abs(each.values) for split, each in residuals.items()},
    )


def _layer_choice(fitted: list[FittedHead]) -> tuple[dict[str, Any], tuple[Curve, ...], dict[str, Any]]:
    """Return the chosen layer and the curves of a head that reads one, or what each layer contributes to one of all."""
    first = fitted[0]
    if not isinstance(first.head, LayerCosine):
        found = [layer_contributions(each.head, each.data) for each in fitted]
        return {}, (), {"contributions": average_contributions(found)}
    kind, layer = first.head.chosen.tolist()
    curves = tuple(
        Curve(name, split, metric, tuple(row))
        for split in first.data.splits
        for metric, rows in first.head.curves(first.data, split).items()
        for name, row in zip(KINDS, rows.tolist(), strict=True)
    )
    return {"kind": KINDS[kind], "layer": first.data.layers[layer]}, curves, {}


def _summarise(
    rows: Float32[np.ndarray, "S N"], setting: Setting, split: str, marks: Bool[np.ndarray, " N"] | None = None
) -> dict[str, SeedSummary]:
    gold = setting.task.gold01(split)
    if marks is not None:
        rows, gold = rows[:, marks], gold[marks]
    how = Resampling(setting.n_resamples)
    return {metric: summarise_seeds(rows, gold, metric=metric, resampling=how) for metric in CORRELATIONS}


def _subset_scores(stacked: dict[str, Float32[np.ndarray, "S N"]], setting: Setting) -> dict[str, Any]:
    """Score the subsets of test that its training split gives away, or that final punctuation distinguishes."""
    splits = setting.task.splits
    if not setting.has_details or not {"train", "test"} <= set(splits):
        return {}
    tables = {
        split: {column: list(splits[split][column]) for column in ("sentence1", "sentence2", "score")}
        for split in ("train", "test")
    }
    found: dict[str, Any] = {}
    for name, marks in subsets(tables["test"], tables["train"]).items():
        n_rows = int(marks.sum())
        found[name] = {"n": n_rows}
        if MIN_SUBSET <= n_rows < len(marks) and len(np.unique(setting.task.gold01("test")[marks])) > 1:
            found[name] |= {
                metric: each.to_dict() for metric, each in _summarise(stacked["test"], setting, "test", marks).items()
            }
    return found
