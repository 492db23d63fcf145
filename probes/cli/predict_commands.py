"""Commands that predict new rows with a finished run: score, predict."""

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import BinaryIO

from extract.errors import IcecoreError, InputError, UsageError, first_line, printable, unknown_name
from extract.files import write_file
from extract.records import Values
from probes.cli.arguments import Watched
from probes.cli.commands import PredictArgs, ScoreArgs
from probes.cli.screen import read_lines, watcher_of
from probes.data.table_files import DELIMITERS, JSON_SUFFIXES, PARQUET_SUFFIXES, RawTable, inner_suffix, read_raw
from probes.heads.layer_head import require_probabilities
from probes.report.safe_csv import write_csv
from probes.runs.predict import CHUNK_ROWS, Row, Scorer, load_scorer

# --- Scores of new rows ---


COUNTS = {1: "one text", 2: "two texts"}


def score_command(args: ScoreArgs) -> int:
    """Score new rows with a finished run: a score per pair, a class or number per text, a tag per word."""
    lines = read_lines(args.file) if args.file else []  # before the decoder is loaded, which takes longer
    scorer = load_scorer(
        args.run, head=args.head or None, decoder=args.decoder or None, trust_remote_code=args.trust_remote_code
    )
    rows = read_rows(lines, args.file, scorer) if args.file else [_one_row(args.texts, scorer)]
    _say(scorer, args)
    for row, prediction in zip(rows, scorer.stream(rows, at_a_time=CHUNK_ROWS), strict=True):
        fields = scorer.fields(row, prediction)
        sys.stdout.write(_json(fields) if args.jsonl else printable(_lines(fields)))
    return 0


def _json(fields: Values) -> str:
    """Write a scored row as a line of JSON without control characters; JSON itself leaves some as they are."""
    text = json.dumps(fields, ensure_ascii=False)
    return "".join(f"\\u{ord(c):04x}" if "\x7f" <= c < "\xa0" else c for c in text) + "\n"


def _lines(fields: Values) -> str:
    """Write a scored row as one line, or where it holds lists as a line per word and a blank one."""
    is_list = any(isinstance(value, list) for value in fields.values())
    columns = [value if is_list else [value] for value in fields.values()]
    lines = ["\t".join(_cell(value) for value in cells) + "\n" for cells in zip(*columns, strict=True)]
    return "".join([*lines, "\n"] if is_list else lines)


def _cell(value: str | float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else value


def _count(n_texts: int) -> str:
    return COUNTS.get(n_texts, f"{n_texts} texts")


def _one_row(texts: Sequence[str], scorer: Scorer) -> Row:
    if len(texts) != scorer.n_texts:
        raise InputError(
            f"{len(texts)} texts were given; allowed: {_count(scorer.n_texts)} for a run on {scorer.kind}, or a file "
            "of rows with --file FILE."
        )
    return texts[0] if scorer.n_texts == 1 else tuple(texts)


def read_rows(lines: Sequence[str], name: str, scorer: Scorer) -> list[Row]:
    """Read rows out of the lines of a file, of which `.conll` holds a word each."""
    if name.endswith(".conll") and scorer.reads_words:
        return list(_sentences(lines))
    return [_read_row(line, number, name, scorer.n_texts) for number, line in enumerate(lines, start=1) if line]


def _read_row(line: str, number: int, name: str, n_texts: int) -> Row:
    cells = line.split("\t") if n_texts > 1 else [line]
    if len(cells) != n_texts or not all(cell.strip() for cell in cells):
        tab = " with one tab between them" if n_texts > 1 else ""
        raise InputError(f"line {number} of {name!r} is {cells!r}; allowed: {_count(n_texts)}{tab}.")
    return cells[0] if n_texts == 1 else tuple(cells)


def _sentences(lines: Sequence[str]) -> Iterator[list[str]]:
    """Read the first column of lines of words; a blank line ends a sentence, -DOCSTART- is no word."""
    words: list[str] = []
    for line in [*lines, ""]:
        cells = line.split("\t" if "\t" in line else None) if line.strip() else []
        if cells and cells[0].strip() != "-DOCSTART-":
            words.append(cells[0].strip())
        elif words and not cells:
            yield words
            words = []


# --- Predictions ---


TABLES = (*DELIMITERS, *JSON_SUFFIXES, *PARQUET_SUFFIXES)
OBJECT = 'give an object, as {"text": ...}'
GUESSES = ("text", "sentence", "words", "tokens")
"""Columns that are read when none are named; of several texts those that are numbered, as text1 and text2."""
MOST_BYTES = 65_536
"""Longest line that a service reads; a longer one is answered with an error, as its tokens could block the others."""


def predict_command(args: PredictArgs) -> int:
    """Predict the rows of a file with a finished run: its columns, and beside them what was predicted."""
    form = args.format or _format_of(args.out)
    if args.safe_for_spreadsheets and form != "csv":
        raise UsageError(f"--safe-for-spreadsheets does nothing for the format {form!r}; leave it out.")
    columns = tuple(filter(None, (name.strip() for name in args.columns.split(","))))
    source = [] if args.serve else _open_rows(args.file, columns)  # before the decoder is loaded, which takes longer
    scorer = load_scorer(
        args.run, head=args.head or None, decoder=args.decoder or None, trust_remote_code=args.trust_remote_code
    )
    if args.probabilities:
        require_probabilities(scorer.name)
    if args.serve:
        _say(scorer, args, "; ready: a JSON object per line")
        return _serve(scorer, columns, with_shares=args.probabilities)
    if isinstance(source, RawTable):
        inputs, rows = _rows_of_table(source, columns, scorer, name=args.file)
    else:
        rows = read_rows(source, args.file, scorer)
        inputs = [{} for _ in rows]
    _say(scorer, args, f"; {len(rows):,} rows")
    text = _write(
        _predict(scorer, inputs, rows, with_shares=args.probabilities), form, is_safe=args.safe_for_spreadsheets
    )
    if args.out:
        write_file(Path(args.out), text)
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


def _say(scorer: Scorer, args: Watched, more: str = "") -> None:
    watcher_of(args).say(f"head {scorer.name}, mean of {len(scorer.seeds)} seeds{more}")


def _open_rows(name: str, columns: tuple[str, ...]) -> RawTable | list[str]:
    """Read a table, or the lines of another file, which has no columns to name."""
    if inner_suffix(Path(name)) in TABLES:
        return read_raw(Path(name))
    if columns:
        raise InputError(f"--columns names columns of a table, but {name!r} is none; allowed: {', '.join(TABLES)}.")
    return read_lines(name)


def _rows_of_table(
    table: RawTable, columns: tuple[str, ...], scorer: Scorer, *, name: str
) -> tuple[list[Values], list[Row]]:
    """Read all columns of a table, and what is predicted."""
    names = _find_columns(table.columns, columns, scorer.n_texts, where=name)
    for row in table.rows:
        if row.problem:
            raise InputError(f"{table.location(row)}: {row.problem}.")
    rows = [_row(row.values, names, table.location(row), reads_words=scorer.reads_words) for row in table.rows]
    return [row.values for row in table.rows], rows


def _find_columns(columns: Sequence[str], named: tuple[str, ...], n_texts: int, *, where: str) -> tuple[str, ...]:
    for name in named:
        if name not in columns:
            raise unknown_name("column", name, columns, hint=f"They are those of {where}.")
    if named and len(named) != n_texts:
        raise InputError(f"--columns names {len(named)} columns; this run takes {n_texts} texts per row.")
    guesses: list[tuple[str, ...]] = [(name,) for name in GUESSES]
    if n_texts > 1:
        guesses = [tuple(f"{name}{k}" for k in range(1, n_texts + 1)) for name in GUESSES[:2]]
    guess = next((names for names in guesses if set(names) <= set(columns)), ())
    if not (named or guess):
        tried = " or ".join(", ".join(names) for names in guesses)
        raise InputError(
            f"{where} has no columns {tried}; name {n_texts} of its own with --columns: {', '.join(columns)}."
        )
    return named or guess


def _row(values: Values, names: Sequence[str], where: str, *, reads_words: bool) -> Row:
    """Take the texts out of a row; a list of words stays one."""
    for name in names:
        text = values.get(name)
        is_words = reads_words and isinstance(text, list) and text and all(isinstance(word, str) for word in text)
        if not is_words and not (isinstance(text, str) and text.strip()):
            raise InputError(f"{where}, column {name!r}: {text!r} is no text; allowed: a text that is not empty.")
    texts: list[Row] = [values[name] for name in names]
    return texts[0] if len(texts) == 1 else tuple(map(str, texts))


def _predict(scorer: Scorer, inputs: Sequence[Values], rows: Sequence[Row], *, with_shares: bool) -> Iterator[Values]:
    """Put what was predicted beside the user's own columns, which stay as they are; ours get names that are free."""
    shares = scorer.predict_proba(rows).to_dict("records") if with_shares else [{}] * len(rows)
    used = {name for values in inputs for name in values}
    for values, row, prediction, share in zip(inputs, rows, scorer.predict(rows), shares, strict=True):
        fields = scorer.fields(row, prediction)
        if values:  # beside the user's own columns, which hold the texts
            fields = {name: value for name, value in fields.items() if not name.startswith(("text", "word"))}
        fields |= {f"p_{name}": value for name, value in share.items()}
        yield {**values, **{_free_name(name, used): value for name, value in fields.items()}}


def _free_name(name: str, used: Collection[str]) -> str:
    """Name a column of ours: `score`, or where the table has one `predicted_score`, `predicted_score_2` and so on."""
    tries = chain([name, f"predicted_{name}"], (f"predicted_{name}_{number}" for number in count(2)))
    return next(free for free in tries if free not in used)


def _write(rows: Iterable[Values], form: str, *, is_safe: bool) -> str:
    """Write rows as CSV, lists joined by spaces, or as JSON Lines."""
    if form == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    listed = list(rows)
    columns = dict.fromkeys(name for row in listed for name in row)  # objects of JSON may each have their own
    cells = ([_csv_cell(row.get(name, "")) for name in columns] for row in listed)
    return write_csv([columns, *cells], newline="\n", is_safe=is_safe)


def _csv_cell(value: object) -> object:
    return " ".join("-" if part is None else str(part) for part in value) if isinstance(value, list) else value


def _serve(scorer: Scorer, columns: tuple[str, ...], *, with_shares: bool) -> int:
    """Answer every line of standard input with one line; a line that cannot be read is answered with its error."""
    for number, line in enumerate(_read_bounded(sys.stdin.buffer), start=1):
        where = f"line {number}"
        try:
            values, row = _read_request(line, where, scorer, columns)
            [answer] = _predict(scorer, [values], [row], with_shares=with_shares)
            text = json.dumps(answer, ensure_ascii=True)
        except IcecoreError as error:
            text = json.dumps({"error": f"{where}: " * (not str(error).startswith(where)) + str(error)})
        except Exception as error:  # whatever a stranger's line does, the next one is answered
            text = json.dumps({"error": f"{where} cannot be predicted ({first_line(error)})."})
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


def _read_request(line: bytes, where: str, scorer: Scorer, columns: tuple[str, ...]) -> tuple[Values, Row]:
    """Read a line of a service: all that the object holds, and the row to predict."""
    if len(line) > MOST_BYTES:
        raise InputError(f"{where} is longer than {MOST_BYTES:,} bytes; shorten its texts, or predict a file instead.")
    if not line.strip():
        raise InputError(f"{where} is blank; {OBJECT}.")
    try:
        text = line.decode("utf-8-sig")
        values = json.loads(text)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} is not UTF-8 (byte 0x{line[error.start]:02x} at {error.start}); {OBJECT}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no JSON ({first_line(error)}); {OBJECT}.") from error
    if not isinstance(values, dict):
        raise InputError(f"{where} is {text.strip()[:40]!r}; {OBJECT}.")
    names = _find_columns(list(values), columns, scorer.n_texts, where=where)
    return values, _row(values, names, where, reads_words=scorer.reads_words)
