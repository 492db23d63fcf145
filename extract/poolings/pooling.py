"""Poolings: the hidden states of one text become one vector; a new one is a function here and a row of `POOLINGS`."""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from extract.inputs.batching import Batch
from extract.inputs.roles import PADDING, SPECIAL, TEXT
from extract.poolings.transfer import send

Index = TypeVar("Index", bound=Any)


@dataclass(frozen=True)
class PoolingIndex:
    """Which tokens of a batch count, worked out once per batch and used at every layer.

    Attributes:
        weights: `(B, T)` float32, one at tokens with the role `text`, zero at padding, specials and instruction.
        counts: `(B, 1)` float32, number of text tokens per row, at least 1.
        first: `(B,)` int64, column of the first text token.
        last: `(B,)` int64, column of the last real token of the text, or of the special that closes it.
        is_full: Every column of every row is a text token, so that plain reductions are exact.
        copies: `(B, T)` int8, the copy of the text that a token is of, from 1; 0 outside the text.
        roles: `(B, T)` int8, roles of `extract.inputs.tokenised`.
        spans: `(B, T)` int64, the span that a token is in, from 0, else -1; None where no text has spans.
        before: `(B, 1)` float32, tokens of the text in the windows before this one; zero for a whole text.
        reba: `(B, T, T)` float32, weights of `extract.poolings.reba`; None before the attention of all blocks is known.
    """

    weights: Tensor
    counts: Tensor
    first: Tensor
    last: Tensor
    is_full: bool
    copies: Tensor
    roles: Tensor
    spans: Tensor | None = None
    before: Tensor | float = 0.0
    reba: Tensor | None = None


def index_rows(batch: Batch, device: torch.device) -> PoolingIndex:
    """Work out the pooling index of a batch, whatever the padding side; every row has at least one text token."""
    is_text = batch.is_text
    made = index_batch(send(is_text, device), send(batch.is_real, device), is_full=bool(is_text.all()))
    return replace(
        made,
        last=send(batch.last, device),
        copies=send(batch.copies, device),
        roles=send(batch.roles, device),
        spans=None if batch.spans is None else send(batch.spans, device),
        before=0.0 if batch.windows is None else send(batch.windows.before(len(batch.rows)), device),
    )


def place_index(index: Index, device: torch.device) -> Index:
    """Return an index with its tensors on the device of the hidden states that are pooled."""
    held = {field.name: getattr(index, field.name) for field in fields(index)}
    moved = {name: side.to(device) for name, side in held.items() if isinstance(side, Tensor)}
    parts = {name: place_index(side, device) for name, side in held.items() if is_dataclass(side)}
    return replace(index, **moved, **parts)


def index_batch(
    is_text: Bool[Tensor, "B T"], is_real: Bool[Tensor, "B T"], *, is_full: bool | None = None
) -> PoolingIndex:
    """Work out the pooling index of rows of one copy of a text, and specials beside it.

    Without `is_full`, the device is asked for it and waited for.
    """
    weights = is_text.to(torch.float32)
    columns = torch.arange(is_text.shape[1], device=is_text.device)
    return PoolingIndex(
        weights=weights,
        counts=weights.sum(1, keepdim=True),
        first=torch.where(is_text, columns, is_text.shape[1]).amin(1),
        last=torch.where(is_real, columns, -1).amax(1),
        is_full=bool(is_text.all()) if is_full is None else is_full,
        copies=is_text.to(torch.int8),
        roles=torch.where(is_text, TEXT, torch.where(is_real, SPECIAL, PADDING)).to(torch.int8),
    )


def _take(hidden: Float[Tensor, "B T D"], columns: Int[Tensor, " B"]) -> Float[Tensor, "B D"]:
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), columns].to(torch.float32)


def pool_weights(hidden: Float[Tensor, "B T D"], weights: Float[Tensor, "B T"]) -> Float[Tensor, "B D"]:
    """Sum the tokens of each row with weights, in float32; whatever a token of weight zero holds."""
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
    return pool_weights(hidden, index.weights) / index.counts


def pool_weighted_mean(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Average the text tokens with weights 1, 2, 3 ... along the text (SGPT position weighting)."""
    ranks = (index.weights.cumsum(1) + index.before) * index.weights
    return pool_weights(hidden, ranks / ranks.sum(1, keepdim=True))


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


def pool_echo_last(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Take the last token of the last copy of the text (echo embeddings, 2402.15449)."""
    columns = torch.arange(index.copies.shape[1], device=index.copies.device)
    return _take(hidden, torch.where(index.copies > 1, columns, -1).amax(1))


def pool_echo_mean(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Average the tokens of all copies of the text but the first, which have seen the whole text."""
    weights = (index.copies > 1).to(torch.float32)
    return pool_weights(hidden, weights / weights.sum(1, keepdim=True))
