"""Sentences as they stand in a file: words, one column of tags, and the line each word came from."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from extract.errors import TaskError
from probes.readers.packed import read_bytes

BLANK = " \t\r\n"
"""What makes an empty line or word; a no-break or ideographic space is (part of) a word, unlike in `str.strip()`."""
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


def read_lines(path: Path, *, fallback: str | None = None) -> list[str]:
    r"""Read the lines of a UTF-8 file, with or without a byte order mark.

    Args:
        path: A local file; one that ends in .gz is unpacked.
        fallback: Encoding to read a file in that is no UTF-8; None refuses it.

    Returns:
        The lines without their ends, which are \n, \r\n or \r; other separators of Unicode stay inside their line.

    Raises:
        TaskError: If the file is missing, empty, not UTF-8, or a broken .gz file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "words.txt"
        >>> _ = path.write_bytes("\ufeffIce O\r\n\r\n".encode())
        >>> read_lines(path)
        ['Ice O', '']
    """
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise TaskError(f"{path} {what}: give the path of a file of words and tags.")
    data = read_bytes(path)
    if not data.strip():
        raise TaskError(f"{path} is empty: it has no words to read.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if fallback is not None:
            return [line.rstrip("\r\n") for line in io.StringIO(data.decode(fallback, errors="replace"), newline="")]
        line = data[: error.start].count(b"\n") + 1
        raise TaskError(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is no UTF-8: save the file as UTF-8."
        ) from error
    return [line.rstrip("\r\n") for line in io.StringIO(text, newline="")]


def is_plain_tag(tag: str) -> bool:
    """Tell a tag that files of columns can hold from one with a blank or an invisible character.

    Args:
        tag: Any label.

    Returns:
        False where it holds a space, a no-break space, a zero-width space, a control character, or nothing.
    """
    return bool(tag) and " " not in tag and tag.isprintable()


def stray_tag(where: str, column: str, tag: str) -> TaskError:
    """Make the error for a tag that is not plain.

    Args:
        where: File and line.
        column: Of the tags.
        tag: As it stands there.

    Returns:
        The error, to be raised.
    """
    return TaskError(
        f"{where}: column {column!r} holds the tag {tag[:60]!r}, but a tag has no blank and no invisible character: "
        "mend it, or it would count as a tag of its own."
    )


def count_note(where: str, n: int, what: str, *, plural: str = "") -> tuple[str, ...]:
    """Say how often something was skipped or found, or nothing where it was not.

    Args:
        where: The file.
        n: How often.
        what: What, for one of them.
        plural: The same for several; empty appends an s.

    Returns:
        At most one note.

    Example:
        >>> count_note("a.conll", 2, "comment line skipped", plural="comment lines skipped")
        ('a.conll: 2 comment lines skipped',)
    """
    return (f"{where}: {n} {what if n == 1 else plural or what + 's'}",) if n else ()
