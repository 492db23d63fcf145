"""One forward pass, pooled at every layer on the device: only pooled vectors leave it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.decoders.layers import FINAL_NORM, split_tap
from extract.errors import DecoderError
from extract.inputs.batching import Batch
from extract.poolings.pages import empty_in_pages
from extract.poolings.pooling import index_rows, place_index
from extract.poolings.reba import backward_weights
from extract.poolings.reba_options import REBA, RebaOptions
from extract.poolings.table import WORD_POOLINGS, find_pooling
from extract.poolings.transfer import send
from extract.poolings.word_pooling import index_words
from extract.wiring.forward import run_batch
from extract.wiring.fused import FusedAttention
from extract.wiring.interface import wiring_of
from extract.wiring.taps import Tap, find_taps, tapping


class Pooler:
    """Pools the hidden states that it is shown, each on its own device, into `latents`.

    Poolings are `P` names that `find_pooling` knows, or from `WORD_POOLINGS` where the batch has words; layers are `L`
    names of the decoder's and its taps, bottom up. The decoder is wired where there are taps or ReBA poolings. For
    these the states of a batch are kept until the attention of every block is known.

    Attributes:
        latents: `(L, P, N, D)` float32 on the decoder's device, `N` texts or words in the order of the batch; beyond
            the width of a tap, zeros.
        depth: Topmost position that a forward pass must reach; None for the final norm.
    """

    def __init__(
        self,
        decoder: Decoder,
        batch: Batch,
        *,
        poolings: Sequence[str],
        layers: Sequence[str],
        reba: RebaOptions = RebaOptions(),  # noqa: B008 - frozen
    ) -> None:
        places = {layer: decoder.layers.index(split_tap(layer)[0]) for layer in layers}
        self._slots: dict[int | Tap, int] = {
            (place - 1, tap) if (tap := split_tap(layer)[1]) else place: slot
            for slot, (layer, place) in enumerate(places.items())
        }
        self.depth = None if FINAL_NORM in layers else max(places.values())
        self.taps = [tap for tap in self._slots if isinstance(tap, tuple)]
        self._pools: list[Callable[[Tensor, Any], Tensor]]
        device = decoder.device
        with torch.inference_mode():
            index: Any
            if batch.words is None:
                n_pooled = len(batch.rows)
                index = index_rows(batch, device)
                self._pools = [find_pooling(name) for name in poolings]
            else:
                n_pooled = len(batch.words.flags)
                index = index_words(batch.words, device)
                self._pools = [WORD_POOLINGS[name][0] for name in poolings]
            widths = [find_taps(decoder).width(tap) for tap in self.taps]
            shape = (len(layers), len(poolings), n_pooled, max(decoder.description.width, *widths, 0))
            self.latents = empty_in_pages(shape, torch.float32, device=device)
            if set(widths) - {decoder.description.width}:
                self.latents.zero_()
        self._indices: dict[torch.device, Any] = {device: index}
        self._late = [p for p, name in enumerate(poolings) if name in REBA]
        self._kept: dict[int, Tensor] = {}
        self._device, self._copies, self._direction = device, send(batch.copies, device), reba.direction
        self._fused = None
        if self._late:
            self.depth = None
            self._fused = FusedAttention(batch, reba, n_blocks=len(decoder.blocks), device=device)

    def _index_on(self, device: torch.device) -> Any:
        if device not in self._indices:
            self._indices[device] = place_index(self._indices[self._device], device)
        return self._indices[device]

    def __call__(self, place: int | Tap, hidden: Tensor) -> None:
        """Pool the hidden states `(B, T, D)` of a layer or tap, if it is wanted; place 0 is the embedding."""
        slot = self._slots.get(place)
        if slot is not None:
            index = self._index_on(hidden.device)
            for p, pool in enumerate(self._pools):
                if p not in self._late:
                    self.latents[slot, p, :, : hidden.shape[-1]] = pool(hidden, index)
            if self._late:
                self._kept[slot] = hidden

    @contextmanager
    def watching(self, decoder: Decoder) -> Iterator[None]:
        """Take in what is read inside blocks until the `with` block ends, and then pool what needs all of it."""
        wiring = wiring_of(decoder.blocks)
        with tapping(decoder, self.taps, self), ExitStack() as stack:
            if self._fused is not None:
                if wiring is None:
                    raise DecoderError("ReBA reads the attention of a wired decoder; put its plan in force for that.")
                stack.enter_context(self._fused.watching(wiring))
            yield
        if self._fused is not None:
            self._finish(self._fused.largest)

    def _finish(self, largest: Tensor) -> None:
        with torch.inference_mode():
            weights = backward_weights(largest, self._copies, direction=self._direction)
            self._indices = {self._device: replace(self._indices[self._device], reba=weights)}
            for slot, hidden in self._kept.items():
                index = self._index_on(hidden.device)
                for p in self._late:
                    self.latents[slot, p, :, : hidden.shape[-1]] = self._pools[p](hidden, index)
        self._kept.clear()


def pool_batch(
    decoder: Decoder,
    batch: Batch,
    *,
    poolings: Sequence[str],
    layers: Sequence[str],
    reba: RebaOptions = RebaOptions(),  # noqa: B008 - frozen
) -> Float[Tensor, "L P N D"]:
    """Compute the latents of a batch; arguments, result and order as of `Pooler`, errors as by `run_batch`."""
    pooler = Pooler(decoder, batch, poolings=poolings, layers=layers, reba=reba)
    with pooler.watching(decoder):
        run_batch(decoder, batch, pooler, depth=pooler.depth)
    return pooler.latents
