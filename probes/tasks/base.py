"""What every task has in common, whatever its kind: splits, texts, a digest, smaller draws and a description."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from extract.errors import TaskError, unknown_name
from probes.readers.splits import SPLITS, order_splits
from probes.tasks.units import Units, find_units

if TYPE_CHECKING:
    import datasets

    from extract.inputs.joined import JoinedText

Kind = str
"""Name of a kind of task, such as `pairs`; they are the keys of `probes.runs.kinds.KINDS`."""
Same = TypeVar("Same", bound="Task")
"""The kind of task that a method was called on; `Self` is not understood by the type checker of the test suite."""


class Task(ABC):
    """Rows with gold, in up to three splits. Every kind of task is a frozen dataclass that extends this class.

    A kind adds its own fields, checks them when built, and says which columns its rows have.
    """

    kind: ClassVar[Kind]
    """Name of the kind."""
    rows_noun: ClassVar[str] = "rows"
    """What notes call the rows of this kind."""
    draw_noun: ClassVar[str] = "random"
    """What notes call the draw of a subset."""
    digest_names_columns: ClassVar[bool] = False
    """True for kinds whose tasks differ in their columns, which are then part of the digest."""

    name: str
    """Name of the task in reports."""
    splits: "datasets.DatasetDict"
    """`train`, `validation`, `test` (a non-empty subset, in that order), each with the columns of the kind."""
    source: str
    """One line: where the rows came from."""
    is_sample: bool
    """True for the small samples shipped with the project, which are no benchmark."""
    notes: tuple[str, ...]
    """One-line remarks for the reader of a report."""
    metrics: tuple[str, ...]
    """Names of the metrics reported for the task; the first is the one to choose by."""

    @abstractmethod
    def texts(self) -> "Sequence[str | JoinedText]":
        """List every text of the task once, over all splits, in the order first seen."""

    def plain_texts(self) -> list[str]:
        """List every text of the task once, as strings."""
        return cast("list[str]", list(self.texts()))

    def sides(self) -> tuple[list[str], list[str]] | None:
        """List queries and documents, which a template may tell apart; None where all texts are read alike."""
        return None

    @abstractmethod
    def audit(self) -> tuple[str, ...]:
        """Count what a reader should know about the rows: duplicates, overlap between splits, and so on.

        Returns one line each, only where the count is not zero.
        """

    @abstractmethod
    def digest_parts(self) -> tuple[object, tuple[str, ...]]:
        """Return what the digest covers: JSON values besides the rows, and columns, in each split that has them."""

    @abstractmethod
    def describe_kind(self) -> dict[str, Any]:
        """Return the entries of `describe` that only this kind has."""

    def inferred_options(self) -> dict[str, Any]:
        """Return the options of its reader that were not set and were taken from the data, for the run's config."""
        return {}

    def rows(self, split: str) -> "datasets.Dataset":
        """Return the rows of one split; reject a split that the task lacks."""
        if split not in self.splits:
            raise unknown_name("split", split, self.splits, hint=f"These are the splits of task {self.name!r}.")
        return self.splits[split]

    def groups(self, split: str) -> tuple[str, ...] | None:
        """Name the group of each row of one split, to resample whole groups; None where rows are not grouped."""
        rows = self.rows(split)
        return tuple(rows["group"]) if "group" in rows.column_names else None

    def cells(self, split: str) -> list[Sequence[Hashable]]:
        """List the texts of each row of one split, column by column: rows with equal ones are no independent rows."""
        del split
        return []

    def find_units(self, split: str) -> Units | None:
        """Find the rows of one split that share a text; None where no two rows, or groups, do."""
        return find_units(self.cells(split), self.groups(split))

    def units(self, split: str) -> tuple[str, ...] | None:
        """Name what intervals and tests draw whole, for each row: rows that share a text, its group; None for the row.

        See `probes.tasks.units`.
        """
        units = self.find_units(split)
        return self.groups(split) if units is None else units.names

    def shared_rows(self) -> dict[str, str]:
        """Say in a line, of every scored split that has them, how many rows share a text and what is drawn instead."""
        units = {split: self.find_units(split) for split in self.splits if split != "train"}
        return {split: each.note(split, self.rows_noun) for split, each in units.items() if each is not None}

    def n_rows(self) -> dict[str, int]:
        """Count the rows of each split."""
        return {split: len(rows) for split, rows in self.splits.items()}

    def describe(self) -> dict[str, Any]:
        """Describe the task for `scores.json` as JSON values: what every kind has, and the entries of its own."""
        shared = self.shared_rows()
        return {
            "kind": self.kind,
            "name": self.name,
            "source": self.source,
            "is_sample": self.is_sample,
            "metrics": list(self.metrics),
            "n_rows": self.n_rows(),
            **self.describe_kind(),
            "digest": self.digest(),
            "notes": list(self.notes),
            **({"shared_rows": shared} if shared else {}),
        }

    def digest(self) -> str:
        """Hash the rows and what gives them meaning, but not name, source or notes (SHA-256, hexadecimal).

        Equal for equal rows in equal order, on every machine.
        """
        head, covered = self.digest_parts()
        sha = hashlib.sha256(json.dumps(head).encode())
        for split, rows in self.splits.items():
            columns = [name for name in covered if name in rows.column_names]
            named = [columns] if self.digest_names_columns else []
            sha.update(json.dumps([split, len(rows), *named]).encode())
            for row in zip(*(rows[column] for column in columns), strict=True):
                sha.update(json.dumps(row).encode() + b"\n")
        return sha.hexdigest()

    def subset(self: Same, n_per_split: int, seed: int = 0) -> Same:
        """Draw a smaller task for quick trials; a larger draw with the same seed holds every smaller one.

        Args:
            n_per_split: Rows to keep of each split; a split with fewer rows stays whole.
            seed: Seed of the draw.

        Returns:
            A task whose rows keep their order and whose notes say that it is a subset.

        Raises:
            TaskError: `n_per_split` is too small for the kind of task, or the drawn rows cannot be used.
        """
        self.check_draw(n_per_split)
        kept = {split: np.sort(self.draw_order(split, seed=seed)[:n_per_split]) for split in self.splits}
        note = (
            f"a {self.draw_noun} subset of at most {n_per_split} {self.rows_noun} per split (seed {seed}), not the "
            "whole task"
        )
        return self.keep_rows(kept, note=note)

    @abstractmethod
    def check_draw(self, n_per_split: int) -> None:
        """Reject a number of rows per split that is too small for the kind; the error names the smallest allowed."""

    def draw_order(self, split: str, *, seed: int) -> NDArray[np.int64]:
        """Order the rows of a split for `subset`, which keeps the first of them."""
        index = list(self.splits).index(split)
        return np.random.default_rng([seed, index]).permutation(len(self.splits[split]))

    def keep_rows(self: Same, kept: Mapping[str, Sequence[int] | NDArray[np.int64]], *, note: str) -> Same:
        """Keep some rows of each split, in the order given; see `replace_splits`. Splits not named stay whole."""
        splits = type(self.splits)(
            {split: rows.select(kept[split]) if split in kept else rows for split, rows in self.splits.items()}
        )
        return self.replace_splits(splits, note=note)

    def replace_splits(self: Same, splits: "datasets.DatasetDict", *, note: str, **changes: object) -> Same:
        """Replace the rows of the task, and perhaps other fields; rejects rows that cannot be used.

        The note says what was done, in one line: it becomes the first remark, and remarks about the old rows are
        replaced by remarks about the new.
        """
        outdated = set(self.audit())
        kept = [remark for remark in self.notes if remark not in outdated]
        changed = self.replaced(splits=splits, **changes)
        return changed.replaced(notes=(note, *kept, *changed.audit()))

    def without_test(self: Same) -> Same:
        """Leave the test split out, so that nothing can be chosen on it; rejects a task without another split."""
        kept = {split: rows for split, rows in self.splits.items() if split != "test"}
        if not kept:
            raise TaskError(
                f"task {self.name!r} has no split 'train'; it has: test. Add rows that heads are fitted on."
            )
        return self.replaced(splits=type(self.splits)(kept))

    def replaced(self: Same, **changes: object) -> Same:
        """Copy the task with some fields replaced, checked again; see `dataclasses.replace`."""
        copy: Same = replace(cast("Any", self), **changes)
        return copy

    def check_splits(self, columns: Sequence[str]) -> None:
        """Check that there are splits with known names, each with rows and with these columns."""
        if not self.splits:
            raise TaskError(f"task {self.name!r} has no split; give at least one of {', '.join(SPLITS)}.")
        for split, rows in self.splits.items():
            if split not in SPLITS:
                raise unknown_name("split", split, SPLITS)
            for column in columns:
                if column not in rows.column_names:
                    raise unknown_name("column", column, rows.column_names, hint=f"Split {split!r} lacks it.")
            if not len(rows):
                raise TaskError(f"split {split!r} of task {self.name!r} has no rows: add rows or leave the split out.")


def unique_texts(splits: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """List the texts of some columns once, in the order first seen (split by split, row by row)."""
    seen: dict[str, None] = {}
    for rows in splits.values():
        for texts in zip(*(rows[column] for column in columns), strict=True):
            seen.update(dict.fromkeys(texts))
    return list(seen)


def hold_columns(columns: Mapping[str, Mapping[str, Any]], features: Mapping[str, Any]) -> "datasets.DatasetDict":
    """Hold checked columns of each split in memory as the `DatasetDict` a task wants, in the usual order of splits.

    Columns without a feature are left out; nothing is written to disk.
    """
    from datasets import Dataset, DatasetDict, Features

    splits = DatasetDict()
    for split in order_splits(columns):
        kept = {name: list(columns[split][name]) for name in features if name in columns[split]}
        splits[split] = Dataset.from_dict(kept, features=Features({name: features[name] for name in kept}))
    return splits


def load_shipped(package: str, place: str, load: Callable[[Path], Same]) -> Same:
    """Load a sample that ships with the project, from a file or folder of a package."""
    with resources.as_file(resources.files(package) / place) as path:
        task = load(path)
    note = "a sample written for this project: good for trying things out, no benchmark"
    return task.replaced(source=f"{place}, shipped with icecore", is_sample=True, notes=(note, *task.notes))
