"""A row of tokens as the objectives that predict tokens prepare it, and batches of such rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from extract.inputs.batches import Batch, collate
from extract.inputs.spans import CONTEXT, SPECIAL, TEXT
from extract.inputs.tokens import EncodedText


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
