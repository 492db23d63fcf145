"""Checked rows to a task: classes numbered, missing splits drawn, and every decision written into the notes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extract.errors import TaskError, unknown_name
from probes.readers.checked_rows import CheckedRow, Fields, columns_of
from probes.readers.checks import MISSING_LABELS, Label, check_group, check_label, check_text
from probes.readers.splits import SPLITS
from probes.tasks.classes.audit import class_notes
from probes.tasks.classes.task import ClassTask, build_class_splits
from probes.tasks.splitting import (
    MIN_CLASS_ROWS,
    SPLIT_NOTE,
    SplitRule,
    hold_out,
    rare_classes,
    split_three_ways,
)
from probes.tasks.units import find_units, plain_form

WITH_COPIES = ", equal texts together"
"""End of the note about splits drawn from rows that repeat texts (case, blanks and final punctuation aside)."""


def class_fields(
    text: str = "text",
    label: str = "label",
    text2: str | None = None,
    group: str | None = None,
    missing_labels: Sequence[str] = MISSING_LABELS,
) -> Fields:
    """Name the columns of one text, or of two, of the class and of a group of rows that are never torn apart."""
    texts = {"text": text} if text2 is None else {"text1": text, "text2": text2}
    return {
        **{name: (column, check_text) for name, column in texts.items()},
        "label": (label, partial(check_label, missing=tuple(map(str, missing_labels)))),
        "group": (group, check_group),
    }


def assemble_task(
    rows: Sequence[CheckedRow],
    *,
    name: str,
    source: str,
    metrics: tuple[str, ...] = ("f1-weighted",),
    licence: str = "unknown",
    class_names: Sequence[str] | None = None,
    look_both_ways_rows: int | None = None,
    rule: SplitRule | None = None,
    notes: Sequence[str] = (),
) -> ClassTask:
    """Build a task: official splits are kept, missing ones are drawn by the rule.

    Rows without a split, or in train alone, are drawn 80/10/10; with train and test, validation is drawn from train.
    Groups stay whole; else the draw is stratified.

    Args:
        rows: Checked rows in source order, with the columns of `class_fields`.
        name: As in `ClassTask`, like the four that follow.
        source: One line: where the rows came from.
        metrics: The first is the one to choose by.
        licence: One line: under which terms the rows are published.
        class_names: Names in the order of their numbers; None takes the labels that occur.
        look_both_ways_rows: How many rows the code released with Look Both Ways takes.
        rule: How to draw splits; None is seed 0.
        notes: Remarks of the reader, kept in front.

    Returns:
        The task, its notes naming what was drawn and dropped, duplicates, conflicts, overlap and thin classes.

    Raises:
        TaskError: There are no rows, no training rows, one class, labels of mixed type, only some rows have a split,
            or (with `rare: error`) a class is too small to be split, or most rows of a split have labels that
            train lacks.
        UnknownNameError: A label is not in the class names.
    """
    rule = rule or SplitRule()
    if not rows:
        raise TaskError(f"task {name!r} has no rows: give at least three texts of each of two classes.")
    labels, names = number_classes(rows, class_names)
    said: list[str] = []
    if rule.split == "auto" and {row.split for row in rows} <= {None, "train"}:
        if rare_classes(labels, _copies(rows)):
            rows, note = _drop_rare(rows, labels, names, task=name, rule=rule)
            labels, names = number_classes(rows, class_names)
            said.append(note)
        parts, note = _draw_all(rows, labels, rule)
    else:
        parts, note = _keep_official(rows, labels, task=name, rule=rule)
    columns = {
        split: {
            **columns_of([rows[place] for place in places]),
            "label": [labels[place] for place in places],
            "row": places.tolist(),  # the place in the source
        }
        for split, places in parts.items()
    }
    _require_seen(columns, names, task=name)
    said += [note, *class_notes(columns, names)]
    return ClassTask(
        name,
        build_class_splits(columns),
        names,
        metrics,
        source,
        licence,
        notes=(*notes, *filter(None, said)),
        look_both_ways_rows=look_both_ways_rows,
    )


def _require_seen(columns: Mapping[str, Mapping[str, Sequence[Any]]], names: Sequence[str], *, task: str) -> None:
    """Refuse a split of which more than half of the rows have a label that train lacks: no head could be right."""
    if "train" not in columns:
        return
    in_train = set(columns["train"]["label"])
    for split, rows in columns.items():
        unseen = Counter(label for label in rows["label"] if label not in in_train)
        if 2 * unseen.total() <= len(rows["label"]):
            continue
        listed = ", ".join(f"{names[label]!r}: {n}" for label, n in unseen.most_common(5)) + ", ..." * (len(unseen) > 5)
        known = {_plain_label(names[label]): names[label] for label in in_train}
        alike = [(names[label], known.get(_plain_label(names[label]))) for label in unseen]
        cause = (
            f"they are those of train but for case or number format, as {alike[0][0]!r} and {alike[0][1]!r}; write "
            "them alike"
            if all(theirs is not None for _, theirs in alike)
            else f"train has {', '.join(repr(names[label]) for label in sorted(in_train)[:5])}"
            f"{', ...' * (len(in_train) > 5)}; give files with the same classes"
        )
        raise TaskError(
            f"{unseen.total()} of {len(rows['label'])} {split} rows of task {task!r} have labels that train lacks "
            f"({listed}): {cause}."
        )


def _plain_label(name: str) -> str | float:
    """Return what is left of a label when case and the format of numbers do not count."""
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
    kept = [row for row, label in zip(rows, labels, strict=True) if label not in rare]
    if not kept:
        raise TaskError(f"task {task!r} has no class of {MIN_CLASS_ROWS} rows or more ({listed}): add rows.")
    n_dropped = len(rows) - len(kept)
    return kept, f"{len(rare)} classes of fewer than {MIN_CLASS_ROWS} rows ({listed}) dropped, {n_dropped} rows in all"


def _draw_all(
    rows: Sequence[CheckedRow], labels: Sequence[int], rule: SplitRule
) -> tuple[dict[str, NDArray[np.int64]], str]:
    groups = _groups(rows)
    copies = _copies(rows)
    parts = split_three_ways(np.asarray(labels, dtype=np.int64), seed=rule.seed, groups=groups, copies=copies)
    how = "stratified by class" if groups is None else f"{len(set(groups))} groups kept whole"
    return parts, f"{SPLIT_NOTE}80/10/10 with seed {rule.seed}, {how}{WITH_COPIES if copies else ''}"


def _keep_official(
    rows: Sequence[CheckedRow], labels: Sequence[int], *, task: str, rule: SplitRule
) -> tuple[dict[str, NDArray[np.int64]], str]:
    parts: dict[str, NDArray[np.int64]] = {}
    for split in (*SPLITS, None):
        places = [place for place, row in enumerate(rows) if row.split == split]
        if places and split is None:
            raise TaskError(
                f"task {task!r} has {len(places)} rows without a split beside others with one (the first in "
                f"{rows[places[0]].place}): give every row a split, or none."
            )
        if places and split is not None:
            parts[split] = np.asarray(places, dtype=np.int64)
    if rule.split == "given" or "validation" in parts or "train" not in parts:
        return parts, "" if "test" in parts else "no test split"
    train = parts["train"]
    in_train = [rows[place] for place in train]
    groups, copies = _groups(in_train), _copies(in_train)
    # Numbered by train alone: a class that only test has would move the numbers, and with them the draw.
    _, codes = np.unique(np.asarray(labels, dtype=np.int64)[train], return_inverse=True)
    marked = hold_out(codes, share=rule.validation_fraction, seed=rule.seed, groups=groups, copies=copies)
    how = ("stratified by class" if groups is None else "groups kept whole") + (WITH_COPIES if copies else "")
    note = f"{SPLIT_NOTE}{marked.sum()} of {len(train)} training rows to validation with seed {rule.seed}, {how}"
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

    `class_names` are in the order of their numbers, and whole-number labels are places in it; None takes the labels
    that occur, numbers by value and texts by the alphabet. Labels of mixed type, and labels that are not in
    `class_names`, are rejected.
    """
    first_of_kind: dict[str, CheckedRow] = {}
    for row in rows:
        first_of_kind.setdefault(_kind(row.values["label"]), row)
    if len(first_of_kind) > 1:
        found = " and ".join(f"{kind} ({row.place}: {row.values['label']!r})" for kind, row in first_of_kind.items())
        raise TaskError(f"labels are of mixed type, {found}: write all of them as texts, or all as numbers.")
    if class_names is None:
        labels = _sorted_labels({row.values["label"] for row in rows})
        numbers = {label: number for number, label in enumerate(labels)}
        return [numbers[row.values["label"]] for row in rows], tuple(str(label) for label in labels)
    return [_number(row, class_names) for row in rows], tuple(class_names)


def _kind(label: Label) -> str:
    return {bool: "true/false", int: "numbers", str: "texts"}[type(label)]


def _sorted_labels(labels: set[Label]) -> list[Label]:
    if all(isinstance(label, str) and label.lstrip("-").isdecimal() for label in labels):
        return sorted(labels, key=lambda label: (int(label), str(label)))
    return sorted(labels)


def _number(row: CheckedRow, class_names: Sequence[str]) -> int:
    label: Label = row.values["label"]
    if isinstance(label, str):
        if label not in class_names:
            raise unknown_name("class", label, class_names, hint=f"It is in {row.place}.")
        return list(class_names).index(label)
    if not 0 <= label < len(class_names):
        raise TaskError(
            f"{row.place}: label {label} is not a place in the {len(class_names)} class names (0 to "
            f"{len(class_names) - 1}): name every class, or leave `class_names` out."
        )
    return int(label)
