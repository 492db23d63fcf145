"""Pair heads: what they refuse, and how they are scored over seeds: chosen as the protocol says, test read once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32

from extract.errors import ConfigError, HeadError, TaskError
from probes.fitting.protocols import find_protocol
from probes.heads.entries import Purpose
from probes.heads.options import HeadOptions, option_defaults, try_building
from probes.heads.pairs.fitting import FittedHead, fit_options, fit_seed
from probes.heads.pairs.residuals import residuals_of
from probes.heads.result import Curve, HeadResult
from probes.heads.setting import Setting, Watch
from probes.latents.pair_latents import PairLatents
from probes.metrics.bootstrap import Resampling, SeedSummary
from probes.metrics.correlation import CORRELATIONS, pearson
from probes.metrics.intervals import summarise_seeds
from probes.networks.layer_cosine import LayerCosine
from probes.networks.loss_table import COMPARING
from probes.networks.losses import MIN_BATCH
from probes.networks.pair_head import PairHead, collect_similarities
from probes.tasks.pairs.leakage import subsets

METRIC = "pearson"
MIN_SUBSET = 30
"""Fewer rows than this have no correlation worth an interval."""


def check_pairs(task: Any, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse a task without the splits to fit and choose on, and a start from autoencoders where a plan is chosen."""
    start = resolved.own[0].get("start", "fresh")
    if purpose.chooses_plan and start != "fresh":
        raise ConfigError(
            f"head {resolved.name!r} has start {start!r}, but a sweep fits no autoencoders, of which every plan would "
            "need its own; use start: fresh, or `icecore run` for each plan."
        )
    for split in dict.fromkeys(("train", "validation", find_protocol(purpose.protocol).selection)):
        if split not in task.splits:
            raise TaskError(f"task {task.name!r} has no split {split!r}, which every head needs; add rows to it.")


def check_network(network: type[PairHead], resolved: HeadOptions) -> None:
    """Refuse options that a network cannot be built with, and batches that a loss cannot compare."""
    arguments = resolved.own[0]
    try_building(resolved.name, network, arguments)
    if not network.is_trained:
        return
    defaults = option_defaults(network)
    loss = arguments.get("loss", defaults["loss"].default if "loss" in defaults else None)
    if loss in COMPARING and resolved.own[1].batch_size < MIN_BATCH:
        raise HeadError(
            f"option batch_size of head {resolved.name!r} is {resolved.own[1].batch_size}, but the loss {loss!r} "
            f"compares rows with each other; allowed: at least {MIN_BATCH}, 32 or more for log-variance."
        )


def evaluate_pair_head(network: type[PairHead], resolved: HeadOptions, setting: Setting, watch: Watch) -> HeadResult:
    """Fit a head for every seed, or find it fitted, choose as the protocol says, and read the test split once.

    Predictions are calibrated, in the units of the gold, the mean over seeds. Extras: `subsets` of test, `residuals`
    per split, and `contributions` of the layers for a trained head.
    """
    seeds = setting.seeds if network.is_trained else setting.seeds[:1]
    fitted = [fit_seed(network, resolved, setting, seed=seed, watch=watch) for seed in seeds]
    data, splits = fitted[0].data, list(setting.task.splits)
    stacked = {split: np.stack([each.predictions[split] for each in fitted]) for split in splits}
    summary = {split: _summarise(rows, setting, split) for split, rows in stacked.items()}
    calibrated = {split: np.asarray(np.mean([each.calibrated(split) for each in fitted], axis=0)) for split in splits}
    residuals = {split: residuals_of(setting.task, split, found) for split, found in calibrated.items()}
    chosen, curves, extras = _layer_choice(fitted)
    has_best_epoch = network.is_trained and fit_options(resolved).keep == "best"
    selection = "nothing to choose" if network.is_trained else "validation (layer and kind)"
    if has_best_epoch:
        selection = f"{setting.rules.selection} (epoch)"
    return HeadResult(
        name=resolved.name,
        pooling=data.pooling,
        layers=data.layers,
        options={**resolved.own[0], **(vars(fit_options(resolved)) if network.is_trained else {})},
        metric=METRIC,
        selection=selection,
        selection_score=summary["validation"][METRIC].mean if "validation" in summary else float("nan"),
        chosen=chosen,
        summary=summary,
        curves=curves,
        seeds=tuple(each.describe() for each in fitted),
        optimistic_because=setting.rules.optimistic_because if has_best_epoch else "",
        extras={
            "subsets": _subset_scores(stacked, setting),
            **_named_subset_scores(stacked, setting),
            "residuals": {
                split: each.to_dict() for split, each in residuals.items() if split != "train" and setting.has_details
            },
            **extras,
        },
        predictions=calibrated,
        scored=stacked,
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
        for name, row in zip(first.head.kinds, rows.tolist(), strict=True)
    )
    return {"kind": first.head.kinds[kind], "layer": first.data.layers[layer]}, curves, {}


def layer_contributions(head: PairHead, data: PairLatents, split: str = "validation") -> dict[str, Any]:
    """Measure on a split (not test, which is read once) every layer alone, and the head without it.

    Returns:
        `layers`, `alone` (Pearson of each layer's own similarity, as the head computes it, with gold) and `without`
        (Pearson lost when all that the head makes of the layer is replaced by its mean over the split), as lists
        over layers.
    """
    similarities = collect_similarities(head, data, split)
    gold = data.split(split).gold.numpy()
    with torch.no_grad():
        whole = float(pearson(head.combine(similarities).numpy(), gold))
        losses = []
        for k in range(head.n_layers):
            muted = similarities.clone()
            of_layer = slice(k, None, head.n_layers)  # its cosine, and what else the head makes of it
            muted[of_layer] = similarities[of_layer].mean(1, keepdim=True)
            losses.append(whole - float(pearson(head.combine(muted).numpy(), gold)))
    cosines = similarities[: head.n_layers]
    alone = pearson(cosines.numpy(), np.broadcast_to(gold, tuple(cosines.shape)))
    return {"split": split, "layers": list(data.layers), "alone": alone.tolist(), "without": losses}


def average_contributions(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average the contributions of several seeds, on the same layers and split."""
    means = {key: np.mean([each[key] for each in found], axis=0).tolist() for key in ("alone", "without")}
    return {**found[0], **means}


def _summarise(
    rows: Float32[np.ndarray, "S N"], setting: Setting, split: str, marks: Bool[np.ndarray, " N"] | None = None
) -> dict[str, SeedSummary]:
    gold, groups = setting.task.gold01(split), setting.task.units(split)
    if marks is not None:
        rows, gold = rows[:, marks], gold[marks]
        groups = groups and [name for name, is_marked in zip(groups, marks.tolist(), strict=True) if is_marked]
    how = Resampling(setting.n_resamples)
    return {
        metric: summarise_seeds(rows, gold, metric=metric, groups=groups, resampling=how) for metric in CORRELATIONS
    }


def _named_subset_scores(stacked: dict[str, Float32[np.ndarray, "S N"]], setting: Setting) -> dict[str, Any]:
    """Score every subset that the task names in test, and take the mean over subsets; nothing where it names none."""
    rows = setting.task.splits.get("test")
    if rows is None or "subset" not in rows.column_names:
        return {}
    names = np.array(rows["subset"])
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(set(names.tolist())):
        scores = _summarise(stacked["test"], setting, "test", names == name)
        found[name] = {"n": int((names == name).sum()), **{metric: each.to_dict() for metric, each in scores.items()}}
    means = {metric: float(np.mean([each[metric]["mean"] for each in found.values()])) for metric in CORRELATIONS}
    return {"named_subsets": {"subsets": found, "mean": means}}


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
