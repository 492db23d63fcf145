"""Raw rows to checked examples: every value that cannot be used is named with its file, row and column."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extract.errors import TaskError, unknown_name
from probes.readers.raw_rows import RawRow, RawTable, shorten
from probes.tasks.pairs.task import SPLITS
from probes.tasks.pairs.validate import BAD_ROWS, BadRow, canonical_split, check_text, unknown_column

Label = str | int | bool


@dataclass(frozen=True)
class ClassColumns:
    """Where the parts of an example stand in a table."""

    text: str = "text"
    label: str = "label"
    text2: str | None = None
    """The second text, for pairs."""
    group: str | None = None
    """Rows of one group are never torn apart."""
    split: str | None = None
    """Only for a table that holds several splits."""


@dataclass(frozen=True)
class Example:
    """One checked row."""

    texts: tuple[str, ...]
    """One text, or two."""
    label: Label
    """The class as the file has it: a name, or a number."""
    split: str | None = None
    """train, validation or test; None when there are no splits yet."""
    group: str | None = None
    place: str = ""
    """File and line, for messages."""


def check_examples(
    table: RawTable, columns: ClassColumns, *, split: str | None, bad_rows: str
) -> tuple[list[Example], tuple[str, ...]]:
    """Turn the rows of one table into examples, or say which row cannot be one.

    Args:
        table: Rows with their line or row numbers.
        columns: The columns to read.
        split: The split of all rows, unless `columns` names a split column; None when there are no splits yet.
        bad_rows: `error` stops at bad rows; `drop` leaves them out and counts them in a note.

    Returns:
        The good rows in order, and at most one note about those dropped.

    Raises:
        TaskError: If a row is bad and `bad_rows` is `error`, with file, line, column and value; or if no row is left.
        UnknownNameError: If a column is not there, or `bad_rows` is neither of the two.

    Example:
        >>> table = RawTable("a.csv", "line", ("text", "label"), [RawRow(2, {"text": "hello", "label": "greeting"})])
        >>> check_examples(table, ClassColumns(), split="train", bad_rows="error")[0][0].label
        'greeting'
    """
    if bad_rows not in BAD_ROWS:
        raise unknown_name("bad_rows", bad_rows, BAD_ROWS)
    for column in (columns.text, columns.text2, columns.label, columns.group, columns.split):
        if column is not None and column not in table.columns:
            raise unknown_column(column, table)
    examples: list[Example] = []
    problems: list[tuple[RawRow, BadRow]] = []
    for row in table.rows:
        try:
            examples.append(_check_row(table, row, columns, split))
        except BadRow as bad:
            problems.append((row, bad))
    if not problems:
        return examples, ()
    if bad_rows == "error":
        row, problem = problems[0]
        more = f" ({len(problems)} such rows in this file)" if len(problems) > 1 else ""
        raise TaskError(
            f"{table.where}, {table.unit} {row.number}: {problem}{more}. Mend the file, or set `bad_rows: drop` to "
            "leave such rows out."
        )
    reasons = Counter(problem.reason for _, problem in problems)
    listed = ", ".join(f"{reason}: {count}" for reason, count in reasons.items())
    where = f"first at {table.unit} {problems[0][0].number}"
    note = f"{table.where}: {len(problems)} of {len(table.rows)} rows dropped ({listed}; {where})"
    if not examples:
        raise TaskError(f"{note}, so no row is left: mend the file.")
    return examples, (note,)


def _check_row(table: RawTable, row: RawRow, columns: ClassColumns, split: str | None) -> Example:
    if row.problem:
        raise BadRow(row.problem.partition(":")[0], row.problem)
    if columns.split is not None:
        value = row.values.get(columns.split)
        split = canonical_split(value)
        if split is None:
            raise BadRow(
                "unknown split",
                f"column {columns.split!r} holds {shorten(value)}, but one of {', '.join(SPLITS)} is needed",
            )
    named = [columns.text] if columns.text2 is None else [columns.text, columns.text2]
    texts = tuple(check_text(column, row.values.get(column)) for column in named)
    label = _check_label(columns.label, row.values.get(columns.label))
    group = None if columns.group is None else _check_group(columns.group, row.values.get(columns.group))
    return Example(texts, label, split, group, f"{table.where}, {table.unit} {row.number}")


def _check_label(column: str, value: Any) -> Label:
    if isinstance(value, float) and not math.isnan(value) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        value = value.strip()
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        raise BadRow(
            "missing label", f"column {column!r} is missing or empty ({shorten(value)}), but a class is needed"
        )
    if isinstance(value, list | tuple):
        raise BadRow(
            "label is a list",
            f"column {column!r} holds {shorten(value)}, but one class per row is needed: cut a multi-label task into "
            "one yes/no task per label",
        )
    if not isinstance(value, str | int):
        raise BadRow(
            "label is no class",
            f"column {column!r} holds {shorten(value)} ({type(value).__name__}), but a class is a text or whole number",
        )
    return value


def _check_group(column: str, value: Any) -> str:
    if value is None or not str(value).strip():
        raise BadRow(
            "missing group", f"column {column!r} is missing or empty ({shorten(value)}), but a group is needed"
        )
    return str(value)


def number_classes(
    examples: Sequence[Example], class_names: Sequence[str] | None = None
) -> tuple[list[int], tuple[str, ...]]:
    """Number the classes, the same way whatever the order of the rows.

    Args:
        examples: Checked rows.
        class_names: Names in the order of their numbers; None takes the labels that occur, numbers by value and texts
            by the alphabet. Labels that are whole numbers are places in this list.

    Returns:
        The class of each row, and the names.

    Raises:
        TaskError: If labels are of mixed type, or a number is no place in `class_names`.
        UnknownNameError: If a label is not in `class_names`.

    Example:
        >>> number_classes([Example(("a",), "yes"), Example(("b",), "no")])
        ([1, 0], ('no', 'yes'))
    """
    first_of_kind: dict[str, Example] = {}
    for example in examples:
        first_of_kind.setdefault(_kind(example.label), example)
    if len(first_of_kind) > 1:
        found = " and ".join(f"{kind} ({e.place}: {e.label!r})" for kind, e in first_of_kind.items())
        raise TaskError(f"labels are of mixed type, {found}: write all of them as texts, or all as numbers.")
    if class_names is None:
        labels = _sorted_labels({example.label for example in examples})
        numbers = {label: number for number, label in enumerate(labels)}
        return [numbers[example.label] for example in examples], tuple(str(label) for label in labels)
    return [_place(example, class_names) for example in examples], tuple(class_names)


def _kind(label: Label) -> str:
    return {bool: "true/false", int: "numbers", str: "texts"}[type(label)]


def _sorted_labels(labels: set[Label]) -> list[Label]:
    if all(isinstance(label, str) and label.lstrip("-").isdecimal() for label in labels):
        return sorted(labels, key=lambda label: (int(label), str(label)))
    return sorted(labels)


def _place(example: Example, class_names: Sequence[str]) -> int:
    label = example.label
    if isinstance(label, str):
        if label not in class_names:
            raise unknown_name("class", label, class_names, hint=f"It stands in {example.place}.")
        return list(class_names).index(label)
    if not 0 <= label < len(class_names):
        raise TaskError(
            f"{example.place}: label {label} is no place in the {len(class_names)} class names (0 to "
            f"{len(class_names) - 1}): name every class, or leave `class_names` out."
        )
    return int(label)
