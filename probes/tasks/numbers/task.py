"""Texts with one number each, such as a rating: the task every regression probe is trained and scored on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float64

from probes.tasks.audit import conflict_notes, overlaps, remarks
from probes.tasks.base import hold_columns
from probes.tasks.graded import GradedTask

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, eq=False)
class NumberTask(GradedTask):
    """Texts with one number each, in up to three splits, checked when built."""

    kind: ClassVar[str] = "numbers"
    text_columns: ClassVar[tuple[str, ...]] = ("text",)
    digest_names_columns: ClassVar[bool] = True
    gold_column: ClassVar[str] = "number"

    name: str
    splits: "datasets.DatasetDict"
    """Columns `text` (string), `number` (float64, in its own units) and perhaps `group` (string: rows that must not be
    torn apart)."""
    source: str
    is_sample: bool = False
    notes: tuple[str, ...] = ()

    def numbers(self, split: str) -> Float64[np.ndarray, " N"]:
        """Return the numbers of a split, in row order."""
        return np.asarray(self.rows(split)["number"], dtype=np.float64)

    def audit(self) -> tuple[str, ...]:
        """Count repeated texts, and texts that two splits share; texts are compared exactly."""
        texts = {split: list(rows["text"]) for split, rows in self.splits.items()}
        repeats = {split: len(found) - len(set(found)) for split, found in texts.items()}
        counts = [
            (n, f"{split}: {n} of {len(texts[split])} rows repeat an earlier text") for split, n in repeats.items()
        ]
        for split, found in texts.items():
            n_conflicts, conflicts = conflict_notes(found, self.rows(split)["number"], "text", "numbers")
            counts.append((n_conflicts, f"{split}: {conflicts}"))
        for split, other, n in overlaps(texts):
            counts.append((n, f"{split}: {n} of {len(texts[split])} texts are also in {other}"))
        return remarks(counts)

    def digest_parts(self) -> tuple[object, tuple[str, ...]]:
        """Return the kind, and all columns."""
        return self.kind, ("text", "number", "group")

    def describe_kind(self) -> dict[str, Any]:
        """Return whether rows are grouped."""
        return {"has_groups": all(self.groups(split) is not None for split in self.splits)}


def build_number_splits(columns: Mapping[str, Mapping[str, Any]]) -> "datasets.DatasetDict":
    """Hold the columns `text`, `number` and perhaps `group` of each split as a `NumberTask` wants them."""
    from datasets import Value

    return hold_columns(columns, {"text": Value("string"), "number": Value("float64"), "group": Value("string")})
