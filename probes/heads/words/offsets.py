"""How readily a head calls a word O: cross-entropy asks for the right share of words, a score of spans for another."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from probes.metrics.spans import NO_PREDICTION

OFFSETS = tuple(step / 2 for step in range(-2, 11))
"""What may be taken off the bias of O, in nats."""

Score = Callable[[Int[np.ndarray, " W"]], float]


class ChosenOffsets(NamedTuple):
    """What is taken off the bias of O of each probe, and the scores with it."""

    offsets: Float[np.ndarray, " P"]
    scores: Float[np.ndarray, " P"]


def choose_offsets(
    predicted: Iterable[tuple[NDArray[np.int64], Tensor]], score: Score, *, shape: tuple[int, int], outside: int
) -> ChosenOffsets:
    """Choose for each probe the entry of `OFFSETS` after which predictions score best, the smallest of equals.

    Args:
        predicted: Positions `(W',)` of words in the split, and their logits `(P, W', K)`; each word at most once.
        score: Scores the classes of all words of the split; higher is better.
        shape: Probes `P` and words `W` of the split.
        outside: Class of O.

    Example:
        >>> import torch
        >>> predicted = [(np.arange(2), torch.tensor([[[3.0, 0.0], [1.2, 0.0]]]))]
        >>> def share_of_right(ids):
        ...     return float((ids == np.array([0, 1])).mean())
        >>> choose_offsets(predicted, share_of_right, shape=(1, 2), outside=0).offsets.tolist()
        [1.5]
    """
    ids = np.full((len(OFFSETS), *shape), NO_PREDICTION, dtype=np.int16)
    for words, logits in predicted:
        moved = logits.clone()
        for k, step in enumerate(np.diff(OFFSETS, prepend=0.0)):
            moved[..., outside] -= float(step)
            ids[k][:, words] = moved.argmax(-1).cpu().numpy()
    scores = np.array([[score(row.astype(np.int64)) for row in rows] for rows in ids])
    order = np.argsort(np.abs(OFFSETS), kind="stable")
    picks = order[scores[order].argmax(axis=0)]
    return ChosenOffsets(np.array(OFFSETS)[picks], scores[picks, np.arange(shape[0])])
