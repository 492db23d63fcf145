"""Tables of cases of which the default suite tries a few; the whole table is `long`."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def thinned(first: Sequence[Any], second: Sequence[Any], *, n: int = 1) -> list[Any]:
    """Pair every value of one axis with every value of the other.

    All pairs but a few are marked `long`: each value of the longer axis stays in `n` of them, and each value of the
    shorter one in at least as many.
    """
    least = min(len(first), len(second))
    return [
        pytest.param(one, other, marks=() if (i - j) % least < n else pytest.mark.long)
        for (i, one), (j, other) in product(enumerate(first), enumerate(second))
    ]


def shared_out(names: Sequence[str], values: Sequence[Any], *, n: int) -> list[Any]:
    """Give each name `n` of the values, so that all are in turn; and, marked `long`, each name every value."""
    few = [
        pytest.param(name, [value for j, value in enumerate(values) if (j - i) % len(values) < n], id=name)
        for i, name in enumerate(names)
    ]
    return [*few, *(pytest.param(name, list(values), id=f"{name}-all", marks=pytest.mark.long) for name in names)]
