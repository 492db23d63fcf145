"""Rows that hold a list of words and a list of tags: JSON Lines, and token datasets in hub layout."""

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from extract.errors import TaskError, unknown_name
from probes.words.sentences import BLANK, DOCUMENT_START, Sentence, SentenceTable, count_note

if TYPE_CHECKING:
    from probes.tasks.raw_rows import RawRow, RawTable

# `probes.tasks` is imported inside functions, here and in `probes.words.known`: its registry lists the tasks of this
# package, so whichever of the two is imported first must not wait for the other.


@dataclass(frozen=True)
class TokenColumns:
    """Where the parts of a sentence stand in a row."""

    words: str = "tokens"
    tags: str = "tags"
    document: str = "document"
    """Used where the rows have it."""


def read_token_json(path: Path, columns: TokenColumns) -> SentenceTable:
    r"""Read JSON Lines (or a JSON list) whose rows hold words and tags.

    Args:
        path: A local .jsonl, .ndjson or .json file.
        columns: The names of the lists.

    Returns:
        The sentences; rows without words are skipped and counted.

    Raises:
        TaskError: If the file is missing, empty or broken, or a row has no such lists of one length; with its line.
        UnknownNameError: If no row has the column.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "x.jsonl"
        >>> _ = path.write_text('{"tokens": ["Oslo"], "tags": ["B-LOC"]}\n', encoding="utf-8")
        >>> read_token_json(path, TokenColumns()).sentences[0].tags
        ['B-LOC']
    """
    from probes.tasks.raw_rows import FileFormat, read_raw

    return check_token_rows(read_raw(path, FileFormat()), columns)


def check_token_rows(table: "RawTable", columns: TokenColumns, names: Sequence[str] = ()) -> SentenceTable:
    """Turn rows into sentences, or say which row cannot be one.

    Args:
        table: Rows with their line or row numbers.
        columns: The names of the lists.
        names: What whole-number tags mean, in order.

    Returns:
        The sentences; rows without words are skipped and counted, and a row of -DOCSTART- alone opens a document.

    Raises:
        TaskError: If a row is bad; with file, row, column and value.
        UnknownNameError: If a column is not there.
    """
    for column in (columns.words, columns.tags):
        if column not in table.columns:
            raise unknown_name("column", column, table.columns, hint=f"These are the columns of {table.where}.")
    sentences: list[Sentence] = []
    n_documents = n_empty = 0
    for row in table.rows:
        sentence = _check_row(table, row, columns, names)
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


def _check_row(table: "RawTable", row: "RawRow", columns: TokenColumns, names: Sequence[str]) -> Sentence:
    from probes.tasks.raw_rows import shorten

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
        if not isinstance(word, str) or not word.strip(BLANK):
            raise TaskError(f"{where}: column {columns.words!r} holds the word {shorten(word)}, but a text is needed.")
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise TaskError(f"{where}: the word {shorten(word)} holds half a character: mend the file.") from error
    named = [_name_tag(where, columns.tags, tag, names) for tag in tags]
    document = row.values.get(columns.document)
    return Sentence(
        words, named, "" if document is None else str(document), [True] * len(words), [row.number] * len(words)
    )


def _name_tag(where: str, column: str, tag: Any, names: Sequence[str]) -> str:
    if isinstance(tag, str) and tag.strip():
        return tag
    if names and isinstance(tag, int) and not isinstance(tag, bool) and 0 <= tag < len(names):
        return names[tag]
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
    from probes.tasks.hub import read_repository

    tables, source = read_repository(repository, revision, help_text=help_text)
    names: Mapping[str, Sequence[str]] = {}
    if any(_holds_numbers(table, columns.tags) for table in tables.values()):
        names = _read_tag_names(repository, columns.tags, source)
    return {split: check_token_rows(table, columns, names.get(split, ())) for split, table in tables.items()}, source


def _holds_numbers(table: "RawTable", column: str) -> bool:
    lists = (row.values.get(column) for row in table.rows)
    return any(isinstance(tag, int) for tags in lists if isinstance(tags, list) for tag in tags[:1])


# The rows of `read_repository` are plain values; what the numbers mean stands in the features of the data set, which is
# why it is opened a second time (from the cache of `datasets`, where the first time left it).
def _read_tag_names(repository: str, column: str, source: str) -> Mapping[str, Sequence[str]]:
    import datasets

    from probes.tasks.hf_rows import quiet_datasets
    from probes.tasks.hub import _datasets_offline

    is_folder = Path(repository).expanduser().is_dir()
    path = str(Path(repository).expanduser().absolute()) if is_folder else repository
    commit = re.fullmatch(r".* at (\S+) of the Hugging Face hub", source)
    offline = nullcontext() if is_folder or commit else _datasets_offline()
    with quiet_datasets(), offline, TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        loaded = datasets.load_dataset(path, revision=commit and commit[1], cache_dir=cache if is_folder else None)
        features = {str(split): getattr(rows.features[column], "feature", None) for split, rows in loaded.items()}
    return {split: tuple(getattr(feature, "names", None) or ()) for split, feature in features.items()}
