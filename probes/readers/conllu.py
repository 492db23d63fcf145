"""CoNLL-U, the format of Universal Dependencies: ten columns, comments, ranges of words and empty nodes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from extract.errors import TaskError, unknown_name
from probes.readers.checks import tag_problem
from probes.readers.sentences import BLANK, Sentence, SentenceTable, count_note
from probes.readers.text_files import read_lines

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
TAG_COLUMNS = ("upos", "xpos", "deprel")
_ID = re.compile(r"([0-9]+)(?:([-.])([0-9]+))?")
_UNSPECIFIED = "_"

Lines = Sequence[tuple[int, str]]
"""Lines with their numbers, from 1."""


@dataclass(frozen=True)
class _Range:
    """A stretch of the text that several words make up, such as `didn't`."""

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
            found = _ID.fullmatch(fields[0])
            is_due = found is not None and (found[2] == "." or int(found[1]) == len(sentence.words) + 1)
            if len(fields) != len(COLUMNS) or found is None or not is_due or not fields[1].strip(BLANK):
                raise self._bad_line(number, fields, len(sentence.words) + 1)
            has_space = "SpaceAfter=No" not in fields[9].split("|")
            if found[2] == ".":
                self.n_empty += 1
            elif found[2] == "-":
                ranges.append(_Range(int(found[1]), int(found[3]), fields[1], has_space, number))
            elif fields[tag_index] in ("", _UNSPECIFIED):
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

    def _bad_line(self, number: int, fields: Sequence[str], due: int) -> TaskError:
        where = f"{self.path}, line {number}"
        if len(fields) != len(COLUMNS):
            shown = "\t".join(fields)[:60]
            return TaskError(
                f"{where}: {len(fields)} instead of {len(COLUMNS)} columns in {shown!r}: CoNLL-U needs "
                f"{', '.join(COLUMNS)}, parted by tabs."
            )
        if not fields[1].strip(BLANK):
            return TaskError(f"{where}: word {fields[0]} has the empty form {fields[1]!r}: give every word a form.")
        return TaskError(f"{where}: id {fields[0]!r}, but word {due} comes next: fix the sentence.")

    # The words of a range are written without a space where they spell it (did + n't), and with one where they do not
    # (German zu + dem for zum), because then no stretch of the text belongs to each of them.
    def _join(self, sentence: Sentence, span: _Range) -> None:
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
        """Count what was skipped, and sentences whose text cannot be rebuilt."""
        found = (
            (self.n_ranges, "range of words (such as 1-2) skipped", "ranges of words (such as 1-2) skipped"),
            (self.n_empty, "empty node (such as 1.1) skipped", "empty nodes (such as 1.1) skipped"),
            (self.n_unspelled, "range is not spelled by its words", "ranges are not spelled by their words"),
            (self.n_other_text, "sentence differs from its `# text`", "sentences differ from their `# text`"),
        )
        return tuple(note for n, one, many in found for note in count_note(str(self.path), n, one, plural=many))


def read_conllu(path: Path, tags: str) -> SentenceTable:
    """Read the syntactic words and one column of tags (upos, xpos or deprel) of a CoNLL-U file.

    `space_after` rebuilds the text; documents are those of `# newdoc`; the notes count ranges such as 1-2 and empty
    nodes such as 1.1, which are no words, and sentences whose words do not rebuild `# text`.

    Raises:
        TaskError: The file is missing, empty, not UTF-8, a line is not CoNLL-U, or a tag holds a blank; with file and
            line.
        UnknownNameError: `tags` is not a column of tags.

    Source:
        The format page of Universal Dependencies, version 2.
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
