"""Words with tags in the files of the CoNLL shared tasks (columns) and of Universal Dependencies (CoNLL-U)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from extract.errors import TaskError, unknown_name
from probes.data.table_files import (
    BLANK,
    DOCUMENT_START,
    Sentence,
    SentenceTable,
    count_note,
    read_lines,
    shorten,
    tag_problem,
)

SEPARATORS = ("auto", "tab", "space", "whitespace")
WORD = "word"
_COMMENTS = ", or set `has_comments: true` if lines that begin with # are comments"


@dataclass(frozen=True)
class ColumnFormat:
    """The format of a file of columns: one word a line, with a blank line after each sentence; checked when built."""

    columns: tuple[str, ...]
    """Names in the order of the file, `word` among them."""
    separator: str = "auto"
    """`tab` or `space` (any number of them); `whitespace` takes both; `auto` takes that of the first line and rejects
    lines with the other."""
    has_comments: bool = False
    """True skips lines that start with #. False takes # for a word, as it is one in tweets."""
    fallback_encoding: str | None = None
    """Encoding of a file that is not UTF-8; None rejects such a file."""

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
    notes = count_note(str(path), n_comments, "comment line skipped", "comment lines skipped")
    return SentenceTable(str(path), "line", sentences, notes)


def _split_lines(path: Path, lines: Sequence[str], file_format: ColumnFormat) -> Iterator[tuple[int, list[str] | None]]:
    """Yield the number and columns of each line: no columns for a blank line, None for the start of a document."""
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
            blanks = "a tab" if has_tab else "spaces and no tab"
            on_line = f" on line {first}" if first else ""
            may_be_comment = line.startswith("#") or (first > 0 and lines[first - 1].startswith("#"))
            raise TaskError(
                f"{path}, line {number}: {line[:60]!r} has {blanks}, but {separator}s separate the columns{on_line}: "
                "use one of them, or set `separator: whitespace` if no word holds a space"
                f"{_COMMENTS if may_be_comment else ''}."
            )
        if separator == "tab":
            fields = [part.strip(" ") for part in line.split("\t")]
        else:
            blanks = line.replace("\t", " ") if separator == "whitespace" else line
            fields = [part for part in blanks.split(" ") if part]
        if len(fields) != len(columns) or "" in fields or (separator == "tab" and " " in line):
            _check_fields(f"{path}, line {number}", fields, columns)
        yield number, fields


def _check_fields(where: str, fields: Sequence[str], columns: Sequence[str]) -> None:
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
                f"{where}: column {name!r} holds {value[:60]!r}, but a tag has no space: separate the columns by tabs."
            )


COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
TAG_COLUMNS = ("upos", "xpos", "deprel")
_ID = re.compile(r"([0-9]+)(?:([-.])([0-9]+))?")
Lines = Sequence[tuple[int, str]]
"""Lines with their numbers, from 1."""


@dataclass(frozen=True)
class _Range:
    """A part of the text that several words make up, such as `didn't`."""

    first: int
    last: int
    form: str
    has_space: bool
    line: int


@dataclass
class _Reader:
    path: Path
    tags: str
    sentences: list[Sentence] = field(default_factory=list)
    document: str = ""
    n_documents: int = 0
    n_ranges: int = 0
    n_empty: int = 0
    n_unspelled: int = 0
    n_other_text: int = 0

    def read(self, block: Lines) -> None:
        """Read one sentence and the comments before it."""
        text = self._read_comments([line for _, line in block if line.startswith("#")])
        sentence, ranges = self._read_words([row for row in block if not row[1].startswith("#")])
        if not sentence.words:
            return
        for span in ranges:
            self._join(sentence, span)
        pairs = zip(sentence.words, sentence.space_after, strict=True)
        self.n_other_text += text is not None and text != "".join(w + " " * space for w, space in pairs).strip()
        self.sentences.append(sentence)

    def _read_comments(self, comments: Sequence[str]) -> str | None:
        text = None
        for comment in comments:
            key, is_pair, value = comment[1:].partition("=")
            name = (key.split() or [""])[0]
            if name == "newdoc":
                self.n_documents += 1
                self.document = (value.strip() if is_pair else "") or str(self.n_documents)
            elif name == "text" and is_pair:
                text = value.strip()
        return text

    def _read_words(self, rows: Lines) -> tuple[Sentence, list[_Range]]:
        sentence, ranges = Sentence([], [], self.document, [], []), []
        tag_index = COLUMNS.index(self.tags)
        for number, line in rows:
            fields = line.split("\t")
            match = _ID.fullmatch(fields[0])
            is_next = match is not None and (match[2] == "." or int(match[1]) == len(sentence.words) + 1)
            if len(fields) != len(COLUMNS) or match is None or not is_next or not fields[1].strip(BLANK):
                raise self._bad_line(number, fields, len(sentence.words) + 1)
            has_space = "SpaceAfter=No" not in fields[9].split("|")
            if match[2] == ".":
                self.n_empty += 1
            elif match[2] == "-":
                ranges.append(_Range(int(match[1]), int(match[3]), fields[1], has_space, number))
            elif fields[tag_index] in ("", "_"):
                raise TaskError(
                    f"{self.path}, line {number}: column {self.tags!r} is {fields[tag_index]!r}, which means "
                    f"unspecified: use another of {', '.join(TAG_COLUMNS)}."
                )
            elif problem := tag_problem(self.tags, fields[tag_index]):
                raise TaskError(f"{self.path}, line {number}: {problem}.")
            else:
                sentence.words.append(fields[1])
                sentence.tags.append(fields[tag_index])
                sentence.numbers.append(number)
                sentence.space_after.append(has_space)
        return sentence, ranges

    def _bad_line(self, number: int, fields: Sequence[str], next_id: int) -> TaskError:
        where = f"{self.path}, line {number}"
        if len(fields) != len(COLUMNS):
            line = "\t".join(fields)[:60]
            return TaskError(
                f"{where}: {len(fields)} instead of {len(COLUMNS)} columns in {line!r}: CoNLL-U needs "
                f"{', '.join(COLUMNS)}, separated by tabs."
            )
        if not fields[1].strip(BLANK):
            return TaskError(f"{where}: word {fields[0]} has the empty form {fields[1]!r}: give every word a form.")
        return TaskError(f"{where}: id {fields[0]!r}, but word {next_id} comes next: fix the sentence.")

    def _join(self, sentence: Sentence, span: _Range) -> None:
        """Join words that spell their range (did + n't) without a space; others (German zu + dem) keep it."""
        if not span.first < span.last <= len(sentence.words):
            raise TaskError(
                f"{self.path}, line {span.line}: the range {span.first}-{span.last} does not fit a sentence of "
                f"{len(sentence.words)} words: fix the sentence."
            )
        self.n_ranges += 1
        if "".join(sentence.words[span.first - 1 : span.last]) == span.form:
            sentence.space_after[span.first - 1 : span.last - 1] = [False] * (span.last - span.first)
        else:
            self.n_unspelled += 1
        sentence.space_after[span.last - 1] = span.has_space

    def notes(self) -> tuple[str, ...]:
        """Count skipped lines, and sentences whose text cannot be rebuilt."""
        counts = (
            (self.n_ranges, "range of words (such as 1-2) skipped", "ranges of words (such as 1-2) skipped"),
            (self.n_empty, "empty node (such as 1.1) skipped", "empty nodes (such as 1.1) skipped"),
            (self.n_unspelled, "range is not spelled by its words", "ranges are not spelled by their words"),
            (self.n_other_text, "sentence differs from its `# text`", "sentences differ from their `# text`"),
        )
        return tuple(note for n, one, many in counts for note in count_note(str(self.path), n, one, many))


def read_conllu(path: Path, tags: str) -> SentenceTable:
    """Read the syntactic words and one column of tags of a CoNLL-U file (version 2).

    `space_after` rebuilds the text; documents are those of `# newdoc`; the notes count ranges such as 1-2 and empty
    nodes such as 1.1, which are no words, and sentences whose words do not rebuild `# text`.
    """
    if tags not in TAG_COLUMNS:
        raise unknown_name("column", tags, TAG_COLUMNS, hint="These columns of CoNLL-U hold one tag a word.")
    reader = _Reader(path, tags)
    for block in _blocks(read_lines(path)):
        reader.read(block)
    if not reader.sentences:
        raise TaskError(f"{path} has no words, only comments or blank lines.")
    return SentenceTable(str(path), "line", reader.sentences, reader.notes())


def _blocks(lines: Sequence[str]) -> Iterator[Lines]:
    block: list[tuple[int, str]] = []
    for number, line in enumerate((*lines, ""), start=1):
        if line.strip(BLANK):
            block.append((number, line))
        elif block:
            yield block
            block = []
