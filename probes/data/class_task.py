"""Texts, or pairs of texts, each of one class: the task every classification probe is trained and scored on."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from extract.errors import TaskError, require_name
from probes.data.sources import read_hub
from probes.data.splits import (
    MIN_CLASS_ROWS,
    SPLIT_NOTE,
    SplitRule,
    draw_order,
    hold_out,
    name_splits,
    rare_classes,
    rows_by_split,
    split_three_ways,
)
from probes.data.table_files import (
    DEFAULT_FILES,
    MISSING_LABELS,
    CheckedRow,
    Columns,
    Fields,
    FileOptions,
    FileRows,
    Files,
    Label,
    check_gold,
    check_group,
    check_label,
    check_rows,
    check_text,
    gather_columns,
    read_rows,
)
from probes.data.task import (
    GradedTask,
    Task,
    conflict_notes,
    find_units,
    load_shipped,
    overlaps,
    plain_form,
    remarks,
    split_graded,
    text_keys,
    unique_texts,
)
from probes.metrics.prediction_metrics import class_metric

if TYPE_CHECKING:
    import datasets

    from probes.metrics.bootstrap import UnitScorer


TEXT = ("text",)
PAIR = ("text1", "text2")
USUAL_METRIC = "accuracy"
"""The metric of files and of repositories where no option names one."""


def class_notes(splits: Mapping[str, Columns], class_names: Sequence[str]) -> tuple[str, ...]:
    """Count duplicates, conflicting labels, overlap between splits and thin classes, and return remarks with a count.

    Texts are compared exactly, pairs in either order; splits come in the order train, validation, test.
    """
    is_text = all("text" in rows for rows in splits.values())
    noun, columns = ("text", TEXT) if is_text else ("pair", PAIR)
    keys = {split: text_keys(rows, columns) for split, rows in splits.items()}
    counts = []
    for split, texts in keys.items():
        n_repeats = len(texts) - len(set(texts))
        labels = [class_names[label] for label in splits[split]["label"]]
        n_conflicts, conflicts = conflict_notes(texts, labels, noun, "labels")
        counts += [
            (n_repeats, f"{split}: {n_repeats} of {len(texts)} rows repeat the {noun}s of an earlier row"),
            (n_conflicts, f"{split}: {conflicts}"),
        ]
    for split, other, n in overlaps(keys):
        counts.append((n, f"{split}: the {noun} of {n} of {len(keys[split])} rows is also in {other}"))
        shared = set(splits[split].get("group", ())) & set(splits[other].get("group", ()))
        counts.append((len(shared), f"{split}: {len(shared)} groups also have rows in {other}"))
    return remarks([*counts, *_thin_classes(splits, class_names)])


def _thin_classes(tables: Mapping[str, Columns], class_names: Sequence[str]) -> list[tuple[int, str]]:
    if "train" not in tables:
        return []
    in_train = Counter(tables["train"]["label"])
    thin = [name for label, name in enumerate(class_names) if 0 < in_train[label] < MIN_CLASS_ROWS]
    notes = [(len(thin), f"train: {len(thin)} classes have fewer than {MIN_CLASS_ROWS} rows ({_list(thin)})")]
    for split, rows in tables.items():
        unseen = Counter(label for label in rows["label"] if label not in in_train)
        names = _list([f"{class_names[label]}: {n}" for label, n in sorted(unseen.items())])
        n_rows = sum(unseen.values())
        cause = (
            f"; {alike[0]!r} is {alike[1]!r} of train but for case or number format"
            if (alike := _alike(unseen, in_train, class_names))
            else ""
        )
        notes.append(
            (n_rows, f"{split}: {n_rows} rows are of classes that train lacks ({names}), and cannot be right{cause}")
        )
        absent = [class_names[label] for label in sorted(set(in_train) - set(rows["label"]))]
        notes.append((len(absent), f"{split}: {len(absent)} classes have no row ({_list(absent)})"))
    return notes


def _list(names: Sequence[str]) -> str:
    shortened = [name if len(name) <= 40 else f"{name[:37]}..." for name in names[:5]]
    return ", ".join([*shortened, *(["..."] if len(names) > 5 else [])])


@dataclass(frozen=True, eq=False)
class ClassTask(Task):
    """Texts (or pairs of texts) with one class each, in train and up to two more splits, checked when built.

    Example:
        >>> rows = {"text": ["a", "b"], "label": [0, 1], "row": [0, 1]}
        >>> task = ClassTask("toy", ClassTask.hold({"train": rows}), ("no", "yes"), ("accuracy",), "made here")
        >>> task.texts(), task.n_classes, task.metric
        (['a', 'b'], 2, 'accuracy')
    """

    kind: ClassVar[str] = "classes"
    columns: ClassVar[Mapping[str, str]] = {
        "text": "string",
        "text1": "string",
        "text2": "string",
        "label": "int64",
        "row": "int64",
        "group": "string",
    }
    draw_noun: ClassVar[str] = "stratified"
    digest_names_columns: ClassVar[bool] = True

    name: str
    splits: "datasets.DatasetDict"
    """Columns `text`, or `text1` and `text2` (string), `label` (int64, index into `class_names`), `row` (int64, index
    into the source, over all splits) and perhaps `group` (string: rows of one split, such as the sentences of one
    abstract). Train is required."""
    class_names: tuple[str, ...]
    """Name of each class, by number."""
    metrics: tuple[str, ...]
    """Keys of `CLASS_METRICS`; the first is the one to choose by."""
    source: str
    licence: str = "unknown"
    """One line: the terms under which the rows are published."""
    is_sample: bool = False
    notes: tuple[str, ...] = ()
    look_both_ways_rows: int | None = None
    """Number of rows, from the first, that the code released with Look Both Ways uses; None is all of them."""
    usual_metric: str = USUAL_METRIC
    """The metric to choose by where no option names another; a choice by another is a fit of its own."""

    def __post_init__(self) -> None:
        for metric in self.metrics:
            class_metric(metric)
        if self.splits:
            self.check_splits((*self.text_columns, "label", "row"))
        if not self.metrics or "train" not in self.splits:
            problem = "no metric; give one or more of CLASS_METRICS" if not self.metrics else "no training split"
            raise TaskError(f"task {self.name!r} has {problem} (its splits: {', '.join(self.splits) or 'none'}).")
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
                "there is nothing to learn: give rows of two classes or more."
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

    def labels(self, split: str) -> Int64[np.ndarray, " N"]:
        """Return the classes of one split, in row order."""
        return np.asarray(self.rows(split)["label"], dtype=np.int64)

    def scorer(self, split: str, metric: str) -> "UnitScorer":
        """Return how predicted classes of one split are scored."""
        from probes.metrics.bootstrap import class_scorer

        return class_scorer(self.labels(split), metric=metric, groups=self.units(split))

    def audit(self) -> tuple[str, ...]:
        """Count duplicates, conflicting labels, overlap and thin classes; see `class_notes`."""
        return class_notes({split: rows[:] for split, rows in self.splits.items()}, self.class_names)

    def digest_head(self) -> object:
        """Return the class names."""
        return self.class_names

    def describe_kind(self) -> dict[str, object]:
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
        return rest.replaced(splits=ClassTask.hold(columns), class_names=names)


WITH_COPIES = ", equal texts together"
"""End of the note about splits drawn from rows that repeat texts (case, blanks and final punctuation aside)."""


def class_fields(
    text: str = "text",
    label: str = "label",
    text2: str | None = None,
    group: str | None = None,
    missing_labels: Sequence[str] = MISSING_LABELS,
) -> Fields:
    """Name the columns of one text, or of two, of the class and of a group of rows that stay in one split."""
    texts = {"text": text} if text2 is None else {"text1": text, "text2": text2}
    return {
        **{name: (column, check_text) for name, column in texts.items()},
        "label": (label, partial(check_label, missing=tuple(map(str, missing_labels)))),
        "group": (group, check_group),
    }


def assemble_task(
    checked: FileRows,
    *,
    name: str,
    metrics: tuple[str, ...] = ("f1-weighted",),
    licence: str = "unknown",
    class_names: Sequence[str] | None = None,
    look_both_ways_rows: int | None = None,
    rule: SplitRule | None = None,
    usual_metric: str = "",
) -> ClassTask:
    """Build a task from the rows of `class_fields` in source order; a rule, of seed 0 by default, draws missing splits.

    Rows without a split, or in train alone, are drawn 80/10/10; with train and test, validation is drawn from train.
    Groups stay whole; else the draw is stratified. `class_names` of None are the labels that occur, and a
    `usual_metric` that is empty is the first of `metrics`, which no option changes.
    """
    rows: Sequence[CheckedRow] = checked.rows
    rule = rule or SplitRule()
    if not rows:
        raise TaskError(f"task {name!r} has no rows: give at least three texts of each of two classes.")
    labels, names = number_classes(rows, class_names)
    notes = [*checked.notes]
    if rule.split == "auto" and {row.split for row in rows} <= {None, "train"}:
        if rare_classes(labels, _copies(rows)):
            rows, note = _drop_rare(rows, labels, names, task=name, rule=rule)
            labels, names = number_classes(rows, class_names)
            notes.append(note)
        parts, note = _draw_all(rows, labels, rule)
    else:
        parts, note = _keep_official(rows, labels, task=name, rule=rule)
    columns = {
        split: {**rows_of, "label": [labels[row] for row in parts[split]], "row": parts[split].tolist()}
        for split, rows_of in gather_columns(rows, parts).items()
    }
    _require_seen(columns, names, task=name)
    splits = ClassTask.hold(columns)
    task = ClassTask(
        name,
        splits,
        names,
        metrics,
        checked.source,
        licence,
        look_both_ways_rows=look_both_ways_rows,
        usual_metric=usual_metric or metrics[0],
    )
    return task.with_remarks(*notes, note)


def _alike(unseen: Iterable[int], in_train: Iterable[int], names: Sequence[str]) -> tuple[str, str] | None:
    """Pair a label that train lacks with that of train; None unless all differ in case or number format alone."""
    by_form = {_plain_label(names[label]): names[label] for label in in_train}
    pairs = [(names[label], by_form.get(_plain_label(names[label]))) for label in unseen]
    first, other = pairs[0] if pairs else ("", None)
    return (first, other) if other is not None and all(name is not None for _, name in pairs) else None


def _require_seen(columns: Mapping[str, Columns], names: Sequence[str], *, task: str) -> None:
    """Refuse a split of which more than half of the rows have a label that train lacks, as no head could be right."""
    if "train" not in columns:
        return
    in_train = set(columns["train"]["label"])
    for split, rows in columns.items():
        unseen = Counter(label for label in rows["label"] if label not in in_train)
        if 2 * unseen.total() <= len(rows["label"]):
            continue
        listed = ", ".join(f"{names[label]!r}: {n}" for label, n in unseen.most_common(5)) + ", ..." * (len(unseen) > 5)
        alike = _alike(unseen, in_train, names)
        cause = (
            f"they are those of train but for case or number format, as {alike[0]!r} and {alike[1]!r}; write them alike"
            if alike
            else f"train has {', '.join(repr(names[label]) for label in sorted(in_train)[:5])}"
            f"{', ...' * (len(in_train) > 5)}; give files with the same classes"
        )
        raise TaskError(
            f"{unseen.total()} of {len(rows['label'])} {split} rows of task {task!r} have labels that train lacks "
            f"({listed}): {cause}."
        )


def _plain_label(name: str) -> str | float:
    """Return a label without case and number format."""
    try:
        return float(name)
    except ValueError:
        return name.strip().casefold()


def _drop_rare(
    rows: Sequence[CheckedRow], labels: Sequence[int], names: Sequence[str], *, task: str, rule: SplitRule
) -> tuple[list[CheckedRow], str]:
    rare = rare_classes(labels, _copies(rows))
    listed = ", ".join(f"{names[label]!r}: {n}" for label, n in list(rare.items())[:5]) + (", ..." * (len(rare) > 5))
    if rule.rare == "error":
        raise TaskError(
            f"task {task!r} has {len(rare)} classes of fewer than {MIN_CLASS_ROWS} rows ({listed}), which cannot "
            "be in train, validation and test: add rows, set `rare: drop`, or give files that are split already."
        )
    rest = [row for row, label in zip(rows, labels, strict=True) if label not in rare]
    if (n_left := len({*labels} - {*rare})) < 2:
        raise TaskError(
            f"task {task!r} needs two classes of {MIN_CLASS_ROWS} rows or more and has {n_left}; those of fewer are "
            f"left out ({listed}): add rows."
        )
    n_dropped = len(rows) - len(rest)
    return rest, f"{len(rare)} classes of fewer than {MIN_CLASS_ROWS} rows ({listed}) dropped, {n_dropped} rows in all"


def _draw_all(
    rows: Sequence[CheckedRow], labels: Sequence[int], rule: SplitRule
) -> tuple[dict[str, NDArray[np.int64]], str]:
    groups, copies = _groups(rows), _copies(rows)
    parts = split_three_ways(np.asarray(labels, dtype=np.int64), seed=rule.seed, groups=groups, copies=copies)
    method = "stratified by class" if groups is None else f"{len(set(groups))} groups kept whole"
    return parts, f"{SPLIT_NOTE}80/10/10 with seed {rule.seed}, {method}{WITH_COPIES if copies else ''}"


def _keep_official(
    rows: Sequence[CheckedRow], labels: Sequence[int], *, task: str, rule: SplitRule
) -> tuple[dict[str, NDArray[np.int64]], str]:
    without = [row for row in rows if row.split is None]
    if len(without) == len(rows):
        raise TaskError(f"task {task!r} has no row with a split: name their column, or leave `split: given` out.")
    if without:
        raise TaskError(
            f"task {task!r} has {len(without)} rows without a split beside others with one (the first in "
            f"{without[0].location}): give every row a split, or none."
        )
    parts = rows_by_split([row.split for row in rows])
    if rule.split == "given" or "validation" in parts or "train" not in parts:
        return parts, "" if "test" in parts else "no test split"
    train = parts["train"]
    in_train = [rows[index] for index in train]
    groups, copies = _groups(in_train), _copies(in_train)
    # numbered by train alone: a class that only test has would move the numbers, and with them the draw
    _, codes = np.unique(np.asarray(labels, dtype=np.int64)[train], return_inverse=True)
    marked = hold_out(codes, share=rule.validation_fraction, seed=rule.seed, groups=groups, copies=copies)
    if not marked.any():
        raise TaskError(
            f"task {task!r} has {len(train)} training rows, no two different ones of a class, so none can become "
            "validation: add rows, give a validation split, or set `split: given` to do without."
        )
    method = ("stratified by class" if groups is None else "groups kept whole") + (WITH_COPIES if copies else "")
    note = f"{SPLIT_NOTE}{marked.sum()} of {len(train)} training rows to validation with seed {rule.seed}, {method}"
    return {"train": train[~marked], "validation": train[marked], "test": parts["test"]}, note


def _groups(rows: Sequence[CheckedRow]) -> list[str] | None:
    """Name the group of each row; groups that share a text are one, unless that would be most of the rows."""
    if "group" not in rows[0].values:
        return None
    groups = [row.values["group"] for row in rows]
    units = find_units(_plain_texts(rows), groups)
    return groups if units is None or units.linked else list(units.names)


def _copies(rows: Sequence[CheckedRow]) -> tuple[str, ...] | None:
    """Name the set of equal texts, or pairs of them, of each row; None where all are different."""
    units = find_units([list(zip(*_plain_texts(rows), strict=True))])
    return None if units is None else units.names


def _plain_texts(rows: Sequence[CheckedRow]) -> list[list[str]]:
    columns = [name for name in ("text", "text1", "text2") if name in rows[0].values]
    texts = [[plain_form(row.values[column]) for column in columns] for row in rows]
    return [list(column) for column in zip(*map(sorted, texts), strict=True)]


def number_classes(
    rows: Sequence[CheckedRow], class_names: Sequence[str] | None = None
) -> tuple[list[int], tuple[str, ...]]:
    """Number the class of each row independently of the order of the rows; also return the names.

    `class_names` are in the order of their numbers, and whole-number labels are indices into it; None takes the labels
    that occur, numbers by value and texts by the alphabet. Labels of mixed type, or not in `class_names`, are rejected.
    """
    first_of_type: dict[type, CheckedRow] = {}
    for row in rows:
        first_of_type.setdefault(type(row.values["label"]), row)
    if len(first_of_type) > 1:
        nouns = {bool: "true/false", int: "numbers", str: "texts"}
        types = " and ".join(
            f"{nouns[kind]} ({row.location}: {row.values['label']!r})" for kind, row in first_of_type.items()
        )
        raise TaskError(f"labels are of mixed type, {types}: write all of them as texts, or all as numbers.")
    if class_names is None:
        present: set[Label] = {row.values["label"] for row in rows}
        are_numbers = all(isinstance(label, str) and re.fullmatch(r"-?\d+", label) for label in present)
        labels = sorted(present, key=lambda label: (int(label), str(label))) if are_numbers else sorted(present)
        numbers = {label: number for number, label in enumerate(labels)}
        return [numbers[row.values["label"]] for row in rows], tuple(str(label) for label in labels)
    return [_number(row, class_names) for row in rows], tuple(class_names)


def _number(row: CheckedRow, class_names: Sequence[str]) -> int:
    label: Label = row.values["label"]
    if isinstance(label, str) and label not in class_names and label.isdecimal() and int(label) < len(class_names):
        label = int(label)  # delimited text has no numbers
    if isinstance(label, str):
        require_name("class", label, class_names, hint=f"It is in {row.location}.")
        return list(class_names).index(label)
    if not 0 <= label < len(class_names):
        raise TaskError(
            f"{row.location}: label {label} is not the number of one of the {len(class_names)} class names (0 to "
            f"{len(class_names) - 1}): name every class, or leave `class_names` out."
        )
    return int(label)


_NO_HUB = "check the name and the connection, or give local files to task 'class-files'"


def read_class_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Files,
    *,
    name: str = "class-files",
    text: str = "text",
    label: str = "label",
    text2: str | None = None,
    group: str | None = None,
    split: str = "auto",
    class_names: Sequence[str] | None = None,
    metric: str = USUAL_METRIC,
    rare: str = "error",
    missing_labels: Sequence[str] = MISSING_LABELS,
    options: FileOptions = DEFAULT_FILES,
) -> ClassTask:
    r"""Read a classification task from one file per split, or from one file with or without a split column.

    Args:
        files: Split (train, validation or dev, test) to its file; or one file. The format goes by the suffix: .csv,
            .tsv, .tab, .jsonl, .ndjson, .json, .parquet.
        name: Name of the task in reports.
        text: Column of the text.
        label: Column of the class: texts, or whole numbers.
        text2: Column of a second text, for pairs.
        group: Column that names rows of one split (a document, an author).
        split: `auto` draws the splits that are missing, stratified by class; `given` draws none.
        class_names: Names in the order of their numbers; None takes the labels that occur.
        metric: The metric to choose by, a key of `CLASS_METRICS`.
        rare: Classes of fewer than 3 rows, where all splits are drawn: `error` or `drop`.
        missing_labels: Values that mean a missing label, which makes a bad row.
        options: How the files are read and split; options of the task by their own names.

    Returns:
        The task, its texts exactly as in the files.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "all.tsv")
        >>> rows = [f"text {i}\t{'even' if i % 2 == 0 else 'odd'}" for i in range(40)]
        >>> _ = path.write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")
        >>> read_class_files(path).class_names
        ('even', 'odd')
    """
    rule = SplitRule(options.seed, options.validation_fraction, rare, split)
    rows = read_rows(files, class_fields(text, label, text2, group, missing_labels), options)
    return assemble_task(
        rows, name=name, metrics=(metric,), class_names=class_names, rule=rule, usual_metric=USUAL_METRIC
    )


def load_class_hub(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    hub_id: str,
    *,
    config: str | None = None,
    revision: str | None = None,
    text: str = "text",
    label: str = "label",
    text2: str | None = None,
    group: str | None = None,
    class_names: Sequence[str] | None = None,
    metric: str = USUAL_METRIC,
    bad_rows: str = "error",
    seed: int = 0,
    validation_fraction: float = 0.1,
    rare: str = "error",
    missing_labels: Sequence[str] = MISSING_LABELS,
) -> ClassTask:
    """Load a classification dataset by its column names through `datasets`; the source names the commit.

    `hub_id` is a dataset of the hub, or a local folder laid out like one; `config` its configuration, where it has
    several; `revision` a branch, tag or commit. The other options are those of `read_class_files`.
    """
    rule = SplitRule(seed, validation_fraction, rare)
    tables, source = read_hub(hub_id, config, revision=revision, help_text=_NO_HUB)
    fields = class_fields(text, label, text2, group, missing_labels)
    rows = check_rows(name_splits(tables, source), fields, source=source, bad_rows=bad_rows)
    name = Path(hub_id).name if config is None else f"{Path(hub_id).name}-{config}"
    return assemble_task(
        rows, name=name, metrics=(metric,), class_names=class_names, rule=rule, usual_metric=USUAL_METRIC
    )


def load_class_sample() -> ClassTask:
    """Load the sentences of six topics written for this project and shipped with it: a sample, not a benchmark.

    Example:
        >>> load_class_sample().n_classes
        6
    """
    read = partial(read_class_files, name="class-sample", label="topic", metric="f1-macro")
    return replace(load_shipped("samples/classes.csv", read), licence="Apache-2.0", usual_metric="f1-macro")


@dataclass(frozen=True, eq=False)
class NumberTask(GradedTask):
    """Texts with one number each, in up to three splits, checked when built."""

    kind: ClassVar[str] = "numbers"
    columns: ClassVar[Mapping[str, str]] = {"text": "string", "number": "float64", "group": "string"}
    text_columns: ClassVar[tuple[str, ...]] = ("text",)
    digest_names_columns: ClassVar[bool] = True
    gold_column: ClassVar[str] = "number"

    name: str
    splits: "datasets.DatasetDict"
    """Columns `text` (string), `number` (float64, in its own units) and perhaps `group` (string: rows of one split)."""
    source: str
    is_sample: bool = False
    notes: tuple[str, ...] = ()

    def describe_kind(self) -> dict[str, object]:
        """Return what other kinds describe too, and the lowest and highest number of train, or of all splits."""
        splits = ["train"] if "train" in self.splits else list(self.splits)
        numbers = np.concatenate([self.numbers(split) for split in splits])
        return {**super().describe_kind(), "score_range": [float(numbers.min()), float(numbers.max())]}

    def numbers(self, split: str) -> Float64[np.ndarray, " N"]:
        """Return the numbers of a split, in row order."""
        return np.asarray(self.rows(split)["number"], dtype=np.float64)

    def audit(self) -> tuple[str, ...]:
        """Count repeated texts, and texts that two splits share; texts are compared exactly."""
        texts = {split: list(rows["text"]) for split, rows in self.splits.items()}
        repeats = {split: len(column) - len(set(column)) for split, column in texts.items()}
        counts = [
            (n, f"{split}: {n} of {len(texts[split])} rows repeat an earlier text") for split, n in repeats.items()
        ]
        for split, column in texts.items():
            n_conflicts, conflicts = conflict_notes(column, self.rows(split)["number"], "text", "numbers")
            counts.append((n_conflicts, f"{split}: {conflicts}"))
        for split, other, n in overlaps(texts):
            counts.append((n, f"{split}: {n} of {len(texts[split])} texts are also in {other}"))
        return remarks(counts)


def read_number_files(
    files: Files,
    *,
    name: str = "number-files",
    text: str = "text",
    number: str = "number",
    group: str | None = None,
    split: str | None = None,
    options: FileOptions = DEFAULT_FILES,
) -> NumberTask:
    """Read texts with numbers; options as for `read_class_files`, and `split` as for `read_pair_files`."""
    fields: Fields = {"text": (text, check_text), "number": (number, check_gold), "group": (group, check_group)}
    rows, source, notes = read_rows(files, fields, options)
    rule = SplitRule(options.seed, options.validation_fraction, split=split)
    columns, drawn = split_graded(rows, rule, columns=NumberTask.text_columns, name=name)
    return NumberTask(name, NumberTask.hold(columns), source).with_remarks(*notes, drawn)


def load_number_sample() -> NumberTask:
    """Load review sentences, rated 1 to 5, that were written for this project: no benchmark.

    Example:
        >>> load_number_sample().n_rows()
        {'train': 70, 'validation': 25, 'test': 25}
    """
    read = partial(read_number_files, name="number-sample", number="rating")
    return load_shipped("samples/ratings.csv", read)
