"""Sentence pairs with a graded similarity: the task every similarity head is trained and scored on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float32

from probes.tasks.base import Task, hold_columns, unique_texts
from probes.tasks.graded import check_graded, check_graded_draw
from probes.tasks.pairs.audit import audit_notes

if TYPE_CHECKING:
    import datasets

COLUMNS = ("sentence1", "sentence2", "score")


@dataclass(frozen=True, eq=False)
class PairTask(Task):
    """Pairs of texts with a gold similarity, in up to three splits, checked when built.

    Raises:
        TaskError: If no split is there, a split has fewer than 8 rows, or its gold is constant.
        UnknownNameError: If a split or a column has another name than those below.
    """

    kind: ClassVar[str] = "pairs"
    text_columns: ClassVar[tuple[str, ...]] = ("sentence1", "sentence2")

    name: str
    """Name of the task in reports."""
    splits: "datasets.DatasetDict"
    """`train`, `validation`, `test` (any non-empty subset, in that order) with columns `sentence1`, `sentence2`
    (string) and `score` (float64, gold in the original units)."""
    score_range: tuple[float, float]
    """Lowest and highest gold the task can hold, in the original units."""
    source: str
    """One line: where the rows came from."""
    is_sample: bool = False
    """True for the small samples shipped with the project, which are no benchmark."""
    notes: tuple[str, ...] = ()
    """One-line remarks for the reader of a report: rows dropped, duplicates, overlap between splits."""

    metrics: tuple[str, ...] = field(default=("pearson", "spearman"), init=False)
    """Correlations of prediction and gold over all rows of a split."""

    def __post_init__(self) -> None:
        self.check_splits(COLUMNS)
        check_graded(self, "score")

    def texts(self) -> list[str]:
        """List every text of the task once.

        Returns:
            The unique texts over all splits, in the order first seen (train first, row by row, `sentence1` first).
        """
        return unique_texts(self.splits, COLUMNS[:2])

    def gold01(self, split: str) -> Float32[np.ndarray, " N"]:
        """Scale the gold of one split to [0, 1] by the score range.

        Args:
            split: One of the task's splits.

        Returns:
            float32 of shape (N,), in row order.

        Raises:
            UnknownNameError: If the task has no such split.
        """
        low, high = self.score_range
        gold = np.asarray(self.rows(split)["score"], dtype=np.float64)
        return ((gold - low) / (high - low)).astype(np.float32)

    def audit(self) -> tuple[str, ...]:
        """Count duplicates, overlap between splits and final punctuation; see `audit_notes`."""
        return audit_notes(self.splits)

    def digest_parts(self) -> tuple[object, tuple[str, ...]]:
        """Return the score range and all columns."""
        return self.score_range, COLUMNS

    def describe_kind(self) -> dict[str, Any]:
        """Return the score range, and the row counts under their older name `n_pairs`."""
        return {"score_range": list(self.score_range), "n_pairs": self.n_rows()}

    def check_draw(self, n_per_split: int) -> None:
        """Reject fewer than 8 rows per split."""
        check_graded_draw(n_per_split)


def build_splits(columns: Mapping[str, Mapping[str, list[str] | list[float]]]) -> "datasets.DatasetDict":
    """Hold checked columns in memory as the `DatasetDict` a `PairTask` wants.

    Args:
        columns: Split to its columns `sentence1`, `sentence2` and `score`.

    Returns:
        The splits in the order train, validation, test; nothing is written to disk.
    """
    from datasets import Value

    return hold_columns(
        columns, {"sentence1": Value("string"), "sentence2": Value("string"), "score": Value("float64")}
    )
