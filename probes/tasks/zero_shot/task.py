"""What tasks without fitting share: a layer is chosen on validation, test is scored once, train serves transforms."""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from extract.errors import TaskError
from probes.readers.checked_rows import CheckedRow
from probes.readers.splits import SPLITS
from probes.tasks.audit import overlaps, remarks
from probes.tasks.base import Task, hold_columns, unique_texts
from probes.tasks.splitting import SPLIT_NOTE

if TYPE_CHECKING:
    import datasets

MIN_ROWS = 2
"""The fewest rows of a split; one row has no interval."""
Z = TypeVar("Z", bound="ZeroShotTask")
_FEATURES = {"text": "string", "number": "float64", "place": "int64"}


@dataclass(frozen=True, eq=False)
class ZeroShotTask(Task):
    """A task that is solved by distances between latents alone. Each kind is a subclass with its columns."""

    columns: ClassVar[Mapping[str, str]]
    """Column to `text`, `number` or `place` (a whole number), or the same with `s` for a list of them."""
    text_columns: ClassVar[tuple[str, ...]]
    """Columns with one text each."""

    name: str
    splits: "datasets.DatasetDict"
    """Any of train, validation and test; train is used by transforms alone."""
    source: str
    is_sample: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse splits that cannot be scored."""
        needed = [column for column in self.columns if column != "group"]
        self.check_splits(needed)
        for split, rows in self.splits.items():
            if len(rows) < MIN_ROWS:
                raise TaskError(
                    f"split {split!r} of task {self.name!r} has {len(rows)} {self.rows_noun}; give at least {MIN_ROWS}."
                )
            self.check_split(split)

    def check_split(self, split: str) -> None:
        """Refuse the rows of one split that cannot be scored."""

    def texts(self) -> "Sequence[Any]":
        """List every text once, over all splits, in the order first seen."""
        return unique_texts(self.splits, self.text_columns)

    def fit_texts(self) -> "Sequence[Any]":
        """List the texts that transforms are fitted on: those of train."""
        if "train" not in self.splits:
            raise TaskError(
                f"task {self.name!r} has no split 'train', which a transform is fitted on; add texts to it (they need "
                "no gold that means anything), or use transform: none."
            )
        return unique_texts({"train": self.splits["train"]}, self.text_columns)

    def audit(self) -> tuple[str, ...]:
        """Count the rows that two splits share, texts compared exactly."""
        keys = {split: self.keys(split) for split in self.splits}
        return remarks(
            (n, f"{split}: {n} of {len(keys[split])} {self.rows_noun} are also in {other}")
            for split, other, n in overlaps(keys)
        )

    def cells(self, split: str) -> list[Sequence[Hashable]]:
        """List the texts of each row, column by column."""
        rows = self.rows(split)
        return [list(rows[column]) for column in self.text_columns]

    def n_compared(self, split: str) -> int:
        """Count the latents of a split that are compared, of one side."""
        return len(self.rows(split))

    def gold_shown(self, split: str) -> list[Any]:
        """Return what a perfect head predicts of each row: here, a score of 1."""
        return [1.0] * len(self.rows(split))

    def inputs_shown(self, split: str) -> dict[str, Sequence[Any]]:
        """Return the texts of each row, as predictions show them."""
        rows = self.rows(split)
        columns = ("id", *self.text_columns) if "id" in self.columns else self.text_columns
        return {"row": range(len(rows)), **{column: list(rows[column]) for column in columns}}

    def keys(self, split: str) -> list[Hashable]:
        """Name each row by what may not be in two splits."""
        rows = self.rows(split)
        return list(zip(*(rows[column] for column in self.text_columns), strict=True))

    def digest_parts(self) -> tuple[object, tuple[str, ...]]:
        """Return the kind, and all columns."""
        return self.kind, tuple(self.columns)

    def describe_kind(self) -> dict[str, Any]:
        """Return whether rows are grouped."""
        return {"has_groups": all(self.groups(split) is not None for split in self.splits)}

    def check_draw(self, n_per_split: int) -> None:
        """Reject a draw of fewer rows than a split needs."""
        if n_per_split < MIN_ROWS:
            raise TaskError(f"n_per_split is {n_per_split}, but a split needs at least {MIN_ROWS} {self.rows_noun}.")


@dataclass(frozen=True, eq=False)
class CorpusTask(ZeroShotTask):
    """A task whose rows are queries for documents of a corpus."""

    rows_noun: ClassVar[str] = "queries"
    text_columns: ClassVar[tuple[str, ...]] = ("query",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "text",
        "query": "text",
        "documents": "places",
        "grades": "numbers",
    }

    corpus_ids: tuple[str, ...] = ()
    """Name of each document, falling: of documents that are equally near, the one with the higher name comes first."""
    corpus: tuple[str, ...] = ()
    """Text of each document. The column `documents` holds places in it, `grades` how relevant they are."""

    def texts(self) -> list[str]:
        """List every document and query once."""
        return list(dict.fromkeys((*self.corpus, *self.queries())))

    def sides(self) -> tuple[list[str], list[str]]:
        """List queries and documents, each once."""
        return self.queries(), list(dict.fromkeys(self.corpus))

    def queries(self) -> list[str]:
        """List every query once."""
        return unique_texts(self.splits, self.text_columns)

    def fit_texts(self) -> Sequence[str]:
        """List the texts that transforms are fitted on: the corpus."""
        return self.corpus

    def check_split(self, split: str) -> None:
        """Refuse a query without a relevant document."""
        rows = self.rows(split)
        for name, places, grades in zip(rows["id"], rows["documents"], rows["grades"], strict=True):
            if len(places) != len(grades) or not all(0 <= place < len(self.corpus) for place in places):
                raise TaskError(f"query {name!r} of task {self.name!r} names documents that are not in its corpus.")
            if not any(grade > 0 for grade in grades):
                raise TaskError(f"query {name!r} of task {self.name!r} has no relevant document: leave it out.")

    @cached_property
    def corpus_digest(self) -> str:
        """Hash names and texts of the corpus."""
        sha = hashlib.sha256()
        for name, text in zip(self.corpus_ids, self.corpus, strict=True):
            sha.update(f"{len(name)} {len(text)} {name}{text}".encode("utf-8", "surrogatepass"))
        return sha.hexdigest()

    def digest_parts(self) -> tuple[object, tuple[str, ...]]:
        """Return the kind and the corpus, and all columns."""
        return [self.kind, self.corpus_digest], tuple(self.columns)

    def describe_kind(self) -> dict[str, Any]:
        """Return the size of the corpus, too."""
        return {**super().describe_kind(), "n_documents": len(self.corpus)}


def place_splits(
    given: Sequence[str | None], keys: Sequence[Hashable], *, fraction: float, seed: int, task: str
) -> tuple[dict[str, NDArray[np.int64]], str]:
    """Place rows in splits; where none is for validation, draw it from train, or else from test; equal keys together.

    Args:
        given: The split of each row; None for rows of test.
        keys: What names each row.
        fraction: Part of the rows that becomes validation.
        seed: Seed of the draw.
        task: Name of the task, for messages.

    Returns:
        Split to its rows, and a note about what was drawn; empty where nothing was.

    Raises:
        TaskError: A fraction outside 0 to 1, or one that leaves a split empty.
    """
    if not 0 < fraction < 1:
        raise TaskError(f"`validation_fraction` is {fraction:g}, but a number above 0 and below 1 is needed.")
    named = [split or "test" for split in given]
    parts: dict[str, NDArray[np.int64]] = {
        split: np.flatnonzero([each == split for each in named]) for split in SPLITS if split in named
    }
    if "validation" in parts:
        return parts, ""
    source = "train" if "train" in parts else "test"
    places: dict[Hashable, list[int]] = {}
    for row in parts[source].tolist():
        places.setdefault(keys[row], []).append(row)
    groups, n_rows = list(places.values()), len(parts[source])
    held: list[int] = []
    for k in np.random.default_rng(seed).permutation(len(groups)).tolist():
        if len(held) < fraction * n_rows:
            held += groups[k]
    rest = sorted(set(parts[source].tolist()) - set(held))
    if min(len(held), len(rest)) < MIN_ROWS:
        raise TaskError(
            f"task {task!r} has {n_rows} rows in {source} and none in validation, too few to draw some of them: add "
            "rows, or give files that are split already."
        )
    parts |= {"validation": np.sort(held), source: np.array(rest)}
    note = f"{SPLIT_NOTE}{len(held)} of {n_rows} rows of {source} to validation with seed {seed}"
    return {split: parts[split] for split in SPLITS if split in parts}, note


def build_task(
    kind: type[Z],
    rows: Sequence[CheckedRow],
    *,
    name: str,
    source: str,
    notes: Sequence[str] = (),
    validation_fraction: float,
    seed: int,
    **more: Any,
) -> Z:
    """Build a task of a kind from checked rows with its columns, drawing validation where there is none."""
    keys = [row.values.get("group") or tuple(map(str, row.values.values())) for row in rows]
    parts, drawn = place_splits([row.split for row in rows], keys, fraction=validation_fraction, seed=seed, task=name)
    columns = {
        split: {
            column: [rows[place].values[column] for place in places]
            for column in kind.columns
            if column in rows[0].values
        }
        for split, places in parts.items()
    }
    task = kind(name, hold_task_columns(kind, columns), source, **more)
    return task.replaced(notes=(*notes, *filter(None, [drawn]), *task.audit()))


def hold_task_columns(
    kind: type[ZeroShotTask], columns: Mapping[str, Mapping[str, Sequence[Any]]]
) -> "datasets.DatasetDict":
    """Hold the columns of each split as a kind of task wants them."""
    from datasets import List, Value

    features = {
        column: List(Value(_FEATURES[what[:-1]])) if what.endswith("s") else Value(_FEATURES[what])
        for column, what in kind.columns.items()
    }
    return hold_columns(columns, features)
