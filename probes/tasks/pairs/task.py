"""Sentence pairs with a graded similarity: the task every similarity head is trained and scored on."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float32

from extract.errors import TaskError, unknown_name
from probes.tasks.pairs.audit import renew_notes

if TYPE_CHECKING:
    import datasets

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
MIN_SPLIT_ROWS = 8
"""Fewer rows than this make a correlation that says nothing."""


@dataclass(frozen=True, eq=False)
class PairTask:
    """Pairs of texts with a gold similarity, in up to three splits, checked when built.

    Raises:
        TaskError: If no split is there, a split has fewer than 8 rows, or its gold is constant.
        UnknownNameError: If a split or a column has another name than those below.
    """

    name: str
    """What reports call the task."""
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

    def __post_init__(self) -> None:
        _check_splits(self)

    def texts(self) -> list[str]:
        """List every text of the task once.

        Returns:
            The unique texts over all splits, in the order first seen (train first, row by row, `sentence1` first).
        """
        seen: dict[str, None] = {}
        for rows in self.splits.values():
            for pair in zip(rows["sentence1"], rows["sentence2"], strict=True):
                seen.update(dict.fromkeys(pair))
        return list(seen)

    def gold01(self, split: str) -> Float32[np.ndarray, " N"]:
        """Scale the gold of one split to [0, 1] by the score range.

        Args:
            split: One of the task's splits.

        Returns:
            float32 of shape (N,), in row order.

        Raises:
            UnknownNameError: If the task has no such split.
        """
        if split not in self.splits:
            raise unknown_name("split", split, self.splits, hint=f"These are the splits of task {self.name!r}.")
        low, high = self.score_range
        gold = np.asarray(self.splits[split]["score"], dtype=np.float64)
        return ((gold - low) / (high - low)).astype(np.float32)

    def digest(self) -> str:
        """Hash the rows: splits, texts, gold and score range, but not name, source or notes.

        Returns:
            64 hexadecimal digits (SHA-256); equal for equal rows in equal order, on every machine.
        """
        sha = hashlib.sha256(json.dumps(self.score_range).encode())
        for split, rows in self.splits.items():
            sha.update(json.dumps([split, len(rows)]).encode())
            for row in zip(rows["sentence1"], rows["sentence2"], rows["score"], strict=True):
                sha.update(json.dumps(row).encode() + b"\n")
        return sha.hexdigest()

    def subset(self, n_per_split: int, seed: int = 0) -> "PairTask":
        """Draw a smaller task for quick trials; a larger draw with the same seed holds every smaller one.

        Args:
            n_per_split: Rows to keep of each split, at least 8; a split with fewer rows stays whole.
            seed: Seed of the draw.

        Returns:
            A task whose rows keep their order and whose notes say that it is a subset; remarks on rows left out
            before stay.

        Raises:
            TaskError: If `n_per_split` is below 8, or the drawn gold is constant.
        """
        if n_per_split < MIN_SPLIT_ROWS:
            raise TaskError(
                f"n_per_split is {n_per_split}, but a split needs at least {MIN_SPLIT_ROWS} rows for a correlation."
            )
        drawn = {}
        for index, (split, rows) in enumerate(self.splits.items()):
            order = np.random.default_rng([seed, index]).permutation(len(rows))[:n_per_split]
            kept = sorted(order.tolist())
            drawn[split] = {column: [rows[column][i] for i in kept] for column in ("sentence1", "sentence2", "score")}
        splits = build_splits(drawn)
        note = f"a random subset of at most {n_per_split} rows per split (seed {seed}), not the whole task"
        return replace(self, splits=splits, notes=(note, *renew_notes(self.notes, self.splits, splits)))


def build_splits(columns: Mapping[str, Mapping[str, list[str] | list[float]]]) -> "datasets.DatasetDict":
    """Hold checked columns in memory as the `DatasetDict` a `PairTask` wants.

    Args:
        columns: Split to its columns `sentence1`, `sentence2` and `score`.

    Returns:
        The splits in the order train, validation, test; nothing is written to disk.
    """
    from datasets import Dataset, DatasetDict, Features, Value

    features = Features({"sentence1": Value("string"), "sentence2": Value("string"), "score": Value("float64")})
    order = [*(split for split in SPLITS if split in columns), *(split for split in columns if split not in SPLITS)]
    return DatasetDict({split: Dataset.from_dict(dict(columns[split]), features=features) for split in order})


def _check_splits(task: PairTask) -> None:
    if not task.splits:
        raise TaskError(f"task {task.name!r} has no split; give at least one of {', '.join(SPLITS)}.")
    for split, rows in task.splits.items():
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        for column in ("sentence1", "sentence2", "score"):
            if column not in rows.column_names:
                raise unknown_name("column", column, rows.column_names, hint=f"Split {split!r} lacks it.")
        if len(rows) < MIN_SPLIT_ROWS:
            raise TaskError(
                f"split {split!r} of task {task.name!r} has {len(rows)} rows, but a correlation needs at least "
                f"{MIN_SPLIT_ROWS}: add rows or leave the split out."
            )
        gold = set(rows["score"])
        if len(gold) == 1:
            raise TaskError(
                f"split {split!r} of task {task.name!r} has the same gold {gold.pop():g} in all {len(rows)} rows, so a "
                "correlation is undefined: give rows with different gold or leave the split out."
            )
