"""What a caller may watch of a fit; loads no torch."""

from collections.abc import Callable

EpochReport = Callable[[int, dict[str, float]], None]
LIMITS = ("max_epochs", "patience", "patience_left")
"""What is reported beside the values of an epoch: the most epochs, the epochs without a better one after which a fit
stops, and how many of these are left."""


def ignore_epoch(epoch: int, values: dict[str, float]) -> None:
    """Report nothing. Another report receives the epoch's number and, by name, the logged values and `LIMITS`."""
