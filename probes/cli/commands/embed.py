"""`icecore embed`: latents of the texts of a file or of standard input, without a task."""

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from extract.errors import InputError, UsageError, unknown_name
from extract.files import write_file
from extract.store.cache import LatentCache
from extract.store.exports import WRITERS
from probes.cli.commands.score import read_lines
from probes.cli.screen import show, watcher_of
from probes.runs.config import RunConfig
from probes.runs.obtain import Watcher, obtain_cache
from probes.tasks.corpus import Corpus, read_texts

SUFFIXES = (".npy", *WRITERS)


def embed_command(found: SimpleNamespace) -> int:
    """Extract the latents of the texts of a file or of standard input."""
    return embed_file(found.config, found.file, column=found.column, to=found.out, watcher=watcher_of(found))


def column_of(file: str, column: str) -> str:
    """Return the column of the texts of a file; `UsageError` where one is named and the file is no table."""
    if column and (file in ("-", "task") or Path(file).suffix.lower() == ".txt"):
        raise UsageError(f"--column names a column of a table, but the texts come from {file!r}; leave --column out.")
    return column or "text"


def read_corpus(file: str, column: str) -> Corpus:
    """Read the texts of a file, or of standard input for `-`, with repeats; an InputError for none."""
    name = "standard input" if file == "-" else Path(file).name
    return Corpus(name, file, tuple(_texts(file, column_of(file, column))))


def embed_file(config: RunConfig, file: str, *, column: str, to: str, watcher: Watcher) -> int:
    """Extract the latents of the texts of a file; also write them to `to` where that is not empty."""
    out = Path(to)
    if to and out.suffix not in SUFFIXES:
        raise unknown_name("suffix of --out", out.suffix, SUFFIXES)
    corpus = read_corpus(file, column)
    cache = obtain_cache(config, corpus, watcher=watcher)
    show(str(cache.path))
    if to:
        if out.suffix == ".npy":
            write_file(out, _npy(cache, corpus.texts()))
        else:
            cache.export(out, texts=corpus.texts())
        show(str(out))
    return 0


def _texts(file: str, column: str) -> list[str]:
    texts = [
        text for text in (read_lines(file) if file == "-" else read_texts(Path(file), column=column)) if text.strip()
    ]
    if not texts:
        raise InputError(f"{file!r} holds no texts; give at least one, a line each.")
    return texts


def _npy(cache: LatentCache, texts: Sequence[str]) -> bytes:
    rows = cache.rows_of(texts)
    found = np.stack([cache.gather(rows, pooling).transpose(0, 1).numpy() for pooling in cache.poolings], axis=2)
    out = io.BytesIO()
    np.save(out, found)
    return out.getvalue()
