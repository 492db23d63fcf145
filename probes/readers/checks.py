"""Checks of raw rows: a value that cannot be used is reported with file, line, column, and what is allowed.

Every check of a value takes the name of its column, for the message, and the value of the row. It returns the value to
use, or raises `BadRow`; `check_table` turns that into an error or a note.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from extract.errors import TaskError, UnknownNameError, unknown_name
from probes.readers.raw_rows import RawRow, RawTable, shorten
from probes.readers.splits import SPLITS, canonical_split

BAD_ROWS = ("error", "drop")  # checked here, because the value comes from a YAML file
ANY_NUMBER = (-math.inf, math.inf)
Label = str | int | bool
Checked = TypeVar("Checked")


class BadRow(Exception):  # noqa: N818  (never shown to a user as it is: `check_table` catches it)
    """A row that cannot be used: a short reason, the same for all rows with the same fault, and the detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def check_table(
    table: RawTable,
    columns: Sequence[str | None],
    check: Callable[[RawRow], Checked],
    *,
    bad_rows: str | None,
) -> tuple[list[Checked], tuple[str, ...]]:
    """Check every row of a table by a function that raises `BadRow`; columns that are None need not be there.

    Args:
        table: Rows with their line or row numbers.
        columns: Columns that must be there; None is skipped.
        check: Turns a row into what is wanted, or raises `BadRow`.
        bad_rows: `error` stops at bad rows; `drop` leaves them out and counts them in a note; None stops too, for
            tasks that do not offer the choice.

    Returns:
        The good rows in order, and at most one note about those dropped.

    Raises:
        TaskError: A row is bad and may not be dropped; names file, line, column and value.
        UnknownNameError: A column is missing, or `bad_rows` is something else.
    """
    if bad_rows is not None and bad_rows not in BAD_ROWS:
        raise unknown_name("bad_rows", bad_rows, BAD_ROWS)
    for column in columns:
        if column is not None and column not in table.columns:
            raise unknown_column(column, table)
    good: list[Checked] = []
    problems: list[tuple[RawRow, BadRow]] = []
    for row in table.rows:
        try:
            if row.problem:
                raise BadRow(row.problem.partition(":")[0], row.problem)
            good.append(check(row))
        except BadRow as bad:
            problems.append((row, bad))
    if not problems:
        return good, ()
    first, problem = problems[0]
    if bad_rows != "drop":
        more = f" ({len(problems)} such rows in this file)" if len(problems) > 1 else ""
        hint = "" if bad_rows is None else " Fix the file, or set `bad_rows: drop` to leave such rows out."
        raise TaskError(f"{table.place(first)}: {problem}{more}.{hint}")
    reasons = Counter(bad.reason for _, bad in problems)
    listed = ", ".join(f"{reason}: {count}" for reason, count in reasons.items())
    where = f"first at {table.unit} {first.number}"
    return good, (f"{table.where}: {len(problems)} of {len(table.rows)} rows dropped ({listed}; {where})",)


def unknown_column(column: str, table: RawTable) -> UnknownNameError:
    """Build the error for a column that a table does not have; it names the columns that are there."""
    shown = [name if len(name) <= 60 else f"{name[:57]}..." for name in table.columns]
    hint = f"These are the columns of {table.where}"
    if table.is_delimited:
        hint += "; if its first row is not a header, set `header: false` and give `columns`"
    return unknown_name("column", column, shown, hint=f"{hint}.")


def check_split(column: str, value: Any) -> str:
    """Return train, validation or test for the name of a split, or an alias such as `dev`."""
    split = canonical_split(value)
    if split is None:
        raise BadRow(
            "unknown split", f"column {column!r} holds {shorten(value)}, but one of {', '.join(SPLITS)} is needed"
        )
    return split


def check_text(column: str, value: Any, *, blank: str | None = None) -> str:
    """Return a text unchanged that is a string, valid Unicode and not blank; `blank` is as for `str.strip`."""
    if value is None:
        raise BadRow("missing text", f"column {column!r} is missing, but a text is needed")
    if not isinstance(value, str):
        raise BadRow(
            "text is not a string", f"column {column!r} holds {shorten(value)} ({type(value).__name__}), not a string"
        )
    if not value.strip(blank):
        raise BadRow("empty text", f"column {column!r} holds {shorten(value)}, but a text that is not blank is needed")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRow(
            "text is not Unicode", f"column {column!r} holds {shorten(value)}, which is half a character"
        ) from error
    return value


def check_gold(column: str, value: Any, limits: tuple[float, float] = ANY_NUMBER) -> float:
    """Return a finite score within the limits, given as a number or a text."""
    low, high = limits
    wanted = "but a number is needed" if limits == ANY_NUMBER else f"but a number from {low:g} to {high:g} is needed"
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadRow("missing gold", f"column {column!r} is missing or empty ({shorten(value)}), {wanted}")
    gold = _as_number(value)
    if gold is None:
        header = "; is this a header row (`header: true`)?" if value == column else ""
        raise BadRow("gold is not a number", f"column {column!r} holds {shorten(value)}, {wanted}{header}")
    if not math.isfinite(gold):
        raise BadRow("gold is not finite", f"column {column!r} holds {shorten(value)}, {wanted}")
    if not low <= gold <= high:
        raise BadRow(
            "gold out of range", f"column {column!r} holds {shorten(value)}, {wanted} (or another `score_range`)"
        )
    return gold


MISSING_LABELS = ("", "n/a", "N/A", "nan", "NaN", "null")
"""What stands for no label; `none` and `NA` may be classes."""


def check_label(column: str, value: Any, missing: Sequence[str] = MISSING_LABELS) -> Label:
    """Return the label of a class: a text without white space around it, or a whole number; not one of `missing`."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        value = value.strip()
    if value is None or value == "" or value in missing or (isinstance(value, float) and math.isnan(value)):
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
            "label is not a class",
            f"column {column!r} holds {shorten(value)} ({type(value).__name__}), but a class is a text or whole number",
        )
    return value


def check_group(column: str, value: Any) -> str:
    """Return the name of a group of rows as a text."""
    if value is None or not str(value).strip():
        raise BadRow(
            "missing group", f"column {column!r} is missing or empty ({shorten(value)}), but a group is needed"
        )
    return str(value)


def tag_problem(column: str, tag: str) -> str:
    """Say in one clause why a file of columns cannot hold a tag; empty for a tag that it can hold."""
    if tag and " " not in tag and tag.isprintable():
        return ""
    return (
        f"column {column!r} holds the tag {tag[:60]!r}, but a tag has no blank and no invisible character: fix it, or "
        "it would count as a tag of its own"
    )


def is_number(value: object) -> bool:
    """Tell numbers from other values; true and false are not numbers."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _as_number(value: Any) -> float | None:
    is_text = isinstance(value, str) and "_" not in value  # float() reads "1_0" as 10
    if not is_text and not is_number(value):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None
