"""Poolings: hidden states of a text become one vector. A new one is a function here, and a row in `pooling_table`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8
from numpy.typing import NDArray
from torch import Tensor

from extract.errors import InputError, first_line
from extract.inputs.batches import Batch, BatchWindows, BatchWords, collate
from extract.inputs.joined_text import PADDING, ROLES, SPECIAL, TEXT
from extract.inputs.tokens import EncodedText, label_text
from extract.poolings.memory import CPU, send
from extract.poolings.pooling_table import Pooling, find_token_set

Selection = Bool[Tensor, "B T"]


@dataclass(frozen=True)
class PoolingIndex:
    """Which tokens of a batch count, computed once per batch and used at every layer."""

    weights: Tensor
    """`(B, T)` float32, one at tokens with the role `text`, zero at padding, specials and instruction."""
    counts: Tensor
    """`(B, 1)` float32, number of text tokens per row, at least 1."""
    first: Tensor
    """`(B,)` int64, column of the first text token."""
    last: Tensor
    """`(B,)` int64, column of the last real token of the text, or of the special that closes it."""
    is_full: bool
    """Every column of every row is a text token, so that plain reductions are exact."""
    copies: Tensor
    """`(B, T)` int8, the copy of the text that a token is of, from 1; 0 outside the text."""
    roles: Tensor
    """`(B, T)` int8, roles of `extract.inputs.joined_text`."""
    spans: Tensor | None = None
    """`(B, T)` int64, the span that a token is in, from 0, else -1; None where no text has spans."""
    before: Tensor | float = 0.0
    """`(B, 1)` float32, tokens of the text in the windows before this one; zero for a whole text."""
    reba: Tensor | None = None
    """`(B, T, T)` float32, weights of ReBA; None before the attention of all blocks is known."""


def index_rows(batch: Batch, device: torch.device) -> PoolingIndex:
    """Build the pooling index of a batch, whatever the padding side; every row has at least one text token."""
    is_text = batch.is_text
    index = index_batch(send(is_text, device), send(batch.is_real, device), is_full=bool(is_text.all()))
    return replace(
        index,
        last=send(batch.last, device),
        copies=send(batch.copies, device),
        roles=send(batch.roles, device),
        spans=None if batch.spans is None else send(batch.spans, device),
        before=0.0 if batch.windows is None else send(batch.windows.before(len(batch.rows)), device),
    )


Index = TypeVar("Index", bound=Any)


def move_index(index: Index, device: torch.device) -> Index:
    """Return an index with its tensors on another device."""
    values = {field.name: getattr(index, field.name) for field in fields(index)}
    tensors = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
    parts = {name: move_index(value, device) for name, value in values.items() if is_dataclass(value)}
    return replace(index, **tensors, **parts)


def index_batch(
    is_text: Bool[Tensor, "B T"], is_real: Bool[Tensor, "B T"], *, is_full: bool | None = None
) -> PoolingIndex:
    """Build the pooling index of rows of one copy of a text; without `is_full`, the device is waited for."""
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
    weighted = hidden.to(torch.float32).masked_fill(weights.unsqueeze(-1) == 0, 0.0)
    return torch.bmm(weights.unsqueeze(1), weighted).squeeze(1)


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


@dataclass(frozen=True)
class WordIndex:
    """Where the tokens of a batch's words are, among all tokens of the batch row by row; computed once per batch."""

    first: Tensor
    """`(W,)` int64 position of the first token of each word."""
    last: Tensor
    """`(W,)` int64 position of the last one."""
    tokens: Tensor
    """`(M,)` int64 positions of all tokens of all words; a token that two words share is listed twice."""
    offsets: Tensor
    """`(W,)` int64 where each word begins in `tokens`."""
    has_no_latent: Tensor | None
    """`(W, 1)` bool, words without a latent; None if there are none."""
    reba: Tensor | None = None
    """`(B, T, T)` float32, weights of ReBA; None before the attention of all blocks is known."""
    echo: "WordIndex | None" = None
    """The same in the last copy of a repeated text; None without another copy."""


def index_words(words: BatchWords, device: torch.device) -> WordIndex:
    """Build the index of a batch's words, on the device of the hidden states."""
    index = _index_ranges(words.starts, words.counts, device)
    return index if words.echo is None else replace(index, echo=_index_ranges(*words.echo, device))


def _index_ranges(starts: NDArray[np.int64], counts: NDArray[np.int64], device: torch.device) -> WordIndex:
    offsets = np.cumsum(counts) - counts
    tokens = np.arange(int(counts.sum())) + np.repeat(starts - offsets, counts)
    is_read = counts > 0
    first, last = np.where(is_read, starts, 0), np.where(is_read, starts + counts - 1, 0)
    return WordIndex(
        first=send(torch.from_numpy(first), device),
        last=send(torch.from_numpy(last), device),
        tokens=send(torch.from_numpy(tokens), device),
        offsets=send(torch.from_numpy(offsets), device),
        has_no_latent=None if is_read.all() else send(torch.from_numpy(~is_read).unsqueeze(1), device),
    )


def _take_tokens(hidden: Float[Tensor, "B T D"], positions: Tensor, index: WordIndex) -> Float[Tensor, "W D"]:
    states = hidden.reshape(-1, hidden.shape[-1]).index_select(0, positions).to(torch.float32)
    return states if index.has_no_latent is None else states.masked_fill(index.has_no_latent, 0.0)


def pool_first_token(hidden: Float[Tensor, "B T D"], index: WordIndex) -> Float[Tensor, "W D"]:
    """Take the first token of each word; zeros where a word has none."""
    return _take_tokens(hidden, index.first, index)


def pool_last_token(hidden: Float[Tensor, "B T D"], index: WordIndex) -> Float[Tensor, "W D"]:
    """Take the last token of each word; zeros where a word has none."""
    return _take_tokens(hidden, index.last, index)


def pool_mean_of_tokens(hidden: Float[Tensor, "B T D"], index: WordIndex) -> Float[Tensor, "W D"]:
    """Average the tokens of each word in float32 (MAGNET); zeros where a word has none."""
    flat = hidden.reshape(-1, hidden.shape[-1]).to(torch.float32)
    # One pass over the tokens in their order: no scattered additions, so the same bits on every run of a GPU.
    return torch.nn.functional.embedding_bag(index.tokens, flat, index.offsets, mode="mean")


def _echo(index: WordIndex) -> WordIndex:
    if index.echo is None:
        raise InputError("words are read in a further copy of their text, and there is none; set template.repeat to 2.")
    return index.echo


def pool_echo(hidden: Float[Tensor, "B T D"], index: WordIndex) -> Float[Tensor, "W D"]:
    """Average the tokens of each word in the last copy of its text; zeros where it has none."""
    return pool_mean_of_tokens(hidden, _echo(index))


def pool_echo_first(hidden: Float[Tensor, "B T D"], index: WordIndex) -> Float[Tensor, "W D"]:
    """Take the first token of each word in the last copy of its text."""
    return pool_first_token(hidden, _echo(index))


def pool_word_echo_last(hidden: Float[Tensor, "B T D"], index: WordIndex) -> Float[Tensor, "W D"]:
    """Take the last token of each word in the last copy of its text."""
    return pool_last_token(hidden, _echo(index))


def pool_tokens(
    select: Callable[[PoolingIndex, str], Selection], argument: str, hidden: Float[Tensor, "B T D"], index: PoolingIndex
) -> Float[Tensor, "B D"]:
    """Average the tokens that a function selects."""
    weights = select(index, argument).to(torch.float32)
    return pool_weights(hidden, weights / weights.sum(1, keepdim=True))


def select_token(index: PoolingIndex, argument: str) -> Selection:
    """Select the token at a position of the text, in its last copy: from 0, or from the end if negative."""
    position = int(argument)
    is_last = index.copies == index.copies.amax(1, keepdim=True)
    ranks = is_last.cumsum(1) if position >= 0 else is_last.flip(1).cumsum(1).flip(1)
    return is_last & (ranks == (position + 1 if position >= 0 else -position))


def select_last(index: PoolingIndex, argument: str) -> Selection:
    """Select the last tokens up to the one that `last` reads, all of them where there are fewer; no other specials."""
    columns = torch.arange(index.roles.shape[1], device=index.roles.device)
    last = index.last.unsqueeze(1)
    is_open = ((index.roles > SPECIAL) & (columns < last)) | (columns == last)
    return is_open & (is_open.flip(1).cumsum(1).flip(1) <= int(argument))


def select_role(index: PoolingIndex, argument: str) -> Selection:
    """Select the tokens of a role."""
    return index.roles == ROLES[argument]


def select_span(index: PoolingIndex, argument: str) -> Selection:
    """Select the tokens of the spans of the template, or of one of them by its number from 0."""
    if index.spans is None:
        return torch.zeros_like(index.roles, dtype=torch.bool)
    is_text = index.roles == TEXT
    return is_text & (index.spans == int(argument) if argument else index.spans >= 0)


def backward_weights(
    fused: Float[Tensor, "B T T"], copies: Int8[Tensor, "B T"], *, direction: str = "backward"
) -> Float[Tensor, "B T T"]:
    """Turn fused attention into the weights of ReBA (Algorithm 1 and equation 6).

    Args:
        fused: At `[b, i, j]` the largest weight, over blocks and heads, with which token i attends to j. The attention
            is causal: of (i, j) and (j, i) at most one is not zero, so that symmetrising commutes with the maximum.
        copies: The copy of the text that each token is of, from 1; 0 for specials, template and padding.
        direction: A name from `pooling_table.DIRECTIONS`.

    Returns:
        At `[b, i, j]` the weight of the state at j in the embedding of token i, half of the attention between two
        tokens and all of that of a token on itself; zero unless i is in the first copy and j in some copy.

    Example:
        >>> fused = torch.tensor([[[1.0, 0.0], [0.4, 0.6]]])
        >>> backward_weights(fused, torch.tensor([[1, 2]], dtype=torch.int8))
        tensor([[[1.0000, 0.2000],
                 [0.0000, 0.0000]]])
    """
    both = (fused + fused.transpose(1, 2)) / 2
    is_gathered = (copies == 1).unsqueeze(2) & (copies > 0).unsqueeze(1)
    both = both.masked_fill(~is_gathered, 0.0)
    return both.triu() if direction == "backward" else both


def pool_reba_last(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Take the embedding of the last token of the first copy (ReBA, Algorithm 3)."""
    columns = torch.arange(hidden.shape[1], device=hidden.device)
    last = torch.where(index.copies == 1, columns, -1).amax(1)
    return pool_weights(hidden, _weights(index)[torch.arange(len(last), device=last.device), last])


def pool_reba_mean(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Average the embeddings of the tokens of the first copy (ReBA, equation 7, sums exchanged)."""
    n_tokens = (index.copies == 1).sum(1, keepdim=True)
    return pool_weights(hidden, _weights(index).sum(1) / n_tokens)


def pool_reba_words(hidden: Float[Tensor, "B T D"], index: WordIndex) -> Float[Tensor, "W D"]:
    """Average the embeddings of the tokens of each word in the first copy (ReBA, Algorithm 2)."""
    weights = _weights(index)
    is_used = (weights != 0).any(1).unsqueeze(-1)
    return pool_mean_of_tokens(torch.bmm(weights, hidden.to(torch.float32).masked_fill(~is_used, 0.0)), index)


def _weights(index: PoolingIndex | WordIndex) -> Tensor:
    assert index.reba is not None, "ReBA poolings are computed once the attention of all blocks is known"
    return index.reba


def require_tokens(
    rows: Sequence[EncodedText], texts: Sequence[str], poolings: Sequence[str], *, first_index: int = 0
) -> None:
    """Refuse rows without any token of a pooling's token set: `InputError` names pooling and text."""
    sets = {name: token_set for name in poolings if (token_set := find_token_set(name))}
    for row in rows if sets else ():
        index = index_rows(collate([row], [0]), CPU)
        for name, (select, argument) in sets.items():
            if not select(index, argument).any():
                text = label_text(texts[row.index - first_index], row.index)
                raise InputError(
                    f"the pooling {name!r} finds no such token in {text}; choose another, or leave it out."
                )


def pool_guarded(
    noun: str, name: str, function: Callable[..., object], hidden: Tensor, index: PoolingIndex | WordIndex
) -> Tensor:
    """Call a user's pooling; its errors and wrong shapes are one sentence, an InputError."""
    try:
        pooled = function(hidden, index)
    except Exception as error:
        raise InputError(
            f"your {noun} {name!r} fails on hidden states {tuple(hidden.shape)}: {first_line(error)}."
        ) from error
    shape = (len(index.first), hidden.shape[-1])
    if not isinstance(pooled, Tensor) or pooled.shape != shape:
        result = tuple(pooled.shape) if isinstance(pooled, Tensor) else type(pooled).__name__
        raise InputError(
            f"your {noun} {name!r} returns {result} for hidden states {tuple(hidden.shape)}; allowed: a tensor "
            f"{shape}, a vector for each."
        )
    return pooled


@torch.no_grad()
def require_no_padding(poolings: Mapping[str, Pooling], width: int) -> None:
    """Refuse poolings of the user that give a row of random states another vector when it is padded."""
    generator = torch.Generator().manual_seed(0)
    for name, pool in poolings.items():
        states = torch.randn(2, 7, width, generator=generator)
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


JOINS: dict[str, Callable[[NDArray[np.int64]], NDArray[np.number | np.bool]] | None] = {
    "last": lambda counts: np.arange(len(counts)) == len(counts) - 1,
    "mean": lambda counts: counts,
    "weighted-mean": lambda counts: np.diff((ends := np.cumsum(counts)) * (ends + 1) // 2, prepend=0),
    "first": lambda counts: np.arange(len(counts)) == 0,
    "max": None,
}
"""Weights of a text's windows in each pooling, by the tokens each represents; None where the largest value counts."""


def require_joinable(poolings: Iterable[str]) -> None:
    """Refuse poolings that cannot be joined from windows: `InputError` names the first."""
    for name in poolings:
        if name not in JOINS:
            raise InputError(
                f"on_long is 'windows', and the pooling {name!r} of a long text cannot be joined from its windows; "
                f"allowed: {', '.join(JOINS)}, or on_long 'truncate' or 'error'."
            )


class Joiner:
    """Joins the latents of the windows of each text, over the batches that hold them in turn."""

    def __init__(self, poolings: Sequence[str]) -> None:
        self._poolings = poolings
        self._joined: Tensor | None = None

    def add(self, batch: Batch, latents: Float[Tensor, "L P N D"]) -> tuple[Batch, Float[Tensor, "L P M D"]] | None:
        """Return a batch with its latents; of windows None, but with the last one the text's row and joined latents."""
        windows = batch.windows
        if windows is None:
            return batch, latents
        if windows.first == 0:
            self._joined = None
        parts = torch.stack([self._join(name, windows, latents[:, p]) for p, name in enumerate(self._poolings)], dim=1)
        if self._joined is not None:
            is_max = send(torch.tensor([JOINS[name] is None for name in self._poolings]), parts.device)[:, None]
            parts = torch.where(is_max, torch.maximum(self._joined, parts), self._joined + parts)
        self._joined = parts
        if windows.first + len(batch.rows) < len(windows.counts):
            return None
        whole = replace(
            batch,
            rows=batch.rows[:1],
            positions=batch.positions[:1],
            is_truncated=batch.is_truncated[:1],
            n_tokens=np.array([windows.n_tokens], np.int32),
            windows=None,
        )
        return whole, parts.unsqueeze(2)

    @staticmethod
    def _join(name: str, windows: BatchWindows, latents: Float[Tensor, "L B D"]) -> Float[Tensor, "L D"]:
        weigh = JOINS[name]
        if weigh is None:
            return latents.amax(1)
        weights = weigh(windows.counts)
        shares = torch.from_numpy((weights / weights.sum())[windows.first : windows.first + latents.shape[1]])
        shares = send(shares.to(torch.float32), latents.device)[:, None]
        return (latents * shares).masked_fill(shares == 0, 0.0).sum(1)  # other windows may not be finite
