"""Texts, or pairs of texts, each of one class: the task every classification probe is trained and scored on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from extract.errors import TaskError, unknown_name
from probes.metrics.class_metrics import class_metric
from probes.tasks.classes.audit import class_notes
from probes.tasks.classes.columns import build_class_splits, text_columns
from probes.tasks.classes.splitting import draw_order
from probes.tasks.pairs.task import SPLITS

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, eq=False)
class ClassTask:
    """Texts (or pairs of texts) with one class each, in train and up to two more splits, checked when built.

    Raises:
        TaskError: If there is no training split, a split is empty, training holds one class only, or a label is no
            class.
        UnknownNameError: If a split, a column or a metric has another name than those below.

    Example:
        >>> rows = {"text": ["a", "b"], "label": [0, 1], "row": [0, 1]}
        >>> task = ClassTask("toy", build_class_splits({"train": rows}), ("no", "yes"), ("accuracy",), "made here")
        >>> task.texts(), task.n_classes, task.metric
        (['a', 'b'], 2, 'accuracy')
    """

    name: str
    """What reports call the task."""
    splits: "datasets.DatasetDict"
    """`train`, `validation`, `test` (in that order, train always) with columns `text`, or `text1` and `text2`
    (string), `label` (int64, a place in `class_names`), `row` (int64, place in the source, over all splits) and
    perhaps `group` (string: rows that must not be torn apart, such as the sentences of one abstract)."""
    class_names: tuple[str, ...]
    """Name of each class; its place is its number."""
    metrics: tuple[str, ...]
    """Keys of `CLASS_METRICS`; the first is the one to choose by."""
    source: str
    """One line: where the rows came from."""
    licence: str = "unknown"
    """One line: under which terms the rows are published."""
    is_sample: bool = False
    """True for the small sample shipped with the project, which is no benchmark."""
    notes: tuple[str, ...] = ()
    """One-line remarks for the reader of a report: rows dropped, duplicates, overlap, thin classes, splits made."""
    look_both_ways_rows: int | None = None
    """How many rows, from the first, the code released with Look Both Ways takes; None is all of them."""

    def __post_init__(self) -> None:
        _check_task(self)

    @property
    def metric(self) -> str:
        """Name of the metric to choose by; higher is better."""
        return self.metrics[0]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def training_classes(self) -> Int64[np.ndarray, " C"]:
        """Numbers of the classes that train has rows of, rising: what a head is fitted on, whatever test holds."""
        return np.unique(self.labels("train"))

    @property
    def text_columns(self) -> tuple[str, ...]:
        """`("text",)`, or `("text1", "text2")` for pairs."""
        return text_columns(next(iter(self.splits.values())).column_names)

    @property
    def is_pairs(self) -> bool:
        """True when a row holds two texts."""
        return len(self.text_columns) == 2

    def texts(self) -> list[str]:
        """List every text of the task once.

        Returns:
            The unique texts over all splits, in the order first seen (train first, row by row, `text1` first).
        """
        seen: dict[str, None] = {}
        for rows in self.splits.values():
            for texts in zip(*(rows[column] for column in self.text_columns), strict=True):
                seen.update(dict.fromkeys(texts))
        return list(seen)

    def labels(self, split: str) -> Int64[np.ndarray, " N"]:
        """Give the classes of one split.

        Args:
            split: One of the task's splits.

        Returns:
            int64 of shape (N,), in row order.

        Raises:
            UnknownNameError: If the task has no such split.
        """
        return np.asarray(self._rows(split)["label"], dtype=np.int64)

    def groups(self, split: str) -> tuple[str, ...] | None:
        """Give the group of each row of one split, to resample whole groups.

        Args:
            split: One of the task's splits.

        Returns:
            One name per row, or None when rows stand alone.

        Raises:
            UnknownNameError: If the task has no such split.
        """
        rows = self._rows(split)
        return tuple(rows["group"]) if "group" in rows.column_names else None

    def digest(self) -> str:
        """Hash the rows: splits, texts, labels, groups and class names, but not name, metrics, source or notes.

        Returns:
            64 hexadecimal digits (SHA-256); equal for equal rows in equal order, on every machine.
        """
        sha = hashlib.sha256(json.dumps(self.class_names).encode())
        for split, rows in self.splits.items():
            columns = [name for name in (*self.text_columns, "label", "group") if name in rows.column_names]
            sha.update(json.dumps([split, len(rows), columns]).encode())
            for row in zip(*(rows[column] for column in columns), strict=True):
                sha.update(json.dumps(row).encode() + b"\n")
        return sha.hexdigest()

    def subset(self, n_per_split: int, seed: int = 0) -> "ClassTask":
        """Draw a smaller task for quick trials, stratified; a larger draw with the same seed holds every smaller one.

        Args:
            n_per_split: Rows to keep of each split, at least its number of classes; a smaller split stays whole.
            seed: Seed of the draw.

        Returns:
            A task whose rows keep their order and whose notes say that it is a subset.

        Raises:
            TaskError: If `n_per_split` is smaller than the number of classes in a split.
        """
        drawn = {}
        for split, rows in self.splits.items():
            labels = self.labels(split)
            n_present = len(np.unique(labels))
            if n_per_split < min(n_present, len(rows)):
                raise TaskError(
                    f"n_per_split is {n_per_split}, but split {split!r} of task {self.name!r} has {n_present} classes: "
                    f"give at least {n_present}, so that each keeps a row."
                )
            kept = np.sort(draw_order(labels, seed=seed)[:n_per_split]).tolist()
            drawn[split] = {name: [values[i] for i in kept] for name, values in rows.to_dict().items()}
        note = f"a stratified subset of at most {n_per_split} rows per split (seed {seed}), not the whole task"
        return replace_rows(self, drawn, note=note)

    def _rows(self, split: str) -> "datasets.Dataset":
        if split not in self.splits:
            raise unknown_name("split", split, self.splits, hint=f"These are the splits of task {self.name!r}.")
        return self.splits[split]


def replace_rows(
    task: ClassTask,
    columns: Mapping[str, Mapping[str, Sequence[Any]]],
    *,
    note: str,
    class_names: Sequence[str] | None = None,
) -> ClassTask:
    """Hold other rows under a task's name, its remarks about the old rows replaced by remarks about the new.

    Args:
        task: Where everything but the rows comes from.
        columns: Split to its columns, as in `build_class_splits`.
        note: What was done, in one line; it becomes the first remark.
        class_names: Names of the classes, when labels were numbered anew.

    Returns:
        The task, checked.

    Raises:
        TaskError: If the rows cannot make a task.

    Example:
        >>> rows = {"text": ["a", "b", "c"], "label": [0, 1, 1], "row": [0, 1, 2]}
        >>> task = ClassTask("toy", build_class_splits({"train": rows}), ("no", "yes"), ("accuracy",), "made here")
        >>> fewer = {name: values[:2] for name, values in rows.items()}
        >>> replace_rows(task, {"train": fewer}, note="the last row left out").notes[0]
        'the last row left out'
    """
    outdated = set(class_notes({split: rows.to_dict() for split, rows in task.splits.items()}, task.class_names))
    names = tuple(class_names or task.class_names)
    kept = tuple(remark for remark in task.notes if remark not in outdated)
    notes = (note, *kept, *class_notes(columns, names))
    return replace(task, splits=build_class_splits(columns), class_names=names, notes=notes)


def _check_task(task: ClassTask) -> None:
    for metric in task.metrics:
        class_metric(metric)
    for split in task.splits:
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
    if not task.metrics or "train" not in task.splits:
        what = "no metric; give one or more of CLASS_METRICS" if not task.metrics else "no training split"
        raise TaskError(f"task {task.name!r} has {what} (its splits: {', '.join(task.splits) or 'none'}).")
    for split, rows in task.splits.items():
        for column in (*task.text_columns, "label", "row"):
            if column not in rows.column_names:
                raise unknown_name("column", column, rows.column_names, hint=f"Split {split!r} lacks it.")
        if not len(rows):
            raise TaskError(f"split {split!r} of task {task.name!r} has no rows: add rows or leave the split out.")
        labels = task.labels(split)
        if labels.min() < 0 or labels.max() >= task.n_classes:
            raise TaskError(
                f"split {split!r} of task {task.name!r} holds labels {labels.min()} to {labels.max()}, but its "
                f"{task.n_classes} classes are numbered from 0: name every class."
            )
    present = np.unique(task.labels("train"))
    if len(present) < 2:
        raise TaskError(
            f"every training row of task {task.name!r} is of the one class {task.class_names[present[0]]!r}, so there "
            "is nothing to tell apart: give rows of two classes or more."
        )
