"""Rows of random tokens that certificates are made on."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.inputs.batching import Batch, collate
from extract.inputs.roles import TEXT
from extract.inputs.spans import CONTEXT
from extract.inputs.tokenised import EncodedText


def vocabulary_size(decoder: Decoder) -> int:
    """Return how many tokens a decoder knows."""
    config: Any = decoder.module.config
    return int(config.get_text_config().vocab_size)


def probe_ids(decoder: Decoder, n_tokens: int, *, seed: int) -> Int[Tensor, " T"]:
    """Draw tokens from the whole vocabulary of a decoder."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary_size(decoder), (n_tokens,), generator=generator)


def encode_ids(ids: Int[Tensor, " T"]) -> EncodedText:
    """Take tokens for those of a text without specials."""
    return EncodedText(ids.numpy(), np.full(len(ids), TEXT, np.int8), is_truncated=False)


def plain_batch(ids: Int[Tensor, "B T"], *, spans: Int[Tensor, " T"] | None = None) -> Batch:
    """Make a batch of rows of one length, all with the same spans."""
    batch = collate([encode_ids(row) for row in ids], range(len(ids)))
    return replace(batch, spans=None if spans is None else spans.repeat(len(ids), 1))


def probe_spans(n_tokens: int) -> Int[Tensor, " T"]:
    """Put one span over the third and fourth token, so that a hybrid mask shows itself."""
    spans = torch.full((n_tokens,), CONTEXT)
    spans[2:4] = 0
    return spans
