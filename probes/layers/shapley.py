"""Shapley values of layers: what each adds to a score, averaged over all orders in which layers can come."""

from collections.abc import Callable
from dataclasses import dataclass
from math import factorial

import numpy as np
from jaxtyping import Bool, Float

from extract.errors import InputError

Worth = Callable[[Bool[np.ndarray, "M L"]], Float[np.ndarray, "M *R"]]
"""Scores `M` sets of players; further axes are resamples or seeds of the same score."""
MOST_EXACT = 12
"""Players up to which all sets are scored."""


@dataclass(frozen=True, eq=False)
class Shapley:
    """Shapley values.

    Attributes:
        values: `(L, ...)` values; they sum to what all players have over none.
        errors: Standard errors of the draw of orders; 0 where all sets were scored.
        none: The worth of no player.
        all: The worth of all.
        n_sets: Sets that were scored.
    """

    values: Float[np.ndarray, "L *R"]
    errors: Float[np.ndarray, "L *R"]
    none: Float[np.ndarray, "*R"]
    all: Float[np.ndarray, "*R"]
    n_sets: int


def shapley_values(worth: Worth, n_players: int, *, n_orders: int = 200, seed: int = 0) -> Shapley:
    """Compute the Shapley value of every player: exactly up to 12 of them, else from drawn orders.

    Orders are drawn in pairs, each with its reverse, which takes out most of the noise (Castro et al. 2009 for drawn
    orders; Mitchell et al. 2022 for antithetic ones).

    Args:
        worth: Scores sets of players.
        n_players: How many there are.
        n_orders: Orders to draw, an even number.
        seed: Seed of the draw.

    Raises:
        InputError: Fewer than 4 orders, or an odd number of them.

    Example:
        >>> sums = lambda masks: masks @ np.array([1.0, 2.0, 4.0])
        >>> shapley_values(sums, 3).values.round(6).tolist()
        [1.0, 2.0, 4.0]
    """
    if n_orders < 4 or n_orders % 2:
        raise InputError(f"the number of orders is {n_orders}; allowed: an even number of at least 4.")
    if n_players <= MOST_EXACT:
        return _exact(worth, n_players)
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(n_players) for _ in range(n_orders // 2)]
    orders = np.array([order for one in drawn for order in (one, one[::-1])])
    ranks = orders.argsort(1)
    masks = ranks[:, None, :] < np.arange(n_players + 1)[:, None]  # orders, sizes, players
    unique, places = np.unique(masks.reshape(-1, n_players), axis=0, return_inverse=True)
    scores = worth(unique)
    found = scores[places.reshape(len(orders), n_players + 1)]
    gains = np.diff(found, axis=1)  # orders, steps, ...
    steps = ranks.reshape(*ranks.shape, *[1] * (gains.ndim - 2))
    by_player = np.take_along_axis(gains, np.broadcast_to(steps, gains.shape), axis=1)
    pairs = (by_player[::2] + by_player[1::2]) / 2
    errors = pairs.std(axis=0, ddof=1) / np.sqrt(len(pairs))
    return Shapley(pairs.mean(0), errors, np.asarray(found[0, 0]), np.asarray(found[0, -1]), len(unique))


def _exact(worth: Worth, n: int) -> Shapley:
    masks = (np.arange(2**n)[:, None] >> np.arange(n)) & 1 == 1
    scores = worth(masks)
    sizes, weights = masks.sum(1), np.array([factorial(s) * factorial(n - s - 1) / factorial(n) for s in range(n)])
    values = []
    for player in range(n):
        without = np.flatnonzero(~masks[:, player])
        gains = scores[without | (1 << player)] - scores[without]
        values.append(np.tensordot(weights[sizes[without]], gains, 1))
    found = np.stack(values)
    return Shapley(found, np.zeros_like(found), np.asarray(scores[0]), np.asarray(scores[-1]), len(masks))


def group_layers(layers: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Group layers: the embedding, the lower, middle and upper third of the blocks, and the final norm.

    Example:
        >>> group_layers(("embedding", "block_01", "block_02", "block_03", "final_norm"))
        {'embedding': (0,), 'lower third': (1,), 'middle third': (2,), 'upper third': (3,), 'final_norm': (4,)}
    """
    names = [name.rpartition("/")[2] for name in layers]
    blocks = [k for k, name in enumerate(names) if name.startswith("block_")]
    order = sorted(blocks, key=lambda k: (names[k], k))
    thirds = np.array_split(np.array(order, int), 3)
    labelled = zip(("lower third", "middle third", "upper third"), thirds, strict=True)
    found = {"embedding": tuple(k for k, name in enumerate(names) if name == "embedding")}
    found |= {label: tuple(sorted(part.tolist())) for label, part in labelled}
    found |= {"final_norm": tuple(k for k, name in enumerate(names) if name == "final_norm")}
    return {label: part for label, part in found.items() if part}


def worth_of_groups(worth: Worth, groups: tuple[tuple[int, ...], ...], n_layers: int) -> Worth:
    """Make a worth of layers one of groups of layers."""
    table = np.zeros((len(groups), n_layers), bool)
    for row, layers in zip(table, groups, strict=True):
        row[list(layers)] = True
    return lambda masks: worth(masks @ table)
