"""Timing two sides in turn, so that a drift of the machine's speed affects both."""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Comparison:
    """Two sides timed in turn.

    Attributes:
        name: What was compared.
        bar: The required ratio, as text.
        ratio: Median over the pairs of slow side / fast side.
        ratios: Every pair's ratio.
        seconds: Median seconds of each side, by name.
    """

    name: str
    bar: str
    ratio: float
    ratios: tuple[float, ...]
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def compare(
    name: str,
    sides: tuple[tuple[str, Callable[[], object]], tuple[str, Callable[[], object]]],
    *,
    bar: str,
    repeats: int,
    warm_up: bool = True,
) -> Comparison:
    """Time two sides in turn: one warm-up of both, then A B, B A, A B ...

    Args:
        name: What is compared.
        sides: The two sides with their names; the ratio is first / second.
        bar: What the ratio should be, as text.
        repeats: Pairs.
        warm_up: Whether both sides run once untimed; not worth it for a side that takes minutes.

    Returns:
        The comparison.
    """
    for _, side in sides if warm_up else ():
        seconds_of(side)
    pairs = []
    for k in range(repeats):
        order = sides if k % 2 == 0 else sides[::-1]
        timed = {label: seconds_of(side) for label, side in order}
        pairs.append([timed[label] for label, _ in sides])
    ratios = tuple(a / b for a, b in pairs)
    sys.stderr.write(f"{name}: {statistics.median(ratios):.2f}\n")
    medians = {label: statistics.median(pair[i] for pair in pairs) for i, (label, _) in enumerate(sides)}
    return Comparison(name, bar, statistics.median(ratios), ratios, medians)


def seconds_of(side: Callable[[], object]) -> float:
    """Time one call, waiting for the accelerator to finish."""
    _synchronise()
    began = time.perf_counter()
    side()
    _synchronise()
    return time.perf_counter() - began


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
