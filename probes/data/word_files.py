"""Word tasks from local files (CoNLL columns, CoNLL-U, JSON Lines), and from token datasets of the hub."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from extract.errors import TaskError, unknown_name
from probes.data.conll import ColumnFormat, read_columns, read_conllu
from probes.data.sources import FileNames, data_hint, find_local, need_local, read_hub
from probes.data.splits import SPLITS, SplitRule, files_by_split, find_split_files, name_splits
from probes.data.table_files import (
    JSON_SUFFIXES,
    Files,
    SentenceTable,
    TokenColumns,
    check_token_rows,
    inner_suffix,
    read_raw,
)
from probes.data.task import load_shipped
from probes.data.word_task import WordMetric, WordTask, build_task, draw_splits, hold_out

CONLLU_SUFFIX = ".conllu"
_NO_HUB = "check the name and the connection, or give local files to task 'word-files'"


def load_word_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Files,
    *,
    tags: str = "tags",
    columns: Sequence[str] | None = None,
    words: str = "tokens",
    metric: str = "auto",
    scheme: str = "auto",
    separator: str = "auto",
    has_comments: bool = False,
    split: str | None = None,
    validation_fraction: float = 0.1,
    seed: int = 0,
    name: str = "word-files",
) -> WordTask:
    r"""Read a word task from files of columns, CoNLL-U files or JSON Lines; span tags become IOB2.

    Args:
        files: Split (train, validation or dev, test) to its file; or a folder in which one file a split has train,
            dev or valid, test (testa is validation, testb is test) as a part of its name; or one file. The format goes
            by the suffix: .conllu; .jsonl, .ndjson and .json; anything else is columns. Any may be packed (.gz).
        tags: The column, or list, of the tags; `upos`, `xpos` or `deprel` of CoNLL-U.
        columns: Names of the columns in the order of the file, `word` among them; needed for files of columns only.
        words: The list of words in JSON Lines.
        metric: `span-f1`, `accuracy`, or `auto`: spans if every tag is a span tag, accuracy if none but O is one.
        scheme: `auto` detects IOB1, IOB2, IO, BIOES or BILOU and rejects mixtures; a name is trusted.
        separator: `tab`, `space`, `whitespace` (both), or `auto`: that of the first line of each file.
        has_comments: True skips lines of column files that start with #.
        split: `auto` draws the splits that are missing: all three (80/10/10, documents whole) from train or one file,
            validation where there is train and test. `given` draws none. None is `auto` for one file.
        validation_fraction: Share of the training sentences that becomes validation when only that split is missing.
        seed: Seed of that draw.
        name: Name of the task in reports.

    Raises:
        TaskError: A file is missing, empty or broken (with file, line and value), schemes are mixed, or the task cannot
            be used.
        UnknownNameError: A split, column, metric, scheme or separator is unknown.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "train.txt").write_text("Ice NN O\nin IN O\nOslo NNP I-LOC\n", encoding="utf-8")
        >>> task = load_word_files(folder, columns=["word", "pos", "ner"], tags="ner")
        >>> task.splits["train"]["tags"][0], task.metric, task.scheme.name
        (['O', 'O', 'B-LOC'], 'span-f1', 'IO')
    """
    if isinstance(columns, str):
        raise TaskError(f"`columns` is {columns!r}, but a list of names is needed, such as [word, pos, chunk, ner].")
    is_one = not isinstance(files, Mapping) and Path(files).expanduser().is_file()
    if isinstance(files, Mapping):
        paths = files_by_split(files)
    else:
        path = Path(files).expanduser()
        paths = {"train": path} if is_one else find_split_files(path)
    tables: dict[str, SentenceTable] = {}
    for part, path in paths.items():
        suffix = inner_suffix(path)
        if suffix == CONLLU_SUFFIX:
            tables[part] = read_conllu(path, tags)
        elif suffix in JSON_SUFFIXES:
            tables[part] = check_token_rows(read_raw(path), TokenColumns(words, tags))
        elif columns is None:
            raise TaskError(
                f"{path} is read as columns, so `columns` must name them in order, such as [word, pos, chunk, ner]."
            )
        else:
            file_format = ColumnFormat(tuple(columns), separator, has_comments)
            tables[part] = read_columns(path, tags, file_format=file_format)
    source = ", ".join(str(path) for path in paths.values())
    rule = SplitRule(seed, validation_fraction, split=split or ("auto" if is_one else "given"))
    tables, notes = draw_splits(tables, rule, name=name)
    return build_task(tables, name=name, source=source, metric=metric, scheme=scheme, notes=notes)


def load_word_hub(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    hub_id: str,
    *,
    config: str | None = None,
    revision: str | None = None,
    splits: Mapping[str, str] | None = None,
    words: str = "tokens",
    tags: str = "ner_tags",
    document: str | None = None,
    metric: str = "auto",
    scheme: str = "auto",
    validation_fraction: float = 0.1,
    seed: int = 0,
) -> WordTask:
    """Load a token dataset by its column names through `datasets`; the source names the commit.

    Args:
        hub_id: A dataset of the hub, or a local folder laid out like one.
        config: Its configuration, where the repository keeps several.
        revision: Branch, tag or commit; None is the main branch.
        splits: Split (train, validation, test) to its name in the repository; None takes the usual names and leaves
            other splits out.
        words: Column of the lists of words.
        tags: Column of the lists of tags: texts, or whole numbers whose names the dataset declares.
        document: Column that names the document of a sentence; None where there is none.
        metric: As in `load_word_files`.
        scheme: As in `load_word_files`.
        validation_fraction: Share of the training sentences to hold out where the dataset has no validation split; 0
            holds out none.
        seed: Seed of that draw, by sentence.

    Raises:
        TaskError: The hub is out of reach and the cache has no copy (noticed in seconds), a row is bad, schemes are
            mixed, no split has a usual name, or nothing can be held out.
        UnknownNameError: A configuration, split, column, metric or scheme is unknown.
    """
    columns = TokenColumns(words, tags, document, needs_document=document is not None)
    raw, source = read_hub(hub_id, config, revision=revision, help_text=_NO_HUB)
    raw = name_splits(raw, source, splits, hint="; name them with `splits`")
    tables = {split: check_token_rows(table, columns) for split, table in raw.items()}
    notes: tuple[str, ...] = ()
    if "train" in tables and "validation" not in tables and validation_fraction != 0:
        tables, notes = hold_out(tables, fraction=validation_fraction, seed=seed)
    name = Path(hub_id).name if config is None else f"{Path(hub_id).name}-{config}"
    return build_task(tables, name=name, source=source, metric=metric, scheme=scheme, notes=notes)


CONLL2003_HUB_ID = "eriktks/conll2003"
CONLL2000_HUB_ID = "eriktks/conll2000"
PARQUET_BRANCH = "refs/convert/parquet"
"""Branch with the rows of data sets whose own files are a script, which `datasets` no longer runs."""

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
"""Share of tags that may break the scheme of a published file; they are read by the rules of conlleval and counted."""


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
    tables, source = need_local("financial-ner", folder, example="FIN5.txt").read(FINANCE_FILES, read)
    tables, notes = hold_out(tables, fraction=validation_fraction, seed=seed)
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

    return load_shipped("samples/words", load).replaced(source="words/samples, shipped with icecore")


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
    files: FileNames,
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
    raw, source = read_hub(hub_id, revision=revision, help_text=help_text)
    tables = name_splits(raw, source)
    missing = [split for split in files if split not in tables]
    if missing:
        raise TaskError(f"{source} has no {missing[0]} split; its splits: {', '.join(raw)}.")
    # the CoNLL tasks of the hub name their lists `tokens`, `ner_tags` and so on
    lists = TokenColumns(tags=f"{tags}_tags", document="document_id")
    return {split: check_token_rows(table, lists) for split, table in tables.items()}, source
