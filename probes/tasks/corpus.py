"""Texts without gold, for pretraining: generic sentences, text files, hub datasets, or the texts of any task."""

import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from extract.errors import TaskError, unknown_name
from extract.inputs.joined import JoinedText
from probes.readers.hub import read_repository
from probes.readers.raw_rows import FileFormat, RawTable, read_raw
from probes.tasks.entries import check_options
from probes.tasks.pairs.sts import DATA_VARIABLE
from probes.tasks.table import ALL_TASKS, load_any_task

GENERICS_FILE = "GenericsKB.txt"
MIN_TEXTS = 8


@dataclass(frozen=True)
class Corpus:
    """Texts, each once.

    Attributes:
        name: What reports call them.
        source: One line: where they came from.
        lines: The texts.
    """

    name: str
    source: str
    lines: tuple[str, ...]

    def texts(self) -> list[str]:
        """List the texts."""
        return list(self.lines)


def load_generics(folder: str | Path | None = None, *, templated: str = "last", seed: int = 0) -> Corpus:
    """Read generic sentences (GenericsKB: term, sentence and score, separated by tabs).

    Args:
        folder: Where `GenericsKB.txt` is; None is `$ICECORE_DATA/genericskb`.
        templated: Sentences of score 1.0, which are mostly templated: `last` puts them behind the natural ones,
            `drop` leaves them out.
        seed: Seed of the order within both kinds.

    Returns:
        The sentences, so ordered that the first n are a sample of n.

    Raises:
        TaskError: `ICECORE_DATA` is not set, or the file is missing or has a broken line or a score that is no number.
        UnknownNameError: Another `templated`.
    """
    if templated not in ("last", "drop"):
        raise unknown_name("templated", templated, ("last", "drop"))
    data = os.environ.get(DATA_VARIABLE)
    if folder is None and not data:
        raise TaskError(f"{DATA_VARIABLE} is not set: set it to the folder that holds genericskb, or give `folder`.")
    path = (Path(data or "") / "genericskb" if folder is None else Path(folder)).expanduser() / GENERICS_FILE
    kinds: tuple[list[str], list[str]] = ([], [])
    for number, line in enumerate(_lines(path), start=1):
        cells = line.split("\t")
        if len(cells) != 3:
            raise TaskError(
                f"{path}, line {number} has {len(cells)} cells ({line[:40]!r}); allowed: term, sentence and score."
            )
        score = _score(cells[2])
        if score is None:
            raise TaskError(f"{path}, line {number} has the score {cells[2][:40]!r}; allowed: a finite number.")
        kinds[score >= 1.0].append(cells[1].strip())
    chosen = kinds if templated == "last" else kinds[:1]
    generator = np.random.default_rng(seed)
    source = str(path) if folder is not None else f"{GENERICS_FILE} in ${DATA_VARIABLE}/genericskb"
    return _corpus("generics", source, [kind[i] for kind in chosen for i in generator.permutation(len(kind))])


def load_text_file(file: str | Path, *, column: str = "text") -> Corpus:
    """Read texts of a file: a line each, or a column of CSV, TSV, JSON Lines or Parquet.

    Args:
        file: The file; `.txt` is read line by line.
        column: The column of any other format.

    Returns:
        The texts, in their order.

    Raises:
        TaskError: The file cannot be read.
        UnknownNameError: No such column, or an unknown suffix.
    """
    path = Path(file).expanduser()
    if path.suffix.lower() == ".txt":
        return _corpus(path.stem, str(path), _lines(path))
    return _corpus(path.stem, str(path), _column(read_raw(path, FileFormat()), column))


def load_hub_texts(
    repository: str, *, column: str = "text", split: str = "train", revision: str | None = None
) -> Corpus:
    """Read texts of a dataset on the hub, or of a local folder laid out like one.

    Args:
        repository: Hub id or folder.
        column: The column that holds the texts.
        split: The split.
        revision: Branch, tag or commit.

    Returns:
        The texts, in their order.

    Raises:
        TaskError: The repository cannot be read.
        UnknownNameError: No such split or column.
    """
    tables, source = read_repository(repository, revision, help_text="give a local file to corpus 'text-file'")
    if split not in tables:
        raise unknown_name("split", split, tables)
    return _corpus(Path(repository).name, source, _column(tables[split], column))


def _score(cell: str) -> float | None:
    try:
        return number if math.isfinite(number := float(cell)) else None
    except ValueError:
        return None


CORPORA: dict[str, tuple[Callable[..., Corpus], str]] = {
    "generics": (load_generics, "generic sentences: $ICECORE_DATA/genericskb"),
    "text-file": (load_text_file, "a line per text, or a column of CSV, TSV, JSON Lines or Parquet"),
    "text-hub": (load_hub_texts, "a column of a hub dataset"),
}


def load_corpus(name: str, n_texts: int, options: Mapping[str, object]) -> Corpus:
    """Load the texts of a corpus, or of a task.

    Args:
        name: A key of `CORPORA`, or a task of any kind, of which every text is taken.
        n_texts: Texts to take at most, from the front.
        options: The options of the corpus or task.

    Returns:
        The corpus.

    Raises:
        UnknownNameError: A corpus, task or option that stands in no table.
        TaskError: An option is missing or of the wrong kind, or the texts cannot be read or are fewer than 8.

    Example:
        >>> len(load_corpus("sts-sample", 50, {}).texts())
        50
    """
    if name in CORPORA:
        load, _ = CORPORA[name]
        check_options("corpus", name, load, options, check_kind=_check_kind)
        found = load(**options)
    elif name in ALL_TASKS:
        task = load_any_task(name, **options)
        texts: list[str | JoinedText] = list(task.texts())
        found = _corpus(task.name, task.source, [text if isinstance(text, str) else text.text for text in texts])
    else:
        raise unknown_name("corpus", name, [*CORPORA, *ALL_TASKS])
    return Corpus(found.name, found.source, found.lines[:n_texts])


def _check_kind(corpus: str, parameter: inspect.Parameter, value: object) -> None:
    """Refuse what is of another kind than the loader's own annotation says."""
    kind: Any = parameter.annotation
    nouns = {str: "a text", str | None: "a text", int: "a whole number of at least 0"}
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not (is_count if kind is int else isinstance(value, kind)):
        noun = nouns.get(kind, "a path")
        raise TaskError(f"corpus option `{parameter.name}` of {corpus!r} is {value!r}, but {noun} is needed.")


def _corpus(name: str, source: str, texts: list[str]) -> Corpus:
    lines = tuple(dict.fromkeys(text for text in texts if text.strip()))
    if len(lines) < MIN_TEXTS:
        raise TaskError(f"corpus {name!r} has {len(lines)} texts ({source}); allowed: at least {MIN_TEXTS}.")
    return Corpus(name, source, lines)


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        return text.removesuffix("\n").split("\n")  # other breaks may stand inside a text
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read ({error}); give a text file in UTF-8.") from error


def _column(table: RawTable, column: str) -> list[str]:
    if column not in table.columns:
        raise unknown_name("column", column, table.columns, hint=f"These are the columns of {table.where}.")
    return [str(row.values[column]) for row in table.rows if not row.problem and row.values[column] is not None]
