"""Sources of rows: dataset repositories (the hub, its cache or a folder), local copies, and published formats."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from extract.decoders.fetch import ask_commit, hub_endpoint, is_offline
from extract.errors import TaskError, first_line, looked_in, require_name, unknown_name
from probes.data.table_files import (
    PACKED,
    RawRow,
    RawTable,
    numbered_lines,
    parse_json,
    quiet_datasets,
    read_bytes,
    read_number,
    read_text,
    shorten,
)

if TYPE_CHECKING:
    import datasets


Tables = dict[str, RawTable]
UNDECLARED = "default"
"""Name in `datasets` of the one configuration of a repository that declares none."""


def read_hub(hub_id: str, config: str | None = None, *, revision: str | None, help_text: str) -> tuple[Tables, str]:
    """Read every split of a dataset repository, or of one of its configurations, and say in a line where they are from.

    `hub_id` may be a local folder laid out like a repository, which has no revision. `config` is declared in README.md
    or kept in a folder of that name (LexGLUE, GLUE); None where there is one only, or a default. `help_text` is advice,
    as the end of a sentence, for when the hub cannot be reached and its cache has no copy.
    """
    local = Path(hub_id).expanduser()
    if local.is_dir():
        root = _root_of(local)
        _check_card(local, root)
        if config is None or declared_configurations(str(local.absolute())):
            return _read_folder(local, revision, config, root=root)
        folders = sorted(path.name for path in local.iterdir() if path.is_dir() and not path.name.startswith("."))
        require_name("configuration", config, folders, hint=f"These are the folders of {hub_id}.")
        return _read_folder(local / config, revision, None, root=root)
    if config is not None:
        snapshot, came_from = _fetch_config(hub_id, config, revision=revision, help_text=help_text)
        if (snapshot / config).is_dir():  # else it is declared, or unknown
            tables, _ = _read_folder(snapshot / config, None, None, root=_root_of(snapshot))
            tables = {split: replace(table, where=f"{hub_id}/{config} ({split})") for split, table in tables.items()}
            return tables, f"{hub_id}/{config} {came_from}"
    return _read_repository(hub_id, config, revision=revision, help_text=help_text)


def declared_configurations(repository: str, revision: str | None = None) -> tuple[str, ...]:
    """List the configurations that a repository, or a folder laid out like one, declares, if any."""
    import datasets

    try:
        with quiet_datasets():
            names = datasets.get_dataset_config_names(repository, revision=revision)
    except Exception as error:  # the builders and the hub's client raise a dozen unrelated types
        raise TaskError(f"dataset {repository!r} cannot be read ({first_line(error.__cause__ or error)}).") from error
    return () if names == [UNDECLARED] else tuple(names)


def _read_repository(
    repository: str, config: str | None, *, revision: str | None, help_text: str
) -> tuple[Tables, str]:
    named = repository if config is None else f"{repository}/{config}"
    commit, missing = _ask_hub(repository, revision)
    if commit is not None:
        tables = _load(repository, commit, help_text, config=config)
        return tables, f"{named} at {commit} of the Hugging Face hub"
    if revision is not None:
        raise TaskError(
            f"dataset {named!r} cannot be loaded at revision {revision!r}: {missing}, and the cache does not "
            f"distinguish revisions; {help_text}."
        )
    with _datasets_offline():
        try:
            tables = _load(repository, None, help_text, config=config, is_checked=False)
        except TaskError as error:
            raise TaskError(
                f"dataset {named!r} cannot be loaded: {missing}, and the cache has no copy; {help_text}."
            ) from error
    return tables, f"{named} from the cache of `datasets` (hub not asked)"


def _ask_hub(repository: str, revision: str | None) -> tuple[str | None, str]:
    """Return the commit of a revision, or None and why there is none."""
    if is_offline("HF_DATASETS_OFFLINE"):
        return None, "the hub was not asked, because HF_HUB_OFFLINE is set"
    answer = ask_commit(lambda hub, seconds: hub.dataset_info(repository, revision=revision, timeout=seconds).sha)
    return (answer, "") if isinstance(answer, str) else (None, f"the hub gave nothing ({first_line(answer)})")


def _fetch_config(hub_id: str, config: str, *, revision: str | None, help_text: str) -> tuple[Path, str]:
    """Download one folder of a repository into the hub's own cache; without the hub, use the cached folder."""
    from huggingface_hub import snapshot_download

    fetch = partial(snapshot_download, hub_id, repo_type="dataset", allow_patterns=[f"{config}/*"])
    commit, missing = _ask_hub(hub_id, revision)
    # the hub's client raises its own exceptions, httpx's and the operating system's
    if commit is not None:
        try:
            return Path(fetch(revision=commit, endpoint=hub_endpoint())), f"at {commit} of the Hugging Face hub"
        except Exception as error:
            raise TaskError(f"dataset {hub_id!r} cannot be downloaded ({first_line(error)}); {help_text}.") from error
    try:
        path = Path(fetch(revision=revision, local_files_only=True))
    except Exception as error:
        raise TaskError(
            f"dataset {hub_id!r} cannot be loaded: {missing}, and the cache has no copy; {help_text}."
        ) from error
    return path, f"at {path.name} from the cache of the hub (hub not asked)"


def _read_folder(folder: Path, revision: str | None, config: str | None, *, root: Path) -> tuple[Tables, str]:
    if revision is not None:
        raise TaskError(f"{folder} is a local folder, which has no revision {revision!r}: leave `revision` out.")
    _check_card(folder, root)
    with TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        tables = _load(str(folder.absolute()), None, "check the folder", config=config, cache_dir=cache, root=root)
        return tables, f"folder {folder}" + (f", configuration {config}" if config else "")


def _root_of(folder: Path) -> Path:
    """Return the folder that must contain all files: itself, or for a snapshot of the hub's cache, its repository."""
    inner = folder.resolve()
    return next((up.parent for up in inner.parents if up.name == "snapshots" and (up.parent / "blobs").is_dir()), inner)


def _check_card(folder: Path, root: Path) -> None:
    """Refuse a card that names an address, a path out of its folder or a pattern, before `datasets` looks for it.

    Nor may the folder hold a link that leads out, or a pipe, whether the card names it or not.
    """
    import yaml
    from datasets import config
    from huggingface_hub import DatasetCard

    card, plain = folder / config.REPOCARD_FILENAME, folder / config.REPOYAML_FILENAME
    _check_files(str(folder), map(str, folder.rglob("*")), root)
    if special := [path for path in folder.rglob("*") if not (path.is_file() or path.is_dir())]:
        raise TaskError(f"dataset {str(folder)!r} holds {special[0].name!r}, which is no plain file; remove it.")
    try:
        declared = [DatasetCard.load(card).data.get("configs")] if card.is_file() else []
        if plain.is_file():
            declared.append((yaml.safe_load(plain.read_text(encoding="utf-8")) or {}).get("configs"))
        entries = [entry for entries in declared for entry in entries or ()]
        paths = [path for entry in entries for path in _paths_in(entry.get("data_files"), entry.get("data_dir"))]
        separators = [str(entry.get(key) or "") for entry in entries for key in ("sep", "delimiter")]
        engines = {entry.get("engine") or "c" for entry in entries}
        is_plain = all(len(text) < 2 or text == "\\t" for text in separators) and engines <= {"c", "pyarrow"}
    except Exception:  # `datasets` reads the same files in the same way, and its error is reported
        return
    if not is_plain:  # a pattern, which may take for ever
        raise TaskError(
            f"the card of dataset {str(folder)!r} has a separator of several characters, or an engine that reads one "
            "as a pattern; give one character, and no engine."
        )
    for path in paths:
        parts = PurePosixPath(path)
        if urlsplit(path).scheme or "::" in path or parts.is_absolute() or ".." in parts.parts:
            raise _outside(str(folder), path)


def _paths_in(*values: object) -> Iterator[str]:
    """List the paths of `data_files`: a text, texts, or splits that have one or several each."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            for item in value:
                paths = item.get("path") if isinstance(item, dict) else item
                yield from (path for path in (paths if isinstance(paths, list) else [paths]) if isinstance(path, str))


def _check_files(repository: str, files: Iterable[str], root: Path | None) -> None:
    """Refuse files outside of a local folder, also through links, and files of this machine for a repository."""
    for file in files:
        if root is None:
            is_inside = urlsplit(file).scheme in ("hf", "http", "https") and "::" not in file
        else:
            is_inside = Path(file).resolve().is_relative_to(root)
        if not is_inside:
            raise _outside(repository, file)


def _outside(repository: str, path: str) -> TaskError:
    return TaskError(
        f"dataset {repository!r} names {path!r}, which is not in it, so nothing was read; allowed: files of its own, "
        "by paths relative to its folder. Copy the file there if you trust it."
    )


BUILDERS = ("csv", "json", "parquet", "text", "arrow")
"""Readers of `datasets` that read the files of a dataset and nothing beside them."""


def _load(
    repository: str,
    commit: str | None,
    help_text: str,
    *,
    config: str | None,
    is_checked: bool = True,
    cache_dir: str | None = None,
    root: Path | None = None,
) -> Tables:
    import datasets

    if is_checked:
        _check_configuration(repository, commit, config)
    try:
        name = {} if config is None else {"name": config}
        with quiet_datasets():
            builder = datasets.load_dataset_builder(repository, revision=commit, cache_dir=cache_dir, **name)
            for files in (builder.config.data_files or {}).values():
                _check_files(repository, files, root)
            kind = type(builder).__module__.rpartition(".")[2]
            if root is not None and kind not in BUILDERS:
                raise TaskError(
                    f"dataset {repository!r} is of the kind {kind!r}; allowed: files of {', '.join(BUILDERS)}."
                )
            builder.download_and_prepare()
            loaded = builder.as_dataset()
            return {str(split): _as_table(repository, str(split), rows) for split, rows in loaded.items()}
    except TaskError:
        raise
    except Exception as error:  # the builders and the hub's client raise a dozen unrelated types
        cause = error.__cause__ or error
        raise TaskError(f"dataset {repository!r} cannot be read ({first_line(cause)}); {help_text}.") from error


def _check_configuration(repository: str, commit: str | None, config: str | None) -> None:
    import datasets

    try:
        names = declared_configurations(repository, commit)
    except TaskError:
        return  # loading fails as well, with advice
    if config is not None and config not in names:
        raise unknown_name("configuration", config, names, hint=f"These are the configurations of {repository}.")
    if config is None and len(names) > 1:
        with quiet_datasets():
            default = datasets.get_dataset_default_config_name(repository, revision=commit)
        if default is None:
            raise TaskError(
                f"dataset {repository!r} has {len(names)} configurations, none of them the default: name one as "
                f"`config`, of {', '.join(names)}."
            )


def _as_table(repository: str, split: str, rows: "datasets.Dataset") -> RawTable:
    numbered = [RawRow(number, row) for number, row in enumerate(rows.to_list(), start=1)]
    kinds = {column: getattr(kind, "feature", kind) for column, kind in rows.features.items()}
    names = {column: tuple(kind.names) for column, kind in kinds.items() if hasattr(kind, "names")}
    return RawTable(f"{repository} ({split})", "row", tuple(rows.column_names), numbered, names)


@contextmanager
def _datasets_offline() -> Iterator[None]:
    """Let `datasets` look into its cache at once, without first retrying a hub known to be out of reach."""
    from datasets import config

    was_offline = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = was_offline


DATA_VARIABLE = "ICECORE_DATA"
FileNames = Mapping[str, Sequence[str]]
"""Split to the names its file may have, the published name first."""
Table = TypeVar("Table")


@dataclass(frozen=True)
class LocalFolder:
    """A folder of published files."""

    path: Path
    name: str
    """Its name in reports: a path only where the user gave one."""

    def find(self, *names: str) -> Path:
        """Find a file by the first of its possible names that exists, as it is or with .gz appended."""
        for name in names:
            for path in (self.path / name, self.path / f"{name}{PACKED}"):
                if path.is_file():
                    return path
        raise TaskError(
            f"{self.path / names[0]} does not exist: give the folder that holds {' or '.join(names)}, packed "
            f"({PACKED}) or not, as `folder`{looked_in(self.path)}."
        )

    def read(self, files: FileNames, read: Callable[[Path], Table]) -> tuple[dict[str, Table], str]:
        """Read the file of each split; also return their source."""
        paths = {split: self.find(*names) for split, names in files.items()}
        return {split: read(path) for split, path in paths.items()}, self.source(*paths.values())

    def source(self, *files: str | Path) -> str:
        """Name files and folder in one line."""
        return f"{', '.join(Path(file).name for file in files)} in {self.name}"


def find_local(name: str, folder: str | Path | None = None) -> LocalFolder | None:
    """Find a local copy of a dataset: the folder that the user named, else that name in `$ICECORE_DATA`."""
    if folder is not None:
        return LocalFolder(Path(folder).expanduser(), str(folder))
    data = os.environ.get(DATA_VARIABLE)
    path = Path(data).expanduser() / name if data else None
    return LocalFolder(path, f"${DATA_VARIABLE}/{name}") if path is not None and path.is_dir() else None


def need_local(name: str, folder: str | Path | None, *, example: str) -> LocalFolder:
    """Find a local copy of a dataset that has no other source; the error names `example`, one of its files."""
    local = find_local(name, folder)
    if local is None:
        data = os.environ.get(DATA_VARIABLE)
        state = f"${DATA_VARIABLE} ({data}) has no folder {name}" if data else f"{DATA_VARIABLE} is not set"
        raise TaskError(f"{state}: set it to the folder that holds {name}/{example}, or give `folder`.")
    return local


def data_hint(name: str, example: str = "") -> str:
    """Return advice for when the hub cannot be reached, as the end of a sentence."""
    return f"set {DATA_VARIABLE} to a folder that holds {name}/{example}, or give `folder`"


ABSTRACT_MARK = "###"
PHRASEBANK_ENCODING = "latin-1"


def read_records(path: Path) -> dict[str, Any]:
    """Read a file that is one JSON object of records by id."""
    records = parse_json(path, read_text(path))
    if not isinstance(records, dict) or not records:
        raise TaskError(f"{path} holds {shorten(records)}, but one JSON object of records by id is needed.")
    return records


def pubmedqa_table(records: Path, test_ids: Path, *, text_form: str) -> RawTable:
    """Lay out PubMedQA's labelled set as `text`, `label` (yes, no, maybe) and `split` (official test half, or train).

    `ori_pqal.json` maps an id to QUESTION, CONTEXTS and `final_decision`, `test_ground_truth.json` an id to a decision.
    """
    rows = read_records(records)
    test = read_records(test_ids)
    unknown = [key for key in test if key not in rows]
    if unknown:
        raise TaskError(f"{test_ids} names {len(unknown)} records that {records} lacks, the first {unknown[0]!r}.")
    join = PUBMEDQA_FORMS[text_form]
    table = []
    for number, (key, record) in enumerate(rows.items(), start=1):
        missing = [name for name in ("QUESTION", "CONTEXTS", "final_decision") if name not in record]
        if missing or not _are_texts([record["QUESTION"]]) or not _are_texts(record["CONTEXTS"]):
            lacks = ", ".join(missing) or "a text as QUESTION, or a list of texts as CONTEXTS"
            table.append(RawRow(number, {}, f"broken record: {key} lacks {lacks}"))
            continue
        values = {
            "text": join(record["QUESTION"], record["CONTEXTS"]),
            "label": record["final_decision"],
            "split": "test" if key in test else "train",
        }
        table.append(RawRow(number, values))
    return RawTable(str(records), "row", ("text", "label", "split"), table)


PUBMEDQA_FORMS: dict[str, Callable[[str, list[str]], str]] = {
    "look-both-ways": lambda question, contexts: f"Question:{question}Context{''.join(contexts)}",
    "plain": lambda question, contexts: " ".join([question, *contexts]),
}
"""Ways to join question and contexts to one text."""


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def rct_table(path: Path) -> RawTable:
    """Read PubMed RCT: `###` and an id before each abstract, `LABEL`, a tab and a sentence in each line of it.

    The columns are `text`, `label` and `abstract`.
    """
    abstract = None
    rows = []
    for number, line in numbered_lines(read_text(path)):
        if line.startswith(ABSTRACT_MARK):
            abstract = line.removeprefix(ABSTRACT_MARK).strip()
            continue
        label, tab, text = line.partition("\t")
        problem = "" if tab else f"no tab: {shorten(line)} is not label, tab and sentence"
        if abstract is None:
            problem = f"no abstract: {shorten(line)} comes before the first {ABSTRACT_MARK} line"
        values = {"text": text.strip(), "label": label, "abstract": abstract}
        rows.append(RawRow(number, {} if problem else values, problem))
    return RawTable(str(path), "line", ("text", "label", "abstract"), rows)


def phrasebank_table(path: Path) -> RawTable:
    """Read Financial PhraseBank: a sentence, `@` and its sentiment in each line, in Latin-1."""
    rows = []
    for number, line in numbered_lines(read_bytes(path).decode(PHRASEBANK_ENCODING)):
        text, mark, label = line.rpartition("@")
        problem = "" if mark else f"no @: {shorten(line)} is not sentence, @ and sentiment"
        rows.append(RawRow(number, {} if problem else {"text": text, "label": label}, problem))
    return RawTable(str(path), "line", ("text", "label"), rows)


def fiqa_table(path: Path, *, neutral: float) -> RawTable:
    """Read a FiQA challenge file: id to a sentence and, for each of its targets, a sentiment score from -1 to 1.

    One row per target, with columns `text`, `label` (neutral from `-neutral` up to, not including, `neutral`) and
    `sentence` (the text again, so that it can name a group: the challenge gives some sentences several ids).
    """
    rows: list[RawRow] = []
    for key, record in read_records(path).items():
        for target in record.get("info") or [{}]:
            value, text = target.get("sentiment_score"), record.get("sentence")
            score = read_number(str(value))
            label = "negative" if score < -neutral else "neutral" if score < neutral else "positive"
            row = RawRow(len(rows) + 1, {"text": text, "label": label, "sentence": text})
            if not -1 <= score <= 1:
                problem = f"no score: record {key} holds {shorten(value)}, but a number is needed"
                row = RawRow(row.number, {}, problem)
            rows.append(row)
    return RawTable(str(path), "row", ("text", "label", "sentence"), rows)


def rename_labels(table: RawTable, names: Mapping[str, str]) -> RawTable:
    """Replace the codes of the column `label` by their names; a code without a name stays, and is rejected later."""
    rows = [
        replace(row, values={**row.values, "label": names.get(str(row.values["label"]).strip(), row.values["label"])})
        if "label" in row.values
        else row
        for row in table.rows
    ]
    return replace(table, rows=rows)


# WikiText as published, with its tokenisation undone: articles of paragraphs, and sentences.


FILES = {"validation": ("wiki.valid.tokens",), "test": ("wiki.test.tokens",), "train": ("wiki.train.tokens",)}
"""Names of the file of each split."""
UNREAD = re.compile(r"<(?:unk|formula)>")
"""What WikiText has in place of rare words and of formulas: no decoder's text."""
JOINS_BOTH = {"@-@": "-", "@,@": ",", "@.@": "."}
_NUMBERS = re.compile(r"(\d) : (?=\d)")
JOINS_LEFT = frozenset([*",.;:!?)]}%\u2019\u201d\u00b0", "...", ".."])
JOINS_RIGHT = frozenset("([{$\u00a3\u00a5\u20ac#\u201c\u2018")
SENTENCE_END = re.compile("(?<![.!?])([.!?]+[\"'\u201d\u2019)\\]]*)\\s+(?=[\"'\u201c\u2018(\\[<]*[A-Z0-9<])")
NO_END = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|St|No|Nos|vs|Jr|Sr|Prof|Gen|Col|Maj|Lt|Capt|Cmdr|Sgt|Adm|Rev|Hon|Mt|Ft|Vol|pp|cf|ca|c|e\.g|i\.e)"
    r"|\b[A-Z])\.$"
)
"""How a piece ends that is no sentence: an abbreviation that a name or number follows, or an initial."""
LONGEST_END = 40
"""Characters at the end of a piece that are looked at: more than any abbreviation and what is before it."""


@dataclass(frozen=True)
class Article:
    """An article, without its section headings."""

    title: str
    paragraphs: tuple[str, ...]

    @property
    def text(self) -> str:
        """All paragraphs, with a blank line between two."""
        return "\n\n".join(self.paragraphs)


def read_wikitext(split: str = "test", folder: str | Path | None = None) -> tuple[list[Article], str]:
    """Read the articles of a split of WikiText-2, and say in a line where they are from.

    `folder` holds `wiki.valid.tokens` and its siblings; None is `$ICECORE_DATA/wikitext2`.
    """
    require_name("split of WikiText-2", split, FILES)
    local = need_local("wikitext2", folder, example=FILES[split][0])
    path = local.find(*FILES[split])
    articles = parse_articles(read_text(path))
    if not articles:
        raise TaskError(f"{path} holds no article; allowed: WikiText as published, with a title as ' = Title = '.")
    return articles, f"{split} of WikiText-2, {local.source(path)}"


def parse_articles(text: str) -> list[Article]:
    """Parse WikiText: a title is a heading of the first level between blank lines; further headings are left out."""
    lines = ["", *(line.strip() for line in text.split("\n")), ""]
    articles: list[tuple[str, list[str]]] = []
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        if len(line) > 3 and line.startswith("= ") and line.endswith(" =") and not before and not after:
            if not line.startswith("= ="):
                articles.append((detokenise(line.strip("= ")), []))
        elif UNREAD.sub("", line).strip() and articles:
            articles[-1][1].append(detokenise(line))
    return [Article(title, tuple(paragraphs)) for title, paragraphs in articles]


def detokenise(line: str) -> str:
    r"""Undo the tokenisation of a line of WikiText, as far as it can be: `/` and dashes keep the blanks around them.

    Example:
        >>> detokenise('He said : " It cost $ 1 @,@ 000 , didn \'t it ? " ( in a two @-@ part episode )')
        'He said: "It cost $1,000, didn\'t it?" (in a two-part episode)'
    """
    text, is_glued = "", True
    is_open = {'"': False, "'": False}
    for token in _NUMBERS.sub(r"\1:", line).split():
        word, joins_left, joins_right = token, False, False
        if token in JOINS_BOTH:
            word, joins_left, joins_right = JOINS_BOTH[token], True, True
        elif token in is_open and not (token == "'" and text.endswith("s") and not is_open[token]):
            joins_left, joins_right = is_open[token], not is_open[token]
            is_open[token] = not is_open[token]
        else:
            joins_left = token in JOINS_LEFT or token.startswith("'")
            joins_right = token in JOINS_RIGHT
        text += word if is_glued or joins_left else f" {word}"
        is_glued = joins_right
    return text


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences: after `.`, `!` or `?`, where blanks and a capital, digit or bracket follow.

    Not after an initial or a common abbreviation, as `Dr.` and `No.`. A line break ends a sentence too.

    Example:
        >>> split_sentences("Dr. J. Watson left. He came back at 5 p.m. on foot!")
        ['Dr. J. Watson left.', 'He came back at 5 p.m. on foot!']
    """
    sentences: list[str] = []
    for line in text.split("\n"):
        start = 0
        for match in SENTENCE_END.finditer(line):
            if not NO_END.search(line[max(start, match.end(1) - LONGEST_END) : match.end(1)]):
                sentences.append(line[start : match.end(1)].strip())
                start = match.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]
