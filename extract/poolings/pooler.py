"""Pooling a batch layer by layer: whole texts, or their words where the batch has them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.inputs.batching import Batch
from extract.poolings.pages import empty_in_pages
from extract.poolings.pooling import POOLINGS, index_batch
from extract.poolings.word_pooling import WORD_POOLINGS, index_words

Index = TypeVar("Index")


class Pooler:
    """Pools the hidden states that it is shown, into one tensor.

    Args:
        decoder: The decoder that they come from.
        batch: The batch.
        poolings: `P` names from `POOLINGS`, or from `WORD_POOLINGS` where the batch has words.
        layers: `L` names of the decoder's layers, bottom up.

    Attributes:
        latents: `(L, P, N, D)` float32 on the decoder's device, `N` texts or words; filled by calling the pooler.
    """

    def __init__(self, decoder: Decoder, batch: Batch, *, poolings: Sequence[str], layers: Sequence[str]) -> None:
        self._slots = {decoder.layers.index(layer): slot for slot, layer in enumerate(layers)}
        device = decoder.device
        with torch.inference_mode():
            self._pools: list[Callable[[Tensor], Tensor]]
            if batch.words is None:
                n_pooled = len(batch.rows)
                index = index_batch(batch.is_text.to(device), batch.is_real.to(device))
                self._pools = [_with(POOLINGS[name][0], index) for name in poolings]
            else:
                n_pooled = len(batch.words.flags)
                word_index = index_words(batch.words, device)
                self._pools = [_with(WORD_POOLINGS[name][0], word_index) for name in poolings]
            shape = (len(layers), len(poolings), n_pooled, decoder.description.width)
            self.latents = empty_in_pages(shape, torch.float32, device=device)

    def __call__(self, position: int, hidden: Tensor) -> None:
        """Pool a layer, if it is wanted.

        Args:
            position: Position of the layer, 0 for the embedding.
            hidden: Its hidden states `(B, T, D)`; not kept.
        """
        slot = self._slots.get(position)
        if slot is not None:
            for p, pool in enumerate(self._pools):
                self.latents[slot, p] = pool(hidden)


def _with(pool: Callable[[Tensor, Index], Tensor], index: Index) -> Callable[[Tensor], Tensor]:
    return lambda hidden: pool(hidden, index)
