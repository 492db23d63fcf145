"""Poolings: the hidden states of one text become one vector; a new one is one function and one row of `POOLINGS`."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from extract.errors import InputError, UnknownNameError, first_line, unknown_name
from extract.own.names import add_own, find_own


@dataclass(frozen=True)
class PoolingIndex:
    """Which tokens of a batch count, worked out once per batch and used at every layer.

    Attributes:
        weights: `(B, T)` float32, one at tokens with the role `text`, zero at padding, specials and instruction.
        counts: `(B, 1)` float32, number of text tokens per row, at least 1.
        first: `(B,)` int64, column of the first text token.
        last: `(B,)` int64, column of the last real token of the text, or of the special that closes it.
        is_full: Every column of every row is a text token, so that plain reductions are exact.
    """

    weights: Tensor
    counts: Tensor
    first: Tensor
    last: Tensor
    is_full: bool


def index_batch(is_text: Bool[Tensor, "B T"], is_real: Bool[Tensor, "B T"]) -> PoolingIndex:
    """Work out the pooling index of a batch, whatever the padding side; every row has at least one text token."""
    weights = is_text.to(torch.float32)
    columns = torch.arange(is_text.shape[1], device=is_text.device)
    return PoolingIndex(
        weights=weights,
        counts=weights.sum(1, keepdim=True),
        first=torch.where(is_text, columns, is_text.shape[1]).amin(1),
        last=torch.where(is_real, columns, -1).amax(1),
        is_full=bool(is_text.all()),
    )


def _take(hidden: Float[Tensor, "B T D"], columns: Int[Tensor, " B"]) -> Float[Tensor, "B D"]:
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), columns].to(torch.float32)


def _weigh(hidden: Float[Tensor, "B T D"], weights: Float[Tensor, "B T"]) -> Float[Tensor, "B D"]:
    # A masked sum rather than a product over all columns: a pad column may hold NaN, and 0 * NaN is NaN.
    kept = hidden.to(torch.float32).masked_fill(weights.unsqueeze(-1) == 0, 0.0)
    return torch.bmm(weights.unsqueeze(1), kept).squeeze(1)


def pool_last(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Take the last real token of each row (FREEZE section 3.2)."""
    return _take(hidden, index.last)


def pool_first(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Take the first text token of each row."""
    return _take(hidden, index.first)


def pool_mean(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Average the text tokens of each row in float32."""
    if index.is_full:
        return hidden.mean(1, dtype=torch.float32)
    return _weigh(hidden, index.weights) / index.counts


def pool_weighted_mean(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Average the text tokens with weights 1, 2, 3 ... along the text (SGPT position weighting)."""
    ranks = index.weights.cumsum(1) * index.weights
    return _weigh(hidden, ranks / ranks.sum(1, keepdim=True))


def pool_max(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Take the largest value of each dimension over the text tokens."""
    outside = index.weights.unsqueeze(-1) == 0
    return hidden.to(torch.float32).masked_fill(outside, float("-inf")).amax(1)


def pool_median(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Take the median of each dimension over the text tokens, the mean of the two middle values for an even number.

    A few tokens with massive activations, such as an attention sink without a BOS token, dominate a mean but do not
    move a median.
    """
    outside = index.weights.unsqueeze(-1) == 0
    ordered = hidden.to(torch.float32).masked_fill(outside, float("inf")).sort(1).values
    n = index.counts.long().unsqueeze(-1).expand(-1, 1, hidden.shape[-1])
    median = (ordered.gather(1, (n - 1) // 2) + ordered.gather(1, n // 2)).squeeze(1) / 2
    return torch.where(ordered[:, -1].isnan(), float("nan"), median)  # NaN sorts last and must not be hidden


Pooling = Callable[[Tensor, PoolingIndex], Tensor]

POOLINGS: dict[str, tuple[Pooling, str]] = {
    "last": (pool_last, "the last real token"),
    "mean": (pool_mean, "the mean of the text tokens, specials and instruction left out"),
    "weighted-mean": (pool_weighted_mean, "the mean of the text tokens with weights 1, 2, 3 ... along the text"),
    "first": (pool_first, "the first text token"),
    "max": (pool_max, "the largest value of each dimension over the text tokens"),
    "median": (pool_median, "the median of each dimension over the text tokens, whatever a few outliers do"),
}


SHIPPED = tuple(POOLINGS)


def register_pooling(name: str, function: Pooling | None = None, *, what: str = "") -> Any:
    """Add a pooling under a name, by which an extraction finds it; also as a decorator.

    The code of the function is part of what a cache is: edited, it is another pooling, and nothing stored is reused. It
    must not depend on padding, which an extraction tries before it begins.

    Args:
        name: A name of its own; the same again replaces it.
        function: Takes the hidden states `(B, T, D)` of a layer and the `PoolingIndex` of the batch, and returns
            `(B, D)`.
        what: One line for `icecore list poolings`; the first line of its docstring when empty.

    Raises:
        InputError: A name that the library has, or no name.

    Example:
        >>> @register_pooling("sum-of-tokens")
        ... def sum_tokens(hidden, index):
        ...     return (hidden.float() * index.weights.unsqueeze(-1)).sum(1)
    """
    if function is None:
        return partial(register_pooling, name, what=what)
    add_own("pooling", name, function, shipped=SHIPPED)
    POOLINGS[name] = (guard("pooling", name, function), describe(function, what))
    return function


def describe(function: Any, what: str) -> str:
    """Describe what a user added: as told, or by the first line of its docstring."""
    return what or (getattr(function, "__doc__", "") or "registered by you").strip().splitlines()[0].rstrip(".")


def guard(noun: str, name: str, function: Callable[[Tensor, Any], Tensor]) -> Callable[[Tensor, Any], Tensor]:
    """Wrap a user's pooling so that its errors and wrong shapes are one sentence."""

    @wraps(function)
    def guarded(hidden: Tensor, index: Any) -> Tensor:
        try:
            pooled = function(hidden, index)
        except Exception as error:
            raise InputError(
                f"your {noun} {name!r} fails on hidden states {tuple(hidden.shape)}: {first_line(error)}."
            ) from error
        n = len(index.first)
        if not isinstance(pooled, Tensor) or pooled.shape != (n, hidden.shape[-1]):
            found = tuple(pooled.shape) if isinstance(pooled, Tensor) else type(pooled).__name__
            raise InputError(
                f"your {noun} {name!r} returns {found} for hidden states {tuple(hidden.shape)}; allowed: a tensor "
                f"({n}, {hidden.shape[-1]}), a vector for each."
            )
        return pooled

    return guarded


def select_poolings(names: str | Iterable[str]) -> tuple[str, ...]:
    """Check names from `POOLINGS`, or one name, and drop repeats; raises as `check_names`."""
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        find_own("pooling", name, known=POOLINGS, add=register_pooling)
    return check_names("pooling", chosen, POOLINGS)


@torch.no_grad()
def require_no_padding(names: Iterable[str], width: int) -> None:
    """Refuse poolings of the user that give a row another vector when it is padded: `InputError` names it.

    `width` is that of the decoder; two rows of random states are tried alone and padded together, on either side.
    """
    drawn = torch.Generator().manual_seed(0)
    for name in names:
        if name in SHIPPED:
            continue
        pool, states = POOLINGS[name][0], torch.randn(2, 7, width, generator=drawn)
        for side in (slice(0, 4), slice(3, 7)):
            is_real = torch.zeros(2, 7, dtype=torch.bool)
            is_real[0, side], is_real[1] = True, True
            padded = states.masked_fill(~is_real.unsqueeze(-1), 50.0)
            together = pool(padded, index_batch(is_real, is_real))[0]
            whole = torch.ones(1, 4, dtype=torch.bool)
            alone = pool(states[:1, side], index_batch(whole, whole))[0]
            if not torch.allclose(together.float(), alone.float(), rtol=1e-3, atol=1e-4, equal_nan=True):
                raise InputError(
                    f"your pooling {name!r} gives a text another vector beside a longer one: it reads padding; weigh "
                    "tokens by index.weights, which are zero there."
                )


def check_names(noun: str, names: Iterable[str], allowed: Collection[str]) -> tuple[str, ...]:
    """Check names against those allowed and drop repeats; `UnknownNameError` for an unknown name or none at all."""
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in allowed:
            raise unknown_name(noun, name, allowed)
    if not chosen:
        raise UnknownNameError(f"no {noun} was selected. Allowed: {', '.join(allowed)}.")
    return chosen
