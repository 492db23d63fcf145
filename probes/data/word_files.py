"""Words with tags in files: CoNLL columns, CoNLL-U and JSON Lines, and their tasks, also from datasets of the hub."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from extract.errors import TaskError, require_name, unknown_name
from probes.data.sources import FileNames, data_hint, find_local, need_local, read_hub
from probes.data.splits import SPLITS, SplitRule, files_by_split, find_split_files, name_splits
from probes.data.table_files import (
    BLANK,
    DOCUMENT_START,
    JSON_SUFFIXES,
    Files,
    Sentence,
    SentenceTable,
    TokenColumns,
    check_token_rows,
    count_note,
    inner_suffix,
    read_lines,
    read_raw,
    shorten,
    tag_problem,
)
from probes.data.task import load_shipped
from probes.data.word_task import WordMetric, WordTask, build_task, draw_splits, hold_out

SEPARATORS = ("auto", "tab", "space", "whitespace")
WORD = "word"
_COMMENTS = ", or set `has_comments: true` if lines that begin with # are comments"


@dataclass(frozen=True)
class ColumnFormat:
    """The format of a file of columns: one word a line, with a blank line after each sentence; checked when built."""

    columns: tuple[str, ...]
    """Names in the order of the file, `word` among them."""
    separator: str = "auto"
    """`tab` or `space` (any number of them); `whitespace` takes both; `auto` takes that of the first line and rejects
    lines with the other."""
    has_comments: bool = False
    """True skips lines that start with #. False takes # for a word, as it is one in tweets."""
    fallback_encoding: str | None = None
    """Encoding of a file that is not UTF-8; None rejects such a file."""

    def __post_init__(self) -> None:
        require_name("column", WORD, self.columns, hint=f"`columns` must call the column of the words {WORD!r}.")
        repeated = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if repeated:
            raise TaskError(f"`columns` names {repeated[0]!r} twice: every column needs its own name.")
        require_name("separator", self.separator, SEPARATORS)


def read_columns(path: Path, tags: str, *, file_format: ColumnFormat) -> SentenceTable:
    """Read the words and one column of tags.

    A blank line (spaces and tabs count as blank) ends a sentence; a -DOCSTART- line opens a document and is no
    sentence. Documents are numbered from 1 if the file marks any.
    """
    columns = file_format.columns
    if tags not in columns or tags == WORD:
        raise unknown_name("column", tags, [name for name in columns if name != WORD], hint="`tags` names a column.")
    word_index, tag_index = columns.index(WORD), columns.index(tags)
    lines = read_lines(path, fallback=file_format.fallback_encoding)
    n_comments = sum(line.startswith("#") for line in lines) if file_format.has_comments else 0
    sentences: list[Sentence] = []
    block = Sentence([], [], "", [], [])
    n_documents = 0
    for number, fields in _split_lines(path, lines, file_format):
        if fields:
            if problem := tag_problem(tags, fields[tag_index]):
                raise TaskError(f"{path}, line {number}: {problem}.")
            block.words.append(fields[word_index])
            block.tags.append(fields[tag_index])
            block.numbers.append(number)
            block.space_after.append(True)
        else:
            if block.words:
                sentences.append(block)
            n_documents += fields is None
            block = Sentence([], [], str(n_documents or ""), [], [])
    if not sentences:
        raise TaskError(f"{path} has no words, only blank lines, comments or {DOCUMENT_START} lines.")
    notes = count_note(str(path), n_comments, "comment line skipped", "comment lines skipped")
    return SentenceTable(str(path), "line", sentences, notes)


def _split_lines(path: Path, lines: Sequence[str], file_format: ColumnFormat) -> Iterator[tuple[int, list[str] | None]]:
    """Yield the number and columns of each line: no columns for a blank line, None for the start of a document."""
    columns, separator, first = file_format.columns, file_format.separator, 0
    for number, line in enumerate((*lines, ""), start=1):
        has_tab = "\t" in line
        if not line.strip(BLANK):
            yield number, []
            continue
        if file_format.has_comments and line.startswith("#"):
            continue
        if DOCUMENT_START in line and any(part.startswith(DOCUMENT_START) for part in re.split("[ \t]", line)):
            yield number, None
            continue
        if separator == "auto":
            separator, first = "tab" if has_tab else "space", number
        elif has_tab if separator == "space" else first and " " in line and not has_tab:
            blanks = "a tab" if has_tab else "spaces and no tab"
            on_line = f" on line {first}" if first else ""
            may_be_comment = line.startswith("#") or (first > 0 and lines[first - 1].startswith("#"))
            raise TaskError(
                f"{path}, line {number}: {line[:60]!r} has {blanks}, but {separator}s separate the columns{on_line}: "
                "use one of them, or set `separator: whitespace` if no word holds a space"
                f"{_COMMENTS if may_be_comment else ''}."
            )
        if separator == "tab":
            fields = [part.strip(" ") for part in line.split("\t")]
        else:
            blanks = line.replace("\t", " ") if separator == "whitespace" else line
            fields = [part for part in blanks.split(" ") if part]
        if len(fields) != len(columns) or "" in fields or (separator == "tab" and " " in line):
            _check_fields(f"{path}, line {number}", fields, columns)
        yield number, fields


def _check_fields(where: str, fields: Sequence[str], columns: Sequence[str]) -> None:
    if len(fields) != len(columns):
        hint = _COMMENTS if fields[0].startswith("#") else ""
        raise TaskError(
            f"{where}: {len(fields)} instead of {len(columns)} columns ({', '.join(columns)}) in "
            f"{shorten(list(fields))}: fix the line, or name the columns of the file with `columns`{hint}."
        )
    for name, value in zip(columns, fields, strict=True):
        if not value:
            raise TaskError(f"{where}: column {name!r} is empty in {shorten(list(fields))}: give every word a value.")
        if name != WORD and " " in value:
            raise TaskError(
                f"{where}: column {name!r} holds {value[:60]!r}, but a tag has no space: separate the columns by tabs."
            )


COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
TAG_COLUMNS = ("upos", "xpos", "deprel")
_ID = re.compile(r"([0-9]+)(?:([-.])([0-9]+))?")
Lines = Sequence[tuple[int, str]]
"""Lines with their numbers, from 1."""


@dataclass(frozen=True)
class _Range:
    """A part of the text that several words make up, such as `didn't`."""

    first: int
    last: int
    form: str
    has_space: bool
    line: int


@dataclass
class _Reader:
    path: Path
    tags: str
    sentences: list[Sentence] = field(default_factory=list)
    document: str = ""
    n_documents: int = 0
    n_ranges: int = 0
    n_empty: int = 0
    n_unspelled: int = 0
    n_other_text: int = 0

    def read(self, block: Lines) -> None:
        """Read one sentence and the comments before it."""
        text = self._read_comments([line for _, line in block if line.startswith("#")])
        sentence, ranges = self._read_words([row for row in block if not row[1].startswith("#")])
        if not sentence.words:
            return
        for span in ranges:
            self._join(sentence, span)
        pairs = zip(sentence.words, sentence.space_after, strict=True)
        self.n_other_text += text is not None and text != "".join(w + " " * space for w, space in pairs).strip()
        self.sentences.append(sentence)

    def _read_comments(self, comments: Sequence[str]) -> str | None:
        text = None
        for comment in comments:
            key, is_pair, value = comment[1:].partition("=")
            name = (key.split() or [""])[0]
            if name == "newdoc":
                self.n_documents += 1
                self.document = (value.strip() if is_pair else "") or str(self.n_documents)
            elif name == "text" and is_pair:
                text = value.strip()
        return text

    def _read_words(self, rows: Lines) -> tuple[Sentence, list[_Range]]:
        sentence, ranges = Sentence([], [], self.document, [], []), []
        tag_index = COLUMNS.index(self.tags)
        for number, line in rows:
            fields = line.split("\t")
            match = _ID.fullmatch(fields[0])
            is_next = match is not None and (match[2] == "." or int(match[1]) == len(sentence.words) + 1)
            if len(fields) != len(COLUMNS) or match is None or not is_next or not fields[1].strip(BLANK):
                raise self._bad_line(number, fields, len(sentence.words) + 1)
            has_space = "SpaceAfter=No" not in fields[9].split("|")
            if match[2] == ".":
                self.n_empty += 1
            elif match[2] == "-":
                ranges.append(_Range(int(match[1]), int(match[3]), fields[1], has_space, number))
            elif fields[tag_index] in ("", "_"):
                raise TaskError(
                    f"{self.path}, line {number}: column {self.tags!r} is {fields[tag_index]!r}, which means "
                    f"unspecified: use another of {', '.join(TAG_COLUMNS)}."
                )
            elif problem := tag_problem(self.tags, fields[tag_index]):
                raise TaskError(f"{self.path}, line {number}: {problem}.")
            else:
                sentence.words.append(fields[1])
                sentence.tags.append(fields[tag_index])
                sentence.numbers.append(number)
                sentence.space_after.append(has_space)
        return sentence, ranges

    def _bad_line(self, number: int, fields: Sequence[str], next_id: int) -> TaskError:
        where = f"{self.path}, line {number}"
        if len(fields) != len(COLUMNS):
            line = "\t".join(fields)[:60]
            return TaskError(
                f"{where}: {len(fields)} instead of {len(COLUMNS)} columns in {line!r}: CoNLL-U needs "
                f"{', '.join(COLUMNS)}, separated by tabs."
            )
        if not fields[1].strip(BLANK):
            return TaskError(f"{where}: word {fields[0]} has the empty form {fields[1]!r}: give every word a form.")
        return TaskError(f"{where}: id {fields[0]!r}, but word {next_id} comes next: fix the sentence.")

    def _join(self, sentence: Sentence, span: _Range) -> None:
        """Join words that spell their range (did + n't) without a space; others (German zu + dem) keep it."""
        if not span.first < span.last <= len(sentence.words):
            raise TaskError(
                f"{self.path}, line {span.line}: the range {span.first}-{span.last} does not fit a sentence of "
                f"{len(sentence.words)} words: fix the sentence."
            )
        self.n_ranges += 1
        if "".join(sentence.words[span.first - 1 : span.last]) == span.form:
            sentence.space_after[span.first - 1 : span.last - 1] = [False] * (span.last - span.first)
        else:
            self.n_unspelled += 1
        sentence.space_after[span.last - 1] = span.has_space

    def notes(self) -> tuple[str, ...]:
        """Count skipped lines, and sentences whose text cannot be rebuilt."""
        counts = (
            (self.n_ranges, "range of words (such as 1-2) skipped", "ranges of words (such as 1-2) skipped"),
            (self.n_empty, "empty node (such as 1.1) skipped", "empty nodes (such as 1.1) skipped"),
            (self.n_unspelled, "range is not spelled by its words", "ranges are not spelled by their words"),
            (self.n_other_text, "sentence differs from its `# text`", "sentences differ from their `# text`"),
        )
        return tuple(note for n, one, many in counts for note in count_note(str(self.path), n, one, many))


def read_conllu(path: Path, tags: str) -> SentenceTable:
    """Read the syntactic words and one column of tags of a CoNLL-U file (version 2).

    `space_after` rebuilds the text; documents are those of `# newdoc`; the notes count ranges such as 1-2 and empty
    nodes such as 1.1, which are no words, and sentences whose words do not rebuild `# text`.
    """
    require_name("column", tags, TAG_COLUMNS, hint="These columns of CoNLL-U hold one tag a word.")
    reader = _Reader(path, tags)
    for block in _blocks(read_lines(path)):
        reader.read(block)
    if not reader.sentences:
        raise TaskError(f"{path} has no words, only comments or blank lines.")
    return SentenceTable(str(path), "line", reader.sentences, reader.notes())


def _blocks(lines: Sequence[str]) -> Iterator[Lines]:
    block: list[tuple[int, str]] = []
    for number, line in enumerate((*lines, ""), start=1):
        if line.strip(BLANK):
            block.append((number, line))
        elif block:
            yield block
            block = []


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

    `splits` maps train, validation and test to their names in the repository; None takes the usual names and leaves
    other splits out. `words` and `tags` are columns of lists; tags are texts, or whole numbers whose names the dataset
    declares. `validation_fraction` of the training sentences is held out where there is no validation split; 0 holds
    out none. Other options are those of `load_class_hub` and `load_word_files`.
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

    The published files have 14,041 training, 3,250 validation and 3,453 test sentences; `tags` are `ner`, `chunk` or
    `pos`. `folder` holds `eng.train`, `eng.testa` and `eng.testb` (or train.txt, valid.txt, test.txt); None is
    `$ICECORE_DATA/conll2003` where that exists, else the hub. `scheme: auto` finds the IOB1 of the published files and
    the IOB2 of the hub.
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

    The published files have 8,936 training and 2,012 test sentences; `tags` are `chunk` or `pos`. `folder` holds
    `train.txt` and `test.txt`, packed as they are published (.gz) or not; None is `$ICECORE_DATA/conll2000` where that
    exists, else the hub.
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
    often called Lender and Borrower, which are tagged as persons. The published files have 41,010 training words, of
    which a part is held out for validation, and 13,246 test words. `folder` holds `FIN5.txt` (train) and `FIN3.txt`
    (test), columns word, part of speech, a dash, tag; None is `$ICECORE_DATA/financial-ner`.
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

    12,544 training, 2,001 validation and 2,077 test sentences; `tags` are `upos` (17 universal tags) or `xpos` (Penn
    Treebank tags). `folder` holds `en_ewt-ud-train.conllu` and its siblings; None is `$ICECORE_DATA/ud-ewt`.
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
    require_name("column of tags", tags, allowed)


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
