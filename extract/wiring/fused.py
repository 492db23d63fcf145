"""Attention fused over blocks and heads while a batch is computed: the running maximum, never a stack of maps."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from extract.inputs.batching import Batch
from extract.poolings.reba_options import RebaOptions
from extract.wiring.arguments import ScoreWatch
from extract.wiring.interface import AttentionCall, Wiring


class FusedAttention:
    """The largest attention weight of each pair of tokens, over heads, and over blocks unless only the last counts.

    Attributes:
        largest: `(B, T, T)` float32, at `[b, i, j]` that of token i on token j.
    """

    def __init__(self, batch: Batch, options: RebaOptions, *, n_blocks: int, device: torch.device) -> None:
        n_rows, n_tokens = batch.ids.shape
        self.largest = torch.zeros(n_rows, n_tokens, n_tokens, device=device)
        self._blocks = range(n_blocks) if options.attention == "all" else (n_blocks - 1,)

    @contextmanager
    def watching(self, wiring: Wiring) -> Iterator[None]:
        """Take in the attention of a wired decoder until the `with` block ends."""
        with wiring.watched(self._watch):
            if not wiring.by_argument:
                yield
                return
            with ScoreWatch(wiring, lambda block, _scores, weights: self._take(block, weights)):
                yield

    def _watch(self, block: int, call: AttentionCall) -> None:
        if block in self._blocks:
            for weights in call.weights_by_key_head():
                self._take(block, weights)

    def _take(self, block: int, weights: Tensor) -> None:
        if block in self._blocks:
            torch.maximum(self.largest, weights.float().amax(1).to(self.largest.device), out=self.largest)
