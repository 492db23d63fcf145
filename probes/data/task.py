"""Tasks of any kind: splits, texts, a digest, smaller draws and a description; and corpora of texts without gold."""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from extract.errors import TaskError, unknown_name
from probes.data.sources import need_local, read_hub
from probes.data.splits import SPLITS, SplitRule, draw_missing, order_splits
from probes.data.table_files import CheckedRow, Columns, RawTable, columns_of, read_lines, read_raw, unknown_column
from probes.data.task_table import CORPORA, TASKS, call_loader, load_task
from probes.data.units import Units, find_units, plain_form

if TYPE_CHECKING:
    import datasets

    from extract.inputs.joined_text import JoinedText
    from probes.metrics.bootstrap import UnitScorer


Kind = str
"""Name of a kind of task, such as `pairs`; they are the keys of `probes.runs.task_kinds.KINDS`."""
Same = TypeVar("Same", bound="Task")
"""The kind of task that a method was called on; `Self` is not understood by the type checker of the test suite."""


class Task(ABC):
    """Rows with gold, in up to three splits. Every kind of task is a frozen dataclass that extends this class.

    A kind adds its own fields, checks them when built, and says which columns its rows have.
    """

    kind: ClassVar[Kind]
    """Name of the kind."""
    rows_noun: ClassVar[str] = "rows"
    """Name of the rows in notes."""
    draw_noun: ClassVar[str] = "random"
    """Adjective of a subset in notes."""
    digest_names_columns: ClassVar[bool] = False
    """True for kinds whose tasks differ in their columns, which are then part of the digest."""

    name: str
    """Name of the task in reports."""
    splits: "datasets.DatasetDict"
    """`train`, `validation`, `test` (a non-empty subset, in that order), each with the columns of the kind."""
    source: str
    """One line: where the rows came from."""
    is_sample: bool
    """True for the small samples that ship with the project, which are no benchmark."""
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
        """List queries and documents, which a template may distinguish; None where all texts are encoded alike."""
        return None

    @abstractmethod
    def audit(self) -> tuple[str, ...]:
        """Count duplicates, overlap between splits and the like, one line for each count that is not zero."""

    @abstractmethod
    def digest_parts(self) -> tuple[object, tuple[str, ...]]:
        """Return the contents of the digest: JSON values besides the rows, and columns, in each split that has them."""

    @abstractmethod
    def describe_kind(self) -> dict[str, Any]:
        """Return the entries of `describe` that only this kind has."""

    def inferred_options(self) -> dict[str, Any]:
        """Return the options of its reader that were inferred from the data, for the run's config."""
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
        """Name the unit of each row for intervals and tests (`probes.data.units`); None where each row is one."""
        units = self.find_units(split)
        return self.groups(split) if units is None else units.names

    def shared_rows(self) -> dict[str, str]:
        """Describe in a line, for each scored split that has them, the rows that share a text."""
        units = {split: self.find_units(split) for split in self.splits if split != "train"}
        return {split: unit.note(split, self.rows_noun) for split, unit in units.items() if unit is not None}

    def n_rows(self) -> dict[str, int]:
        """Count the rows of each split."""
        return {split: len(rows) for split, rows in self.splits.items()}

    def describe(self) -> dict[str, Any]:
        """Describe the task for `scores.json` as JSON values."""
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
        """Hash the rows and `digest_parts`, but not name, source or notes (SHA-256, hexadecimal).

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

        Rows keep their order, and the notes say that the task is a subset.

        Args:
            n_per_split: Rows of each split; a split with fewer rows stays whole.
            seed: Seed of the draw.

        Raises:
            TaskError: `n_per_split` is too small for the kind of task, or the drawn rows cannot be used.
        """
        self.check_draw(n_per_split)
        rows = {split: np.sort(self.draw_order(split, seed=seed)[:n_per_split]) for split in self.splits}
        note = (
            f"a {self.draw_noun} subset of at most {n_per_split} {self.rows_noun} per split (seed {seed}), not the "
            "whole task"
        )
        return self.keep_rows(rows, note=note)

    @abstractmethod
    def check_draw(self, n_per_split: int) -> None:
        """Reject a number of rows per split that is too small for the kind; the error names the smallest allowed."""

    def draw_order(self, split: str, *, seed: int) -> NDArray[np.int64]:
        """Order the rows of a split for `subset`, which keeps the first of them."""
        index = list(self.splits).index(split)
        return np.random.default_rng([seed, index]).permutation(len(self.splits[split]))

    def keep_rows(self: Same, rows: Mapping[str, Sequence[int] | NDArray[np.int64]], *, note: str) -> Same:
        """Keep some rows of each split, in this order; see `replace_splits`. Splits not named stay whole."""
        splits = type(self.splits)(
            {split: table.select(rows[split]) if split in rows else table for split, table in self.splits.items()}
        )
        return self.replace_splits(splits, note=note)

    def replace_splits(self: Same, splits: "datasets.DatasetDict", *, note: str, **changes: object) -> Same:
        """Replace the rows of the task, and perhaps other fields; rejects rows that cannot be used.

        The note, a line about the change, becomes the first remark; the remarks of `audit` are recounted.
        """
        outdated = set(self.audit())
        remaining = [remark for remark in self.notes if remark not in outdated]
        changed = self.replaced(splits=splits, **changes)
        return changed.replaced(notes=(note, *remaining, *changed.audit()))

    def without_test(self: Same) -> Same:
        """Leave the test split out, so that nothing can be chosen on it; rejects a task without another split."""
        rest = {split: rows for split, rows in self.splits.items() if split != "test"}
        if not rest:
            raise TaskError(
                f"task {self.name!r} has no split 'train'; it has: test. Add rows that heads are fitted on."
            )
        return self.replaced(splits=type(self.splits)(rest))

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


def hold_columns(columns: Mapping[str, Columns], features: Mapping[str, object]) -> "datasets.DatasetDict":
    """Hold columns of each split in memory, in the usual order of splits; columns without a feature are left out."""
    from datasets import Dataset, DatasetDict, Features

    splits = DatasetDict()
    for split in order_splits(columns):
        used = {name: list(columns[split][name]) for name in features if name in columns[split]}
        splits[split] = Dataset.from_dict(used, features=Features({name: features[name] for name in used}))
    return splits


def load_shipped(name: str, load: Callable[[Path], Same]) -> Same:
    """Load a sample that ships with the project, from a file or folder beside this module."""
    with resources.as_file(resources.files("probes.data") / name) as path:
        task = load(path)
    note = "a sample written for this project: good for trying things out, no benchmark"
    return task.replaced(source=f"{name}, shipped with icecore", is_sample=True, notes=(note, *task.notes))


MIN_SPLIT_ROWS = 8
"""The fewest rows of a split; a correlation over fewer means nothing."""


def split_graded(
    rows: Sequence[CheckedRow], rule: SplitRule, *, columns: Sequence[str], name: str
) -> tuple[dict[str, Columns], str]:
    """Gather the rows of each split column by column, drawing splits that are missing; see `draw_missing`.

    Rows of one group, and rows linked by shared texts (`plain_form`), stay together. Where that links more than a fifth
    of all rows, only groups stay together, or without groups the rows with the same texts in any order.
    """
    texts = [[plain_form(row.values[column]) for row in rows] for column in columns]
    groups = [row.values["group"] for row in rows] if rows and "group" in rows[0].values else None
    units = find_units(texts, groups)
    keys: Sequence[Hashable] = [
        tuple(sorted(of_row)) if groups is None else groups[k] for k, of_row in enumerate(zip(*texts, strict=True))
    ]
    if units is not None and not units.linked:
        keys = units.names
    parts, note = draw_missing([row.split for row in rows], keys, rule, task=name, fewest=MIN_SPLIT_ROWS)
    return {split: columns_of([rows[index] for index in indices]) for split, indices in parts.items()}, note


class GradedTask(Task):
    """A task whose gold is a number, scored by correlations of prediction and gold over all rows of a split."""

    text_columns: ClassVar[tuple[str, ...]]
    gold_column: ClassVar[str]
    metrics: tuple[str, ...] = ("pearson", "spearman")

    def __post_init__(self) -> None:
        """Refuse splits in which a correlation with the gold is undefined or means nothing."""
        self.check_splits((*self.text_columns, self.gold_column))
        for split, rows in self.splits.items():
            if len(rows) < MIN_SPLIT_ROWS:
                raise TaskError(
                    f"split {split!r} of task {self.name!r} has {len(rows)} rows, but a correlation needs at least "
                    f"{MIN_SPLIT_ROWS}: add rows or leave the split out."
                )
            gold = set(rows[self.gold_column])
            if not np.isfinite(list(gold)).all():
                raise TaskError(
                    f"split {split!r} of task {self.name!r} holds a number that is not finite: leave it out."
                )
            if len(gold) == 1:
                raise TaskError(
                    f"split {split!r} of task {self.name!r} has the same gold {gold.pop():g} in all {len(rows)} rows, "
                    "so a correlation is undefined: give rows with different gold or leave the split out."
                )

    def texts(self) -> list[str]:
        """List every text once, in the order first seen."""
        return unique_texts(self.splits, self.text_columns)

    def cells(self, split: str) -> list[Sequence[Hashable]]:
        """List the texts of each row, column by column."""
        rows = self.rows(split)
        return [list(rows[column]) for column in self.text_columns]

    def gold(self, split: str) -> NDArray[np.floating[Any]]:
        """Return the gold of one split as heads predict it, in row order."""
        return np.asarray(self.rows(split)[self.gold_column], dtype=np.float64)

    def scorer(self, split: str, metric: str) -> "UnitScorer":
        """Return how predictions of one split are scored."""
        from probes.metrics.bootstrap import correlation_scorer

        return correlation_scorer(self.gold(split), metric=metric, groups=self.units(split))

    def check_draw(self, n_per_split: int) -> None:
        """Reject fewer than 8 rows per split."""
        if n_per_split < MIN_SPLIT_ROWS:
            raise TaskError(
                f"n_per_split is {n_per_split}, but a split needs at least {MIN_SPLIT_ROWS} rows for a correlation."
            )


Key = TypeVar("Key", bound=Hashable)
MOST_LISTED, MOST_GOLDS, MOST_LETTERS = 10, 5, 60
"""Limits of a note: texts, golds of a text, and letters of a text."""


def text_keys(rows: Any, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Name each row by the exact texts of some columns, so that (a, b) and (b, a) are the same pair."""
    return [tuple(sorted(texts)) for texts in zip(*(rows[column] for column in columns), strict=True)]


def conflicting(keys: Iterable[Key], gold: Iterable[object]) -> list[Key]:
    """List the keys that have more than one gold, each once, in the order first seen."""
    golds: dict[Key, set[object]] = {}
    for key, value in zip(keys, gold, strict=True):
        golds.setdefault(key, set()).add(value)
    return [key for key, values in golds.items() if len(values) > 1]


def conflict_notes(keys: Sequence[Key], gold: Sequence[object], noun: str, gold_noun: str) -> tuple[int, str]:
    """Count the texts that have more than one gold, and list ten; `noun` (singular) and `gold_noun` name them."""
    golds: dict[Key, dict[object, None]] = {}
    for key, value in zip(keys, gold, strict=True):
        golds.setdefault(key, {})[value] = None
    several = [(key, list(values)) for key, values in golds.items() if len(values) > 1]
    listed = "; ".join(
        f"{_quote(key)}: {', '.join(f'{v:g}' if isinstance(v, float) else str(v) for v in values[:MOST_GOLDS])}"
        for key, values in several[:MOST_LISTED]
    )
    more = ", ..." * (len(several) > MOST_LISTED)
    return len(several), f"{len(several)} {noun}s occur more than once with different {gold_noun} ({listed}{more})"


def _quote(key: object) -> str:
    texts = key if isinstance(key, tuple) else (key,)
    return " / ".join(repr(text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}...") for text in texts)


def overlaps(keys: Mapping[str, Sequence[Hashable]]) -> Iterator[tuple[str, str, int]]:
    """Count the rows of each split whose key is also in an earlier split: yields split, earlier split, count."""
    for other, split in combinations(keys, 2):
        earlier = set(keys[other])
        yield split, other, sum(key in earlier for key in keys[split])


def remarks(counts: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    """Keep the remarks whose count is not zero."""
    return tuple(remark for count, remark in counts if count)


def why_optimistic(task: "Task") -> str:
    """Explain in one clause why a score on the reported split is optimistic, if train has rows of its groups."""
    reported = "test" if "test" in task.splits else "validation"
    groups = task.groups(reported) if reported in task.splits else None
    if groups is None:
        return ""
    shared = set(task.groups("train") or ()) & set(groups)
    n_rows = sum(group in shared for group in groups)
    return f"{n_rows} of {len(groups)} {reported} rows are of a group that also has rows in train" if shared else ""


GENERICS_FILE = "GenericsKB.txt"
MIN_TEXTS = 8


@dataclass(frozen=True)
class Corpus:
    """Texts without gold, each once, for pretraining."""

    name: str
    source: str
    lines: tuple[str, ...]

    def texts(self) -> list[str]:
        """List the texts."""
        return list(self.lines)


def load_generics(folder: str | Path | None = None, *, templated: str = "last", seed: int = 0) -> Corpus:
    """Read generic sentences (GenericsKB: term, sentence and score, separated by tabs), in random order.

    Args:
        folder: Where `GenericsKB.txt` is; None is `$ICECORE_DATA/genericskb`.
        templated: Sentences of score 1.0, most of which are templated: `last` puts them after the natural ones, `drop`
            leaves them out.
        seed: Seed of the order within the natural and the templated sentences.
    """
    if templated not in ("last", "drop"):
        raise unknown_name("templated", templated, ("last", "drop"))
    local = need_local("genericskb", folder, example=GENERICS_FILE)
    path = local.find(GENERICS_FILE)
    natural: list[str] = []
    templates: list[str] = []
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        if len(cells) != 3:
            raise TaskError(
                f"{path}, line {number} has {len(cells)} cells ({line[:40]!r}); allowed: term, sentence and score."
            )
        try:
            score = float(cells[2])
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise TaskError(f"{path}, line {number} has the score {cells[2][:40]!r}; allowed: a finite number.")
        (templates if score >= 1.0 else natural).append(cells[1].strip())
    groups = [natural, templates] if templated == "last" else [natural]
    generator = np.random.default_rng(seed)
    texts = [group[index] for group in groups for index in generator.permutation(len(group))]
    return make_corpus("generics", local.source(path), texts)


def load_text_file(file: str | Path, *, column: str = "text") -> Corpus:
    """Read texts of a file in their order: one per line of .txt, or a column of CSV, TSV, JSON Lines or Parquet."""
    path = Path(file).expanduser()
    return make_corpus(path.stem, str(path), read_texts(path, column=column))


def read_texts(path: Path, *, column: str = "text") -> list[str]:
    """Read the texts of a file in their order, with repeats, as `load_text_file`."""
    return read_lines(path) if path.suffix.lower() == ".txt" else _column(read_raw(path), column)


def load_hub_texts(
    repository: str, *, column: str = "text", split: str = "train", revision: str | None = None
) -> Corpus:
    """Read a column of texts of a dataset on the hub, or of a local folder laid out like one."""
    tables, source = read_hub(repository, revision=revision, help_text="give a local file to corpus 'text-file'")
    if split not in tables:
        raise unknown_name("split", split, tables)
    return make_corpus(Path(repository).name, source, _column(tables[split], column))


def make_corpus(name: str, source: str, texts: list[str]) -> Corpus:
    """Make a corpus of the texts that are not blank, each once; `TaskError` for fewer than 8."""
    lines = tuple(dict.fromkeys(text for text in texts if text.strip()))
    if len(lines) < MIN_TEXTS:
        raise TaskError(f"corpus {name!r} has {len(lines)} texts ({source}); allowed: at least {MIN_TEXTS}.")
    return Corpus(name, source, lines)


def _column(table: RawTable, column: str) -> list[str]:
    if column not in table.columns:
        raise unknown_column(column, table)
    return [str(row.values[column]) for row in table.rows if not row.problem and row.values[column] is not None]


def load_corpus(name: str, n_texts: int, options: Mapping[str, object]) -> "Corpus":
    """Load the first `n_texts` texts of a corpus, or of a task of any kind.

    Args:
        name: A key of `CORPORA`, or a task.
        n_texts: The most texts, from the start.
        options: The options of the corpus or task.

    Raises:
        UnknownNameError: The corpus, task or option is unknown.
        TaskError: An option is missing or of the wrong type, or the texts cannot be read or are fewer than 8.
    """
    if name in CORPORA:
        corpus = call_loader(CORPORA[name][0], options, owner=f"corpus {name!r}")
    elif name in TASKS:
        task = load_task(name, **options)
        corpus = make_corpus(task.name, task.source, task.plain_texts())
    else:
        raise unknown_name("corpus", name, [*CORPORA, *TASKS])
    return replace(corpus, lines=corpus.lines[:n_texts])
