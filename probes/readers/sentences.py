"""Sentences of a file: words, one column of tags, and the line each word came from."""

from dataclasses import dataclass
from typing import Literal

BLANK = " \t\r\n"
"""Characters of an empty line or word. Unlike for `str.strip()`, a no-break space is (part of) a word."""
DOCUMENT_START = "-DOCSTART-"


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence; all its lists are equally long."""

    words: list[str]
    tags: list[str]
    document: str
    """Names the document within its file; empty where the file marks none."""
    space_after: list[bool]
    """Whether a space followed the word in the text; true where the file does not say."""
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

    def place(self, sentence: int, word: int) -> str:
        """Name the file and line (or row) of a word."""
        return f"{self.where}, {self.unit} {self.sentences[sentence].numbers[word]}"


def count_note(where: str, n: int, what: str, *, plural: str = "") -> tuple[str, ...]:
    """Count in one note what was skipped or found in a file; none for a count of zero. An empty plural appends an s."""
    return (f"{where}: {n} {what if n == 1 else plural or what + 's'}",) if n else ()
