"""Sets of layers, each read by a readout of its own: without one, with one, up to one, from one on, a few picked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes.layers.readout import Readout

MOST_PICKS = 8
"""Layers that are picked at most."""


@dataclass(frozen=True, eq=False)
class SetPredictions:
    """Predictions of the scored split, one for each set of layers.

    Attributes:
        whole: `(1, N)`, of all layers.
        best: `(1, N)`, of the best layer.
        without: `(L, N)`, of all but one, under the penalty of all.
        beside: `(L, N)`, of the best and this one.
        prefix: `(L, N)`, of all up to this one.
        suffix: `(L, N)`, of this one and all above.
        greedy: `(G, N)`, of the first picks.
        picks: The layers picked, in order.
    """

    whole: NDArray[Any]
    best: NDArray[Any]
    without: NDArray[Any]
    beside: NDArray[Any]
    prefix: NDArray[Any]
    suffix: NDArray[Any]
    greedy: NDArray[Any]
    picks: tuple[int, ...]


def predict_sets(readout: Readout, best: int) -> SetPredictions:
    """Fit a readout on every set, and predict; picks are made by the error on rows of train that a fold leaves out.

    Args:
        readout: The readout of all layers.
        best: The layer that `beside` puts every other beside.
    """
    n, decide = len(readout.places), readout.rows.decide
    every = list(range(n))
    penalty = readout.penalty(every)
    picks = pick_layers(readout.error, readout.penalty, n)
    return SetPredictions(
        decide(readout.outputs(every, penalty)[None]),
        decide(readout.outputs([best])[None]),
        decide(np.stack([readout.outputs([j for j in every if j != k], penalty) for k in every])),
        decide(np.stack([readout.outputs(sorted({best, k})) for k in every])),
        decide(np.stack(readout.growing(every))),
        decide(np.stack(readout.growing(every[::-1])))[::-1],
        decide(np.stack(readout.growing(picks))),
        picks,
    )


def pick_layers(
    error: Callable[[Sequence[int], float], float], penalty: Callable[[Sequence[int]], float], n_layers: int
) -> tuple[int, ...]:
    """Add the layer that lowers an error most, again and again, 8 times at most; gives the picks in order.

    Candidates are tried under the penalty of what is picked so far, of the first layer before the first pick.

    Example:
        >>> pick_layers(lambda layers, _: -len({k // 2 for k in layers}), lambda _: 1.0, 4)[:2]
        (0, 2)
    """
    chosen: tuple[int, ...] = ()
    while len(chosen) < min(n_layers, MOST_PICKS):
        under = penalty(chosen or (0,))
        rest = [k for k in range(n_layers) if k not in chosen]
        chosen = (*chosen, rest[int(np.argmin([error((*chosen, k), under) for k in rest]))])
    return chosen
