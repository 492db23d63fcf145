"""What an adaptation trains: objectives that predict tokens of a row, and one that compares texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import select_layers
from extract.errors import ConfigError
from extract.inputs.batches import Batch, collate
from extract.inputs.joined_text import CONTEXT, SPECIAL, TEXT
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import EncodedText, TextEncoder
from extract.poolings.pooling_table import find_pooling, select_poolings
from extract.poolings.poolings import index_rows
from extract.wiring.plan_wiring import states_with_gradients
from probes.adaptation.adapt_config import MntpOptions, MsgOptions, SscOptions


@dataclass(eq=False)
class MarkedRow:
    """One row of `T` tokens: what the decoder is shown of it, its spans, and which tokens it is to predict."""

    ids: NDArray[np.int64]
    """`(T,)` the tokens as they are."""
    is_special: NDArray[np.bool_]
    """`(T,)` a BOS token, which is not predicted."""
    shown: NDArray[np.int64] = field(init=False)
    """`(T,)` the tokens that the decoder reads."""
    spans: NDArray[np.int64] = field(init=False)
    """`(T,)` number of the span that each token is in, `CONTEXT` outside spans."""
    targets: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)
    """By objective the columns of the tokens to predict, and those whose state predicts them."""

    def __post_init__(self) -> None:
        self.shown = self.ids.copy()
        self.spans = np.full(len(self.ids), CONTEXT, np.int64)


@runtime_checkable
class TokenObjective(Protocol):
    """An objective that predicts tokens of a row."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def mark(self, row: MarkedRow, generator: np.random.Generator) -> None:
        """Choose what is predicted of a row, and change what is shown of it."""
        ...


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Rows that go through the decoder together, and what is predicted of them."""

    batch: Batch
    targets: dict[str, tuple[Int[Tensor, " N"], Int[Tensor, " N"]]]
    """By objective the tokens to predict, and the positions of the states that predict them, row by row."""

    @property
    def n_tokens(self) -> int:
        """Tokens that the decoder reads, padding left out."""
        return int(self.batch.n_tokens.sum())


def mark_rows(
    rows: Sequence[NDArray[np.int64]],
    objectives: Sequence[TokenObjective],
    generator: np.random.Generator,
    *,
    has_bos: bool,
) -> TokenBatch:
    """Let objectives, in their order, choose what is predicted of rows, and put the rows into a batch."""
    marked = []
    for ids in rows:
        row = MarkedRow(ids, (np.arange(len(ids)) == 0) & has_bos)
        for objective in objectives:
            objective.mark(row, generator)
        marked.append(row)
    roles = [np.where(row.is_special, SPECIAL, TEXT).astype(np.int8) for row in marked]
    encoded = [
        EncodedText(row.shown, role, is_truncated=False, spans=row.spans)
        for row, role in zip(marked, roles, strict=True)
    ]
    batch = collate(encoded, range(len(encoded)))
    width = batch.ids.shape[1]
    targets = {}
    for objective in objectives:
        pairs = [row.targets[objective.name] for row in marked]
        tokens = [row.ids[columns] for row, (columns, _) in zip(marked, pairs, strict=True)]
        places = [number * width + read for number, (_, read) in enumerate(pairs)]
        targets[objective.name] = (torch.from_numpy(np.concatenate(tokens)), torch.from_numpy(np.concatenate(places)))
    return TokenBatch(batch, targets)


# Missing-span generation (MAGNET, section 3): spans are generated inside a context that is read in both directions.


@dataclass(frozen=True)
class MissingSpans:
    """Makes spans of a row's tokens and predicts each of them from the state before it.

    Under the hybrid mask a span's tokens see the whole context and what is before them in their span. A token is
    predicted from the state before it, which is in the same span, or is the context's last before the span: no state
    that predicts a token has seen it. The first token of a row has no state before it, so no span begins there.
    """

    options: MsgOptions
    name: str = "msg"

    def mark(self, row: MarkedRow, generator: np.random.Generator) -> None:
        """Draw the spans of a row; of some rows every token is in one span."""
        n_tokens, options = len(row.ids), self.options
        if generator.random() < options.all_share:
            row.spans[1:] = 0
        else:
            room = n_tokens // 2
            for number in range(int(generator.integers(1, options.spans + 1))):
                length = min(int(generator.integers(options.shortest, options.longest + 1)), room)
                if length < options.shortest:
                    break
                # a border of context between two spans, so that the state before each has seen no other span
                taken = np.append(row.spans != CONTEXT, False)  # a span may end with the row
                is_free = np.convolve(taken, np.ones(length + 2), "valid") == 0
                starts = np.flatnonzero(is_free) + 1
                if not len(starts):
                    break
                start = int(generator.choice(starts))
                row.spans[start : start + length] = number
                room -= length
        columns = np.flatnonzero(row.spans != CONTEXT)
        row.targets[self.name] = (columns, columns - 1)


# Masked next-token prediction (LLM2Vec, 2404.05961), and masked token prediction for comparison.


FALLBACK = "_"
"""The mask token of decoders that have none (LLM2Vec and MAGNET)."""


@dataclass(frozen=True)
class MaskedTokens:
    """Hides tokens of the context and predicts them: `mntp` from the state before each, `mtp` from its own.

    Of the tokens that are predicted a share is replaced by the mask token, another by random tokens, and the rest is
    shown as it is. `mntp` predicts only a token whose neighbour on the left is context too, so that its state knows
    both sides; the first of a row has none.
    """

    name: str
    options: MntpOptions
    mask_id: int
    vocabulary: int

    def mark(self, row: MarkedRow, generator: np.random.Generator) -> None:
        """Choose at least one token of a row, where there is a candidate, and hide what is chosen."""
        is_context = (row.spans == CONTEXT) & ~row.is_special
        if self.name == "mntp":
            reads_context = np.append(False, row.spans[:-1] == CONTEXT)
            candidates = np.flatnonzero(is_context & reads_context)
        else:
            candidates = np.flatnonzero(is_context)
        n = min(len(candidates), max(1, round(self.options.rate * len(candidates))))
        chosen = np.sort(generator.choice(candidates, size=n, replace=False)) if n else candidates
        fate = generator.random(n)
        is_masked = fate < self.options.masked
        is_random = ~is_masked & (fate < self.options.masked + self.options.random)
        row.shown[chosen[is_masked]] = self.mask_id
        row.shown[chosen[is_random]] = generator.integers(0, self.vocabulary, int(is_random.sum()))
        row.targets[self.name] = (chosen, chosen - 1 if self.name == "mntp" else chosen)


def find_mask_id(tokenizer: Any, wanted: str = "") -> int:
    """Find the mask token: the one wanted, else the tokenizer's own, `FALLBACK` or EOS; `ConfigError` for none such."""
    if not wanted and tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    token = wanted or FALLBACK
    known = tokenizer.convert_tokens_to_ids(token)
    if known is not None and known != tokenizer.unk_token_id:
        return int(known)
    if not wanted and tokenizer.eos_token_id is not None:  # as LLM2Vec offers
        return int(tokenizer.eos_token_id)
    raise ConfigError(
        f"the mask token {token!r} is no token of this tokenizer; set objectives.mntp.mask_token to one that is."
    )


# Self-supervised contrastive learning (SimCSE, 2104.08821): texts that belong together get vectors that do.


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
