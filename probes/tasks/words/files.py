"""A word task from local files: CoNLL columns, CoNLL-U or JSON Lines, one file a split or a folder of them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from extract.errors import TaskError, unknown_name
from probes.readers.conll_columns import ColumnFormat, read_columns
from probes.readers.conllu import read_conllu
from probes.readers.packed import inner_suffix
from probes.readers.sentences import SentenceTable
from probes.readers.token_rows import TokenColumns, read_token_json
from probes.tasks.base import SPLITS
from probes.tasks.words.assemble import build_task
from probes.tasks.words.task import WordTask

CONLLU_SUFFIXES = (".conllu",)
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_MARKS = {
    "train": ("train", "training"),
    "validation": ("dev", "devel", "development", "val", "valid", "validation", "testa"),
    "test": ("test", "testing", "testb"),
}
"""What in the name of a file tells its split: a whole part of it, letters between other characters, `set` left off."""


def load_word_files(
    files: Mapping[str, str | Path] | str | Path,
    *,
    tags: str = "tags",
    columns: Sequence[str] | None = None,
    words: str = "tokens",
    metric: str = "auto",
    scheme: str = "auto",
    separator: str = "auto",
    has_comments: bool = False,
    name: str = "word-files",
) -> WordTask:
    r"""Read a word task from files of columns, CoNLL-U files or JSON Lines.

    Args:
        files: Split (train, validation or dev, test) to its file; or a folder in which one file a split has train,
            dev or valid, test (testa is validation, testb is test) as a part of its name. The format goes by the
            suffix: .conllu; .jsonl, .ndjson and .json; anything else is columns. Any of them may be packed (.gz).
        tags: The column, or list, of the tags; `upos`, `xpos` or `deprel` of CoNLL-U.
        columns: Names of the columns in the order of the file, `word` among them; needed for files of columns only.
        words: The list of words in JSON Lines.
        metric: `span-f1`, `accuracy`, or `auto`: spans if every tag is a span tag, accuracy if none but O is one.
        scheme: `auto` detects IOB1, IOB2, IO, BIOES or BILOU and refuses mixtures; a name is taken at its word.
        separator: `tab`, `space`, `whitespace` (both), or `auto`: what the first line of each file has.
        has_comments: True skips lines of column files that start with #.
        name: What reports call the task.

    Returns:
        The task; span tags are IOB2.

    Raises:
        TaskError: If a file is missing, empty or broken (with file, line and value), schemes are mixed, or the task
            cannot be used.
        UnknownNameError: If a split, column, metric, scheme or separator is unknown.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "train.txt").write_text("Ice NN O\nin IN O\nOslo NNP I-LOC\n", encoding="utf-8")
        >>> task = load_word_files(folder, columns=["word", "pos", "ner"], tags="ner")
        >>> task.splits["train"]["tags"][0], task.metric, task.scheme.found
        (['O', 'O', 'B-LOC'], 'span-f1', 'IO')
    """
    if isinstance(columns, str):
        raise TaskError(f"`columns` is {columns!r}, but a list of names is needed, such as [word, pos, chunk, ner].")
    paths = find_split_files(files)
    tables: dict[str, SentenceTable] = {}
    for split, path in paths.items():
        suffix = inner_suffix(path)
        if suffix in CONLLU_SUFFIXES:
            tables[split] = read_conllu(path, tags)
        elif suffix in JSON_SUFFIXES:
            tables[split] = read_token_json(path, TokenColumns(words, tags))
        elif columns is None:
            raise TaskError(
                f"{path} is read as columns, so `columns` must name them in order, such as [word, pos, chunk, ner]."
            )
        else:
            file_format = ColumnFormat(tuple(columns), separator, has_comments)
            tables[split] = read_columns(path, tags, file_format=file_format)
    source = ", ".join(str(path) for path in paths.values())
    return build_task(tables, name=name, source=source, metric=metric, scheme=scheme)


def find_split_files(files: Mapping[str, str | Path] | str | Path) -> dict[str, Path]:
    """Find the file of each split.

    Args:
        files: Split to its file, or a folder whose file names tell the split.

    Returns:
        Split (train, validation, test) to a path.

    Raises:
        TaskError: If no file, or more than one, fits a split, or a file fits two splits.
        UnknownNameError: If a split is unknown.
    """
    from probes.tasks.pairs.validate import canonical_split

    if not isinstance(files, Mapping):
        return _search_folder(Path(files).expanduser())
    if not files:
        raise TaskError(f"`files` names no file: give at least one of {', '.join(SPLITS)}.")
    paths: dict[str, Path] = {}
    for key, path in files.items():
        split = canonical_split(key)
        if split is None:
            raise unknown_name("split", key, SPLITS, hint="`files` maps a split to its file.")
        if split in paths:
            raise TaskError(f"`files` names the {split} split twice ({paths[split]} and {path}): leave one out.")
        paths[split] = Path(path).expanduser()
    return paths


def _search_folder(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        what = "is a file" if folder.is_file() else "does not exist"
        raise TaskError(f"{folder} {what}: give `files` as a folder, or map each of {', '.join(SPLITS)} to its file.")
    paths: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        split = None if path.name.startswith(".") or not path.is_file() else _split_of(path)
        if split is None:
            continue
        if split in paths:
            raise TaskError(
                f"{folder} has two files for the {split} split, {paths[split].name} and {path.name}: map each split to "
                "its file with `files`."
            )
        paths[split] = path
    if not paths:
        raise TaskError(
            f"{folder} has no file with train, dev, valid or test in its name: map each split to its file with `files`."
        )
    return {split: paths[split] for split in SPLITS if split in paths}


def _split_of(path: Path) -> str | None:
    parts = [part.removesuffix("set") for part in re.split("[^a-z]+", path.name.lower())]
    found = [split for split, marks in _MARKS.items() if any(part in marks for part in parts)]
    if len(found) > 1:
        raise TaskError(
            f"{path} may be the {found[0]} or the {found[1]} split by its name: map each split to its file with "
            "`files`."
        )
    return found[0] if found else None
