"""Raw rows of local files, each with its line number. No value is interpreted here."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from extract.errors import TaskError, unknown_name
from probes.readers.hf_rows import read_parquet_rows
from probes.readers.text_files import inner_suffix, read_text, split_lines

DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
PARQUET_SUFFIXES = (".parquet",)


@dataclass(frozen=True)
class RawRow:
    """One row of a file."""

    number: int
    """Line the row starts on, or its row number (both from 1)."""
    values: Mapping[str, Any]
    problem: str = ""
    """Why the row could not be split into columns; empty for a good row."""


@dataclass(frozen=True)
class RawTable:
    """The rows of one file (or one hub split)."""

    where: str
    """The file as the user named it."""
    unit: Literal["line", "row"]
    columns: tuple[str, ...]
    rows: list[RawRow]
    value_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Column to the names of its whole numbers (or of those in its lists), for columns that declare them."""
    is_delimited: bool = False
    """True for delimited text, whose first row may be a header or not."""

    def place(self, row: RawRow) -> str:
        """Name the file and line (or row) of a row."""
        return f"{self.where}, {self.unit} {row.number}"


@dataclass(frozen=True)
class FileFormat:
    """How delimited text is written; the other formats need none of it."""

    header: bool = True
    """The first row names the columns."""
    columns: tuple[str, ...] | None = None
    """Column names of a file without a header."""
    delimiter: str | None = None
    """One character; None means by suffix."""
    quoting: bool = True
    """False: quotes are plain characters, as in most TSV benchmark files."""

    def __post_init__(self) -> None:
        if self.header and self.columns is not None:
            raise TaskError(
                f"`columns` {list(self.columns)} names the columns of a file without a header, but `header` is true: "
                "set `header: false`, or leave `columns` out."
            )
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise TaskError(f"`delimiter` is {self.delimiter!r}, but one character is needed, such as ',' or a tab.")


WITH_HEADER = FileFormat()


def read_raw(path: Path, file_format: FileFormat = WITH_HEADER) -> RawTable:
    """Read a CSV, TSV, JSON, JSON Lines or Parquet file, chosen by its suffix; JSON may be packed (.gz).

    Raises:
        TaskError: The file is missing, empty, not UTF-8 or broken; with its name and line.
        UnknownNameError: The suffix is none of those above and no delimiter is given.
    """
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise TaskError(f"{path} {what}: give the path of a CSV, TSV, JSON Lines or Parquet file.")
    suffix = path.suffix.lower()
    if path.stat().st_size == 0:
        raise TaskError(f"{path} is empty: it has no rows to read.")
    if suffix in PARQUET_SUFFIXES:
        columns, values = read_parquet_rows(path)
        rows = [RawRow(number, row) for number, row in enumerate(values, start=1)]
        table = RawTable(str(path), "row", columns, rows)
    elif inner_suffix(path) in JSON_SUFFIXES:
        table = _read_json(path)
    elif suffix in DELIMITERS or file_format.delimiter is not None:
        table = _read_delimited(path, file_format)
    else:
        known = [*DELIMITERS, *JSON_SUFFIXES, *PARQUET_SUFFIXES]
        raise unknown_name(
            "file suffix", suffix, known, hint=f"{path} can be read as delimited text if `delimiter` is given."
        )
    if not table.rows:
        raise TaskError(f"{path} has no rows (only a header, blank lines or an empty list).")
    return table


# Delimited text is read by the csv module, not by the CSV builder of `datasets`: that one goes through pandas, where
# "None", "NA" and "nan" become missing, "007" becomes 7, a ragged row is padded in silence, and lines are not counted.
def _records(path: Path, file_format: FileFormat) -> Iterator[tuple[int, list[str]]]:
    """Yield the line a record starts on and its fields, blank lines skipped."""
    delimiter = file_format.delimiter or DELIMITERS[path.suffix.lower()]
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if file_format.quoting else csv.QUOTE_NONE
    # as open(newline="") gives them: lines end at \n, \r\n or \r, and not at U+2028 or a form feed
    lines = split_lines(read_text(path))
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    start = 1
    try:
        for fields in reader:
            if fields:
                yield start, fields
            start = reader.line_num + 1
    except csv.Error as error:
        raise TaskError(
            f"{path}, line {start}: the row that starts here cannot be split at {delimiter!r} ({error}): close the "
            "quote, or set `quoting: false` if quotes are plain characters in this file."
        ) from error


def _read_delimited(path: Path, file_format: FileFormat) -> RawTable:
    records = _records(path, file_format)
    columns = file_format.columns
    if file_format.header:
        columns = tuple(field.strip() for field in next(records, (0, []))[1])
    if columns is None:
        raise TaskError(f"{path} has no header (`header: false`), so `columns` must name its columns in order.")
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise TaskError(f"{path} names column {repeated[0]!r} twice: every column needs its own name.")
    rows = []
    for line, fields in records:
        problem = ""
        if len(fields) != len(columns):
            problem = f"wrong number of columns: {len(fields)} instead of {len(columns)} in {shorten(fields)}"
        rows.append(RawRow(line, {} if problem else dict(zip(columns, fields, strict=True)), problem))
    return RawTable(str(path), "line", columns, rows, is_delimited=True)


# JSON is read by the json module, not by the JSON builder of `datasets` (5.2): that one turns a column of dates into
# timestamps ("2012-01-01T10:00:00Z" comes back as "2012-01-01 10:00:00", even when a string column is asked for), the
# number 1e5 into the text "100000", and a missing key into a null without a line.
def _read_json(path: Path) -> RawTable:
    text = read_text(path)
    is_list = text.lstrip().startswith("[")
    try:
        parsed = list(enumerate(json.loads(text), start=1)) if is_list else list(_json_lines(path, text))
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}, line {error.lineno}: this is not JSON ({error.msg}).") from error
    rows = []
    columns: dict[str, None] = {}
    for number, value in parsed:
        if isinstance(value, dict):
            columns.update(dict.fromkeys(value))
            rows.append(RawRow(number, value))
        else:
            rows.append(RawRow(number, {}, f"not a JSON object: {shorten(value)}"))
    return RawTable(str(path), "row" if is_list else "line", tuple(columns), rows)


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(split_lines(text), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise TaskError(f"{path}, line {number}: {shorten(line.strip())} is not JSON ({error.msg}).") from error


def shorten(value: object) -> str:
    """Write a value as Python would, cut to the 80 characters that fit in a sentence."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
