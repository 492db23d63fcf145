"""A fitted head taken apart: what it makes of every layer by itself, and of some layers without the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool
from numpy.typing import NDArray

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


def split_scorer(task: Any, split: str, metric: str) -> UnitScorer:
    """Return how predicted pairs, classes or numbers of a split are scored."""
    return _SCORERS[task.kind](task, split, metric)


_SCORERS: dict[str, Callable[[Any, str, str], UnitScorer]] = {
    "pairs": lambda task, split, metric: correlation_scorer(
        task.gold01(split), metric=metric, groups=task.units(split)
    ),
    "classes": lambda task, split, metric: class_scorer(task.labels(split), metric=metric, groups=task.units(split)),
    "numbers": lambda task, split, metric: correlation_scorer(
        task.numbers(split), metric=metric, groups=task.units(split)
    ),
}
