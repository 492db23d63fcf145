"""Word poolings: the hidden states of a word's tokens become one vector; a new one is a function and a table row."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extract.errors import InputError
from extract.inputs.batching import BatchWords
from extract.poolings.transfer import send


@dataclass(frozen=True)
class WordIndex:
    """Where the tokens of a batch's words are, worked out once per batch and used at every layer.

    Attributes:
        first: `(W,)` int64 place of the first token of each word among all tokens of the batch, row by row.
        last: `(W,)` int64 place of the last one.
        tokens: `(M,)` int64 places of all tokens of all words; a token that two words share is listed twice.
        offsets: `(W,)` int64 where each word begins in `tokens`.
        has_no_latent: `(W, 1)` bool, words without a latent; None if there are none.
        reba: `(B, T, T)` float32, weights of `extract.poolings.reba`; None before the attention of all blocks is known.
        echo: The same in the last copy of a repeated text; None without another copy.
    """

    first: Tensor
    last: Tensor
    tokens: Tensor
    offsets: Tensor
    has_no_latent: Tensor | None
    reba: Tensor | None = None
    echo: "WordIndex | None" = None


def index_words(words: BatchWords, device: torch.device) -> WordIndex:
    """Work out the index of a batch's words, on the device of the hidden states."""
    made = _index_places(words.starts, words.counts, device)
    return made if words.echo is None else replace(made, echo=_index_places(*words.echo, device))


def _index_places(starts: NDArray[np.int64], counts: NDArray[np.int64], device: torch.device) -> WordIndex:
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


def pool_echo_last(hidden: Float[Tensor, "B T D"], index: WordIndex) -> Float[Tensor, "W D"]:
    """Take the last token of each word in the last copy of its text."""
    return pool_last_token(hidden, _echo(index))
