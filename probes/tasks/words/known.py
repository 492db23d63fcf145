"""Published word tasks, from local files or the hub, and the sample shipped with the project."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from extract.errors import TaskError, unknown_name
from probes.readers.conll_columns import ColumnFormat, read_columns
from probes.readers.conllu import read_conllu
from probes.readers.hub import read_hub
from probes.readers.local import Files, data_hint, find_local, need_local
from probes.readers.sentences import SentenceTable
from probes.readers.splits import SPLITS, name_splits
from probes.readers.token_rows import TokenColumns, check_token_rows
from probes.tasks.base import load_shipped
from probes.tasks.words.assemble import build_task, hold_out
from probes.tasks.words.task import WordMetric, WordTask

CONLL2003_HUB_ID = "eriktks/conll2003"
CONLL2000_HUB_ID = "eriktks/conll2000"
PARQUET_BRANCH = "refs/convert/parquet"
"""Where the hub keeps the rows of data sets whose own files are a script, which `datasets` no longer runs."""

CONLL2003_COLUMNS = ("word", "pos", "chunk", "ner")
CONLL2003_FILES = {
    "train": ("eng.train", "train.txt"),
    "validation": ("eng.testa", "valid.txt", "dev.txt"),
    "test": ("eng.testb", "test.txt"),
}
CONLL2000_COLUMNS = ("word", "pos", "chunk")
CONLL2000_FILES = {"train": ("train.txt",), "test": ("test.txt",)}
FINANCE_FILES = {"train": ("FIN5.txt",), "test": ("FIN3.txt",)}
FINANCE_FORMAT = ColumnFormat(("word", "pos", "chunk", "ner"), fallback_encoding="cp1252")
WNUT17_FILES = {
    "train": ("wnut17train.conll",),
    "validation": ("emerging.dev.conll",),
    "test": ("emerging.test.annotated",),
}
UD_EWT_FILES = {
    "train": ("en_ewt-ud-train.conllu",),
    "validation": ("en_ewt-ud-dev.conllu",),
    "test": ("en_ewt-ud-test.conllu",),
}
TOLERANCE = 0.05
"""Share of tags that may break the scheme of a published file: its few slips are read as conlleval reads them, since
published files stay as they are, and are counted in the notes."""


def load_conll2003(
    tags: str = "ner",
    *,
    folder: str | Path | None = None,
    hub_id: str = CONLL2003_HUB_ID,
    revision: str | None = PARQUET_BRANCH,
    scheme: str = "auto",
) -> WordTask:
    """Load CoNLL-2003 English: entities, chunks or parts of speech of Reuters news.

    The published files have 14,041 training, 3,250 validation and 3,453 test sentences.

    Args:
        tags: `ner`, `chunk` or `pos`.
        folder: Where `eng.train`, `eng.testa` and `eng.testb` (or train.txt, valid.txt, test.txt) are; None is
            `$ICECORE_DATA/conll2003` where that folder exists, else the hub.
        hub_id: A dataset of the hub, or a local folder laid out like one, with lists `tokens` and `ner_tags`.
        revision: Branch, tag or commit of the hub; None is the main branch.
        scheme: `auto` finds the IOB1 of the published files and the IOB2 of the hub.
    """
    tables, source = _read_conll(
        "conll2003", CONLL2003_COLUMNS, CONLL2003_FILES, tags=tags, folder=folder, hub_id=hub_id, revision=revision
    )
    return build_task(
        tables, name=f"conll2003-{tags}", source=source, metric=_metric(tags), scheme=scheme, tolerance=TOLERANCE
    )


def load_conll2000(
    tags: str = "chunk",
    *,
    folder: str | Path | None = None,
    hub_id: str = CONLL2000_HUB_ID,
    revision: str | None = PARQUET_BRANCH,
    validation_fraction: float = 0.1,
    seed: int = 0,
    scheme: str = "auto",
) -> WordTask:
    """Load CoNLL-2000: chunks or parts of speech of the Wall Street Journal, with a validation split held out of train.

    The published files have 8,936 training and 2,012 test sentences.

    Args:
        tags: `chunk` or `pos`.
        folder: Where `train.txt` and `test.txt` are, packed as they are published (.gz) or not; None is
            `$ICECORE_DATA/conll2000` where that folder exists, else the hub.
        hub_id: A dataset of the hub, or a local folder laid out like one, with lists `tokens` and `chunk_tags`.
        revision: Branch, tag or commit of the hub; None is the main branch.
        validation_fraction: Share of the training sentences to hold out, because the task has no validation split.
        seed: Seed of that draw, by sentence.
        scheme: `auto` finds the IOB2 of the published files.
    """
    tables, source = _read_conll(
        "conll2000", CONLL2000_COLUMNS, CONLL2000_FILES, tags=tags, folder=folder, hub_id=hub_id, revision=revision
    )
    notes: tuple[str, ...] = ()
    if "validation" not in tables:
        tables, notes = hold_out(tables, fraction=validation_fraction, seed=seed)
    return build_task(
        tables,
        name=f"conll2000-{tags}",
        source=source,
        metric=_metric(tags),
        scheme=scheme,
        tolerance=TOLERANCE,
        notes=notes,
    )


def load_financial_ner(
    folder: str | Path | None = None, *, validation_fraction: float = 0.1, seed: int = 0, scheme: str = "auto"
) -> WordTask:
    """Load the financial agreements of Alvarado et al. (2015): persons, places, organisations, other names.

    Look Both Ways' financial NER. The agreements were filed with the US Securities and Exchange Commission; parties are
    often called Lender and Borrower, which are tagged as persons. The published files have 41,010 training and 13,246
    test words.

    Args:
        folder: Where `FIN5.txt` (train) and `FIN3.txt` (test) are, columns word, part of speech, a dash, tag; None is
            `$ICECORE_DATA/financial-ner`.
        validation_fraction: Share of the training sentences to hold out, because the task has no validation split.
        seed: Seed of that draw, by sentence.
        scheme: `auto` finds the scheme of the published files.
    """
    read = partial(read_columns, tags="ner", file_format=FINANCE_FORMAT)
    found, source = need_local("financial-ner", folder, example="FIN5.txt").read(FINANCE_FILES, read)
    tables, notes = hold_out(found, fraction=validation_fraction, seed=seed)
    return build_task(
        tables, name="financial-ner", source=source, metric="span-f1", scheme=scheme, tolerance=TOLERANCE, notes=notes
    )


def load_wnut17(folder: str | Path | None = None, *, scheme: str = "auto") -> WordTask:
    """Load WNUT-17: emerging and rare entities of six types in social media.

    3,394 training, 1,009 validation and 1,287 test sentences. `folder` holds `wnut17train.conll`, `emerging.dev.conll`
    and `emerging.test.annotated`; None is `$ICECORE_DATA/wnut17`.
    """
    local = need_local("wnut17", folder, example=WNUT17_FILES["train"][0])
    tables, source = local.read(WNUT17_FILES, _column_reader(("word", "ner"), "ner", separator="tab"))
    return build_task(tables, name="wnut17", source=source, metric="span-f1", scheme=scheme)


def load_ud_ewt(tags: str = "upos", *, folder: str | Path | None = None) -> WordTask:
    """Load the English Web Treebank of Universal Dependencies: parts of speech.

    12,544 training, 2,001 validation and 2,077 test sentences.

    Args:
        tags: `upos` (17 universal tags) or `xpos` (Penn Treebank tags).
        folder: Where `en_ewt-ud-train.conllu` and its siblings are; None is `$ICECORE_DATA/ud-ewt`.
    """
    _check_tags(tags, ("upos", "xpos"))
    local = need_local("ud-ewt", folder, example=UD_EWT_FILES["train"][0])
    tables, source = local.read(UD_EWT_FILES, partial(read_conllu, tags=tags))
    return build_task(tables, name=f"ud-ewt-{tags}", source=source, metric="accuracy")


def load_words_sample(tags: str = "ner") -> WordTask:
    """Load the sentences written for this project and shipped with it: a sample, not a benchmark.

    The tags are `ner`, `chunk` or `pos`, the documents of eight sentences.

    Example:
        >>> load_words_sample("chunk").n_rows()
        {'train': 112, 'validation': 32, 'test': 32}
    """
    _check_tags(tags, CONLL2003_COLUMNS[1:])
    read = _column_reader(CONLL2003_COLUMNS, tags)

    def load(folder: Path) -> WordTask:
        tables: dict[str, SentenceTable] = {split: read(folder / f"words.{split}.conll") for split in SPLITS}
        return build_task(tables, name=f"words-sample-{tags}", source="", metric=_metric(tags))

    return load_shipped("probes.tasks", "words/samples", load)


def _check_tags(tags: str, allowed: tuple[str, ...]) -> None:
    if tags not in allowed:
        raise unknown_name("column of tags", tags, allowed)


def _metric(tags: str) -> WordMetric:
    return "accuracy" if tags == "pos" else "span-f1"


def _column_reader(columns: tuple[str, ...], tags: str, *, separator: str = "auto") -> Callable[[Path], SentenceTable]:
    return partial(read_columns, tags=tags, file_format=ColumnFormat(columns, separator))


def _read_conll(
    name: str,
    columns: tuple[str, ...],
    files: Files,
    *,
    tags: str,
    folder: str | Path | None,
    hub_id: str,
    revision: str | None,
) -> tuple[dict[str, SentenceTable], str]:
    """Read a CoNLL task from its files where there are some, else from the hub."""
    _check_tags(tags, columns[1:])
    if local := find_local(name, folder):
        return local.read(files, _column_reader(columns, tags))
    if Path(hub_id).expanduser().is_dir():
        revision = None  # a folder has none, but the default names a branch
    help_text = data_hint(name, files["train"][0])
    found, source = read_hub(hub_id, revision=revision, help_text=help_text)
    tables = name_splits(found, source)
    missing = [split for split in files if split not in tables]
    if missing:
        raise TaskError(f"{source} has no {missing[0]} split; its splits: {', '.join(found)}.")
    # the lists are named as the CoNLL tasks of the hub name them: `tokens`, `ner_tags` and so on
    lists = TokenColumns(tags=f"{tags}_tags", document="document_id")
    return {split: check_token_rows(table, lists) for split, table in tables.items()}, source
