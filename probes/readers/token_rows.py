"""Rows that hold a list of words and a list of tags: JSON Lines, and token datasets in hub layout."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from extract.errors import TaskError
from probes.readers.checks import BadRow, check_table, check_text, tag_problem
from probes.readers.raw_rows import RawRow, RawTable, read_raw, shorten
from probes.readers.sentences import BLANK, DOCUMENT_START, Sentence, SentenceTable, count_note


@dataclass(frozen=True)
class TokenColumns:
    """Names of the columns that hold the parts of a sentence."""

    words: str = "tokens"
    tags: str = "tags"
    document: str | None = "document"
    """Used where the rows have it; None looks for none."""
    needs_document: bool = False
    """True rejects rows without that column."""


def read_token_json(path: Path, columns: TokenColumns) -> SentenceTable:
    """Read JSON Lines (or a JSON list) whose rows hold words and tags; see `check_token_rows`."""
    return check_token_rows(read_raw(path), columns)


def check_token_rows(table: RawTable, columns: TokenColumns) -> SentenceTable:
    """Turn rows that hold a list of words and one of tags into sentences.

    Whole-number tags get the names that the table knows. Rows without words are skipped and counted, and a row of
    -DOCSTART- alone opens a document.

    Raises:
        TaskError: A row has no such lists of one length, or a word or tag that a file of columns cannot hold; with
            file, row, column and value.
        UnknownNameError: A column is not there.
    """
    needed = (columns.words, columns.tags, columns.document if columns.needs_document else None)
    checked, _ = check_table(table, needed, partial(_check_row, table, columns), bad_rows=None)
    sentences: list[Sentence] = []
    n_documents = n_empty = 0
    for sentence in checked:
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


def _check_row(table: RawTable, columns: TokenColumns, row: RawRow) -> Sentence:
    words = _check_list(columns.words, row.values.get(columns.words))
    tags = _check_list(columns.tags, row.values.get(columns.tags))
    if len(words) != len(tags):
        raise BadRow("lengths differ", f"{len(words)} words but {len(tags)} tags: every word needs one tag")
    for word in words:
        _check_word(columns.words, word, is_alone=len(words) == 1)
    names = table.value_names.get(columns.tags, ())
    named = [_name_tag(columns.tags, tag, names) for tag in tags]
    document = None if columns.document is None else row.values.get(columns.document)
    return Sentence(
        words, named, "" if document is None else str(document), [True] * len(words), [row.number] * len(words)
    )


def _check_list(column: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadRow("no list", f"column {column!r} holds {shorten(value)}, but a list is needed")
    return value


# What a file of columns cannot hold is rejected here: the predictions of a run are written as one.
def _check_word(column: str, value: Any, *, is_alone: bool) -> None:
    word = check_text(column, value, blank=BLANK)
    if any(blank in word for blank in "\t\r\n"):
        raise BadRow(
            "word with a tab",
            f"column {column!r} holds the word {shorten(word)}, but a word has no tab and no line end: split it into "
            "words with a tag each",
        )
    starts = DOCUMENT_START in word and any(part.startswith(DOCUMENT_START) for part in word.split(" "))
    if starts and not (is_alone and word == DOCUMENT_START):
        raise BadRow(
            "document mark in a sentence",
            f"column {column!r} holds the word {shorten(word)} within a sentence, but {DOCUMENT_START} begins a "
            "document, in a row of its own: take it out of the sentence",
        )


def _name_tag(column: str, tag: Any, names: Sequence[str]) -> str:
    named = tag
    if names and isinstance(tag, int) and not isinstance(tag, bool) and 0 <= tag < len(names):
        named = names[tag]
    if not isinstance(named, str) or not named.strip():
        wanted = f"a whole number from 0 to {len(names) - 1}" if names else "a text"
        raise BadRow("no tag", f"column {column!r} holds the tag {tag!r}, but {wanted} is needed")
    if problem := tag_problem(column, named):
        raise BadRow("stray tag", problem)
    return named
