"""Commands that predict new rows with a finished run: score, predict, serve."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from extract.errors import ConfigError, InputError, TaskError, UnknownNameError, UsageError, first_line, printable
from extract.files import write_csv, write_file
from extract.records import Values
from probes.cli.arguments import Watched
from probes.cli.commands import PredictArgs, ScoreArgs, ServeArgs
from probes.cli.screen import read_lines, watcher_of
from probes.data.table_files import DELIMITERS, inner_suffix
from probes.heads.layer_head import require_probabilities
from probes.runs.new_rows import TABLES, NewRow, RowReader, count_texts
from probes.runs.predict import CHUNK_ROWS, Answer, LoadedRun, RowScorer, load_run

# --- Scores of new rows ---


def score_command(args: ScoreArgs) -> int:
    run, rows = _open(args, args.file, (), default_to_lines=True)
    scorer = run.scorer(args.head)
    if not args.file:
        if len(args.texts) != scorer.n_texts:
            raise InputError(
                f"{len(args.texts)} texts were given; allowed: {count_texts(scorer.n_texts)} for a run on "
                f"{scorer.kind}, or a file of rows with --file FILE."
            )
        rows = [NewRow(args.texts[0] if scorer.n_texts == 1 else args.texts)]
    if args.clip:
        scorer.require_range()
    _say(scorer, args)
    answers = []
    for start in range(0, len(rows), CHUNK_ROWS):
        part = rows[start : start + CHUNK_ROWS]
        answers += scorer.answer(part, is_clipped=args.clip)
        for row, answer in zip(part, answers[start:], strict=True):
            if row.row is None or answer.prediction is None:
                error = answer.error
                sys.stdout.write(
                    _json({"error": error}) if args.jsonl else printable(f"-\t{' '.join(error.split())}\n")
                )
            else:
                fields = scorer.fields(row.row, answer.prediction)
                sys.stdout.write(_json(fields) if args.jsonl else printable(_lines(fields)))
    return _report_bad(answers, args)


def _open(
    args: ScoreArgs | PredictArgs, file: str, columns: tuple[str, ...], *, default_to_lines: bool = False
) -> tuple[LoadedRun, list[NewRow]]:
    """Open a run and read the rows of a file, before the decoder is loaded, which takes longer."""
    run = load_run(args.run, decoder=args.decoder or None, trust_remote_code=args.trust_remote_code)
    if not file:
        return run, []
    reader = run.reader(args.head)
    if reader.is_table(file):
        try:
            return run, reader.read_file(file, columns)
        except (InputError, UnknownNameError):
            if not default_to_lines or inner_suffix(Path(file)) not in DELIMITERS:
                raise  # else it has no header, and is a row a line
        except TaskError:
            if not default_to_lines or Path(file).is_file():
                raise
    elif columns:
        reader.read_file(file, columns)
    return run, reader.read_lines(read_lines(file), file)


def _report_bad(answers: Sequence[Answer], args: Watched) -> int:
    """Say how many rows have no prediction; if all of them, that is an error."""
    bad = [answer.error for answer in answers if answer.error]
    if bad and len(bad) == len(answers):
        more = f" ({len(bad):,} such rows)" if len(bad) > 1 else ""
        raise InputError(f"no row can be predicted{more}: {bad[0]}")
    if bad:
        watcher_of(args).say(f"{len(bad):,} of {len(answers):,} rows have no prediction; the first: {bad[0]}")
    return 0


def _json(fields: Values) -> str:
    """Write a scored row as a line of JSON without control characters; JSON itself leaves some as they are."""
    text = json.dumps(fields, ensure_ascii=False)
    return "".join(f"\\u{ord(c):04x}" if "\x7f" <= c < "\xa0" else c for c in text) + "\n"


def _lines(fields: Values) -> str:
    """Write a scored row as one line, or where it holds lists as a line per word and a blank one."""
    is_list = any(isinstance(value, list) for value in fields.values())
    columns = [value if is_list else [value] for value in fields.values()]
    texts = [["-" if v is None else f"{v:.3f}" if isinstance(v, float) else v for v in column] for column in columns]
    lines = ["\t".join(cells) + "\n" for cells in zip(*texts, strict=True)]
    return "".join([*lines, "\n"] if is_list else lines)


# --- Predictions ---


MOST_BYTES = 65_536
"""Longest line that a service reads; a longer one is answered with an error, as its tokens could block the others."""


def predict_command(args: PredictArgs) -> int:
    form = args.format or _format_of(args.out)
    if args.safe_for_spreadsheets and form != "csv":
        raise UsageError(f"--safe-for-spreadsheets does nothing for the format {form!r}; leave it out.")
    columns = tuple(filter(None, (name.strip() for name in args.columns.split(","))))
    run, rows = _open(args, "" if args.serve else args.file, columns)
    scorer = run.scorer(args.head)
    if args.clip:
        scorer.require_range()
    if args.probabilities:
        require_probabilities(scorer.name)
    if args.serve:
        _say(scorer, args, "; ready: a JSON object per line")
        return _serve(scorer, run.reader(args.head), columns, args)
    _say(scorer, args, f"; {len(rows):,} rows")
    answers = scorer.answer(rows, with_probabilities=args.probabilities, is_clipped=args.clip)
    text = _write(scorer.table(rows, answers), form, is_safe=args.safe_for_spreadsheets)
    text = text.encode(errors="backslashreplace").decode()  # half a character, in a row that has an error
    code = _report_bad(answers, args)
    if args.out:
        write_file(Path(args.out), text)
    else:
        sys.stdout.write(printable(text))
    return code


def _format_of(out: str) -> str:
    """Choose the format by the name of the file; `UsageError` for the suffix of another format."""
    suffix = Path(out).suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    if suffix != ".csv" and suffix in (*TABLES, ".gz", ".xlsx", ".arrow", ".feather"):
        raise UsageError(f"--out is {out!r}; allowed: a name that ends in .csv, .jsonl or .ndjson, or add --format.")
    return "csv"


def _say(scorer: RowScorer, args: Watched, more: str = "") -> None:
    n_seeds = len(scorer.seeds)
    watcher_of(args).say(f"head {scorer.name}" + f", mean of {n_seeds} seeds" * (n_seeds > 1) + more)


def _write(rows: Iterable[Values], form: str, *, is_safe: bool) -> str:
    """Write rows as CSV, lists joined by spaces, or as JSON Lines."""
    if form == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    listed = list(rows)
    columns = dict.fromkeys(name for row in listed for name in row)  # objects of JSON may each have their own
    cells = ([row.get(name, "") for name in columns] for row in listed)
    texts = (
        [" ".join("-" if part is None else str(part) for part in v) if isinstance(v, list) else v for v in row]
        for row in cells
    )
    return write_csv([columns, *texts], newline="\n", is_safe=is_safe)


def _serve(scorer: RowScorer, reader: RowReader, columns: tuple[str, ...], args: PredictArgs) -> int:
    """Answer every line of standard input with one line; a line that cannot be read is answered with its error."""
    for number, line in enumerate(_read_bounded(sys.stdin.buffer), start=1):
        where = f"line {number}"
        if len(line) > MOST_BYTES:
            problem = f"{where} is longer than {MOST_BYTES:,} bytes; shorten its texts, or predict a file instead."
            row = NewRow(None, {}, where, problem)
        else:
            row = reader.read_json(line, columns, where=where)
        answers = scorer.answer([row], with_probabilities=args.probabilities, is_clipped=args.clip)
        [values] = [{"error": answers[0].error}] if answers[0].error else scorer.table([row], answers)
        try:
            text = json.dumps(values, ensure_ascii=True)
        except ValueError as error:  # whatever a stranger's line holds beside its text, the next one is answered
            text = json.dumps({"error": f"{where} cannot be answered ({first_line(error)})."})
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


# --- A service ---

SERVICE_PACKAGES = ("fastapi", "uvicorn")
MOST_PORT = 65_535


def serve_command(args: ServeArgs) -> int:
    if missing := [name for name in SERVICE_PACKAGES if find_spec(name) is None]:
        raise ConfigError(
            f"icecore serve needs {' and '.join(missing)}; run: pip install {' '.join(SERVICE_PACKAGES)}."
        )
    limits = {name: getattr(args, name) for name in ("batch", "wait_ms", "rows", "text", "body", "queue", "timeout")}
    for name, value in limits.items():
        least = 0 if name == "wait_ms" else 1
        if not least <= value < float("inf"):
            raise UsageError(f"--{name.replace('_', '-')} is {value:g}; allowed: a number of at least {least}.")
    if not 0 <= args.port <= MOST_PORT:
        raise UsageError(f"--port is {args.port}; allowed: 0 to {MOST_PORT}.")
    from probes.service.app import LOOPBACK, Limits, bind, build_server, open_runs

    say = watcher_of(args).say
    with bind(args.host, args.port) as listener:  # before the decoder is loaded, which takes longer
        runs = open_runs(args.runs, head=args.head, decoder=args.decoder, trust_remote_code=args.trust_remote_code)
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        for run in runs:
            keys = " and ".join(run.columns)
            say(f"{address}/runs/{run.name}/predict: {run.kind}, head {run.scorer.name}, rows of {keys}")
        if args.host not in LOOPBACK:
            say(f"anybody who reaches {args.host} can ask: there is no password and no encryption (SECURITY.md)")
        say(f"ready: {address}/healthz")
        build_server(runs, Limits(**limits), host=args.host).run(sockets=[listener])
    say("stopped; every request that was taken has been answered")
    return 0
