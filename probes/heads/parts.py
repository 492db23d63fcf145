"""A fitted head taken apart: what it makes of every layer by itself, and of some layers without the others."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool
from numpy.typing import NDArray

from probes.heads.layerwise import channels_read, only_channel
from probes.heads.options import HeadOptions
from probes.heads.registry import HEADS
from probes.heads.result import HeadResult
from probes.heads.setting import Setting, Watch
from probes.metrics.unit_scorer import UnitScorer, class_scorer, correlation_scorer

Together = Callable[[Bool[np.ndarray, "M L"]], NDArray[np.generic]]
"""Gives `(S, M, N)` predictions of a head for `M` sets of layers, the other layers being their means over train."""


@dataclass(frozen=True, eq=False)
class HeadParts:
    """What a head makes of the layers of one split.

    Attributes:
        pooling: The pooling it reads.
        layers: Its `L` layers, bottom up.
        scorer: How predictions of the split are scored.
        alone: `(S, L, N)` predictions of each layer by itself, for `S` seeds.
        together: Predicts from sets of layers; None for a head that reads one layer.
        how: How `alone` came about, in a sentence.
    """

    pooling: str
    layers: tuple[str, ...]
    scorer: UnitScorer
    alone: NDArray[np.generic]
    together: Together | None
    how: str


def take_apart(resolved: HeadOptions, setting: Setting, result: HeadResult, split: str, watch: Watch) -> HeadParts:
    """Take a head of a run apart, fitting what was not kept; what is fitted here stays in `setting.folder`.

    Args:
        resolved: The head and its options.
        setting: What all heads of the run share.
        result: What came of the head in the run.
        split: The split to predict.
        watch: Receives epochs.
    """
    entry = HEADS[resolved.name]
    return (entry.parts or fit_every_layer)(resolved, setting, result, split, watch)


def fit_every_layer(resolved: HeadOptions, setting: Setting, result: HeadResult, split: str, watch: Watch) -> HeadParts:
    """Fit a head of one layer on each layer by itself, its other choices being made on validation as ever."""
    channels = channels_read(resolved, setting)
    found = []
    for place, name in enumerate(channels.names):
        one = only_channel(channels, place)
        alone = replace(resolved, pooling=one.pooling, layers=one.layers)
        folder = setting.folder / "layers" / name.replace("/", "_")
        quick = replace(setting, folder=folder, n_resamples=2, has_details=False)
        found.append(HEADS[resolved.name].evaluate(alone, quick, watch).predictions[split])
    return HeadParts(
        channels.pooling, channels.names, split_scorer(setting.task, split, result.metric), np.stack(found)[None], None,
        "the head fitted on the layer alone, its other choices made as in the run",
    )  # fmt: skip


def split_scorer(task: Any, split: str, metric: str) -> UnitScorer:
    """Return how predicted pairs, classes or numbers of a split are scored."""
    return _SCORERS[task.kind](task, split, metric)


_SCORERS: dict[str, Callable[[Any, str, str], UnitScorer]] = {
    "pairs": lambda task, split, metric: correlation_scorer(task.gold01(split), metric=metric),
    "classes": lambda task, split, metric: class_scorer(task.labels(split), metric=metric, groups=task.groups(split)),
    "numbers": lambda task, split, metric: correlation_scorer(
        task.numbers(split), metric=metric, groups=task.groups(split)
    ),
}
