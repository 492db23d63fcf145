"""Intrinsic dimension from the two nearest neighbours of every point (Facco et al. 2017)."""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

N_NEAREST = 12
"""Neighbours that are kept, so that two are left where a tenth of the points is left out."""
FEWEST_POINTS = 30
"""Distinct points that a dimension is estimated from at least."""
BLOCK = 512
"""Points whose distances are in memory at once."""


class Neighbours(NamedTuple):
    """The nearest neighbours of distinct points, the nearest first."""

    points: Int[np.ndarray, " M"]
    """The row of each point; of equal rows the first is kept."""
    nearest: Int[np.ndarray, "M K"]
    """Places in `points`."""
    distances: Float[np.ndarray, "M K"]


def find_neighbours(x: Float[np.ndarray, "N D"], *, n_nearest: int = N_NEAREST) -> Neighbours:
    """Find the nearest neighbours of every distinct row by Euclidean distance."""
    plain = np.ascontiguousarray(x) + 0  # -0 is 0
    _, first = np.unique(plain.view(np.dtype((np.void, plain.itemsize * plain.shape[1]))).ravel(), return_index=True)
    points = np.sort(first)
    rows = x[points].astype(np.float64)
    rows -= rows.mean(axis=0)
    squares = np.square(rows).sum(axis=1)
    k = min(n_nearest, len(rows) - 1)
    nearest = np.empty((len(rows), k), np.int64)
    distances = np.empty((len(rows), k))
    for start in range(0, len(rows), BLOCK) if k > 0 else ():
        block = slice(start, start + BLOCK)
        apart = squares - 2 * rows[block] @ rows.T  # squared distances, but for a constant of each row
        apart[np.arange(len(apart)), np.arange(start, start + len(apart))] = np.inf
        found = np.argpartition(apart, k - 1, axis=1)[:, :k]
        # Differences are exact where those of squares would have cancelled.
        exact = np.stack([np.linalg.norm(rows[block] - rows[column], axis=1) for column in found.T], axis=1)
        order = np.argsort(exact, axis=1)
        nearest[block] = np.take_along_axis(found, order, axis=1)
        distances[block] = np.take_along_axis(exact, order, axis=1)
    return Neighbours(points, nearest, distances)


def two_nn(
    found: Neighbours, *, keep: Bool[np.ndarray, " M"] | None = None, fit: Literal["likelihood", "line"] = "likelihood"
) -> float:
    """Estimate the intrinsic dimension from the ratio of the distances to the second and the first neighbour.

    Args:
        found: Distinct points with their neighbours.
        keep: Which points there are; all when absent.
        fit: `likelihood`: d = N / sum ln(r2 / r1), of all points. `line`: the paper's line through the origin,
            -ln(1 - F) over ln(r2 / r1), without the tenth of the points whose ratios are largest.

    Returns:
        The dimension; NaN for fewer than `FEWEST_POINTS` points.
    """
    is_there = np.ones(len(found.points), np.bool_) if keep is None else keep
    if np.count_nonzero(is_there) < FEWEST_POINTS:
        return float("nan")
    order = np.argsort(~is_there[found.nearest], axis=1, kind="stable")[:, :2]  # neighbours that are there come first
    first, second = np.take_along_axis(found.distances, order, axis=1)[is_there].T
    logs = np.sort(np.log(second / first))
    n = len(logs)
    if fit == "likelihood":
        return float(n / logs.sum()) if logs.sum() else float("nan")
    kept = logs[: int(0.9 * n)]
    heights = -np.log1p(-np.arange(1, len(kept) + 1) / n)
    return float(kept @ heights / (kept @ kept)) if kept @ kept else float("nan")
