"""Raw rows to checked examples, and their classes to numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from extract.errors import TaskError, unknown_name
from probes.readers.checks import Label, check_group, check_label, check_split, check_table, check_text
from probes.readers.raw_rows import RawRow, RawTable


@dataclass(frozen=True)
class ClassColumns:
    """Names of the columns that hold the parts of an example."""

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
    """Turn the rows of one table into examples.

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
    needed = (columns.text, columns.text2, columns.label, columns.group, columns.split)
    examples, notes = check_table(table, needed, partial(_check_row, table, columns, split), bad_rows=bad_rows)
    if not examples:
        raise TaskError(f"{notes[0]}, so no row is left: fix the file.")
    return examples, notes


def _check_row(table: RawTable, columns: ClassColumns, split: str | None, row: RawRow) -> Example:
    values = row.values
    if columns.split is not None:
        split = check_split(columns.split, values.get(columns.split))
    named = [columns.text] if columns.text2 is None else [columns.text, columns.text2]
    texts = tuple(check_text(column, values.get(column)) for column in named)
    label = check_label(columns.label, values.get(columns.label))
    group = None if columns.group is None else check_group(columns.group, values.get(columns.group))
    return Example(texts, label, split, group, table.place(row))


def number_classes(
    examples: Sequence[Example], class_names: Sequence[str] | None = None
) -> tuple[list[int], tuple[str, ...]]:
    """Number the classes independently of the order of the rows.

    Args:
        examples: Checked rows.
        class_names: Names in the order of their numbers; None takes the labels that occur, numbers by value and texts
            by the alphabet. Labels that are whole numbers are places in this list.

    Returns:
        The class of each row, and the names.

    Raises:
        TaskError: If labels are of mixed type, or a number is not a place in `class_names`.
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
            raise unknown_name("class", label, class_names, hint=f"It is in {example.place}.")
        return list(class_names).index(label)
    if not 0 <= label < len(class_names):
        raise TaskError(
            f"{example.place}: label {label} is not a place in the {len(class_names)} class names (0 to "
            f"{len(class_names) - 1}): name every class, or leave `class_names` out."
        )
    return int(label)
