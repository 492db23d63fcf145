"""What a head reads of every layer beyond what it would memorise: its score minus that on labels that mean nothing."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from probes.heads.apart import take_apart
from probes.heads.options import HeadOptions
from probes.heads.parts import HeadParts
from probes.heads.registry import HEADS
from probes.heads.result import HeadResult
from probes.heads.setting import Setting, Watch
from probes.layers.controls import CONTROLS, control_task
from probes.layers.findings import ViewCurve
from probes.metrics.best_set import joint_intervals
from probes.metrics.bootstrap import Resampling
from probes.metrics.correlation import CORRELATIONS

QUIETLY = 2
"""Resamples of intervals that nobody reads."""


def selectivity(
    resolved: HeadOptions,
    setting: Setting,
    result: HeadResult,
    *,
    split: str,
    watch: Watch,
    how: str = "type",
    seeds: Sequence[int] = (0,),
    resampling: Resampling = Resampling(),  # noqa: B008 - frozen
) -> tuple[ViewCurve, ViewCurve]:
    """Fit a head on control labels, on every layer alone, and take its score there from its score on the task.

    Args:
        resolved: The head and its options.
        setting: What all heads of the run share; fits on controls stay in its folder, under `controls`.
        result: What came of the head on the task.
        split: The split that is scored, on its own labels and on those of the controls.
        watch: Receives epochs.
        how: A key of `CONTROLS`.
        seeds: Seeds of the labels, one control task each.
        resampling: The bootstrap, which draws the same units for the task and the controls.

    Returns:
        The views `control` (the mean over the seeds of the labels) and `selectivity`, with intervals for all layers at
        once; `spread` is over the seeds of the labels.

    Raises:
        UnknownNameError: Another control.
        TaskError: A task that cannot have one; see `control_task`.
    """
    parts = take_apart(resolved, setting, result, split, watch)
    scores = _scores(parts, resampling)
    controls = np.stack(
        [_scores(_control_parts(resolved, setting, split, watch, how=how, seed=seed), resampling) for seed in seeds]
    )
    note = f"{CONTROLS[how]}; {len(seeds)} seeds of labels"
    columns = {"control": controls.mean(0), "selectivity": scores - controls.mean(0)}
    spread = controls[..., 0].std(0, ddof=1) if len(seeds) > 1 else np.zeros(0)
    curves = []
    for view, found in columns.items():
        low, high = joint_intervals(
            found[:, 0],
            found[:, 1:],
            confidence=resampling.confidence,
            is_correlation=view == "control" and parts.scorer.metric in CORRELATIONS,
        )
        values, lows, highs, spreads = (tuple(each.tolist()) for each in (found[:, 0], low, high, spread))
        curves.append(ViewCurve(view, parts.scorer.metric, parts.layers, values, lows, highs, spreads, how, note))
    return curves[0], curves[1]


def _control_parts(
    resolved: HeadOptions, setting: Setting, split: str, watch: Watch, *, how: str, seed: int
) -> HeadParts:
    task = control_task(setting.task, how, seed)
    place = setting.folder / "controls" / f"{how}_{seed}"
    control = replace(setting, task=task, folder=place, n_resamples=QUIETLY, has_details=False)
    found = HEADS[resolved.name].evaluate(resolved, control, watch)
    return take_apart(resolved, control, found, split, watch)


def _scores(parts: HeadParts, resampling: Resampling) -> Float[np.ndarray, "L R"]:
    """Score every layer alone, the mean over seeds: on all rows in the first column, then on each resample.

    A layer that says nothing, as one of constant predictions, has a correlation of 0.
    """
    each = [
        np.concatenate([parts.scorer.score(rows)[:, None], parts.scorer.resample(rows, resampling)], axis=1)
        for rows in parts.alone
    ]
    return np.asarray(np.nan_to_num(each).mean(0))
