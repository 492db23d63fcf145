"""Sentence pairs with a graded similarity: the task every similarity head is trained and scored on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float32

from probes.tasks.base import hold_columns
from probes.tasks.graded import GradedTask
from probes.tasks.pairs.audit import audit_notes

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, eq=False)
class PairTask(GradedTask):
    """Pairs of texts with a gold similarity, in up to three splits, checked when built.

    Raises:
        TaskError: There is no split, a split has fewer than 8 rows, or its gold is constant or not finite.
        UnknownNameError: A split or a column has another name than those below.
    """

    kind: ClassVar[str] = "pairs"
    text_columns: ClassVar[tuple[str, ...]] = ("sentence1", "sentence2")
    gold_column: ClassVar[str] = "score"

    name: str
    splits: "datasets.DatasetDict"
    """Columns `sentence1`, `sentence2` (string), `score` (float64, gold in the original units) and perhaps `subset`
    (string: test is scored for each by itself, too)."""
    score_range: tuple[float, float]
    """Lowest and highest gold the task can hold, in the original units."""
    source: str
    is_sample: bool = False
    notes: tuple[str, ...] = ()
    has_inferred_range: bool = False
    """Whether the score range was taken from the rows."""

    def inferred_options(self) -> dict[str, Any]:
        """Return the score range, where it was taken from the rows."""
        return {"score_range": list(self.score_range)} if self.has_inferred_range else {}

    def gold01(self, split: str) -> Float32[np.ndarray, " N"]:
        """Scale the gold of one split to [0, 1] by the score range."""
        low, high = self.score_range
        gold = np.asarray(self.rows(split)["score"], dtype=np.float64)
        return ((gold - low) / (high - low)).astype(np.float32)

    def audit(self) -> tuple[str, ...]:
        """Count duplicates, overlap between splits and final punctuation; see `audit_notes`."""
        return audit_notes(self.splits)

    def digest_parts(self) -> tuple[object, tuple[str, ...]]:
        """Return the score range and all columns."""
        return self.score_range, (*self.text_columns, "score", "subset")

    def describe_kind(self) -> dict[str, Any]:
        """Return the score range, and the row counts under their older name `n_pairs`."""
        return {"score_range": list(self.score_range), "n_pairs": self.n_rows()}


def build_splits(columns: Mapping[str, Mapping[str, Sequence[Any]]]) -> "datasets.DatasetDict":
    """Hold the columns `sentence1`, `sentence2`, `score` and perhaps `subset` of each split for a `PairTask`."""
    from datasets import Value

    return hold_columns(
        columns,
        {
            "sentence1": Value("string"),
            "sentence2": Value("string"),
            "score": Value("float64"),
            "subset": Value("string"),
        },
    )
