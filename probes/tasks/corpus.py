"""Texts without gold, for pretraining: generic sentences, text files, hub datasets, or the texts of any task."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from extract.errors import TaskError, unknown_name
from probes.readers.checks import unknown_column
from probes.readers.hub import read_hub
from probes.readers.local import need_local
from probes.readers.raw_rows import RawTable, read_raw
from probes.readers.text_files import read_lines

GENERICS_FILE = "GenericsKB.txt"
MIN_TEXTS = 8


@dataclass(frozen=True)
class Corpus:
    """Texts, each once, with their name in reports and where they came from."""

    name: str
    source: str
    lines: tuple[str, ...]

    def texts(self) -> list[str]:
        """List the texts."""
        return list(self.lines)


def load_generics(folder: str | Path | None = None, *, templated: str = "last", seed: int = 0) -> Corpus:
    """Read generic sentences (GenericsKB: term, sentence and score, separated by tabs).

    The first n are a sample of n, for every n.

    Args:
        folder: Where `GenericsKB.txt` is; None is `$ICECORE_DATA/genericskb`.
        templated: What to do with sentences of score 1.0, most of which are templated: `last` puts them after the
            natural ones, `drop` leaves them out.
        seed: Seed of the order within the natural and the templated sentences.
    """
    if templated not in ("last", "drop"):
        raise unknown_name("templated", templated, ("last", "drop"))
    local = need_local("genericskb", folder, example=GENERICS_FILE)
    path = local.find(GENERICS_FILE)
    kinds: tuple[list[str], list[str]] = ([], [])
    for number, line in enumerate(read_lines(path), start=1):
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
    return make_corpus(
        "generics", local.source(path), [kind[i] for kind in chosen for i in generator.permutation(len(kind))]
    )


def load_text_file(file: str | Path, *, column: str = "text") -> Corpus:
    """Read texts of a file in their order: one per line of .txt, or a column of CSV, TSV, JSON Lines or Parquet."""
    path = Path(file).expanduser()
    return make_corpus(path.stem, str(path), read_texts(path, column=column))


def read_texts(path: Path, *, column: str = "text") -> list[str]:
    """Read the texts of a file in their order, with repeats, as `load_text_file`."""
    return read_lines(path) if path.suffix.lower() == ".txt" else _column(read_raw(path), column)


def load_hub_texts(
    repository: str, *, column: str = "text", split: str = "train", revision: str | None = None
) -> Corpus:
    """Read a column of texts of a dataset on the hub, or of a local folder laid out like one."""
    tables, source = read_hub(repository, revision=revision, help_text="give a local file to corpus 'text-file'")
    if split not in tables:
        raise unknown_name("split", split, tables)
    return make_corpus(Path(repository).name, source, _column(tables[split], column))


def _score(cell: str) -> float | None:
    try:
        return number if math.isfinite(number := float(cell)) else None
    except ValueError:
        return None


def make_corpus(name: str, source: str, texts: list[str]) -> Corpus:
    """Make a corpus of the texts that are not blank, each once; `TaskError` for fewer than 8."""
    lines = tuple(dict.fromkeys(text for text in texts if text.strip()))
    if len(lines) < MIN_TEXTS:
        raise TaskError(f"corpus {name!r} has {len(lines)} texts ({source}); allowed: at least {MIN_TEXTS}.")
    return Corpus(name, source, lines)


def _column(table: RawTable, column: str) -> list[str]:
    if column not in table.columns:
        raise unknown_column(column, table)
    return [str(row.values[column]) for row in table.rows if not row.problem and row.values[column] is not None]
