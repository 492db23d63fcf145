"""Accuracy and F1 of class predictions, for many predictions of one gold at once, and metrics of rankings."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray

from extract.errors import unknown_name

NO_PREDICTION = -1
"""Class of a row, or of a word that was cut off, without a prediction: it is in no span, and never right."""


@dataclass(frozen=True)
class ClassCounts:
    """Rows `(..., K)` of each class that are predicted correctly, predicted, and gold."""

    hits: NDArray[np.float64]
    """Rows of the class that were predicted as such."""
    n_predicted: NDArray[np.float64]
    n_gold: NDArray[np.float64]


def count_classes(predicted: NDArray[np.integer], gold: Int[np.ndarray, " N"], *, n_classes: int) -> ClassCounts:
    """Count hits, predictions and gold rows per class; one set of `(..., N)` predictions per leading index."""
    shape = predicted.shape[:-1]
    flat = predicted.reshape(prod(shape), predicted.shape[-1]).astype(np.int64)
    cells = flat + n_classes * np.arange(len(flat))[:, None]
    bins = len(flat) * n_classes
    hits = np.bincount(cells[flat == gold], minlength=bins).reshape(*shape, n_classes)
    n_predicted = np.bincount(cells.ravel(), minlength=bins).reshape(*shape, n_classes)
    n_gold = np.broadcast_to(np.bincount(gold, minlength=n_classes), hits.shape)
    return ClassCounts(hits.astype(np.float64), n_predicted.astype(np.float64), n_gold.astype(np.float64))


def count_by_unit(
    predicted: NDArray[np.integer], gold: Int[np.ndarray, " N"], units: Int[np.ndarray, " N"]
) -> Float[np.ndarray, "S U C"]:
    """Count hits, predictions and gold rows of each unit and class, side by side: `C` is three times the classes."""
    n_classes, n_units = _n_classes(predicted, gold), int(units.max(initial=-1)) + 1
    cells = n_classes * units  # a class of a unit is counted as a class of its own
    counts = count_classes(predicted + cells, gold + cells, n_classes=n_units * n_classes)
    tables = (counts.hits, counts.n_predicted, counts.n_gold)
    return np.concatenate([table.reshape(len(predicted), n_units, n_classes) for table in tables], axis=-1)


def _n_classes(*sides: NDArray[np.integer]) -> int:
    return 1 + max((int(side.max()) for side in sides if side.size), default=0)


def _f1_per_class(counts: ClassCounts) -> NDArray[np.float64]:
    """F1 of each class; 0 for a class that is neither gold nor predicted."""
    return _divide(2 * counts.hits, counts.n_predicted + counts.n_gold, empty=0.0)


def _accuracy(counts: ClassCounts) -> NDArray[np.float64]:
    return _divide(counts.hits.sum(-1), counts.n_gold.sum(-1), empty=np.nan)


def _f1_weighted(counts: ClassCounts) -> NDArray[np.float64]:
    return _divide((_f1_per_class(counts) * counts.n_gold).sum(-1), counts.n_gold.sum(-1), empty=np.nan)


def _f1_micro(counts: ClassCounts) -> NDArray[np.float64]:
    return _divide(2 * counts.hits.sum(-1), (counts.n_predicted + counts.n_gold).sum(-1), empty=np.nan)


def _f1_macro(counts: ClassCounts) -> NDArray[np.float64]:
    n_present = (counts.n_predicted + counts.n_gold > 0).sum(-1)
    return _divide(_f1_per_class(counts).sum(-1), n_present, empty=np.nan)


def _divide(above: ArrayLike, below: ArrayLike, *, empty: float) -> NDArray[np.float64]:
    top, bottom = np.asarray(above, np.float64), np.asarray(below, np.float64)
    quotient: NDArray[np.float64] = np.divide(top, bottom, out=np.full(top.shape, empty), where=bottom > 0)
    return quotient


CLASS_METRICS: dict[str, Callable[[ClassCounts], NDArray[np.float64]]] = {
    "f1-weighted": _f1_weighted,
    "f1-micro": _f1_micro,
    "f1-macro": _f1_macro,
    "accuracy": _accuracy,
}
"""F1 as scikit-learn averages it: macro over the classes that are gold or predicted, weighted by gold rows."""


def class_metric(name: str) -> Callable[[ClassCounts], NDArray[np.float64]]:
    """Look up a class metric: a function of counts `(..., K)` to scores `(...)`."""
    if name not in CLASS_METRICS:
        raise unknown_name("metric", name, CLASS_METRICS)
    return CLASS_METRICS[name]


def score_classes(
    predicted: NDArray[np.integer], gold: Int[np.ndarray, " N"], *, metric: str
) -> Float[np.ndarray, "*S"]:
    """Score predictions of one corpus, or of a whole surface of them (layers, C, plans), against the same gold.

    Classes count from 0, one set of `(..., N)` predictions per leading index. The `(...)` scores are in [0, 1], and NaN
    where there are no rows; an unknown metric is refused with those of `CLASS_METRICS`.
    """
    compute = class_metric(metric)
    return np.asarray(compute(count_classes(predicted, gold, n_classes=_n_classes(predicted, gold))))


def discounted_gain(ranked: NDArray[np.floating], depth: int) -> Float[np.ndarray, "*Q"]:
    """Add up the grades of the first documents, each divided by log2 of its rank plus 1 (Järvelin and Kekäläinen 2002).

    Documents are in rank order; a grade of 0 or below is not relevant, here and in the metrics below.

    Example:
        >>> float(discounted_gain(np.array([2.0, 0.0, 1.0]), 10))
        2.5
    """
    gains = np.maximum(ranked[..., :depth], 0.0)
    return np.asarray((gains / np.log2(np.arange(2, gains.shape[-1] + 2))).sum(-1))


def ndcg(ranked: NDArray[np.floating], ideal: NDArray[np.floating], depth: int) -> Float[np.ndarray, "*Q"]:
    """Divide the discounted gain by that of the best ranking; `ideal` are all grades, the highest first, then 0."""
    return np.asarray(discounted_gain(ranked, depth) / discounted_gain(ideal, depth))


def recall(ranked: NDArray[np.floating], n_relevant: Int[np.ndarray, " Q"], depth: int) -> Float[np.ndarray, "*Q"]:
    """Return the share of the relevant documents that is among the first."""
    return np.asarray((ranked[..., :depth] > 0).sum(-1) / n_relevant)


def average_precision(ranked: NDArray[np.floating], n_relevant: Int[np.ndarray, " Q"]) -> Float[np.ndarray, "*Q"]:
    """Average, over the relevant documents, the precision at their ranks; those not ranked count as 0."""
    is_hit = ranked > 0
    precision = is_hit.cumsum(-1) / np.arange(1, ranked.shape[-1] + 1)
    return np.asarray((precision * is_hit).sum(-1) / n_relevant)


def reciprocal_rank(ranked: NDArray[np.floating]) -> Float[np.ndarray, "*Q"]:
    """Divide 1 by the rank of the first relevant document; 0 where there is none."""
    is_hit = ranked > 0
    return np.asarray(np.where(is_hit.any(-1), 1.0 / (is_hit.argmax(-1) + 1), 0.0))
