"""Rows that hold a list of words and a list of tags: JSON Lines, and token datasets in hub layout."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from extract.errors import TaskError, unknown_name
from probes.readers.hub import read_repository
from probes.readers.raw_rows import FileFormat, RawRow, RawTable, read_raw, shorten
from probes.readers.sentences import BLANK, DOCUMENT_START, Sentence, SentenceTable, count_note, is_plain_tag, stray_tag


@dataclass(frozen=True)
class TokenColumns:
    """Where the parts of a sentence stand in a row."""

    words: str = "tokens"
    tags: str = "tags"
    document: str | None = "document"
    """Used where the rows have it; None looks for none."""
    needs_document: bool = False
    """True refuses rows without that column."""


def read_token_json(path: Path, columns: TokenColumns) -> SentenceTable:
    r"""Read JSON Lines (or a JSON list) whose rows hold words and tags.

    Args:
        path: A local .jsonl, .ndjson or .json file, packed (.gz) or not.
        columns: The names of the lists.

    Returns:
        The sentences; rows without words are skipped and counted.

    Raises:
        TaskError: If the file is missing, empty or broken, a row has no such lists of one length, or a word or tag is
            one that a file of columns cannot hold; with its line.
        UnknownNameError: If no row has the column.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "x.jsonl"
        >>> _ = path.write_text('{"tokens": ["Oslo"], "tags": ["B-LOC"]}\n', encoding="utf-8")
        >>> read_token_json(path, TokenColumns()).sentences[0].tags
        ['B-LOC']
    """
    return check_token_rows(read_raw(path, FileFormat()), columns)


def check_token_rows(table: RawTable, columns: TokenColumns) -> SentenceTable:
    """Turn rows into sentences, or say which row cannot be one.

    Args:
        table: Rows with their line or row numbers, and the names of whole-number tags where it knows them.
        columns: The names of the lists.

    Returns:
        The sentences; rows without words are skipped and counted, and a row of -DOCSTART- alone opens a document.

    Raises:
        TaskError: If a row is bad; with file, row, column and value.
        UnknownNameError: If a column is not there.
    """
    for column in (columns.words, columns.tags, *([columns.document] if columns.needs_document else [])):
        if column not in table.columns:
            raise unknown_name("column", column, table.columns, hint=f"These are the columns of {table.where}.")
    sentences: list[Sentence] = []
    n_documents = n_empty = 0
    for row in table.rows:
        sentence = _check_row(table, row, columns)
        if sentence.words == [DOCUMENT_START]:
            n_documents += 1
        elif not sentence.words:
            n_empty += 1
        else:
            document = sentence.document or (str(n_documents) if n_documents else "")
            sentences.append(replace(sentence, document=document))
    if not sentences:
        raise TaskError(f"{table.where} has no row with words in column {columns.words!r}.")
    notes = count_note(table.where, n_empty, "row without words skipped", plural="rows without words skipped")
    return SentenceTable(table.where, table.unit, sentences, notes)


def _check_row(table: RawTable, row: RawRow, columns: TokenColumns) -> Sentence:
    where = f"{table.where}, {table.unit} {row.number}"
    if row.problem:
        raise TaskError(f"{where}: {row.problem}.")
    words, tags = row.values.get(columns.words), row.values.get(columns.tags)
    for column, value in ((columns.words, words), (columns.tags, tags)):
        if not isinstance(value, list):
            raise TaskError(f"{where}: column {column!r} holds {shorten(value)}, but a list is needed.")
    assert isinstance(words, list)
    assert isinstance(tags, list)
    if len(words) != len(tags):
        raise TaskError(f"{where}: {len(words)} words but {len(tags)} tags: every word needs one tag.")
    for word in words:
        _check_word(where, columns.words, word, is_alone=len(words) == 1)
    names = table.value_names.get(columns.tags, ())
    named = [_name_tag(where, columns.tags, tag, names) for tag in tags]
    document = None if columns.document is None else row.values.get(columns.document)
    return Sentence(
        words, named, "" if document is None else str(document), [True] * len(words), [row.number] * len(words)
    )


# What a file of columns cannot hold is refused here: the predictions of a run are written as one.
def _check_word(where: str, column: str, word: Any, *, is_alone: bool) -> None:
    if not isinstance(word, str) or not word.strip(BLANK):
        raise TaskError(f"{where}: column {column!r} holds the word {shorten(word)}, but a text is needed.")
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise TaskError(f"{where}: the word {shorten(word)} holds half a character: mend the file.") from error
    if any(blank in word for blank in "\t\r\n"):
        raise TaskError(
            f"{where}: column {column!r} holds the word {shorten(word)}, but a word has no tab and no line end: split "
            "it into words with a tag each."
        )
    starts = DOCUMENT_START in word and any(part.startswith(DOCUMENT_START) for part in word.split(" "))
    if starts and not (is_alone and word == DOCUMENT_START):
        raise TaskError(
            f"{where}: column {column!r} holds the word {shorten(word)} within a sentence, but {DOCUMENT_START} begins "
            "a document, in a row of its own: take it out of the sentence."
        )


def _name_tag(where: str, column: str, tag: Any, names: Sequence[str]) -> str:
    named = tag
    if names and isinstance(tag, int) and not isinstance(tag, bool) and 0 <= tag < len(names):
        named = names[tag]
    if isinstance(named, str) and named.strip():
        if not is_plain_tag(named):
            raise stray_tag(where, column, named)
        return named
    wanted = f"a whole number from 0 to {len(names) - 1}" if names else "a text"
    raise TaskError(f"{where}: column {column!r} holds the tag {tag!r}, but {wanted} is needed.")


def read_token_repository(
    repository: str, columns: TokenColumns, *, revision: str | None, help_text: str
) -> tuple[dict[str, SentenceTable], str]:
    """Read every split of a token dataset of the hub, its cache, or a local folder laid out like one.

    Args:
        repository: A hub id or a local folder.
        columns: The names of the lists; whole-number tags get the names of their `ClassLabel` feature.
        revision: Branch, tag or commit; None is the main branch.
        help_text: What else to do when the hub cannot be had, as the end of a sentence.

    Returns:
        Split to its sentences, and one line that says where they came from.

    Raises:
        TaskError: If the repository cannot be had or read, or a row is bad.
        UnknownNameError: If a column is not there.
    """
    tables, source = read_repository(repository, revision, help_text=help_text)
    return {split: check_token_rows(table, columns) for split, table in tables.items()}, source
