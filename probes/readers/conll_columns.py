"""Files of columns, as the CoNLL shared tasks publish them: one word a line, sentences parted by blank lines."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from extract.errors import TaskError, unknown_name
from probes.readers.checks import tag_problem
from probes.readers.raw_rows import shorten
from probes.readers.sentences import BLANK, DOCUMENT_START, Sentence, SentenceTable, count_note
from probes.readers.text_files import read_lines

SEPARATORS = ("auto", "tab", "space", "whitespace")
WORD = "word"
_COMMENTS = ", or set `has_comments: true` if lines that begin with # are comments"


@dataclass(frozen=True)
class ColumnFormat:
    """How a file of columns is written; checked when built."""

    columns: tuple[str, ...]
    """Names in the order of the file, `word` among them."""
    separator: str = "auto"
    """`tab` or `space` (any number of them); `whitespace` takes both; `auto` takes what the first line has and rejects
    lines that have the other."""
    has_comments: bool = False
    """True skips lines that start with #. False takes # for a word, as it is one in tweets."""
    fallback_encoding: str | None = None
    """Encoding to read a file to use for a file that is not UTF-8; None rejects such a file."""

    def __post_init__(self) -> None:
        if WORD not in self.columns:
            raise unknown_name(
                "column", WORD, self.columns, hint=f"`columns` must call the column of the words {WORD!r}."
            )
        repeated = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if repeated:
            raise TaskError(f"`columns` names {repeated[0]!r} twice: every column needs its own name.")
        if self.separator not in SEPARATORS:
            raise unknown_name("separator", self.separator, SEPARATORS)


def read_columns(path: Path, tags: str, *, file_format: ColumnFormat) -> SentenceTable:
    """Read the words and one column of tags.

    A blank line (spaces and tabs count as blank) ends a sentence; a -DOCSTART- line opens a document and is no
    sentence. Documents are numbered from 1 if the file marks any.

    Raises:
        TaskError: The file is missing, empty, not UTF-8, or a line has another number of columns, an empty column, a
            tag with a blank or the other separator; with file, line and value.
        UnknownNameError: `tags` is none of the columns, or the column of the words.
    """
    columns = file_format.columns
    if tags not in columns or tags == WORD:
        raise unknown_name("column", tags, [name for name in columns if name != WORD], hint="`tags` names a column.")
    word_index, tag_index = columns.index(WORD), columns.index(tags)
    lines = read_lines(path, fallback=file_format.fallback_encoding)
    n_comments = sum(line.startswith("#") for line in lines) if file_format.has_comments else 0
    sentences: list[Sentence] = []
    block = Sentence([], [], "", [], [])
    n_documents = 0
    for number, fields in _split_lines(path, lines, file_format):
        if fields:
            if problem := tag_problem(tags, fields[tag_index]):
                raise TaskError(f"{path}, line {number}: {problem}.")
            block.words.append(fields[word_index])
            block.tags.append(fields[tag_index])
            block.numbers.append(number)
            block.space_after.append(True)
        else:
            if block.words:
                sentences.append(block)
            n_documents += fields is None
            block = Sentence([], [], str(n_documents or ""), [], [])
    if not sentences:
        raise TaskError(f"{path} has no words, only blank lines, comments or {DOCUMENT_START} lines.")
    notes = count_note(str(path), n_comments, "comment line skipped", plural="comment lines skipped")
    return SentenceTable(str(path), "line", sentences, notes)


def _split_lines(path: Path, lines: Sequence[str], file_format: ColumnFormat) -> Iterator[tuple[int, list[str] | None]]:
    """Yield number and columns of each line: none for a blank line, None for the start of a document."""
    columns, separator, first = file_format.columns, file_format.separator, 0
    for number, line in enumerate((*lines, ""), start=1):
        has_tab = "\t" in line
        if not line.strip(BLANK):
            yield number, []
            continue
        if file_format.has_comments and line.startswith("#"):
            continue
        if DOCUMENT_START in line and any(part.startswith(DOCUMENT_START) for part in re.split("[ \t]", line)):
            yield number, None
            continue
        if separator == "auto":
            separator, first = "tab" if has_tab else "space", number
        elif has_tab if separator == "space" else first and " " in line and not has_tab:
            parted = "a tab" if has_tab else "spaces and no tab"
            on_line = f" on line {first}" if first else ""
            may_be_comment = line.startswith("#") or (first > 0 and lines[first - 1].startswith("#"))
            raise TaskError(
                f"{path}, line {number}: {line[:60]!r} has {parted}, but {separator}s part the columns{on_line}: use "
                "one of them, or set `separator: whitespace` if no word holds a space"
                f"{_COMMENTS if may_be_comment else ''}."
            )
        if separator == "tab":
            fields = [part.strip(" ") for part in line.split("\t")]
        else:
            blanks = line.replace("\t", " ") if separator == "whitespace" else line
            fields = [part for part in blanks.split(" ") if part]
        if len(fields) != len(columns) or "" in fields or (separator == "tab" and " " in line):
            _check(f"{path}, line {number}", fields, columns)
        yield number, fields


def _check(where: str, fields: Sequence[str], columns: Sequence[str]) -> None:
    if len(fields) != len(columns):
        hint = _COMMENTS if fields[0].startswith("#") else ""
        raise TaskError(
            f"{where}: {len(fields)} instead of {len(columns)} columns ({', '.join(columns)}) in "
            f"{shorten(list(fields))}: fix the line, or name the columns of the file with `columns`{hint}."
        )
    for name, value in zip(columns, fields, strict=True):
        if not value:
            raise TaskError(f"{where}: column {name!r} is empty in {shorten(list(fields))}: give every word a value.")
        if name != WORD and " " in value:
            raise TaskError(
                f"{where}: column {name!r} holds {value[:60]!r}, but a tag has no space: part the columns by tabs."
            )
