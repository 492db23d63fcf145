"""Latents of a few texts, or of their words, in memory: no cache is written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.decoders.layers import select_layers
from extract.inputs.alignment import WORD_CUT, WORD_LOST
from extract.inputs.batching import collate_group, group_texts
from extract.inputs.joined import JoinedText
from extract.inputs.tokenised import EncodedText
from extract.poolings.joining import Joiner
from extract.poolings.table import select_word_poolings
from extract.run.spec import ExtractionSpec, batch_limits
from extract.run.word_encoder import make_encoder
from extract.wiring.applied import plan_in_force
from extract.wiring.capture import pool_batch
from extract.wiring.taps import layer_widths


@dataclass(frozen=True, eq=False)
class EmbeddedWords:
    """Latents of the words of some texts.

    Attributes:
        latents: `(L, P, W, D)` float32 on the CPU, texts one after the other, words in text order; zeros where a word
            has no latent.
        offsets: `(N + 1,)` int64 where the words of each text start.
        flags: `(W,)` bits of `extract.inputs.alignment`.
    """

    latents: Float[Tensor, "L P W D"]
    offsets: NDArray[np.int64]
    flags: UInt8[np.ndarray, " W"]

    @property
    def has_latent(self) -> Bool[np.ndarray, " W"]:
        """`(W,)` whether the word has a latent: it was neither truncated nor lost."""
        return np.asarray((self.flags & (WORD_CUT | WORD_LOST)) == 0)

    def of(self, text: int) -> Float[Tensor, "L P w D"]:
        """Return the latents of the words of one text, by its position."""
        return self.latents[:, :, self.offsets[text] : self.offsets[text + 1]]


def embed_texts(decoder: Decoder, texts: Sequence[str], *, spec: ExtractionSpec) -> Float[Tensor, "L P N D"]:
    """Compute latents of texts in memory, on the CPU: those of an extraction before they are rounded for the store.

    Taps that are narrower than the others end in zeros.

    Raises:
        InputError: A text that cannot be pooled; names it.
    """
    if len(spec.members) > 1:
        return torch.stack([embed_texts(decoder, texts, spec=each) for each in spec.members]).mean(0)
    encoder = make_encoder(decoder, spec, has_words=False)
    return _embed(decoder, encoder(texts), spec, spec.poolings)


def embed_words(decoder: Decoder, texts: Sequence[JoinedText], *, spec: ExtractionSpec) -> EmbeddedWords:
    """Compute latents of words as `embed_texts` does; `InputError` also for a lost word under the policy `error`."""
    if len(spec.members) > 1:
        parts = [embed_words(decoder, texts, spec=each) for each in spec.members]
        latents = torch.stack([part.latents for part in parts]).mean(0)
        return replace(parts[0], latents=latents, flags=np.bitwise_or.reduce([part.flags for part in parts]))
    encoder = make_encoder(decoder, spec, has_words=True)
    encoded = encoder(texts)
    poolings = select_word_poolings(spec.words.poolings, spec.mask_plan, len(decoder.blocks))
    return EmbeddedWords(
        latents=_embed(decoder, encoded, spec, poolings),
        offsets=np.cumsum([0, *(len(text.spans) for text in texts)], dtype=np.int64),
        flags=np.concatenate([item.words.flags for item in encoded if item.words is not None]),
    )


def _embed(
    decoder: Decoder, encoded: Sequence[EncodedText], spec: ExtractionSpec, poolings: Sequence[str]
) -> Float[Tensor, "L P N D"]:
    """Compute the latents of rows of tokens; each row brings one text, or the words that it holds."""
    layers = select_layers(spec.layers, len(decoder.blocks))
    has_words = any(item.words is not None for item in encoded)
    counts = [1 if item.words is None else len(item.words.flags) for item in encoded]
    starts = np.cumsum([0, *counts])
    own = layer_widths(decoder, spec.mask_plan, layers)
    width = max(own.get(layer, decoder.description.width) for layer in layers)
    token_bytes = len(layers) * len(poolings) * width * 4 if has_words else 0
    most, fewest = batch_limits(spec, decoder.device, token_bytes=token_bytes)
    groups = group_texts(encoded, batch_tokens=most, min_tokens=fewest, split_length=decoder.split_length)
    joiner = Joiner(poolings)
    latents = torch.empty(len(layers), len(poolings), int(starts[-1]), width)
    with plan_in_force(decoder, spec.mask_plan, looks_inside=spec.looks_inside):
        for group in groups:
            places = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in group])
            for batch in collate_group([encoded[i] for i in group], group, batch_tokens=most):
                found = pool_batch(decoder, batch, poolings=poolings, layers=layers, reba=spec.reba)
                joined = joiner.add(batch, found)
                if joined is not None:
                    latents[:, :, places] = joined[1][..., :width].cpu()
    return latents
