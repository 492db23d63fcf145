"""Texts with one number each, such as a rating: the task every regression probe is trained and scored on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float64

from extract.errors import TaskError
from probes.tasks.base import Task, hold_columns, unique_texts
from probes.tasks.graded import check_graded, check_graded_draw

if TYPE_CHECKING:
    import datasets

COLUMNS = ("text", "number")


@dataclass(frozen=True, eq=False)
class NumberTask(Task):
    """Texts with one number each, in up to three splits, checked when built.

    Raises:
        TaskError: There is no split, a split has fewer than 8 rows, its numbers are all equal, or one is not finite.
        UnknownNameError: A split or a column has another name than those below.
    """

    kind: ClassVar[str] = "numbers"
    text_columns: ClassVar[tuple[str, ...]] = ("text",)
    digest_names_columns: ClassVar[bool] = True

    name: str
    """Name of the task in reports."""
    splits: "datasets.DatasetDict"
    """`train`, `validation`, `test` (any non-empty subset, in that order) with columns `text` (string), `number`
    (float64, in its own units) and perhaps `group` (string: rows that must not be torn apart)."""
    source: str
    """One line: where the rows came from."""
    is_sample: bool = False
    """True for the small sample shipped with the project, not a benchmark."""
    notes: tuple[str, ...] = ()
    """One-line remarks for the reader of a report: rows dropped, duplicates, overlap between splits."""

    metrics: tuple[str, ...] = field(default=("pearson", "spearman"), init=False)
    """Correlations of prediction and number over all rows of a split."""

    def __post_init__(self) -> None:
        self.check_splits(COLUMNS)
        for split in self.splits:
            if not np.isfinite(self.numbers(split)).all():
                raise TaskError(
                    f"split {split!r} of task {self.name!r} holds a number that is not finite: leave it out."
                )
        check_graded(self, "number")

    def texts(self) -> list[str]:
        """List every text once, over all splits, in the order first seen."""
        return unique_texts(self.splits, ("text",))

    def numbers(self, split: str) -> Float64[np.ndarray, " N"]:
        """Give the numbers of a split, in row order."""
        return np.asarray(self.rows(split)["number"], dtype=np.float64)

    def groups(self, split: str) -> tuple[str, ...] | None:
        """Give the group of each row of a split; None where rows are not grouped."""
        rows = self.rows(split)
        return tuple(rows["group"]) if "group" in rows.column_names else None

    def audit(self) -> tuple[str, ...]:
        """Count repeated texts, and texts that two splits share; texts are compared exactly."""
        texts = {split: list(rows["text"]) for split, rows in self.splits.items()}
        counts = [
            (len(found) - len(set(found)), f"of {len(found)} rows repeat an earlier text", split)
            for split, found in texts.items()
        ]
        for other, split in combinations(texts, 2):
            known = set(texts[other])
            n_shared = sum(text in known for text in texts[split])
            counts.append((n_shared, f"of {len(texts[split])} texts are also in {other}", split))
        return tuple(f"{split}: {n} {what}" for n, what, split in counts if n)

    def digest_parts(self) -> tuple[object, tuple[str, ...]]:
        """Return the kind, and all columns."""
        return self.kind, (*COLUMNS, "group")

    def describe_kind(self) -> dict[str, Any]:
        """Return whether rows are grouped."""
        return {"has_groups": all(self.groups(split) is not None for split in self.splits)}

    def check_draw(self, n_per_split: int) -> None:
        """Reject fewer than 8 rows per split."""
        check_graded_draw(n_per_split)


def build_number_splits(columns: Mapping[str, Mapping[str, Any]]) -> "datasets.DatasetDict":
    """Hold columns in memory as the `DatasetDict` a `NumberTask` wants.

    Args:
        columns: Split to its columns `text`, `number` and perhaps `group`.

    Returns:
        The splits in the order train, validation, test; nothing is written to disk.
    """
    from datasets import Value

    return hold_columns(columns, {"text": Value("string"), "number": Value("float64"), "group": Value("string")})
