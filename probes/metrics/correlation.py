"""Correlations over a whole corpus."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import rankdata


def pearson(predicted: NDArray[np.floating], gold: NDArray[np.floating]) -> Float[np.ndarray, "*S"]:
    """Pearson correlation along the last axis.

    Args:
        predicted: `(..., N)` predictions, one corpus per leading index.
        gold: `(N,)` or `(..., N)` gold.

    Returns:
        `(...)` correlations in [-1, 1]; NaN where either side is constant.
    """
    a, b = _centre(predicted), _centre(gold)
    # Divided one after the other: the product of two tiny norms would underflow.
    with np.errstate(invalid="ignore", divide="ignore"):
        a = a / np.sqrt((a * a).sum(-1, keepdims=True))
        b = b / np.sqrt((b * b).sum(-1, keepdims=True))
    return np.asarray((a * b).sum(-1).clip(-1.0, 1.0))


def _centre(values: NDArray[np.floating]) -> NDArray[np.float64]:
    wide = np.asarray(values, np.float64)
    centred: NDArray[np.float64] = wide - wide.mean(-1, keepdims=True)
    # Rounding in the mean must not make a constant vary.
    return np.where(np.ptp(wide, axis=-1, keepdims=True) == 0, 0.0, centred)


def spearman(predicted: NDArray[np.floating], gold: NDArray[np.floating]) -> Float[np.ndarray, "*S"]:
    """Spearman rank correlation along the last axis, ties sharing their mean rank; shapes and NaN as in `pearson`."""
    return pearson(rankdata(predicted, axis=-1), rankdata(gold, axis=-1))


def correlations(predicted: NDArray[np.floating], gold: NDArray[np.floating]) -> dict[str, float]:
    """Pearson and Spearman of one corpus, as plain values."""
    return {name: float(correlate(predicted, gold)) for name, correlate in CORRELATIONS.items()}


CORRELATIONS: dict[str, Callable[[NDArray[np.floating], NDArray[np.floating]], NDArray[np.floating]]] = {
    "pearson": pearson,
    "spearman": spearman,
}
