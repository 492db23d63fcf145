"""Metrics of one ranking each, from the grades of documents in rank order; grade 0 and below is not relevant."""

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray


def discounted_gain(ranked: NDArray[np.floating], depth: int) -> Float[np.ndarray, "*Q"]:
    """Add up the grades of the first documents, each divided by log2 of its rank plus 1 (Järvelin and Kekäläinen 2002).

    Example:
        >>> float(discounted_gain(np.array([2.0, 0.0, 1.0]), 10))
        2.5
    """
    gains = np.maximum(ranked[..., :depth], 0.0)
    return np.asarray((gains / np.log2(np.arange(2, gains.shape[-1] + 2))).sum(-1))


def ndcg(ranked: NDArray[np.floating], ideal: NDArray[np.floating], depth: int) -> Float[np.ndarray, "*Q"]:
    """Divide the discounted gain by that of the best ranking there is.

    Args:
        ranked: `(..., Q, R)` grades of the documents found, best first.
        ideal: `(Q, R')` grades of all judged documents, highest first, padded by 0.
        depth: How many documents count.
    """
    return np.asarray(discounted_gain(ranked, depth) / discounted_gain(ideal, depth))


def recall(ranked: NDArray[np.floating], n_relevant: Int[np.ndarray, " Q"], depth: int) -> Float[np.ndarray, "*Q"]:
    """Give the share of the relevant documents that is among the first."""
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
