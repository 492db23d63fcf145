"""Tasks of any kind: splits, texts, a digest, smaller draws and a description; and corpora of texts without gold."""

import hashlib
import json
import math
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from itertools import combinations, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from extract.errors import NAME_COLUMN, TaskError, require_name, unknown_name
from extract.inputs.joined_text import plain_text
from extract.records import Values, to_plain
from probes.data.sources import need_local, read_hub
from probes.data.splits import SPLITS, SplitRule, draw_missing, order_splits
from probes.data.table_files import (
    CheckedRow,
    Columns,
    RawTable,
    check_table,
    check_text,
    gather_columns,
    read_lines,
    read_number,
    read_raw,
    unknown_column,
)
from probes.data.task_table import CORPORA, TASKS, call_loader, load_task

if TYPE_CHECKING:
    import datasets

    from extract.inputs.joined_text import JoinedText
    from probes.metrics.bootstrap import UnitScorer


MOST_OF_ONE = 0.2
"""Share of the rows that one unit may hold: five or fewer independent units have no interval."""
TOO_NARROW = "too narrow"
"""How notes end on rows whose intervals are, as they share texts with most others."""


@dataclass(frozen=True)
class Units:
    """The units of the rows of one split."""

    names: tuple[str, ...]
    """The unit of each row: its group, or the first row of the unit."""
    n_shared: int
    """Rows that share a text with a row of another group."""
    linked: Literal["", "groups", "texts"] = ""
    """Units that replace those of shared texts where these link too many rows: `groups`, or `texts`, which joins rows
    by their most frequent text alone; else empty."""

    @property
    def n(self) -> int:
        """Number of units."""
        return len(set(self.names))

    def note(self, split: str, noun: str) -> str:
        """Describe the units in one line."""
        shared = f"{split}: {self.n_shared} of {len(self.names)} {noun} share a text with other {noun}"
        if self.linked:
            drawn = "groups" if self.linked == "groups" else f"sets of {noun} with the same most frequent text"
            return f"{shared}, which link most of them; intervals draw the {self.n} {drawn} whole and are {TOO_NARROW}"
        return f"{shared}; intervals draw the {self.n} sets of {noun} that share no text whole"


def plain_form(text: str) -> str:
    """Return a text without differences of case, blanks, Unicode form and final punctuation.

    Example:
        >>> plain_form("  A\u0301rbol  Verde!!") == plain_form("\u00e1rbol verde")
        True
    """
    words = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    end = len(words)
    while end and (words[end - 1].isspace() or unicodedata.category(words[end - 1])[0] == "P"):
        end -= 1
    return words[:end] or words


def find_units(columns: Sequence[Sequence[Hashable]], groups: Sequence[str] | None = None) -> Units | None:
    """Join the rows that share a text, in any column and over any number of rows, and those of a group.

    None where no text is in two rows, of two groups if there are groups. Texts are compared exactly.

    Example:
        >>> find_units([["a", "b", "c"], ["x", "y", "x"]]).names
        ('0', '1', '0')
    """
    if not columns:
        return None
    n_rows, rows = len(columns[0]), np.arange(len(columns[0]))
    codes: dict[Hashable, int] = {}
    texts = np.array([[codes.setdefault(text, len(codes)) for text in column] for column in columns])
    group = rows if groups is None else np.unique(np.asarray(groups, str), return_inverse=True)[1]
    pairs = np.unique(np.stack([texts.ravel(), np.tile(group, len(columns))]), axis=1)
    is_shared = (np.bincount(pairs[0], minlength=len(codes)) > 1)[texts].any(axis=0)
    if not is_shared.any():
        return None
    edges = np.concatenate([texts, group[None] + len(codes)])
    n_nodes = len(codes) + int(group.max()) + 1
    ends = np.stack([np.tile(edges[0], len(edges) - 1), edges[1:].ravel()])
    links = coo_array((np.ones(ends.shape[1], np.int8), ends), shape=(n_nodes, n_nodes))
    units = np.asarray(connected_components(links, directed=False)[1][edges[0]])
    linked: Literal["", "groups", "texts"] = ""
    if np.bincount(units).max() > MOST_OF_ONE * n_rows:
        linked = "texts" if groups is None else "groups"
        times = np.bincount(texts.ravel(), minlength=len(codes))
        most_frequent = texts[times[texts].argmax(axis=0), rows]
        units = np.unique(most_frequent if groups is None else group, return_inverse=True)[1]
    first = np.unique(units, return_index=True)[1][units]
    names = tuple(str(row) for row in first.tolist()) if groups is None else tuple(groups[row] for row in first)
    return Units(names, int(is_shared.sum()), linked)


Kind = str
"""Name of a kind of task, such as `pairs`; they are the keys of `probes.runs.task_kinds.KINDS`."""
ROW = "row"
"""Column of the index of a row in the source."""
Same = TypeVar("Same", bound="Task")
"""The kind of task that a method was called on; `Self` is not understood by the type checker of the test suite."""


class Task(ABC):
    """Rows with gold, in up to three splits. Every kind of task is a frozen dataclass that extends this class.

    A kind adds its own fields, checks them when built, and says which columns its rows have. Rows are never changed in
    place, so what is computed from all of them (digest, units, the task without test) is kept.
    """

    kind: ClassVar[Kind]
    """Name of the kind."""
    columns: ClassVar[Mapping[str, str]]
    """Every column that rows of the kind may have, to its type, with `[]` behind it for a list."""
    rows_noun: ClassVar[str] = "rows"
    """Name of the rows in notes."""
    draw_noun: ClassVar[str] = "random"
    """Adjective of a subset in notes."""
    fewest_rows: ClassVar[int] = 1
    """The fewest rows of a split."""
    purpose: ClassVar[str] = ""
    """What needs that many rows, for messages; empty where a split needs one."""
    origin_columns: ClassVar[tuple[str, ...]] = ()
    """Columns that say where a row was taken from, the finest last; no head reads them, and no digest holds them."""
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

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns with one text each; none where a row has lists of words or sentences."""
        return ()

    def texts(self) -> "Sequence[str | JoinedText]":
        """List every text of the task once, over all splits, in the order first seen."""
        return unique_texts(self.splits, self.text_columns)

    def plain_texts(self) -> list[str]:
        """List every text of the task once, as strings."""
        return list(dict.fromkeys(map(plain_text, self.texts())))

    def sides(self) -> tuple[list[str], list[str]] | None:
        """List queries and documents, which a template may distinguish; None where all texts are encoded alike."""
        return None

    @abstractmethod
    def audit(self) -> tuple[str, ...]:
        """Count duplicates, overlap between splits and the like, one line for each count that is not zero."""

    def digest_head(self) -> object:
        """Return the JSON values that the digest holds besides the rows."""
        return self.kind

    def describe_kind(self) -> dict[str, object]:
        """Return the entries of `describe` that only this kind has."""
        return {"has_groups": all(self.groups(split) is not None for split in self.splits)}

    def inferred_options(self) -> dict[str, object]:
        """Return the options of its reader that were inferred from the data, for the run's config."""
        return {}

    @classmethod
    def hold(cls, columns: Mapping[str, Columns]) -> "datasets.DatasetDict":
        """Hold the columns of each split that the kind has in memory, in the usual order of splits."""
        from datasets import Dataset, DatasetDict, Features, List, Value

        types = {
            name: List(Value(type_name[:-2])) if type_name.endswith("[]") else Value(type_name)
            for name, type_name in cls.columns.items()
        }
        splits = DatasetDict()
        for split in order_splits(columns):
            used = {name: list(columns[split][name]) for name in types if name in columns[split]}
            splits[split] = Dataset.from_dict(used, features=Features({name: types[name] for name in used}))
        return splits

    def rows(self, split: str) -> "datasets.Dataset":
        """Return the rows of one split; reject a split that the task lacks."""
        require_name("split", split, self.splits, hint=f"These are the splits of task {self.name!r}.")
        return self.splits[split]

    def groups(self, split: str) -> tuple[str, ...] | None:
        """Name the group of each row of one split, to resample whole groups; None where rows are not grouped."""
        rows = self.rows(split)
        return tuple(rows["group"]) if "group" in rows.column_names else None

    def cells(self, split: str) -> list[Sequence[Hashable]]:
        """List the texts of each row of one split, column by column: rows with equal ones are no independent rows."""
        rows = self.rows(split)
        return [rows[column][:] for column in self.text_columns]

    @cached_property
    def _units(self) -> dict[str, Units | None]:
        return {}

    def find_units(self, split: str) -> Units | None:
        """Find the rows of one split that share a text; None where no two rows, or groups, do."""
        if split not in self._units:
            self._units[split] = find_units(self.cells(split), self.groups(split))
        return self._units[split]

    def units(self, split: str) -> tuple[str, ...] | None:
        """Name the unit of each row for intervals and tests (`probes.data.task`); None where each row is one."""
        units = self.find_units(split)
        return self.groups(split) if units is None else units.names

    def shared_rows(self) -> dict[str, str]:
        """Describe in a line, for each scored split that has them, the rows that share a text."""
        units = {split: self.find_units(split) for split in self.splits if split != "train"}
        return {split: unit.note(split, self.rows_noun) for split, unit in units.items() if unit is not None}

    def n_rows(self) -> dict[str, int]:
        """Count the rows of each split."""
        return {split: len(rows) for split, rows in self.splits.items()}

    def describe(self) -> "TaskInfo":
        """Describe the task for `scores.json`."""
        return TaskInfo(
            kind=self.kind,
            name=self.name,
            source=self.source,
            is_sample=self.is_sample,
            metrics=self.metrics,
            n_rows=self.n_rows(),
            of_kind=self.describe_kind(),
            digest=self.digest(),
            notes=self.notes,
            shared_rows=self.shared_rows(),
        )

    def digest(self) -> str:
        """Hash the rows and `digest_head`, but not name, source or notes (SHA-256, hexadecimal).

        Equal for equal rows in equal order, on every machine; where a row is in the source does not count.
        """
        return self._digest

    @cached_property
    def _digest(self) -> str:
        sha = hashlib.sha256(json.dumps(self.digest_head()).encode())
        for split, rows in self.splits.items():
            undigested = (ROW, *self.origin_columns)
            columns = [name for name in self.columns if name in rows.column_names and name not in undigested]
            named = [columns] if self.digest_names_columns else []
            sha.update(json.dumps([split, len(rows), *named]).encode())
            for row in zip(*(rows[column][:] for column in columns), strict=True):
                sha.update(json.dumps(row).encode() + b"\n")
        return sha.hexdigest()

    def subset(self: Same, n_per_split: int, seed: int = 0) -> Same:
        """Draw a smaller task of at most `n_per_split` rows a split; a larger draw of one seed holds every smaller one.

        Rows keep their order, and the notes say that the task is a subset.
        """
        self.check_draw(n_per_split)
        rows = {split: np.sort(self.draw_order(split, seed=seed)[:n_per_split]) for split in self.splits}
        note = (
            f"a {self.draw_noun} subset of at most {n_per_split} {self.rows_noun} per split (seed {seed}), not the "
            "whole task"
        )
        return self.keep_rows(rows, note=note)

    def check_draw(self, n_per_split: int) -> None:
        """Reject a number of rows per split that is too small for the kind; the error names the smallest allowed."""
        if n_per_split < self.fewest_rows:
            noun = f"{self.rows_noun} for {self.purpose}" if self.purpose else self.rows_noun
            raise TaskError(f"n_per_split is {n_per_split}, but a split needs at least {self.fewest_rows} {noun}.")

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
        return self.replaced(splits=splits, **changes).with_remarks(note, *remaining)

    def with_remarks(self: Same, *notes: str) -> Same:
        """Replace the remarks by notes that are not empty, and those of `audit`."""
        return self.replaced(notes=(*filter(None, notes), *self.audit()))

    def without_test(self: Same) -> Same:
        """Leave the test split out, so that nothing can be chosen on it; rejects a task without another split."""
        return cast("Same", self._without_test)

    @cached_property
    def _without_test(self) -> "Task":
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
            require_name("split", split, SPLITS)
            for column in columns:
                require_name("column", column, rows.column_names, hint=f"Split {split!r} lacks it.")
            if len(rows) < self.fewest_rows:
                problem = f"{len(rows)} {self.rows_noun}, but {self.purpose} needs at least {self.fewest_rows}"
                raise TaskError(
                    f"split {split!r} of task {self.name!r} has {problem if len(rows) else 'no rows'}: add rows or "
                    "leave the split out."
                )


def unique_texts(splits: "Mapping[str, datasets.Dataset]", columns: Sequence[str]) -> list[str]:
    """List the texts of some columns once, in the order first seen (split by split, row by row)."""
    seen: dict[str, None] = {}
    for rows in splits.values():
        for texts in zip(*(rows[column][:] for column in columns), strict=True):
            seen.update(dict.fromkeys(texts))
    return list(seen)


@dataclass(frozen=True)
class TaskInfo:
    """What a task says of itself in `scores.json`."""

    kind: Kind
    name: str
    source: str
    is_sample: bool
    metrics: tuple[str, ...]
    n_rows: Mapping[str, int]
    """Split to its number of rows."""
    of_kind: Mapping[str, object]
    """What only tasks of this kind say."""
    digest: str
    notes: tuple[str, ...]
    shared_rows: Mapping[str, str]
    """Split to a line about the rows that share a text; none where no two rows do."""
    words_in_cache: Mapping[str, int] = field(default_factory=dict)
    """Counts of a cache of words."""

    def to_plain(self) -> Values:
        """Return the JSON values, those of the kind among the others; what is empty at the end is left out."""
        values: dict[str, object] = {}
        for name, value in to_plain(self).items():
            if name == "of_kind":
                values |= value
            elif value or name not in ("shared_rows", "words_in_cache"):
                values[name] = value
        return values


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
    return gather_columns(rows, parts), note


class GradedTask(Task):
    """A task whose gold is a number, scored by correlations of prediction and gold over all rows of a split."""

    gold_column: ClassVar[str]
    fewest_rows: ClassVar[int] = MIN_SPLIT_ROWS
    purpose: ClassVar[str] = "a correlation"
    metrics: tuple[str, ...] = ("pearson", "spearman")

    def texts(self) -> list[str]:
        """List every text once, in the order first seen."""
        return unique_texts(self.splits, self.text_columns)

    def __post_init__(self) -> None:
        self.check_splits((*self.text_columns, self.gold_column))
        for split, rows in self.splits.items():
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

    def gold(self, split: str) -> NDArray[np.floating[Any]]:
        """Return the gold of one split as heads predict it, in row order."""
        return np.asarray(self.rows(split)[self.gold_column], dtype=np.float64)

    def scorer(self, split: str, metric: str) -> "UnitScorer":
        """Return how predictions of one split are scored."""
        from probes.metrics.bootstrap import correlation_scorer

        return correlation_scorer(self.gold(split), metric=metric, groups=self.units(split))


Key = TypeVar("Key", bound=Hashable)
MOST_LISTED, MOST_GOLDS, MOST_LETTERS = 3, 5, 60
"""Limits of a note: texts, golds of a text, and letters of a text."""


def text_keys(rows: Any, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Name each row by the exact texts of some columns, so that (a, b) and (b, a) are the same pair."""
    return [tuple(sorted(texts)) for texts in zip(*(rows[column][:] for column in columns), strict=True)]


def conflicting(keys: Iterable[Key], gold: Iterable[object]) -> dict[Key, list[object]]:
    """Map each key that has more than one gold to them, all in the order first seen."""
    golds: dict[Key, dict[object, None]] = {}
    for key, value in zip(keys, gold, strict=True):
        golds.setdefault(key, {})[value] = None
    return {key: list(values) for key, values in golds.items() if len(values) > 1}


def conflict_notes(keys: Sequence[Key], gold: Sequence[object], noun: str, gold_noun: str) -> tuple[int, str]:
    """Count the texts that have more than one gold, and list three; `noun` (singular) and `gold_noun` name them."""
    several = conflicting(keys, gold)
    listed = "; ".join(
        f"{_quote(key)}: {', '.join(f'{v:g}' if isinstance(v, float) else str(v) for v in values[:MOST_GOLDS])}"
        for key, values in islice(several.items(), MOST_LISTED)
    )
    more = ", ..." * (len(several) > MOST_LISTED)
    verb = f"{noun} occurs" if len(several) == 1 else f"{noun}s occur"
    return len(several), f"{len(several)} {verb} more than once with different {gold_noun} ({listed}{more})"


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


def notes_by_split(notes: Iterable[str]) -> list[str]:
    """Join the notes that begin with the same split, a line for each split; other notes come first, as they are."""
    general: list[str] = []
    of_split: dict[str, list[str]] = {}
    for note in notes:
        split, colon, rest = note.partition(": ")
        if colon and split in SPLITS:
            of_split.setdefault(split, []).append(rest)
        else:
            general.append(note)
    return [*general, *(f"{split}: {'; '.join(rest)}" for split, rest in of_split.items())]


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

    `folder` holds `GenericsKB.txt`; None is `$ICECORE_DATA/genericskb`. Most sentences of score 1.0 are templated:
    `templated: last` puts them after the natural ones, `drop` leaves them out.
    """
    require_name("templated", templated, ("last", "drop"))
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
        score = read_number(cells[2])
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
    texts = read_lines(path) if path.suffix.lower() == ".txt" else _column(read_raw(path), column)
    return make_corpus(path.stem, str(path), texts)


def read_texts(path: Path, *, column: str = "text") -> list[str]:
    """Read the texts of a file in their order, with repeats: one per line of .txt, or a column with a text in each row.

    A row without one, or that cannot be read, is an error, as the texts after it would be those of other rows.
    """
    if path.suffix.lower() == ".txt":
        return read_lines(path)
    table = read_raw(path)
    if column not in table.columns:
        raise unknown_column(column, table, hint=NAME_COLUMN)
    return check_table(table, [column], lambda row: _check_cell(column, row.values.get(column)), bad_rows=None)[0]


def _check_cell(column: str, value: object) -> str:
    """Return a text that is not blank; numbers become texts."""
    is_number = isinstance(value, (int, float)) and not (isinstance(value, bool) or math.isnan(value))
    return check_text(column, str(value) if is_number else value)


def load_hub_texts(
    repository: str, *, column: str = "text", split: str = "train", revision: str | None = None
) -> Corpus:
    """Read a column of texts of a dataset on the hub, or of a local folder laid out like one."""
    tables, source = read_hub(repository, revision=revision, help_text="give a local file to corpus 'text-file'")
    require_name("split", split, tables)
    return make_corpus(Path(repository).name, source, _column(tables[split], column))


def make_corpus(name: str, source: str, texts: list[str]) -> Corpus:
    """Make a corpus of the texts that are not blank, each once; `TaskError` for fewer than 8."""
    lines = tuple(dict.fromkeys(text for text in texts if text.strip()))
    if len(lines) < MIN_TEXTS:
        raise TaskError(f"corpus {name!r} has {len(lines)} texts ({source}); allowed: at least {MIN_TEXTS}.")
    return Corpus(name, source, lines)


def _column(table: RawTable, column: str) -> list[str]:
    if column not in table.columns:
        raise unknown_column(column, table, hint=NAME_COLUMN)
    return [str(row.values[column]) for row in table.rows if not row.problem and row.values.get(column) is not None]


def load_corpus(name: str, n_texts: int, options: Mapping[str, object]) -> "Corpus":
    """Load the first `n_texts` texts of a corpus of `CORPORA`, or of a task of any kind, with its options."""
    if name in CORPORA:
        corpus = call_loader(CORPORA[name][0], options, owner=f"corpus {name!r}")
    elif name in TASKS:
        task = load_task(name, **options)
        corpus = make_corpus(task.name, task.source, task.plain_texts())
    else:
        raise unknown_name("corpus", name, [*CORPORA, *TASKS])
    return replace(corpus, lines=corpus.lines[:n_texts])
