"""Word tasks from local files (CoNLL columns, CoNLL-U, JSON Lines), and from token datasets of the hub."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from extract.errors import TaskError
from probes.readers.conll_columns import ColumnFormat, read_columns
from probes.readers.conllu import read_conllu
from probes.readers.hub import read_hub
from probes.readers.raw_rows import JSON_SUFFIXES
from probes.readers.sentences import SentenceTable
from probes.readers.splits import files_by_split, find_split_files, name_splits
from probes.readers.text_files import inner_suffix
from probes.readers.token_rows import TokenColumns, check_token_rows, read_token_json
from probes.tasks.splitting import SplitRule
from probes.tasks.words.assemble import build_task, draw_splits, hold_out
from probes.tasks.words.task import WordTask

CONLLU_SUFFIX = ".conllu"
_NO_HUB = "check the name and the connection, or give local files to task 'word-files'"


def load_word_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Mapping[str, str | Path] | str | Path,
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
        separator: `tab`, `space`, `whitespace` (both), or `auto`: what the first line of each file has.
        has_comments: True skips lines of column files that start with #.
        split: `auto` draws the splits that are missing: all three (80/10/10, documents whole) from train or one file,
            validation where there is train and test. `given` draws none. None is `auto` for one file.
        validation_fraction: Share of the training sentences that becomes validation when only that split is missing.
        seed: Seed of that draw.
        name: What reports call the task.

    Raises:
        TaskError: A file is missing, empty or broken (with file, line and value), schemes are mixed, or the task cannot
            be used.
        UnknownNameError: A split, column, metric, scheme or separator is unknown.

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
    is_one = not isinstance(files, Mapping) and Path(files).expanduser().is_file()
    if isinstance(files, Mapping):
        paths = files_by_split(files)
    else:
        place = Path(files).expanduser()
        paths = {"train": place} if is_one else find_split_files(place)
    tables: dict[str, SentenceTable] = {}
    for part, path in paths.items():
        suffix = inner_suffix(path)
        if suffix == CONLLU_SUFFIX:
            tables[part] = read_conllu(path, tags)
        elif suffix in JSON_SUFFIXES:
            tables[part] = read_token_json(path, TokenColumns(words, tags))
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
        splits: Split (train, validation, test) to what the repository calls it; None takes the usual names, and leaves
            splits of other names alone.
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
    found, source = read_hub(hub_id, config, revision=revision, help_text=_NO_HUB)
    named = name_splits(found, source, splits, hint="; name them with `splits`")
    tables = {split: check_token_rows(table, columns) for split, table in named.items()}
    notes: tuple[str, ...] = ()
    if "train" in tables and "validation" not in tables and validation_fraction != 0:
        tables, notes = hold_out(tables, fraction=validation_fraction, seed=seed)
    name = Path(hub_id).name if config is None else f"{Path(hub_id).name}-{config}"
    return build_task(tables, name=name, source=source, metric=metric, scheme=scheme, notes=notes)
