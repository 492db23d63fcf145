"""Lists of plans to sweep over: all k of one kind, a (k, k0) grid, windows below the top."""

import re
from collections.abc import Iterable

from extract.errors import ConfigError
from extract.masks.plan import MaskPlan, parse_plan


def parse_counts(text: str) -> tuple[int, ...]:
    """Read whole numbers and ranges such as `0-3,8`, in rising order; refuse anything else with `ConfigError`."""
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
    """List the plans `KIND:K`, for every kind and count; the causal plan is listed once."""
    ks = list(counts)
    return _each_once(f"{kind}:{k}" for kind in kinds for k in ks)


def plans_over_k_and_k0(counts: Iterable[int], top_counts: Iterable[int]) -> list[MaskPlan]:
    """List LBW's MASK0&BIDIR: the top `k0` nosink-bidirectional, bidirectional down to `k`; `k0 > k` is left out."""
    tops = list(top_counts)
    return _each_once(f"nosink-bidirectional:{k0}+bidirectional:{k - k0}" for k in counts for k0 in tops if k0 <= k)


def k_and_k0(plan: MaskPlan) -> tuple[int, int] | None:
    """Read a plan as `(k, k0)`: k converted blocks from the top, the uppermost k0 of them nosink; None for others."""
    if plan.is_untouched:
        return 0, 0
    found = re.fullmatch(r"(?:nosink-bidirectional:(\d+))?\+?(?:bidirectional:(\d+))?", plan.text)
    if not found:
        return None
    k0 = int(found[1] or 0)
    return k0 + int(found[2] or 0), k0


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
