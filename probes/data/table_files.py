"""Rows of local files with their line numbers, and checks that name file, line and column of a value."""

import codecs
import csv
import io
import json
import logging
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from extract.errors import TaskError, UnknownNameError, first_line, looked_in, require_name, unknown_name
from extract.files import PACKED_TIMES, csv_records, unpack
from probes.data.splits import SPLITS, canonical_split, files_by_split

PACKED = ".gz"


def require_file(path: Path, noun: str) -> None:
    """Refuse a path that is no file."""
    if not path.is_file():
        problem = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise TaskError(f"{path} {problem}: give the path of {noun}{looked_in(path)}.")


def read_bytes(path: Path) -> bytes:
    """Read a file, unpacked if its name ends in .gz; rejects one that is missing, unreadable or no gzip file."""
    require_file(path, "a file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path} cannot be read ({error}).") from error
    if path.suffix.lower() != PACKED:
        return data
    try:
        return unpack(data)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        cause = str(error).rstrip(".")
        raise TaskError(
            f"{path} cannot be unpacked as gzip ({cause}): download it again, or unpack it yourself."
        ) from error


def inner_suffix(path: Path) -> str:
    """Return the lower-case suffix that names the format of a file: the one before .gz where that is the last."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix == PACKED else suffix


def read_text(path: Path, *, encoding: str = "utf-8", fallback: str | None = None, escapes_bytes: bool = False) -> str:
    """Read a text file, with or without a byte order mark, its line ends unchanged; .gz is unpacked.

    A file in another encoding is read by the `fallback`; without one it is rejected, with the line and the byte. With
    `escapes_bytes`, single bytes of another encoding become halves of characters, which `escaped_byte` finds.
    """
    data = read_bytes(path)
    if not data.strip():
        raise TaskError(f"{path} is empty: it has no rows to read.")
    try:
        errors = "surrogateescape" if escapes_bytes else "strict"
        is_utf8 = codecs.lookup(encoding).name == "utf-8"
        text = data.decode("utf-8-sig" if is_utf8 else encoding, errors)
        lines = text.split("\n") if escapes_bytes else []
        n_lines, n_bad = len(lines), sum(bool(_ESCAPED.search(line)) for line in lines)
        return text if n_bad <= max(1, MOST_ESCAPED * n_lines) else data.decode("utf-8-sig")
    except LookupError as error:
        raise unknown_name("encoding", encoding, ("utf-8", "utf-16", "cp1252", "latin-1")) from error
    except UnicodeDecodeError as error:
        if fallback is not None:
            return data.decode(fallback, errors="replace")
        line = data[: error.start].count(b"\n") + 1
        name, advice = ("UTF-8", "save the file as UTF-8") if encoding == "utf-8" else (encoding, "set `encoding`")
        raise TaskError(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is not {name}: {advice}."
        ) from error


MOST_ESCAPED = 0.1
"""Share of the lines of a file with bytes that are not of its encoding; with more it is in another one."""
MOST_PARQUET_ROWS = 1_000_000
"""Rows of a Parquet file of any size: of one that says more, a row takes a hundredth of a byte at least."""
MOST_BROKEN = 100
"""Rows with an open quote that are passed over in a file."""
_ESCAPED = re.compile("[\udc80-\udcff]")


def escaped_byte(text: str) -> str:
    r"""Name the first byte that `read_text` escaped in a text; empty where there is none.

    Example:
        >>> escaped_byte(b"caf\xe9".decode("utf-8", "surrogateescape")), escaped_byte("café")
        ('0xe9', '')
    """
    match = _ESCAPED.search(text)
    return f"0x{ord(match[0]) - 0xDC00:02x}" if match else ""


def split_lines(text: str) -> list[str]:
    r"""Split a text at \n, \r\n and \r, but not at U+2028 or a form feed; the lines keep their ends."""
    return list(io.StringIO(text, newline=""))


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text that are not blank, without their ends, with their numbers."""
    for number, line in enumerate(split_lines(text), start=1):
        if line.strip():
            yield number, line.rstrip("\r\n")


def read_lines(path: Path, *, fallback: str | None = None) -> list[str]:
    """Read the lines of a text file as `read_text` and `split_lines` do, without their ends."""
    return [line.rstrip("\r\n") for line in split_lines(read_text(path, fallback=fallback))]


@contextmanager
def quiet_datasets() -> Iterator[None]:
    """Silence the progress bars and the log of `datasets` inside the block."""
    import datasets

    # with the environment variable set, the user has chosen, and toggling would warn
    may_toggle = datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is None
    had_bars = not datasets.are_progress_bars_disabled()
    verbosity = datasets.logging.get_verbosity()
    if may_toggle:
        datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if may_toggle and had_bars:
            datasets.enable_progress_bars()


def read_parquet_rows(path: Path) -> tuple[tuple[str, ...], list[Mapping[str, Any]]]:
    """Read the columns and rows of a Parquet file, with the types that the file declares."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows > max(MOST_PARQUET_ROWS, PACKED_TIMES * path.stat().st_size):
                raise ValueError(f"{file.metadata.num_rows:,} rows are more than a file of its size holds")
            return tuple(file.schema_arrow.names), file.read().to_pylist()
    except (OSError, ValueError, OverflowError, NotImplementedError) as error:  # one that Arrow raises is one of them
        raise TaskError(f"{path} cannot be read as Parquet ({first_line(error)}): write it again.") from error


DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
PARQUET_SUFFIXES = (".parquet",)
WORD_SUFFIXES = (".conll", ".bio", ".iob", ".iob2", ".conllu")
"""Files of a word and its tags a line."""


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

    def location(self, row: RawRow) -> str:
        """Name the file and line (or row) of a row."""
        return f"{self.where}, {self.unit} {row.number}"


DECIMALS = (".", ",")
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+(,\d+)?\s*")


@dataclass(frozen=True)
class FileOptions:
    """How a user's files are read and split: options of every task that reads rows by column names."""

    split_column: str | None = None
    """Column of the split, where one file holds all splits; None takes `split` if the file has it, '' none."""
    header: bool = True
    """The first row of delimited text names the columns."""
    columns: Sequence[str] | None = None
    """Column names, in order, of delimited text without a header."""
    delimiter: str | None = None
    """One character; None goes by the suffix."""
    quoting: bool = True
    """False takes quotes for plain characters, as most TSV benchmark files need."""
    encoding: str = "utf-8"
    """Encoding of delimited text, as Python names it: utf-8, utf-16, cp1252 (Western European Windows) and others."""
    decimal: str = "."
    """`,` reads the numbers of delimited text with a decimal comma."""
    bad_rows: str = "error"
    """`error` stops at a row that cannot be used, `drop` leaves it out and counts it in the notes."""
    validation_fraction: float = 0.1
    """Part of the rows that becomes validation where only that split is missing."""
    seed: int = 0
    """Seed of the draw of splits that the files lack."""

    def __post_init__(self) -> None:
        if self.header and self.columns is not None:
            raise TaskError(
                f"`columns` {list(self.columns)} names the columns of a file without a header, but `header` is true: "
                "set `header: false`, or leave `columns` out."
            )
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise TaskError(f"`delimiter` is {self.delimiter!r}, but one character is needed, such as ',' or a tab.")
        require_name("decimal", self.decimal, DECIMALS)


DEFAULT_FILES = FileOptions()


def read_raw(path: Path, options: FileOptions = DEFAULT_FILES, *, goes_on: bool = False) -> RawTable:
    """Read a CSV, TSV, JSON, JSON Lines or Parquet file, chosen by its suffix; JSON may be packed (.gz).

    Where it `goes_on`, a row with an open quote or with a byte of another encoding has a problem, and does not stop
    the file.
    """
    require_file(path, "a CSV, TSV, JSON Lines or Parquet file")
    suffix = path.suffix.lower()
    if path.stat().st_size == 0:
        raise TaskError(f"{path} is empty: it has no rows to read.")
    if suffix in PARQUET_SUFFIXES:
        columns, values = read_parquet_rows(path)
        rows = [RawRow(number, row) for number, row in enumerate(values, start=1)]
        table = RawTable(str(path), "row", columns, rows)
    elif inner_suffix(path) in JSON_SUFFIXES:
        table = _read_json(path, goes_on=goes_on)
    elif suffix in DELIMITERS or options.delimiter is not None:
        table = _read_delimited(path, options, goes_on=goes_on)
    else:
        suffixes = [*DELIMITERS, *JSON_SUFFIXES, *PARQUET_SUFFIXES]
        hint = f"{path} can be read as delimited text if `delimiter` is given."
        raise unknown_name("file suffix", suffix, suffixes, hint=hint)
    repeated = sorted({column for column in table.columns if table.columns.count(column) > 1})
    if repeated:
        raise TaskError(f"{path} names column {repeated[0]!r} twice: every column needs its own name.")
    if not table.rows:
        raise TaskError(f"{path} has no rows (only a header, blank lines or an empty list).")
    return table


# Delimited text is read by the csv module, not by the CSV builder of `datasets`: that one goes through pandas, where
# "None", "NA" and "nan" become missing, "007" becomes 7, a ragged row is padded in silence, and lines are not counted.
def split_records(path: Path, options: FileOptions, *, goes_on: bool = False) -> Iterator[tuple[int, list[str], str]]:
    """Yield the line that each record starts on, its fields and its problem, without blank lines.

    Where it `goes_on`, a record with an open quote ends with its line; otherwise that is an error.
    """
    lines = split_lines(read_text(path, encoding=options.encoding, escapes_bytes=goes_on))
    delimiter = options.delimiter or DELIMITERS[path.suffix.lower()]
    start, n_broken, problem = 1, 0, ""
    while start <= len(lines):
        first = start
        reader = csv_records(lines[first - 1 :], delimiter, has_quotes=options.quoting, is_strict=True)
        try:
            for fields in reader:
                if fields:
                    byte = next(filter(None, map(escaped_byte, fields)), "") if goes_on else ""
                    problem = f"byte {byte} is not {options.encoding.upper()}" if byte else ""
                    whole = [_ESCAPED.sub("\N{REPLACEMENT CHARACTER}", field) for field in fields] if byte else fields
                    yield start, whole, problem
                start = first + reader.line_num
            return
        except csv.Error as error:
            n_broken += 1
            if not goes_on or start == 1 or n_broken > MOST_BROKEN:
                raise TaskError(
                    f"{path}, line {start}: the row that starts here cannot be split at {delimiter!r} ({error}): close "
                    "the quote, or set `quoting: false` if quotes are plain characters in this file."
                ) from error
            yield start, [], f"the row cannot be split at {delimiter!r} ({error}): close its quote"
            start += 1


def _read_delimited(path: Path, options: FileOptions, *, goes_on: bool) -> RawTable:
    records = split_records(path, options, goes_on=goes_on)
    if options.header:
        columns = tuple(field.strip() for field in next(records, (0, [], ""))[1])
    elif options.columns is not None:
        columns = tuple(options.columns)
    else:
        raise TaskError(f"{path} has no header (`header: false`), so `columns` must name its columns in order.")
    rows = []
    for line, fields, problem in records:
        is_split = len(fields) == len(columns)
        wrong = (
            "" if is_split else f"wrong number of columns: {len(fields)} instead of {len(columns)} in {shorten(fields)}"
        )
        rows.append(RawRow(line, dict(zip(columns, fields, strict=True)) if is_split else {}, problem or wrong))
    return RawTable(str(path), "line", columns, rows, is_delimited=True)


# JSON is read by the json module, not by the JSON builder of `datasets` (5.2): that one turns a column of dates into
# timestamps ("2012-01-01T10:00:00Z" comes back as "2012-01-01 10:00:00", even when a string column is asked for), the
# number 1e5 into the text "100000", and a missing key into a null without a line.
def _read_json(path: Path, *, goes_on: bool) -> RawTable:
    text = read_text(path, escapes_bytes=goes_on)
    is_list = text.lstrip().startswith("[")
    values = enumerate(parse_json(path, text), start=1) if is_list else _json_lines(text)
    rows = []
    columns: dict[str, None] = {}
    for number, value in values:
        if isinstance(value, dict):
            columns.update(dict.fromkeys(value))
            rows.append(RawRow(number, value))
        elif isinstance(value, _NoJson):
            rows.append(RawRow(number, {}, value.problem))
        else:
            rows.append(RawRow(number, {}, f"not a JSON object: {shorten(value)}"))
    if rows and not columns and rows[0].problem:
        raise TaskError(f"{path}, {'row' if is_list else 'line'} {rows[0].number}: {rows[0].problem}.")
    return RawTable(str(path), "row" if is_list else "line", tuple(columns), rows)


def parse_json(path: Path, text: str) -> Any:
    """Read the text of a JSON file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}, line {error.lineno}: this is not JSON ({error.msg}).") from error
    except (ValueError, RecursionError) as error:  # a number, or a depth, beyond any
        raise TaskError(f"{path} is not JSON that can be read ({first_line(error)}).") from error


@dataclass(frozen=True)
class _NoJson:
    problem: str


def _json_lines(text: str) -> Iterator[tuple[int, object]]:
    for number, line in numbered_lines(text):
        if byte := escaped_byte(line):
            yield number, _NoJson(f"byte {byte} is not UTF-8")
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else first_line(error)
            yield number, _NoJson(f"{shorten(line.strip())} is not JSON ({reason})")


def shorten(value: object) -> str:
    """Write a value as Python would, cut to the 80 characters that fit in a sentence."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


BAD_ROWS = ("error", "drop")
ANY_NUMBER = (-math.inf, math.inf)
Label = str | int | bool
Checked = TypeVar("Checked")
MaybeSplit = TypeVar("MaybeSplit", bound=str | None)


class BadRow(Exception):  # noqa: N818  (never shown to a user as it is: `check_table` catches it)
    """A row that cannot be used: a short reason, equal for rows with the same fault, and the detail."""

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
    """Check every row of a table by a function that raises `BadRow`; return the good rows and a note on the others.

    None of `columns` is skipped; None as `bad_rows` stops at a bad row too, for tasks without the choice.
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
                reason = "no JSON" if "is not JSON (" in row.problem else row.problem.partition(":")[0]
                raise BadRow(reason, row.problem)
            good.append(check(row))
        except BadRow as bad:
            problems.append((row, bad))
    if not problems:
        return good, ()
    first, problem = problems[0]
    if bad_rows != "drop":
        more = f" ({len(problems)} such rows in this file)" if len(problems) > 1 else ""
        hint = "" if bad_rows is None else " Fix the file, or set `bad_rows: drop` to leave such rows out."
        raise TaskError(f"{table.location(first)}: {problem}{more}.{hint}")
    reasons = Counter(bad.reason for _, bad in problems)
    listed = ", ".join(f"{reason}: {count}" for reason, count in reasons.items())
    where = f"first at {table.unit} {first.number}"
    return good, (f"{table.where}: {len(problems)} of {len(table.rows)} rows dropped ({listed}; {where})",)


def unknown_column(column: str, table: RawTable, *, hint: str = "") -> UnknownNameError:
    """Build the error for a column that a table lacks, with the columns that it has, and what else to do."""
    columns = [name if len(name) <= 60 else f"{name[:57]}..." for name in table.columns]
    which = f"These are the columns of {table.where}"
    if table.is_delimited and not hint:
        which += "; if its first row is not a header, set `header: false` and give `columns`"
    return unknown_name("column", column, columns, hint=f"{which}. {hint}".rstrip())


def bad_value(reason: str, column: str, value: object, need: str) -> BadRow:
    """Build the error for a value; `need` is the end of its sentence."""
    return BadRow(reason, f"column {column!r} holds {shorten(value)}, {need}")


def missing_value(noun: str, column: str, value: object, need: str) -> BadRow:
    """Build the error for a cell without a value; `need` is the end of its sentence."""
    return BadRow(f"missing {noun}", f"column {column!r} is missing or empty ({shorten(value)}), {need}")


def check_split(column: str, value: object) -> str:
    """Return train, validation or test for the name of a split, or an alias such as `dev`."""
    split = canonical_split(value)
    if split is None:
        need = f"but one of {', '.join(SPLITS)} is needed, or `split_column: ''` if it names no splits"
        raise bad_value("unknown split", column, value, need)
    return split


def check_text(column: str, value: object, *, blank: str | None = None) -> str:
    """Return a text unchanged that is a string, valid Unicode and not blank; `blank` is as for `str.strip`."""
    if value is None:
        raise BadRow("missing text", f"column {column!r} is missing, but a text is needed")
    if not isinstance(value, str):
        detail = f"column {column!r} holds {shorten(value)} ({type(value).__name__}), not a string"
        raise BadRow("text is not a string", detail)
    if not value.strip(blank):
        raise bad_value("empty text", column, value, "but a text that is not blank is needed")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise bad_value("text is not Unicode", column, value, "which is half a character") from error
    return value


def check_gold(column: str, value: object, limits: tuple[float, float] = ANY_NUMBER) -> float:
    """Return a finite score within the limits, given as a number or a text."""
    low, high = limits
    need = "but a number is needed" if limits == ANY_NUMBER else f"but a number from {low:g} to {high:g} is needed"
    if value is None or (isinstance(value, str) and not value.strip()):
        raise missing_value("gold", column, value, need)
    gold = _as_number(value)
    if gold is None:
        header = "; is this a header row (`header: true`)?" if value == column else ""
        raise bad_value("gold is not a number", column, value, f"{need}{header}")
    if not math.isfinite(gold):
        raise bad_value("gold is not finite", column, value, need)
    if not low <= gold <= high:
        raise bad_value("gold out of range", column, value, f"{need} (or another `score_range`)")
    return gold


MISSING_LABELS = ("", "n/a", "N/A", "nan", "NaN", "null")
"""Values that mean a missing label; `none` and `NA` may be classes."""


def check_label(column: str, value: object, missing: Sequence[str] = MISSING_LABELS) -> Label:
    """Return the label of a class: a text without white space around it, or a whole number; not one of `missing`."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        value = value.strip()
    is_named = not isinstance(value, bool) and str(value) in missing  # the names are texts, and a label may be -1
    if value is None or value == "" or is_named or (isinstance(value, float) and math.isnan(value)):
        raise missing_value("label", column, value, "but a class is needed")
    if isinstance(value, list | tuple):
        need = "but one class per row is needed: cut a multi-label task into one yes/no task per label"
        raise bad_value("label is a list", column, value, need)
    if not isinstance(value, str | int):
        detail = (
            f"column {column!r} holds {shorten(value)} ({type(value).__name__}), but a class is a text or whole number"
        )
        raise BadRow("label is not a class", detail)
    return value


def check_group(column: str, value: object) -> str:
    """Return the name of a group of rows as a text."""
    if value is None or not str(value).strip():
        raise missing_value("group", column, value, "but a group is needed")
    return str(value)


def tag_problem(column: str, tag: str) -> str:
    """Explain in one clause why a file of columns cannot hold a tag; empty for a tag that it can hold."""
    if tag and " " not in tag and tag.isprintable():
        return ""
    return (
        f"column {column!r} holds the tag {tag[:60]!r}, but a tag has no blank and no invisible character: fix it, or "
        "it would count as a tag of its own"
    )


def is_number(value: object) -> bool:
    """Return whether a value is a number; true and false are not."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def read_number(text: str) -> float:
    """Read a number; NaN for a text that is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _as_number(value: object) -> float | None:
    is_text = isinstance(value, str) and "_" not in value  # float() reads "1_0" as 10
    if not isinstance(value, str | int | float | Decimal) or not (is_text or is_number(value)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None


Files = Mapping[str, str | Path] | str | Path
"""Split to its file, or one file."""
Fields = Mapping[str, tuple[str | None, Callable[[str, object], object]]]
"""Column of a task to its column in the file (None leaves it out) and the check of its values."""


Columns = Mapping[str, Sequence[Any]]
"""Columns of the rows of one split."""


@dataclass(frozen=True)
class CheckedRow:
    """One row that can be used."""

    values: Mapping[str, Any]
    """By the columns of the task."""
    split: str | None = None
    """train, validation or test; None before splits are drawn."""
    location: str = ""
    """File and line, for messages."""


class FileRows(NamedTuple):
    """The checked rows of a task's files."""

    rows: list[CheckedRow]
    source: str
    """One line: the files, or the repository."""
    notes: tuple[str, ...] = ()
    """Rows dropped, file by file."""


def read_rows(files: Files, fields: Fields, options: FileOptions) -> FileRows:
    """Read and check the rows of one file a split, or of one file, perhaps with a column of splits."""
    paths: dict[str | None, Path] = {}
    if isinstance(files, Mapping):
        paths.update(files_by_split(files))
    else:
        paths[None] = Path(files).expanduser()
    tables = {split: read_raw(path, options) for split, path in paths.items()}
    split_column = options.split_column
    if split_column is None and None in tables and "split" in tables[None].columns:
        split_column = "split"
    if options.decimal == ",":
        fields = {name: (column, partial(_check_with_comma, check)) for name, (column, check) in fields.items()}
    source = ", ".join(map(str, paths.values()))
    return check_rows(tables, fields, source=source, split_column=split_column or None, bad_rows=options.bad_rows)


def _check_with_comma(check: Callable[[str, object], object], column: str, value: object) -> object:
    """Check a value; a number with a decimal comma gets a point, unless a text or a name is needed."""
    is_name = getattr(check, "func", check) in (check_text, check_label, check_group)
    if not is_name and isinstance(value, str) and DECIMAL_COMMA.fullmatch(value):
        value = value.replace(",", ".")
    return check(column, value)


def check_rows(
    tables: Mapping[MaybeSplit, RawTable],
    fields: Fields,
    *,
    source: str,
    split_column: str | None = None,
    bad_rows: str,
) -> FileRows:
    """Check the rows of several tables, each of one split; that of None has none, or those of the split column.

    At least one row of each table must be good.
    """
    used = {name: (column, check) for name, (column, check) in fields.items() if column is not None}
    columns = [column for column, _ in used.values()]

    def check_row(row: RawRow, table: RawTable, split: str | None) -> CheckedRow:
        if split is None and split_column is not None:
            split = check_split(split_column, row.values.get(split_column))
        values = {name: check(column, row.values.get(column)) for name, (column, check) in used.items()}
        return CheckedRow(values, split, table.location(row))

    rows: list[CheckedRow] = []
    notes: list[str] = []
    for split, table in tables.items():
        needed = (*columns, split_column if split is None else None)
        good, dropped = check_table(table, needed, partial(check_row, table=table, split=split), bad_rows=bad_rows)
        if not good:
            raise TaskError(f"{dropped[0]}, so no row is left: fix the file.")
        rows += good
        notes += dropped
    return FileRows(rows, source, tuple(notes))


def gather_columns(rows: Sequence[CheckedRow], parts: Mapping[str, NDArray[np.int64]]) -> dict[str, Columns]:
    """Gather the rows of each split, at least one, column by column; `parts` are their positions."""
    return {
        split: {name: [rows[index].values[name] for index in indices] for name in rows[indices[0]].values}
        for split, indices in parts.items()
    }


BLANK = " \t\r\n"
"""Characters of an empty line or word; unlike for `str.strip()`, a no-break space belongs to a word."""
DOCUMENT_START = "-DOCSTART-"


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence; all its lists are equally long."""

    words: list[str]
    tags: list[str]
    document: str
    """Name of the document within its file; empty where the file marks none."""
    space_after: list[bool]
    """Whether a space follows the word in the text; true where the file does not say."""
    numbers: list[int]
    """Line (or row) of each word, from 1."""


@dataclass(frozen=True)
class SentenceTable:
    """The sentences of one file, or of one split of a repository."""

    where: str
    """The file as the user named it."""
    unit: Literal["line", "row"]
    sentences: list[Sentence]
    notes: tuple[str, ...] = ()
    """What was skipped, and how often."""

    def location(self, sentence: int, word: int) -> str:
        """Name the file and line (or row) of a word."""
        return f"{self.where}, {self.unit} {self.sentences[sentence].numbers[word]}"


def count_note(where: str, n: int, singular: str, plural: str) -> tuple[str, ...]:
    """Write a count as a note about a file; none for a count of zero."""
    return (f"{where}: {n} {singular if n == 1 else plural}",) if n else ()


@dataclass(frozen=True)
class TokenColumns:
    """Names of the columns that hold the parts of a sentence."""

    words: str = "tokens"
    tags: str = "tags"
    document: str | None = "document"
    """Used where the rows have it; None is no column."""
    needs_document: bool = False
    """True rejects rows without that column."""


def check_token_rows(table: RawTable, columns: TokenColumns) -> SentenceTable:
    """Turn rows that hold a list of words and one of tags into sentences.

    Whole-number tags get the names that the table declares. Rows without words are skipped and counted, and a row of
    -DOCSTART- alone begins a document. A word or tag that a file of columns cannot hold is refused.
    """
    needed = (columns.words, columns.tags, columns.document if columns.needs_document else None)
    checked, _ = check_table(table, needed, partial(_check_token_row, table, columns), bad_rows=None)
    sentences: list[Sentence] = []
    n_documents = n_empty = 0
    for sentence in checked:
        if sentence.words == [DOCUMENT_START]:
            n_documents += 1
        elif not sentence.words:
            n_empty += 1
        else:
            document = sentence.document or (str(n_documents) if n_documents else "")
            sentences.append(replace(sentence, document=document))
    if not sentences:
        raise TaskError(f"{table.where} has no row with words in column {columns.words!r}.")
    notes = count_note(table.where, n_empty, "row without words skipped", "rows without words skipped")
    return SentenceTable(table.where, table.unit, sentences, notes)


def _check_token_row(table: RawTable, columns: TokenColumns, row: RawRow) -> Sentence:
    words = _check_list(columns.words, row.values.get(columns.words))
    tags = _check_list(columns.tags, row.values.get(columns.tags))
    if len(words) != len(tags):
        raise BadRow("lengths differ", f"{len(words)} words but {len(tags)} tags: every word needs one tag")
    for word in words:
        _check_word(columns.words, word, is_alone=len(words) == 1)
    names = table.value_names.get(columns.tags, ())
    tag_names = [_name_tag(columns.tags, tag, names) for tag in tags]
    document = None if columns.document is None else row.values.get(columns.document)
    name = "" if document is None else str(document)
    return Sentence(words, tag_names, name, [True] * len(words), [row.number] * len(words))


def _check_list(column: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise bad_value("no list", column, value, "but a list is needed")
    return value


def _check_word(column: str, value: object, *, is_alone: bool) -> None:
    """Reject a word that a file of columns cannot hold, because the predictions of a run are written as one."""
    word = check_text(column, value, blank=BLANK)
    if any(blank in word for blank in "\t\r\n"):
        raise BadRow(
            "word with a tab",
            f"column {column!r} holds the word {shorten(word)}, but a word has no tab and no line end: split it into "
            "words with a tag each",
        )
    starts = DOCUMENT_START in word and any(part.startswith(DOCUMENT_START) for part in word.split(" "))
    if starts and not (is_alone and word == DOCUMENT_START):
        raise BadRow(
            "document mark in a sentence",
            f"column {column!r} holds the word {shorten(word)} within a sentence, but {DOCUMENT_START} begins a "
            "document, in a row of its own: take it out of the sentence",
        )


def _name_tag(column: str, tag: object, names: Sequence[str]) -> str:
    name = names[tag] if isinstance(tag, int) and is_number(tag) and 0 <= tag < len(names) else tag
    if not isinstance(name, str) or not name.strip():
        allowed = f"a whole number from 0 to {len(names) - 1}" if names else "a text"
        raise BadRow("no tag", f"column {column!r} holds the tag {tag!r}, but {allowed} is needed")
    if problem := tag_problem(column, name):
        raise BadRow("stray tag", problem)
    return name
