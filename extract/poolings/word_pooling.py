"""Word poolings: the hidden states of a word's tokens become one vector; a new one is a function and a table row."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from extract.inputs.batching import BatchWords


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
    """

    first: Tensor
    last: Tensor
    tokens: Tensor
    offsets: Tensor
    has_no_latent: Tensor | None
    reba: Tensor | None = None


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
