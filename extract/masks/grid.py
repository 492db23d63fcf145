"""Lists of plans to sweep over: all k of one kind, a (k, k0) grid, windows below the top."""

import re
from collections.abc import Iterable

from extract.errors import ConfigError
from extract.masks.plan import MaskPlan, parse_plan


def parse_counts(text: str) -> tuple[int, ...]:
    """Read whole numbers and ranges.

    Args:
        text: For instance `"0-4,8"`.

    Returns:
        The numbers, rising, each once.

    Raises:
        ConfigError: Anything else.

    Example:
        >>> parse_counts("0-3,8")
        (0, 1, 2, 3, 8)
    """
    numbers: set[int] = set()
    for part in re.sub(r"\s", "", text).split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise ConfigError(
                f"{text!r} is not a list of counts; allowed: whole numbers and rising ranges, as 0-30 or 2,4,8."
            )
        numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(numbers))


def plans_over_k(kinds: Iterable[str], counts: Iterable[int]) -> list[MaskPlan]:
    """List the plans `KIND:K`, for every kind and count; the causal plan is listed once.

    Example:
        >>> [plan.text for plan in plans_over_k(["backward", "bidirectional"], [0, 2])]
        ['causal', 'backward:2', 'bidirectional:2']
    """
    ks = list(counts)
    return _each_once(f"{kind}:{k}" for kind in kinds for k in ks)


def plans_over_k_and_k0(counts: Iterable[int], top_counts: Iterable[int]) -> list[MaskPlan]:
    """List LBW's MASK0&BIDIR: the top `k0` nosink-bidirectional, bidirectional down to `k`; `k0 > k` is left out.

    Example:
        >>> [plan.text for plan in plans_over_k_and_k0([2], [0, 1, 3])]
        ['bidirectional:2', 'nosink-bidirectional:1+bidirectional:1']
    """
    tops = list(top_counts)
    return _each_once(f"nosink-bidirectional:{k0}+bidirectional:{k - k0}" for k in counts for k0 in tops if k0 <= k)


def k_and_k0(plan: MaskPlan) -> tuple[int, int] | None:
    """Read a plan as a point of a (k, k0) grid: k converted blocks from the top, the uppermost k0 of them nosink.

    Returns:
        `(k, k0)`, or None for any other plan.

    Example:
        >>> k_and_k0(parse_plan("nosink-bidirectional:2+bidirectional:8")), k_and_k0(parse_plan("backward:3"))
        ((10, 2), None)
    """
    if plan.is_untouched:
        return 0, 0
    if plan.is_list or plan.architecture != "inplace" or plan.skip is not None:
        return None
    counts = {"nosink-bidirectional": 0, "bidirectional": 0}
    for segment in plan.segments:
        is_below = segment.kind == "nosink-bidirectional" and counts["bidirectional"] > 0
        if segment.kind not in counts or segment.first is None or segment.last is not None or is_below:
            return None
        counts[segment.kind] += segment.first
    return sum(counts.values()), counts["nosink-bidirectional"]


def plans_over_windows(kind: str, sizes: Iterable[int], reads: Iterable[int]) -> list[MaskPlan]:
    """List windows `(r - k, r]`: the `k` blocks that end in block `r`, read at block `r`, where they fit.

    Example:
        >>> [plan.text for plan in plans_over_windows("backward", [2], [1, 5])]
        ['backward@4-5']
    """
    ends = list(reads)
    return _each_once(f"{kind}@{r - k + 1}-{r}" for k in sizes for r in ends if 1 <= k <= r)


def _each_once(texts: Iterable[str]) -> list[MaskPlan]:
    return list(dict.fromkeys(parse_plan(text) for text in texts))
