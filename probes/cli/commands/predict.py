"""`icecore predict`: files through a finished run, to CSV or JSON Lines, or line by line for a service."""

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from extract.errors import IcecoreError, InputError, UsageError, first_line, printable, unknown_name
from extract.files import write_file
from probes.cli.commands.score import read_lines, read_rows
from probes.cli.screen import watcher_of
from probes.readers.raw_rows import DELIMITERS, JSON_SUFFIXES, PARQUET_SUFFIXES, read_raw
from probes.readers.text_files import inner_suffix
from probes.report.safe_csv import write_csv
from probes.runs.loaded import LoadedRun, load_run
from probes.runs.scorer import Scorer

TABLES = (*DELIMITERS, *JSON_SUFFIXES, *PARQUET_SUFFIXES)
OBJECT = 'give an object, as {"text": ...}'
GUESSES = {1: (("text",), ("sentence",), ("words",), ("tokens",)), 2: (("text1", "text2"), ("sentence1", "sentence2"))}
"""Columns that are read when none are named, by the texts of a row."""
MOST_BYTES = 65_536
"""Longest line that a service reads; a longer one is answered with an error, as its tokens could block the others."""


def predict_command(found: SimpleNamespace) -> int:
    """Predict the rows of a file with a finished run: its columns, and beside them what was predicted."""
    form = found.format or _format_of(found.out)
    if found.safe_for_spreadsheets and form != "csv":
        raise UsageError(f"--safe-for-spreadsheets does nothing for the format {form!r}; leave it out.")
    loaded = load_run(found.run, decoder=found.decoder or None, trust_remote_code=found.trust_remote_code)
    columns = tuple(filter(None, (name.strip() for name in found.columns.split(","))))
    if found.serve:
        loaded.scorer(found.head)
        _say(loaded, found, "ready: a JSON object per line")
        return _serve(loaded, found.head, columns, with_shares=found.probabilities)
    given, rows = _read(found.file, loaded, found.head, columns)
    _say(loaded, found, f"{len(rows):,} rows")
    predicted = _predict(loaded, found.head, given, rows, with_shares=found.probabilities)
    text = _write(predicted, form, is_safe=found.safe_for_spreadsheets)
    if found.out:
        write_file(Path(found.out), text)
    else:
        sys.stdout.write(printable(text))
    return 0


def _format_of(out: str) -> str:
    """Choose the format by the name of the file; `UsageError` for the suffix of another format."""
    suffix = Path(out).suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    if suffix != ".csv" and suffix in (*TABLES, ".gz", ".xlsx", ".arrow", ".feather"):
        raise UsageError(f"--out is {out!r}; allowed: a name that ends in .csv, .jsonl or .ndjson, or add --format.")
    return "csv"


def _say(loaded: LoadedRun, found: SimpleNamespace, what: str) -> None:
    scorer = loaded.scorer(found.head)
    watcher_of(found).say(f"head {scorer.name}, mean of {len(scorer.seeds)} seeds; {what}")


def _read(
    name: str, loaded: LoadedRun, head: str, columns: tuple[str, ...]
) -> tuple[list[Mapping[str, Any]], list[Any]]:
    """Read the rows of a file: all columns of a table, or none, and what is predicted."""
    if inner_suffix(Path(name)) not in TABLES:
        if columns:
            raise InputError(f"--columns names columns of a table, but {name!r} is none; allowed: {', '.join(TABLES)}.")
        rows = read_rows(read_lines(name), name, loaded.scorer(head))
        return [{} for _ in rows], rows
    table = read_raw(Path(name))
    names = _find_columns(table.columns, columns, loaded.scorer(head).n_texts, where=name)
    for row in table.rows:
        if row.problem:
            raise InputError(f"{table.place(row)}: {row.problem}.")
    reads_words = loaded.scorer(head).reads_words
    rows = [_row(row.values, names, table.place(row), reads_words=reads_words) for row in table.rows]
    return [row.values for row in table.rows], rows


def _find_columns(found: Sequence[str], named: tuple[str, ...], n_texts: int, *, where: str) -> tuple[str, ...]:
    for name in named:
        if name not in found:
            raise unknown_name("column", name, found, hint=f"They are those of {where}.")
    if named and len(named) != n_texts:
        raise InputError(f"--columns names {len(named)} columns; this run takes {n_texts} texts per row.")
    guess = next((each for each in GUESSES[n_texts] if set(each) <= set(found)), ())
    if not (named or guess):
        tried = " or ".join(", ".join(each) for each in GUESSES[n_texts])
        own = ", ".join(found)
        raise InputError(f"{where} has no columns {tried}; name {n_texts} of its own with --columns: {own}.")
    return named or guess


def _row(values: Mapping[str, Any], names: Sequence[str], place: str, *, reads_words: bool) -> Any:
    """Take the texts out of a row; a list of words stays one."""
    for name in names:
        text = values.get(name)
        is_words = reads_words and isinstance(text, list) and text and all(isinstance(word, str) for word in text)
        if not is_words and not (isinstance(text, str) and text.strip()):
            raise InputError(f"{place}, column {name!r}: {text!r} is no text; allowed: a text that is not empty.")
    return values[names[0]] if len(names) == 1 else tuple(values[name] for name in names)


def _predict(
    loaded: LoadedRun, head: str, given: Sequence[Mapping[str, Any]], rows: Sequence[Any], *, with_shares: bool
) -> Iterator[dict[str, Any]]:
    """Put what was predicted beside the user's own columns, which stay as they are; ours get names that are free."""
    scorer = loaded.scorer(head)
    shares = loaded.predict_proba(rows, head=head).to_dict("records") if with_shares else [{}] * len(rows)
    taken = {name for values in given for name in values}
    for values, row, prediction, share in zip(given, rows, loaded.predict(rows, head=head), shares, strict=True):
        found = _fields(scorer, row, prediction, beside=values)
        found |= {f"p_{name}": value for name, value in share.items()}
        yield {**values, **{_free_name(name, taken): value for name, value in found.items()}}


def _free_name(name: str, taken: Collection[str]) -> str:
    """Name a column of ours: `score`, or where the table has one `predicted_score`, `predicted_score_2` and so on."""
    tries = chain([name, f"predicted_{name}"], (f"predicted_{name}_{number}" for number in count(2)))
    return next(each for each in tries if each not in taken)


def _fields(scorer: Scorer, row: Any, prediction: Any, *, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Name what was predicted; the texts of a row are left out beside its own columns."""
    fields = scorer.fields(row, prediction)
    return {name: value for name, value in fields.items() if not (beside and name.startswith(("text", "word")))}


def _write(rows: Iterable[Mapping[str, Any]], form: str, *, is_safe: bool) -> str:
    """Write rows as CSV, lists joined by spaces, or as JSON Lines."""
    if form == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    found = list(rows)
    columns = dict.fromkeys(name for row in found for name in row)  # objects of JSON may each have their own
    cells = ([_cell(row.get(name, "")) for name in columns] for row in found)
    return write_csv([columns, *cells], newline="\n", is_safe=is_safe)


def _cell(value: Any) -> Any:
    return " ".join("-" if each is None else str(each) for each in value) if isinstance(value, list) else value


def _serve(loaded: LoadedRun, head: str, columns: tuple[str, ...], *, with_shares: bool) -> int:
    """Answer every line of standard input with one line; a line that cannot be read is answered with its error."""
    for number, line in enumerate(_read_bounded(sys.stdin.buffer), start=1):
        place = f"line {number}"
        try:
            values, row = _read_request(line, place, loaded.scorer(head), columns)
            [answer] = _predict(loaded, head, [values], [row], with_shares=with_shares)
            text = json.dumps(answer, ensure_ascii=True)
        except IcecoreError as error:
            text = json.dumps({"error": f"{place}: " * (not str(error).startswith(place)) + str(error)})
        except Exception as error:  # whatever a stranger's line does, the next one is answered
            text = json.dumps({"error": f"{place} cannot be predicted ({first_line(error)})."})
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    return 0


def _read_bounded(lines: BinaryIO) -> Iterator[bytes]:
    """Read lines, of those that are too long only the beginning, one byte longer than the longest."""
    while line := lines.readline(MOST_BYTES + 1):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = lines.readline(MOST_BYTES)
        yield line


def _read_request(line: bytes, place: str, scorer: Scorer, columns: tuple[str, ...]) -> tuple[dict[str, Any], Any]:
    """Read a line of a service: all that the object holds, and the row to predict."""
    if len(line) > MOST_BYTES:
        raise InputError(f"{place} is longer than {MOST_BYTES:,} bytes; shorten its texts, or predict a file instead.")
    if not line.strip():
        raise InputError(f"{place} is blank; {OBJECT}.")
    try:
        text = line.decode("utf-8-sig")
        values = json.loads(text)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place} is not UTF-8 (byte 0x{line[error.start]:02x} at {error.start}); {OBJECT}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is no JSON ({first_line(error)}); {OBJECT}.") from error
    if not isinstance(values, dict):
        raise InputError(f"{place} is {text.strip()[:40]!r}; {OBJECT}.")
    names = _find_columns(list(values), columns, scorer.n_texts, where=place)
    return values, _row(values, names, place, reads_words=scorer.reads_words)
