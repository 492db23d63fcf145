"""Rows of files or of a repository, read by column names: every value of a task's columns is checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from extract.errors import TaskError
from probes.readers.checks import check_split, check_table
from probes.readers.raw_rows import FileFormat, RawRow, RawTable, read_raw
from probes.readers.splits import SPLITS, files_by_split

Fields = Mapping[str, tuple[str | None, Callable[[str, Any], Any]]]
"""Column of a task to the column it is read from (None leaves it out) and the check of its values."""


@dataclass(frozen=True)
class CheckedRow:
    """One row that can be used."""

    values: Mapping[str, Any]
    """By the columns of the task."""
    split: str | None = None
    """train, validation or test; None when there are no splits yet."""
    place: str = ""
    """File and line, for messages."""


def read_tables(
    files: Mapping[str, str | Path] | str | Path,
    *,
    header: bool = True,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    quoting: bool = True,
) -> tuple[dict[str | None, RawTable], str]:
    """Read the file of each split, or one file, whose split is None; also name the files in one line.

    The options are the fields of `FileFormat`.
    """
    file_format = FileFormat(header, None if columns is None else tuple(columns), delimiter, quoting)
    paths: Mapping[Any, Path] = (
        files_by_split(files) if isinstance(files, Mapping) else {None: Path(files).expanduser()}
    )
    return {split: read_raw(path, file_format) for split, path in paths.items()}, ", ".join(map(str, paths.values()))


def check_rows(
    tables: Mapping[Any, RawTable], fields: Fields, *, split_column: str | None = None, bad_rows: str
) -> tuple[list[CheckedRow], tuple[str, ...]]:
    """Check the rows of several tables.

    Args:
        tables: Split to its rows; None for rows without splits, or with those of the split column.
        fields: The columns to read.
        split_column: Column of the split in a table of None.
        bad_rows: `error` stops at bad rows; `drop` leaves them out and counts them in a note.

    Returns:
        The good rows, table after table, and the notes about rows dropped.

    Raises:
        TaskError: A row is bad and `bad_rows` is `error` (with file, line, column and value), or no row is left.
        UnknownNameError: A column is missing, or `bad_rows` is neither of the two.
    """
    named = {name: (column, check) for name, (column, check) in fields.items() if column is not None}
    rows: list[CheckedRow] = []
    notes: list[str] = []
    for split, table in tables.items():
        own_split = split_column if split is None else None
        needed = (*(column for column, _ in named.values()), own_split)

        check = partial(_check_row, table=table, fields=named, split=split, split_column=own_split)
        found, dropped = check_table(table, needed, check, bad_rows=bad_rows)
        if not found:
            raise TaskError(f"{dropped[0]}, so no row is left: fix the file.")
        rows += found
        notes += dropped
    return rows, tuple(notes)


def _check_row(
    row: RawRow,
    *,
    table: RawTable,
    fields: Mapping[str, tuple[str, Callable[[str, Any], Any]]],
    split: str | None,
    split_column: str | None,
) -> CheckedRow:
    if split_column is not None:
        split = check_split(split_column, row.values.get(split_column))
    values = {name: check(column, row.values.get(column)) for name, (column, check) in fields.items()}
    return CheckedRow(values, split, table.place(row))


def find_split_column(tables: Mapping[Any, RawTable], named: str | None) -> str | None:
    """Return the column of the split of one file: as named, else `split` where the file has it, else none."""
    table = tables.get(None)
    return "split" if named is None and table is not None and "split" in table.columns else named


def columns_of(rows: Sequence[CheckedRow]) -> dict[str, list[Any]]:
    """Gather rows, at least one, column by column."""
    return {name: [row.values[name] for row in rows] for name in rows[0].values}


def columns_by_split(rows: Sequence[CheckedRow]) -> dict[str, dict[str, list[Any]]]:
    """Gather the rows of each split column by column."""
    return {split: columns_of(own) for split in SPLITS if (own := [row for row in rows if row.split == split])}
