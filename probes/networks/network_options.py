"""Options of networks: widths of codes (one size, a rule for the upper half, or a list), and losses by name."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from extract.errors import HeadError
from extract.registry import later

Widths = int | str | Sequence[int]
"""A size (`256`, `D` or `D/4`), `SIZE, upper half SIZE`, or one size per layer."""

_RULE = re.compile(r"(?P<low>[^,]+?)\s*(?:,\s*upper half\s+(?P<high>[^,]+?)\s*)?")


def check_widths(value: object) -> Widths:
    """Return a value from a config if it is a text, a size of at least 1 or a list of sizes; else raise `HeadError`."""
    sizes = value if isinstance(value, list | tuple) else [value]
    are_sizes = all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes)
    if isinstance(value, str) or (sizes and are_sizes):
        return value  # type: ignore[return-value]
    raise _unreadable(value)


def code_widths(rule: Widths, n_layers: int, *, width: int) -> tuple[int, ...]:
    """Read a rule for bottlenecks (FREEZE section 4.2.3) as `L` sizes; the upper half are the last `L // 2` layers.

    Example:
        >>> code_widths("256, upper half D", 5, width=576)
        (256, 256, 256, 576, 576)
    """
    if isinstance(rule, str):
        match = _RULE.fullmatch(rule.strip())
        if match is None:
            raise _unreadable(rule)
        low = _size(match["low"], rule, width)
        high = low if match["high"] is None else _size(match["high"], rule, width)
        n_high = n_layers // 2
        return (low,) * (n_layers - n_high) + (high,) * n_high
    check_widths(rule)
    sizes = [rule] * n_layers if isinstance(rule, int) else list(rule)
    if len(sizes) != n_layers:
        raise HeadError(f"bottleneck lists {len(sizes)} sizes; allowed: one size for each of the {n_layers} layers.")
    return tuple(sizes)


def is_same_rule(one: Widths, other: Widths) -> bool:
    """Whether two rules give the same widths for any number of layers and any width."""

    def plain(rule: Widths) -> tuple[str, ...] | tuple[int, ...]:
        if not isinstance(rule, int | str):
            return tuple(rule)
        low, _, high = "".join(str(rule).split()).partition(",upperhalf")
        return low, high or low

    return plain(one) == plain(other)


def _size(text: str, rule: str, width: int) -> int:
    match = re.fullmatch(r"(\d+)|D(?:\s*/\s*(\d+))?", text.strip())
    size = 0
    if match is not None:
        divisor = int(match[2] or 1)
        size = int(match[1]) if match[1] else width // divisor if divisor else 0
    if size < 1:
        raise _unreadable(rule)
    return size


def _unreadable(rule: object) -> HeadError:
    return HeadError(
        f"bottleneck is {rule!r}; allowed: a size (256, D or D/4), 'SIZE, upper half SIZE', or a list of one size "
        "of at least 1 per layer."
    )


LOSSES: dict[str, tuple[Callable[..., Any], str]] = {
    "log-variance": (
        later("probes.networks.pair_networks:log_variance_loss"),
        "log of the variance of the residuals (FREEZE)",
    ),
    "mse": (later("probes.networks.pair_networks:mse_loss"), "mean squared error"),
    "cosent": (later("probes.networks.pair_networks:cosent_loss"), "order of the gold within a batch (CoSENT)"),
}
COMPARING = ("log-variance", "cosent")
"""Losses that compare rows with each other."""
