"""Numbers that lay tasks side by side: ranks on a common scale, and the depth where scores are gained."""

import numpy as np
from jaxtyping import Float


def normalised_ranks(values: Float[np.ndarray, "M T"]) -> Float[np.ndarray, "M T"]:
    """Rank `M` systems on each of `T` tasks by how far they are from the best: (M - 1) (max - v) / (max - min).

    The best system of a task has 0 and the worst M - 1, as with ranks, but ties stay ties and a close second is close
    (BidirLM, appendix D.3). The mean over tasks compares systems across metrics. NaN where all systems of a task are
    equal, or one has no value.

    Example:
        >>> normalised_ranks(np.array([[4.0, 60.0], [3.0, 70.0], [0.0, 50.0]])).tolist()
        [[0.0, 1.0], [0.5, 0.0], [2.0, 2.0]]
    """
    best, worst = values.max(axis=0), values.min(axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray((len(values) - 1) * (best - values) / np.where(best > worst, best - worst, np.nan))


def centre_of_gravity(values: Float[np.ndarray, "*S L"], depths: Float[np.ndarray, " L"]) -> Float[np.ndarray, "*S"]:
    """Return the depth at which a head gains its score: the mean of the depths, each weighted by what it adds.

    This is the expected layer of Tenney et al. (2019): sum of l * delta_l over the sum of delta_l, where delta_l is
    what layer l adds to the layers below. Where each layer is scored alone, that is what the best score up to l gains
    over the best below l, so that it is never negative; the lowest layer adds nothing. NaN where nothing is gained.

    Args:
        values: Scores of layers, bottom up; any number of curves, such as seeds or resamples, in front.
        depths: Depth of each layer.

    Example:
        >>> float(centre_of_gravity(np.array([0.0, 0.5, 0.25, 1.0]), np.array([0.0, 1.0, 2.0, 3.0])))
        2.0
    """
    gains = np.diff(np.fmax.accumulate(values, axis=-1), axis=-1)
    total = gains.sum(axis=-1)
    return np.asarray((gains * depths[1:]).sum(axis=-1) / np.where(total > 0, total, np.nan))
