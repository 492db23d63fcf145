"""Word poolings: the hidden states of a word's tokens become one vector; a new one is a function and a table row."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from extract.inputs.batching import BatchWords
from extract.masks.kinds import MaskKind, kind_matrix, parse_kind
from extract.masks.plan import MaskPlan
from extract.own.names import add_own, find_own
from extract.poolings.pooling import check_names, describe, guard

AUTO = "auto"
AUTO_RULE = "last where every block is causal, first where every block is backward, else mean"


@dataclass(frozen=True)
class WordIndex:
    """Where the tokens of a batch's words are, worked out once per batch and used at every layer.

    Attributes:
        first: `(W,)` int64 place of the first token of each word among all tokens of the batch, row by row.
        last: `(W,)` int64 place of the last one.
        tokens: `(M,)` int64 places of all tokens of all words; a token that two words share is listed twice.
        offsets: `(W,)` int64 where each word begins in `tokens`.
        has_no_latent: `(W, 1)` bool, words without a latent; None if there are none.
    """

    first: Tensor
    last: Tensor
    tokens: Tensor
    offsets: Tensor
    has_no_latent: Tensor | None


def index_words(words: BatchWords, device: torch.device) -> WordIndex:
    """Work out the index of a batch's words, on the device of the hidden states."""
    offsets = np.cumsum(words.counts) - words.counts
    tokens = np.arange(int(words.counts.sum())) + np.repeat(words.starts - offsets, words.counts)
    is_read = words.counts > 0
    first, last = np.where(is_read, words.starts, 0), np.where(is_read, words.starts + words.counts - 1, 0)
    return WordIndex(
        first=torch.from_numpy(first).to(device),
        last=torch.from_numpy(last).to(device),
        tokens=torch.from_numpy(tokens).to(device),
        offsets=torch.from_numpy(offsets).to(device),
        has_no_latent=None if is_read.all() else torch.from_numpy(~is_read).unsqueeze(1).to(device),
    )


def _take(hidden: Float[Tensor, "B T D"], places: Tensor, index: WordIndex) -> Float[Tensor, "W D"]:
    taken = hidden.reshape(-1, hidden.shape[-1]).index_select(0, places).to(torch.float32)
    return taken if index.has_no_latent is None else taken.masked_fill(index.has_no_latent, 0.0)


def pool_first_token(hidden: Float[Tensor, "B T D"], index: WordIndex) -> Float[Tensor, "W D"]:
    """Take the first token of each word; zeros where a word has none."""
    return _take(hidden, index.first, index)


def pool_last_token(hidden: Float[Tensor, "B T D"], index: WordIndex) -> Float[Tensor, "W D"]:
    """Take the last token of each word; zeros where a word has none."""
    return _take(hidden, index.last, index)


def pool_mean_of_tokens(hidden: Float[Tensor, "B T D"], index: WordIndex) -> Float[Tensor, "W D"]:
    """Average the tokens of each word in float32 (MAGNET); zeros where a word has none."""
    flat = hidden.reshape(-1, hidden.shape[-1]).to(torch.float32)
    # One pass over the tokens in their order: no scattered additions, so the same bits on every run of a GPU.
    return torch.nn.functional.embedding_bag(index.tokens, flat, index.offsets, mode="mean")


WordPooling = Callable[[Tensor, WordIndex], Tensor]

WORD_POOLINGS: dict[str, tuple[WordPooling, str]] = {
    "first": (pool_first_token, "the first token of the word"),
    "last": (pool_last_token, "the last token of the word"),
    "mean": (pool_mean_of_tokens, "the mean of the tokens of the word"),
}


SHIPPED = (AUTO, *WORD_POOLINGS)


def register_word_pooling(name: str, function: WordPooling | None = None, *, what: str = "") -> Any:
    """Add a word pooling under a name, as `register_pooling`.

    The function takes the hidden states `(B, T, D)` of a layer and the `WordIndex` of the batch, and returns `(W, D)`.
    """
    if function is None:
        return partial(register_word_pooling, name, what=what)
    add_own("word pooling", name, function, shipped=SHIPPED)
    WORD_POOLINGS[name] = (guard("word pooling", name, function), describe(function, what))
    return function


def check_word_poolings(names: Iterable[str]) -> tuple[str, ...]:
    """Check word pooling names, `auto` included, and drop repeats; raises as `check_names`."""
    names = list(names)
    for name in names:
        find_own("word pooling", name, known=SHIPPED + tuple(WORD_POOLINGS), add=register_word_pooling)
    return check_names("word pooling", names, [AUTO, *WORD_POOLINGS])


def select_word_poolings(names: Iterable[str], plan: MaskPlan, n_blocks: int) -> tuple[str, ...]:
    """Choose word poolings, `auto` by what a token has seen under a plan.

    Under causal masks only the last token of a word has seen all of it, under backward masks only the first.

    Raises:
        UnknownNameError: An unknown name, no name at all, or a plan that does not fit the decoder.
    """
    kinds = {*plan.kinds(n_blocks), *(() if plan.architecture == "inplace" else (plan.converted[0],))}
    sees = {side for kind in kinds for side in _sides(parse_kind(kind))}
    best = {frozenset({"back"}): "last", frozenset({"ahead"}): "first"}.get(frozenset(sees), "mean")
    return tuple(dict.fromkeys(best if name == AUTO else name for name in check_word_poolings(names)))


def _sides(kind: MaskKind) -> set[str]:
    """Say whether tokens see back, ahead, or both; a kind with spans may do both."""
    if kind.needs_spans:
        return {"back", "ahead"}
    matrix = kind_matrix(kind, kind.n + 3)
    return {side for side, part in (("back", matrix.tril(-1)), ("ahead", matrix.triu(1))) if bool(part.any())}
