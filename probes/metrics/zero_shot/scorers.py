"""Scores of similarities of pairs and of clusters, and of resamples of their rows."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from probes.metrics.bootstrap import number_units
from probes.metrics.unit_scorer import UnitScorer, add_up

ROW_METRICS = {
    "ndcg@10": "normalised discounted gain of the first 10 documents, 0 to 1",
    "recall@10": "share of the relevant documents among the first 10, 0 to 1",
    "recall@100": "share of the relevant documents among the first 100, 0 to 1",
    "map": "mean average precision of the candidates of a query, 0 to 1",
    "mrr": "1 / rank of the first relevant candidate, 0 to 1",
    "bitext-f1": "weighted F1 of nearest neighbours, the mean of both directions, 0 to 1",
    "threshold-accuracy": "share of pairs on the right side of the threshold chosen on validation, 0 to 1",
    "bitext-accuracy": "share of texts whose nearest neighbour is the translation, both directions, 0 to 1",
}
"""Metrics that are the mean of a score of each row, which is what is predicted."""
MOST_STEPS = 1000
"""Similarities are counted in so many steps of equal size for resamples; exactly where there are fewer different."""


def precision_scorer(gold: Int[np.ndarray, " N"], groups: Sequence[str] | None = None) -> UnitScorer:
    """Score similarities of pairs, of which `gold` says 1 for alike and 0 otherwise, by average precision.

    Pairs of equal similarity are one step, as in scikit-learn.
    """
    units = number_units(groups, len(gold))
    n_units, n_steps = int(units.max(initial=-1)) + 1, min(len(gold), MOST_STEPS)

    def count(predicted: NDArray[np.generic]) -> Float[np.ndarray, "M U C"]:
        parts = np.zeros((len(predicted), len(gold), 2 * n_steps))
        rows = np.arange(len(gold))
        for part, values in zip(parts, predicted, strict=True):
            different, steps = np.unique(-values.astype(np.float64), return_inverse=True)
            steps = steps * n_steps // max(len(different), n_steps)
            part[rows, steps] = gold
            part[rows, n_steps + steps] = 1
        return add_up(parts, units, n_units)

    def quick(predicted: NDArray[np.generic]) -> NDArray[np.float64]:
        return np.array([average_precision(values, gold) for values in predicted])

    unit = "rows" if groups is None else "groups"
    return UnitScorer("average-precision", unit, n_units, 2 * n_steps, count, _precision_of_sums, quick)


def average_precision(similarities: NDArray[np.generic], gold: NDArray[np.generic]) -> Float[np.ndarray, ""]:
    """Add up, over thresholds, the gain in recall times the precision; 0 without a pair that is alike."""
    _, steps = np.unique(-similarities.astype(np.float64), return_inverse=True)
    return _precision_of_sums(np.concatenate([np.bincount(steps, weights=gold), np.bincount(steps)]))


def _precision_of_sums(sums: NDArray[np.floating]) -> NDArray[np.float64]:
    alike, every = np.split(np.asarray(sums, np.float64), 2, axis=-1)
    precision = alike.cumsum(-1) / np.maximum(every.cumsum(-1), 1)
    return np.asarray((alike * precision).sum(-1) / np.maximum(alike.sum(-1), 1))


def cluster_scorer(
    gold: Int[np.ndarray, " N"], *, n_clusters: int = 0, groups: Sequence[str] | None = None
) -> UnitScorer:
    """Score clusters, numbered from 0, by the V-measure with the labels in `gold` (Rosenberg and Hirschberg 2007).

    There are as many clusters as labels, unless `n_clusters` says more.
    """
    units, n_labels = number_units(groups, len(gold)), int(gold.max(initial=0)) + 1
    n_units, n_clusters = int(units.max(initial=-1)) + 1, n_clusters or n_labels
    n_cells = n_labels * n_clusters

    def cells(predicted: NDArray[np.generic]) -> Int[np.ndarray, "M N"]:
        return np.asarray(gold * n_clusters + np.asarray(predicted, np.int64))

    def count(predicted: NDArray[np.generic]) -> Float[np.ndarray, "M U C"]:
        parts = np.zeros((len(predicted), len(gold), n_cells))
        np.put_along_axis(parts, cells(predicted)[..., None], 1.0, axis=-1)
        return add_up(parts, units, n_units)

    def of_sums(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        return v_measure(sums.reshape(*sums.shape[:-1], n_labels, n_clusters))

    def quick(predicted: NDArray[np.generic]) -> NDArray[np.float64]:
        return of_sums(np.stack([np.bincount(row, minlength=n_cells) for row in cells(predicted)]).astype(np.float64))

    return UnitScorer(
        "v-measure", "rows" if groups is None else "groups", n_units, n_cells, count, of_sums, quick, is_lifted=True
    )


def v_measure(counts: Float[np.ndarray, "*S K C"]) -> Float[np.ndarray, "*S"]:
    """Give the harmonic mean of homogeneity and completeness, from how many rows of a label are in a cluster."""
    total = np.asarray(counts.sum((-2, -1)))
    labels, clusters = _entropy(counts.sum(-1), total), _entropy(counts.sum(-2), total)
    mutual = labels + clusters - _entropy(counts.reshape(*counts.shape[:-2], -1), total)
    both = labels + clusters
    return np.asarray(np.where(both > 0, 2 * mutual / np.where(both > 0, both, 1), 1.0).clip(0.0, 1.0))


def _entropy(counts: NDArray[np.float64], total: NDArray[np.float64]) -> NDArray[np.float64]:
    share = counts / total[..., None]
    return np.asarray(-(share * np.log(np.where(share > 0, share, 1.0))).sum(-1))
