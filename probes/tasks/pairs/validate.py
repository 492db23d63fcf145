"""Raw rows to checked pairs: every value that cannot be used is named with its file, row and column."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from extract.errors import TaskError, UnknownNameError, unknown_name
from probes.readers.raw_rows import RawRow, RawTable, shorten
from probes.tasks.pairs.task import SPLITS

BAD_ROWS = ("error", "drop")  # checked here, because the value comes from a YAML file
SPLIT_ALIASES = {"dev": "validation", "valid": "validation", "val": "validation"}


@dataclass(frozen=True)
class ColumnNames:
    """Where the parts of a pair stand in a table."""

    sentence1: str = "sentence1"
    sentence2: str = "sentence2"
    score: str = "score"
    split: str | None = None
    """Only for a table that holds several splits."""


@dataclass(frozen=True)
class Pair:
    """One checked row."""

    split: str
    sentence1: str
    sentence2: str
    score: float


class BadRow(Exception):  # noqa: N818  (no error for a person: whoever checks a table catches it)
    """A row that cannot be used.

    Args:
        reason: In a few words, the same for rows with the same fault, to be counted.
        detail: The column, the value, and what is needed.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def parse_score_range(value: object) -> tuple[float, float]:
    """Check a score range that came from a YAML file.

    Args:
        value: Two finite numbers, the lower first.

    Returns:
        Both as floats.

    Raises:
        TaskError: If it is anything else.
    """
    numbers = [v for v in value if _is_number(v) and math.isfinite(v)] if isinstance(value, list | tuple) else []
    if not isinstance(value, list | tuple) or len(value) != 2 or len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise TaskError(f"`score_range` is {value!r}, but two numbers are needed, the lower first, such as [0, 5].")
    return float(numbers[0]), float(numbers[1])


def canonical_split(value: object) -> str | None:
    """Map a split name, or a common alias such as `dev`, to train, validation or test.

    Args:
        value: The name as the user wrote it.

    Returns:
        The name of the split, or None for a name that means none of the three.
    """
    name = str(value).strip()
    name = SPLIT_ALIASES.get(name, name)
    return name if name in SPLITS else None


def check_rows(
    table: RawTable, names: ColumnNames, *, split: str | None, score_range: tuple[float, float], bad_rows: str
) -> tuple[list[Pair], tuple[str, ...]]:
    """Turn the rows of one table into pairs, or say which row cannot be one.

    Args:
        table: Rows with their line or row numbers.
        names: The columns to read.
        split: The split of all rows; None reads it from the split column.
        score_range: Lowest and highest gold allowed.
        bad_rows: `error` stops at bad rows; `drop` leaves them out and counts them in a note.

    Returns:
        The good rows in order, and at most one note about those dropped.

    Raises:
        TaskError: If a row is bad and `bad_rows` is `error`; names file, line, column and value.
        UnknownNameError: If a column is not there, or `bad_rows` is neither of the two.
    """
    if bad_rows not in BAD_ROWS:
        raise unknown_name("bad_rows", bad_rows, BAD_ROWS)
    for column in (names.sentence1, names.sentence2, names.score, names.split):
        if column is not None and column not in table.columns:
            raise unknown_column(column, table)
    pairs: list[Pair] = []
    problems: list[tuple[RawRow, BadRow]] = []
    for row in table.rows:
        try:
            pairs.append(_check_row(row, names, split, score_range))
        except BadRow as bad:
            problems.append((row, bad))
    if not problems:
        return pairs, ()
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
    return pairs, (f"{table.where}: {len(problems)} of {len(table.rows)} rows dropped ({listed}; {where})",)


def unknown_column(column: str, table: RawTable) -> UnknownNameError:
    """Build the error for a column that a table does not have.

    Args:
        column: The column that was asked for.
        table: The table.

    Returns:
        The error, to be raised by the caller; names the columns that are there.
    """
    shown = [name if len(name) <= 60 else f"{name[:57]}..." for name in table.columns]
    hint = f"These are the columns of {table.where}"
    if table.unit == "line":
        hint += "; if its first row is no header, set `header: false` and give `columns`"
    return unknown_name("column", column, shown, hint=f"{hint}.")


def _check_row(row: RawRow, names: ColumnNames, split: str | None, score_range: tuple[float, float]) -> Pair:
    if row.problem:
        raise BadRow(row.problem.partition(":")[0], row.problem)
    if names.split is not None:
        split = canonical_split(row.values.get(names.split))
    if split is None:
        value = row.values.get(names.split or "")
        raise BadRow(
            "unknown split", f"column {names.split!r} holds {shorten(value)}, but one of {', '.join(SPLITS)} is needed"
        )
    first = check_text(names.sentence1, row.values.get(names.sentence1))
    second = check_text(names.sentence2, row.values.get(names.sentence2))
    return Pair(split, first, second, _check_gold(names.score, row.values.get(names.score), score_range))


def check_text(column: str, value: Any) -> str:
    """Refuse a value that is no text to extract.

    Args:
        column: Its column, for the message.
        value: Whatever stands there.

    Returns:
        The text, exactly as it is.

    Raises:
        BadRow: It is missing, blank, no string, or no Unicode.
    """
    if value is None:
        raise BadRow("missing text", f"column {column!r} is missing, but a text is needed")
    if not isinstance(value, str):
        raise BadRow(
            "text is no string", f"column {column!r} holds {shorten(value)} ({type(value).__name__}), not a string"
        )
    if not value.strip():
        raise BadRow("empty text", f"column {column!r} holds {shorten(value)}, but a text that is not blank is needed")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRow(
            "text is no Unicode", f"column {column!r} holds {shorten(value)}, which is half a character"
        ) from error
    return value


def _check_gold(column: str, value: Any, score_range: tuple[float, float]) -> float:
    low, high = score_range
    wanted = f"but a number from {low:g} to {high:g} is needed"
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadRow("missing gold", f"column {column!r} is missing or empty ({shorten(value)}), {wanted}")
    gold = _as_number(value)
    if gold is None:
        header = "; is this a header row (`header: true`)?" if value == column else ""
        raise BadRow("gold is no number", f"column {column!r} holds {shorten(value)}, {wanted}{header}")
    if not math.isfinite(gold):
        raise BadRow("gold is not finite", f"column {column!r} holds {shorten(value)}, {wanted}")
    if not low <= gold <= high:
        raise BadRow(
            "gold out of range", f"column {column!r} holds {shorten(value)}, {wanted} (or another `score_range`)"
        )
    return gold


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _as_number(value: Any) -> float | None:
    is_text = isinstance(value, str) and "_" not in value  # float() reads "1_0" as 10
    if not is_text and not _is_number(value):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None


def columns_of(pairs: Sequence[Pair]) -> dict[str, dict[str, Any]]:
    """Gather pairs by split, column by column.

    Args:
        pairs: Checked rows of any splits.

    Returns:
        Split to its columns `sentence1`, `sentence2` and `score`, rows in the order given.
    """
    splits: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        columns = splits.setdefault(pair.split, {"sentence1": [], "sentence2": [], "score": []})
        columns["sentence1"].append(pair.sentence1)
        columns["sentence2"].append(pair.sentence2)
        columns["score"].append(pair.score)
    return splits
