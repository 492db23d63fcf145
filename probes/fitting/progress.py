"""What a caller may watch of a fit; loads no torch."""

from collections.abc import Callable

EpochReport = Callable[[int, dict[str, float]], None]


def ignore_epoch(epoch: int, values: dict[str, float]) -> None:
    """Report nothing. Another report receives the epoch's number and, by name, the logged values and `max_epochs`."""
