"""Texts, or pairs of texts, each of one class: the task every classification probe is trained and scored on."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

from extract.errors import TaskError
from probes.metrics.class_metrics import class_metric
from probes.tasks.base import Task, hold_columns, unique_texts
from probes.tasks.classes.audit import class_notes
from probes.tasks.splitting import draw_order

if TYPE_CHECKING:
    import datasets


TEXT = ("text",)
PAIR = ("text1", "text2")


@dataclass(frozen=True, eq=False)
class ClassTask(Task):
    """Texts (or pairs of texts) with one class each, in train and up to two more splits, checked when built.

    Raises:
        TaskError: There is no training split, a split is empty, training holds one class only, or a label is no class.
        UnknownNameError: A split, a column or a metric has another name than those below.

    Example:
        >>> rows = {"text": ["a", "b"], "label": [0, 1], "row": [0, 1]}
        >>> task = ClassTask("toy", build_class_splits({"train": rows}), ("no", "yes"), ("accuracy",), "made here")
        >>> task.texts(), task.n_classes, task.metric
        (['a', 'b'], 2, 'accuracy')
    """

    kind: ClassVar[str] = "classes"
    draw_noun: ClassVar[str] = "stratified"
    digest_names_columns: ClassVar[bool] = True

    name: str
    splits: "datasets.DatasetDict"
    """Columns `text`, or `text1` and `text2` (string), `label` (int64, a place in `class_names`), `row` (int64, place
    in the source, over all splits) and perhaps `group` (string: rows that must not be torn apart, such as the sentences
    of one abstract). Train is always there."""
    class_names: tuple[str, ...]
    """Name of each class; its place is its number."""
    metrics: tuple[str, ...]
    """Keys of `CLASS_METRICS`; the first is the one to choose by."""
    source: str
    licence: str = "unknown"
    """One line: under which terms the rows are published."""
    is_sample: bool = False
    notes: tuple[str, ...] = ()
    look_both_ways_rows: int | None = None
    """How many rows, from the first, the code released with Look Both Ways takes; None is all of them."""

    def __post_init__(self) -> None:
        for metric in self.metrics:
            class_metric(metric)
        if self.splits:
            self.check_splits((*self.text_columns, "label", "row"))
        if not self.metrics or "train" not in self.splits:
            what = "no metric; give one or more of CLASS_METRICS" if not self.metrics else "no training split"
            raise TaskError(f"task {self.name!r} has {what} (its splits: {', '.join(self.splits) or 'none'}).")
        for split in self.splits:
            labels = self.labels(split)
            if labels.min() < 0 or labels.max() >= self.n_classes:
                raise TaskError(
                    f"split {split!r} of task {self.name!r} holds labels {labels.min()} to {labels.max()}, but its "
                    f"{self.n_classes} classes are numbered from 0: name every class."
                )
        present = np.unique(self.labels("train"))
        if len(present) < 2:
            raise TaskError(
                f"every training row of task {self.name!r} is of the one class {self.class_names[present[0]]!r}, so "
                "there is nothing to tell apart: give rows of two classes or more."
            )

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
        """Numbers of the classes that train has rows of, rising: the classes a head is fitted on."""
        return np.unique(self.labels("train"))

    @property
    def text_columns(self) -> tuple[str, ...]:
        """`("text",)`, or `("text1", "text2")` for pairs."""
        return PAIR if PAIR[0] in next(iter(self.splits.values())).column_names else TEXT

    @property
    def is_pairs(self) -> bool:
        """True when a row holds two texts."""
        return len(self.text_columns) == 2

    def texts(self) -> list[str]:
        """List every text once, in the order first seen."""
        return unique_texts(self.splits, self.text_columns)

    def cells(self, split: str) -> list[Sequence[Hashable]]:
        """List the texts of each row, column by column."""
        rows = self.rows(split)
        return [list(rows[column]) for column in self.text_columns]

    def labels(self, split: str) -> Int64[np.ndarray, " N"]:
        """Return the classes of one split, in row order."""
        return np.asarray(self.rows(split)["label"], dtype=np.int64)

    def audit(self) -> tuple[str, ...]:
        """Count duplicates, conflicting labels, overlap and thin classes; see `class_notes`."""
        return class_notes({split: rows[:] for split, rows in self.splits.items()}, self.class_names)

    def digest_parts(self) -> tuple[object, tuple[str, ...]]:
        """Return the class names, and the columns of texts, labels and groups, but not the place in the source."""
        return self.class_names, (*self.text_columns, "label", "group")

    def describe_kind(self) -> dict[str, Any]:
        """Return licence, classes, and whether rows are grouped."""
        return {
            "licence": self.licence,
            "n_classes": self.n_classes,
            "class_names": list(self.class_names),
            "has_groups": "train" in self.splits and self.groups("train") is not None,
        }

    def check_draw(self, n_per_split: int) -> None:
        """Reject fewer rows per split than it has classes."""
        for split, rows in self.splits.items():
            n_present = len(np.unique(self.labels(split)))
            if n_per_split < min(n_present, len(rows)):
                raise TaskError(
                    f"n_per_split is {n_per_split}, but split {split!r} of task {self.name!r} has {n_present} classes: "
                    f"give at least {n_present}, so that each keeps a row."
                )

    def draw_order(self, split: str, *, seed: int) -> NDArray[np.int64]:
        """Order the rows of a split so that every beginning of the order is a stratified draw."""
        return draw_order(self.labels(split), seed=seed)

    def without_test(self) -> "ClassTask":
        """Leave the test split out, and the classes that only test has.

        The other classes are renumbered, because a class number seeds the draws of its rows.
        """
        rest = super().without_test()
        present = np.unique(np.concatenate([rest.labels(split) for split in rest.splits]))
        if len(present) == rest.n_classes:
            return rest
        columns = {
            split: {**rows[:], "label": np.searchsorted(present, rest.labels(split)).tolist()}
            for split, rows in rest.splits.items()
        }
        names = tuple(rest.class_names[code] for code in present)
        return rest.replaced(splits=build_class_splits(columns), class_names=names)


def build_class_splits(columns: Mapping[str, Mapping[str, Sequence[Any]]]) -> "datasets.DatasetDict":
    """Hold checked columns of each split as a `ClassTask` wants them."""
    from datasets import Value

    features = {name: Value("string") for name in (*TEXT, *PAIR)}
    return hold_columns(columns, {**features, "label": Value("int64"), "row": Value("int64"), "group": Value("string")})
