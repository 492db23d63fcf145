"""Self-supervised contrastive learning (SimCSE, 2104.08821): texts that belong together get vectors that do."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import select_layers
from extract.inputs.batches import Batch, collate
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import TextEncoder
from extract.poolings.pooling_table import find_pooling, select_poolings
from extract.poolings.poolings import index_rows
from extract.wiring.forward import states_with_gradients
from probes.adaptation.adapt_config import SscOptions


def info_nce(
    anchors: Float[Tensor, "B D"],
    positives: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B D"] | None = None,
    *,
    temperature: float,
) -> Float[Tensor, ""]:
    """Compute InfoNCE: the cross-entropy of each anchor's own positive among all positives and all hard negatives.

    Scores are cosines divided by the temperature; the mean over anchors is returned.

    Example:
        >>> vectors = torch.eye(2)
        >>> round(float(info_nce(vectors, vectors, temperature=1.0)), 4)  # log(1 + exp(-1))
        0.3133
    """
    candidates = positives if negatives is None else torch.cat([positives, negatives])
    scores = normalize(anchors, dim=-1) @ normalize(candidates, dim=-1).T / temperature
    return cross_entropy(scores, torch.arange(len(anchors), device=scores.device))


@dataclass(frozen=True, eq=False)
class ContrastBatch:
    """Texts of `B` rows: all anchors, then all positives, then all hard negatives where there are any."""

    batch: Batch
    n_rows: int

    @property
    def n_tokens(self) -> int:
        """Tokens that the decoder reads, padding left out."""
        return int(self.batch.n_tokens.sum())


class Contrast:
    """The contrastive objective on a decoder."""

    name = "sscl"

    def __init__(self, decoder: Decoder, options: SscOptions) -> None:
        self.decoder, self.options = decoder, options
        template = InputTemplate(instruction=options.instruction, eos=options.eos, max_tokens=options.length)
        self._encode = TextEncoder(decoder.tokenizer, template, window=decoder.description.window)
        [pooling] = select_poolings(options.pooling)
        self._pool = find_pooling(pooling)
        names = decoder.layers
        self._positions = [names.index(layer) for layer in select_layers(options.layers, len(decoder.blocks))]

    def gather(self, rows: Sequence[tuple[str, ...]]) -> ContrastBatch:
        """Put the texts of rows into a batch; a text alone is its own positive, of which dropout makes another view."""
        columns = [*zip(*rows, strict=True)]
        texts = [text for column in (columns * 2 if len(columns) == 1 else columns) for text in column]
        return ContrastBatch(collate(self._encode(texts), range(len(texts))), len(rows))

    def loss(self, batch: ContrastBatch) -> Float[Tensor, ""]:
        """Compute the loss, the mean over layers."""
        states = states_with_gradients(self.decoder, batch.batch, self._positions)
        losses = []
        for position in self._positions:
            hidden = states[position]
            vectors = torch.split(self._pool(hidden, index_rows(batch.batch, hidden.device)), batch.n_rows)
            losses.append(info_nce(*vectors, temperature=self.options.temperature))
        return torch.stack([loss.to(losses[0].device) for loss in losses]).mean()
