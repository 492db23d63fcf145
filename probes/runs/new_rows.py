"""New rows of files and messages, read as a run read its own; a row that cannot be read has a reason instead."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from extract.errors import InputError, TaskError, UnknownNameError, first_line, unknown_name
from extract.files import csv_records
from extract.inputs.joined_text import JoinedText
from extract.records import Values
from extract.registry import resolve
from probes.data.table_files import (
    DEFAULT_FILES,
    DELIMITERS,
    DOCUMENT_START,
    JSON_SUFFIXES,
    PARQUET_SUFFIXES,
    WORD_SUFFIXES,
    FileOptions,
    RawTable,
    escaped_byte,
    inner_suffix,
    read_raw,
    read_text,
    split_lines,
)
from probes.data.task_table import FILE_OPTIONS, TASKS
from probes.runs.folder import UNREADABLE, RunFolder, no_run

TABLES = (*DELIMITERS, *JSON_SUFFIXES, *PARQUET_SUFFIXES)
"""Suffixes of tables."""
TEXT_OPTIONS = {
    "pairs": ("sentence1", "sentence2"),
    "classes": ("text", "text2"),
    "numbers": ("text",),
    "words": ("words",),
    "pair-classification": ("text1", "text2"),
}
"""Kind of task to the options of its readers that name the columns of texts."""
GOLD_OPTIONS = ("score", "label", "number")
"""Options that name the column of gold, which new rows may lack."""
GUESSES = ("text", "sentence", "words", "tokens")
"""Columns that are read when the run names none; of several texts those that are numbered, as text1 and text2."""
COUNTS = {1: "one text", 2: "two texts"}
OBJECT = 'give an object, as {"text": ...}'

Row = str | Sequence[str] | JoinedText
"""A text, several, or the words of a sentence."""


def count_texts(n_texts: int) -> str:
    """Write a number of texts in words."""
    return COUNTS.get(n_texts, f"{n_texts} texts")


@dataclass(frozen=True)
class NewRow:
    """A row to predict, or why it cannot be."""

    row: Row | None
    values: Values = field(default_factory=dict)
    """All columns of a row of a table, or keys of an object."""
    where: str = ""
    """File and line, for messages."""
    error: str = ""
    """A sentence; empty for a row that can be predicted."""


@dataclass(frozen=True)
class RowReader:
    """Reads new rows as a run read its own: the same columns, delimiter, encoding and header."""

    kind: str
    n_texts: int
    """Texts of a row."""
    reads_words: bool
    """Whether a row is a sentence of words."""
    columns: tuple[str, ...] = ()
    """Columns of the texts in the run's files; empty where its task names none."""
    gold: str = ""
    """Column of the gold in the run's files, which new ones may lack."""
    options: FileOptions = DEFAULT_FILES
    """How the run's files were read."""
    suffixes: frozenset[str] = frozenset()
    """Suffixes of the run's files."""
    word_columns: tuple[str, ...] = ()
    """Columns of the run's files of a word a line."""

    @cached_property
    def guesses(self) -> list[tuple[str, ...]]:
        """Columns that may hold the texts, those of the run first."""
        numbered = [tuple(f"{name}{k}" for k in range(1, self.n_texts + 1)) for name in GUESSES[:2]]
        usual = [(name,) for name in GUESSES] if self.n_texts == 1 else numbered
        return list(dict.fromkeys((self.columns, *usual) if self.columns else usual))

    def is_table(self, name: str) -> bool:
        """Whether a file has named columns: by its suffix, or because that of the run was read so."""
        suffix = inner_suffix(Path(name))
        return suffix in TABLES or (self.options.delimiter is not None and suffix in self.suffixes)

    def read_file(self, name: str | Path, columns: Sequence[str] = ()) -> list[NewRow]:
        """Read the rows of a table, or of a file of a row or a word a line; without `columns` those of the run."""
        if self.is_table(str(name)):
            table, names = self._open_table(Path(name), tuple(columns))
            return [
                NewRow(None, row.values, table.location(row), f"{table.location(row)}: {row.problem}.")
                if row.problem
                else self.read_values(row.values, names, where=table.location(row))
                for row in table.rows
            ]
        if columns:
            raise InputError(
                f"--columns names columns of a table, but {str(name)!r} is none; allowed: {', '.join(TABLES)}."
            )
        text = read_text(Path(name), escapes_bytes=True)
        return self.read_lines([line.rstrip("\r\n") for line in split_lines(text)], str(name))

    def read_lines(self, lines: Sequence[str], name: str) -> list[NewRow]:
        """Read rows out of lines: a text each, or a word with its sentences parted by blank lines."""
        suffix = inner_suffix(Path(name))
        if self.reads_words and (suffix in WORD_SUFFIXES or (self.word_columns and suffix in self.suffixes)):
            return list(self._sentences(lines, name, is_conllu=suffix == ".conllu"))
        return [self._read_line(line, number, name) for number, line in enumerate(lines, start=1) if line]

    def read_values(self, values: Values, columns: Sequence[str] = (), *, where: str = "") -> NewRow:
        """Take the texts out of a row of a table, or out of an object; a list of words stays one."""
        at = f"{where}, " if where else ""
        try:
            names = columns or self.find_columns(list(values), where=where or "the row")
        except (InputError, UnknownNameError) as error:
            return NewRow(None, values, where, str(error))
        texts = []
        for name in names:
            text = values.get(name)
            is_words = self.reads_words and isinstance(text, list) and text and all(map(_is_text, text))
            if not is_words and not _is_text(text):
                shown = repr(text) if len(repr(text)) <= 80 else f"{repr(text)[:77]}..."
                reason = f"{at}column {name!r}: {shown} is no text; allowed: a text that is not empty."
                return NewRow(None, values, where, reason)
            texts.append(text)
        return NewRow(texts[0] if len(texts) == 1 else tuple(map(str, texts)), values, where)

    def read_json(self, line: bytes, columns: Sequence[str] = (), *, where: str) -> NewRow:
        """Read the row of a line of JSON Lines."""

        def refuse(problem: str) -> NewRow:
            return NewRow(None, {}, where, f"{where} {problem}; {OBJECT}.")

        if not line.strip():
            return refuse("is blank")
        try:
            text = line.decode("utf-8-sig")
            values = json.loads(text)
        except UnicodeDecodeError as error:
            return refuse(f"is not UTF-8 (byte 0x{line[error.start]:02x} at {error.start})")
        except (ValueError, RecursionError) as error:
            return refuse(f"is no JSON ({first_line(error)})")
        if not isinstance(values, dict):
            return refuse(f"is {text.strip()[:40]!r}")
        try:
            return self.read_values(values, self.find_columns(list(values), columns, where=where), where=where)
        except (InputError, UnknownNameError) as error:
            return NewRow(None, {}, where, str(error))

    def find_columns(self, columns: Sequence[str], named: Sequence[str] = (), *, where: str) -> tuple[str, ...]:
        """Find the columns of the texts among those of a table or object, unless they are named."""
        for name in named:
            if name not in columns:
                raise unknown_name("column", name, columns, hint=f"They are those of {where}.")
        if named and len(named) != self.n_texts:
            raise InputError(f"--columns names {len(named)} columns; this run takes {self.n_texts} texts per row.")
        guess = next((names for names in self.guesses if set(names) <= set(columns)), ())
        if not (named or guess):
            tried = " or ".join(", ".join(names) for names in self.guesses)
            raise InputError(
                f"{where} has no columns {tried}; name {self.n_texts} of its own with --columns: {', '.join(columns)}."
            )
        return tuple(named) or guess

    def _open_table(self, path: Path, named: tuple[str, ...]) -> tuple[RawTable, tuple[str, ...]]:
        """Read a table as the run's, or where the columns are not found in it, by its suffix."""
        problem: Exception | None = None
        for options in dict.fromkeys(self._possible_options(path)):
            try:
                table = read_raw(path, options, goes_on=True)
                return table, self.find_columns(table.columns, named, where=str(path))
            except (InputError, TaskError, UnknownNameError) as error:
                problem = problem or error
        assert problem is not None  # the first options have failed
        raise problem

    def _possible_options(self, path: Path) -> Iterator[FileOptions]:
        """Give the run's way of reading a file, the same without a column of gold, and that of the suffix."""
        run = self.options
        if run.header or (inner_suffix(path) not in DELIMITERS and run.delimiter is None):
            yield run
        else:
            names, delimiter = tuple(run.columns or ()), run.delimiter or DELIMITERS[inner_suffix(path)]
            lines = split_lines(read_text(path, encoding=run.encoding, escapes_bytes=True))
            width = len(next(filter(None, csv_records(lines, delimiter, has_quotes=run.quoting)), []))
            shorter = tuple(name for name in names if name != self.gold)
            yield replace(run, columns=shorter if width == len(shorter) < len(names) else names)
        if inner_suffix(path) in TABLES:
            yield DEFAULT_FILES

    def _read_line(self, line: str, number: int, name: str) -> NewRow:
        cells = line.split("\t") if self.n_texts > 1 else [line]
        where = f"line {number} of {name!r}"
        if byte := escaped_byte(line):
            return NewRow(None, {}, where, f"{where}: byte {byte} is not UTF-8.")
        if len(cells) != self.n_texts or not all(map(_is_text, cells)):
            tab = " with one tab between them" if self.n_texts > 1 else ""
            return NewRow(None, {}, where, f"{where} is {cells!r}; allowed: {count_texts(self.n_texts)}{tab}.")
        return NewRow(cells[0] if self.n_texts == 1 else tuple(cells), {}, where)

    def _sentences(self, lines: Sequence[str], name: str, *, is_conllu: bool) -> Iterator[NewRow]:
        """Read the column of words; a blank line ends a sentence, -DOCSTART- is no word."""
        names = self.word_columns
        words: list[str] = []
        for number, line in enumerate([*lines, ""], start=1):
            cells = line.split("\t" if "\t" in line else None) if line.strip() else []
            if is_conllu and cells and (cells[0].startswith("#") or not cells[0].isdigit()):
                continue  # a comment, a word of several tokens, or one that was left out
            index = 1 if is_conllu else names.index("word") if len(cells) == len(names) and "word" in names else 0
            if len(cells) > index and cells[0].strip() != DOCUMENT_START:
                words.append(cells[index].strip())
            elif words and not cells:
                where, byte = f"the sentence before line {number} of {name!r}", escaped_byte(" ".join(words))
                yield (
                    NewRow(None, {}, where, f"{where}: byte {byte} is not UTF-8.") if byte else NewRow(words, {}, where)
                )
                words = []


def _is_text(value: object) -> bool:
    """Whether a value is a text that is not blank, and valid Unicode."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= c <= "\udfff" for c in value)


def row_reader(folder: RunFolder, n_texts: int, *, reads_words: bool) -> RowReader:
    """Build the reader of a run, whose heads take `n_texts` texts a row, or sentences of words."""
    kind = folder.scores.header.kind
    try:
        settings = folder.settings["task"]
        options: dict[str, Any] = dict(settings.get("options") or {})
        entry = TASKS.get(settings["name"])
        if entry is None:
            return RowReader(kind, n_texts, reads_words)
        parameters = inspect.signature(resolve(entry.load)).parameters
        values = {name: item.default for name, item in parameters.items() if name != FILE_OPTIONS} | options
        texts = [values[name] for name in TEXT_OPTIONS.get(kind, ()) if values.get(name) is not None]
        gold = [values[name] for name in GOLD_OPTIONS if isinstance(values.get(name), str)]
        files = options.get("files", ())
        names = [files] if isinstance(files, str) else list(files.values() if isinstance(files, Mapping) else files)
        file_options = DEFAULT_FILES
        word_columns: tuple[str, ...] = ()
        if FILE_OPTIONS in parameters:
            given = {item.name: options[item.name] for item in fields(FileOptions) if item.name in options}
            given |= {"columns": tuple(given["columns"])} if given.get("columns") else {}
            file_options = FileOptions(**given)
        elif reads_words:
            word_columns = tuple(map(str, options.get("columns") or ()))
        return RowReader(
            kind,
            n_texts,
            reads_words,
            columns=tuple(map(str, texts)) if len(texts) == n_texts else (),
            gold=gold[0] if gold else "",
            options=file_options,
            suffixes=frozenset(inner_suffix(Path(name)) for name in names),
            word_columns=word_columns,
        )
    except UNREADABLE as error:
        raise no_run(folder.path, error) from error
