"""`icecore score`: new rows through a finished run."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from extract.errors import InputError, printable
from probes.cli.screen import watcher_of
from probes.runs.scorer import Scorer, load_scorer

CHUNK_ROWS = 4096
"""Rows scored at a time; bounds memory."""
COUNTS = {1: "one text", 2: "two texts"}


def score_command(found: SimpleNamespace) -> int:
    """Score new rows with a finished run: a score per pair, a class or number per text, a tag per word."""
    lines = read_lines(found.file) if found.file else []  # before the decoder is loaded, which takes longer
    scorer = load_scorer(
        found.run, head=found.head or None, decoder=found.decoder or None, trust_remote_code=found.trust_remote_code
    )
    rows = read_rows(lines, found.file, scorer) if found.file else [_one_row(found.texts, scorer)]
    watcher_of(found).say(f"head {scorer.name}, mean of {len(scorer.seeds)} seeds")
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = rows[start : start + CHUNK_ROWS]
        for row, prediction in zip(chunk, scorer.score(chunk), strict=True):
            fields = scorer.fields(row, prediction)
            sys.stdout.write(_json(fields) if found.jsonl else printable(_lines(fields)))
    return 0


def _json(fields: dict[str, Any]) -> str:
    """Write a scored row as a line of JSON without control characters; JSON itself leaves some as they are."""
    text = json.dumps(fields, ensure_ascii=False)
    return "".join(f"\\u{ord(c):04x}" if "\x7f" <= c < "\xa0" else c for c in text) + "\n"


def _lines(fields: dict[str, Any]) -> str:
    """Write a scored row as one line, or where it holds lists as a line per word and a blank one."""
    is_list = any(isinstance(value, list) for value in fields.values())
    columns = [value if is_list else [value] for value in fields.values()]
    lines = ["\t".join(_cell(value) for value in cells) + "\n" for cells in zip(*columns, strict=True)]
    return "".join([*lines, "\n"] if is_list else lines)


def _cell(value: str | float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else value


def _one_row(texts: Sequence[str], scorer: Scorer) -> Any:
    if len(texts) != scorer.n_texts:
        raise InputError(
            f"{len(texts)} texts were given; allowed: {COUNTS[scorer.n_texts]} for a run on {scorer.kind}, or a file "
            "of rows with --file FILE."
        )
    return texts[0] if scorer.n_texts == 1 else tuple(texts)


def read_lines(name: str) -> list[str]:
    """Read the lines of a text file, or of standard input for `-`."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"file {name!r} cannot be read ({error}); give a UTF-8 text file.") from error
    return text.split("\n")  # splitlines would also break inside a text


def read_rows(lines: Sequence[str], name: str, scorer: Scorer) -> list[Any]:
    """Read rows out of the lines of a file, of which `.conll` holds a word each."""
    if name.endswith(".conll") and scorer.reads_words:
        return list(_sentences(lines))
    return [_read_row(line, number, name, scorer.n_texts) for number, line in enumerate(lines, start=1) if line]


def _read_row(line: str, number: int, name: str, n_texts: int) -> Any:
    cells = line.split("\t") if n_texts > 1 else [line]
    if len(cells) != n_texts or not all(cell.strip() for cell in cells):
        tab = " with one tab between them" if n_texts > 1 else ""
        raise InputError(f"line {number} of {name!r} is {cells!r}; allowed: {COUNTS[n_texts]}{tab}.")
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
