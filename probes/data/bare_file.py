"""A data file without a configuration: how it is read, which columns hold texts, labels or numbers, and its task.

The rules are the tables of names and limits below. What they do not decide is an error that lists the columns.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from extract.errors import TaskError
from extract.files import csv_records
from extract.records import Values
from probes.data.splits import canonical_split
from probes.data.table_files import (
    BLANK,
    DECIMAL_COMMA,
    DELIMITERS,
    DOCUMENT_START,
    JSON_SUFFIXES,
    MISSING_LABELS,
    PARQUET_SUFFIXES,
    WORD_SUFFIXES,
    FileOptions,
    RawTable,
    inner_suffix,
    read_bytes,
    read_raw,
    read_text,
    shorten,
    split_lines,
    split_records,
    unknown_column,
)

TEXT_SUFFIXES = (".txt", ".dat")
"""Files whose lines say what they are."""
BARE_SUFFIXES = (*DELIMITERS, *JSON_SUFFIXES, *PARQUET_SUFFIXES, *WORD_SUFFIXES, *TEXT_SUFFIXES)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PAIR_NAMES = (
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("text", "text2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("s1", "s2"),
    ("source", "target"),
    ("query", "document"),
    ("query", "passage"),
    ("question", "answer"),
)
"""Columns of two texts."""
TEXT_NAMES = _names(
    "text sentence review body content comment message tweet utterance document post description abstract"
)
"""Columns of a text; `Review Text` counts too, as its last word is one of them."""
LABEL_NAMES = _names(
    "label labels class category sentiment intent topic target emotion stance polarity tag genre gold y"
)
"""Columns of a class."""
SCORE_NAMES = _names("score similarity sim rating ratings stars grade relatedness number value points gold_score")
"""Columns of a number."""
ID_NAMES = _names("id idx index uid uuid guid key row nr no url link date time timestamp author user")
"""Columns that are neither."""
SPLIT_NAMES = _names("split fold set partition subset")
"""Columns of train, validation and test."""
WORD_NAMES = ("tokens", "words")
TAG_NAMES = ("tags", "ner_tags", "pos_tags", "chunk_tags", "labels", "upos")
"""Lists of words and of their tags, in JSON and Parquet files."""
MISSING = frozenset((*MISSING_LABELS, "na", "NA", "None", "none", "NULL", "-", "?"))
"""Values beside numbers that mean a missing one."""
MOST_INTEGER_CLASSES = 20
"""Most different whole numbers that are classes in a column of `LABEL_NAMES`; two are classes in any column."""
MOST_CLASSES = 100
"""Most different texts that are classes in a column of another name, and at most a quarter of the rows."""
LABELLED_SHARE = 0.5
"""Most different texts that are classes in a column of `LABEL_NAMES`, of all rows."""
WORDS_OF_TEXT = 3.0
"""Fewest words, on average, of a column of another name that holds texts."""
MOST_HEADER_WORDS = 6
"""Longest name of a column, in words; a longer cell means that the first row is no header."""
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
"""A number whose comma may mark thousands or decimals."""
SHARE_ALIKE = 0.95
"""Rows, of all, that a delimiter cuts into the same number of columns."""


@dataclass(frozen=True)
class Roles:
    """The columns that the user named; empty ones are looked for."""

    text: str = ""
    """Column of the text, or two of them as `premise,hypothesis`."""
    label: str = ""
    """Column of a class, or of the tag of a word."""
    score: str = ""
    """Column of a number."""


@dataclass(frozen=True)
class BareFile:
    """What a file was taken for."""

    path: Path
    task: str
    """A key of `probes.data.task_table.TASKS`."""
    options: dict[str, object]
    """Options of the task."""
    facts: tuple[str, ...] = field(default=())
    """What was found, a clause each."""

    def __str__(self) -> str:
        return f"{self.path.name}: {', '.join(self.facts)}"


def is_bare_file(name: str) -> bool:
    """Return whether the name of a file is that of data, not of a configuration."""
    return inner_suffix(Path(name)) in BARE_SUFFIXES


def read_bare_file(path: str | Path, roles: Roles | None = None) -> BareFile:
    """Find out how a file is read, by its suffix or, for .txt, its lines, and what its columns hold.

    What the rules do not decide is a TaskError that says how to name it.
    """
    path, roles = Path(path).expanduser(), roles or Roles()
    if roles.label and roles.score:
        raise TaskError(f"--label {roles.label!r} and --score {roles.score!r} exclude each other; name one target.")
    suffix = inner_suffix(path)
    if suffix in (*JSON_SUFFIXES, *PARQUET_SUFFIXES):
        table = read_raw(path)
        words = next((name for name in WORD_NAMES if name in table.columns), "")
        if words and isinstance(_first(table, words), list):
            return _word_lists(path, table, words, roles)
        return _table(path, table, FileOptions(), {}, [], roles)
    if suffix in WORD_SUFFIXES:
        return _word_columns(path, roles, is_conllu=suffix == ".conllu")
    form = _sniff(path)
    if form is None:
        return _word_columns(path, roles)
    options, settings, facts = form
    return _table(path, read_raw(path, options), options, settings, facts, roles)


# --- The form of a file ---


def _sniff(path: Path) -> tuple[FileOptions, Values, list[str]] | None:
    """Find encoding, delimiter, quoting and header of delimited text; None for a file of a word a line.

    Returns how it is read, the options of a task that say so, and clauses about what is not as the suffix says.
    """
    encoding = _encoding(read_bytes(path))
    text = read_text(path, encoding=encoding)
    usual = DELIMITERS.get(path.suffix.lower(), "")
    if usual != "," and _is_of_words(text):
        return None
    settings: dict[str, Any] = {} if encoding == "utf-8" else {"encoding": encoding}
    facts = [f"encoding {encoding}"] if settings else []
    delimiter, quoting = _delimiter(text, usual)
    if delimiter != usual:
        settings["delimiter"] = delimiter
        facts.append(f"delimiter {delimiter!r}")
    if not quoting:
        settings["quoting"] = False
        facts.append("quotes are plain characters")
    records = [record for _, record, _ in split_records(path, FileOptions(**settings))]
    if not records:
        raise TaskError(f"{path} has no rows, only blank lines: give a file with some.")
    if not _has_header(records):
        settings |= {"header": False, "columns": [f"column{k}" for k in range(1, len(records[0]) + 1)]}
        facts.append("no header")
    columns = zip(*(record for record in records[1:] if len(record) == len(records[0])), strict=True)
    if delimiter != "," and any(_has_decimal_commas(cells) for cells in columns):
        settings["decimal"] = ","
        facts.append("decimal comma")
    return FileOptions(**settings), settings, facts


def _encoding(data: bytes) -> str:
    """Name the encoding of a file: UTF-8 where it can be, UTF-16 by its mark, else that of Western European Windows."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    for encoding in ("utf-8", "cp1252"):
        try:
            data.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return "latin-1"


def _delimiter(text: str, usual: str) -> tuple[str, bool]:
    """Find the character that cuts (nearly) every row into as many columns as the first, and whether quotes count.

    Tabs, semicolons and bars are rare in texts, so they are tried before the comma, and that of the suffix is first
    where it is one of them.
    """
    lines = split_lines(text)
    for delimiter in dict.fromkeys((*(usual.strip(",")), "\t", ";", "|", ",")):
        for quoting in (True, False):
            try:
                records = csv_records(lines, delimiter, has_quotes=quoting, is_strict=quoting)
                widths = [len(record) for record in records if record]
            except csv.Error:  # a quote that is never closed
                continue
            if widths and widths[0] > 1 and widths.count(widths[0]) >= SHARE_ALIKE * len(widths):
                return delimiter, quoting
    return usual or ",", True


def _is_of_words(text: str) -> bool:
    """Return whether blank lines part blocks of lines of equally many short columns, as in files of CoNLL."""
    blocks = [block.splitlines() for block in re.split(r"\n[ \t]*\r?\n", text.replace("\r\n", "\n").strip())]
    lines = [line.split() for block in blocks for line in block if not line.startswith("-DOCSTART-")]
    widths = {len(line) for line in lines}
    return len(blocks) > 1 and len(widths) == 1 and widths.pop() > 1


def _has_header(records: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row names columns: short, different names, no numbers, and no value of its own column.

    A row with a name of the tables is a header whatever else it holds.
    """
    first = [cell.strip() for cell in records[0]]
    known = TEXT_NAMES | LABEL_NAMES | SCORE_NAMES | SPLIT_NAMES | {name for pair in PAIR_NAMES for name in pair}
    if any(_plain(cell) in known for cell in first):
        return True
    if len(set(first)) < len(first) or any(
        _number(cell) is not None or len(cell.split()) > MOST_HEADER_WORDS for cell in first
    ):
        return False
    others = [record for record in records[1:] if len(record) == len(first)]
    return not any(name and name in {row[k].strip() for row in others} for k, name in enumerate(first))


def _has_decimal_commas(cells: Iterable[str]) -> bool:
    """Whether all cells are numbers, some with a comma that is no mark of thousands, as that of 1,510 may be."""
    present = [cell.strip() for cell in cells if cell.strip() not in MISSING]
    has_comma = any("," in cell and not THOUSANDS.fullmatch(cell) for cell in present)
    return has_comma and all(map(DECIMAL_COMMA.fullmatch, present))


# --- The roles of columns ---


@dataclass(frozen=True)
class Column:
    """The values of one column that are not missing."""

    name: str
    values: list[object]
    decimal: str = "."

    @property
    def plain_name(self) -> str:
        """The name in lower case, words parted by blanks."""
        return _plain(self.name)

    @cached_property
    def distinct(self) -> set[str]:
        """The different values, as texts."""
        return {str(value).strip() for value in self.values}

    @cached_property
    def numbers(self) -> set[float]:
        """The different numbers; empty unless all values are numbers, but for marks of missing ones."""
        numbers = {_number(text, self.decimal) for text in self.distinct - MISSING}
        return set() if None in numbers else {number for number in numbers if number is not None}

    @cached_property
    def words(self) -> float:
        """Words of a value, on average."""
        return fmean(len(str(value).split()) for value in self.values) if self.values else 0.0

    def is_named(self, names: Iterable[str]) -> bool:
        """Whether the name, or its last word, is one of these."""
        return not {self.plain_name, self.plain_name.rpartition(" ")[2]}.isdisjoint(names)

    @property
    def is_text(self) -> bool:
        """Whether the values are texts to read, by their name or their length."""
        is_long = self.words >= WORDS_OF_TEXT or self.is_named(TEXT_NAMES)
        return is_long and not self.numbers and all(isinstance(value, str) for value in self.values)

    @property
    def is_target(self) -> bool:
        """Whether the values may be classes or numbers, by the look of them."""
        if self.is_named(ID_NAMES) or len(self.distinct) < 2:
            return False
        if self.numbers:
            whole = all(number.is_integer() for number in self.numbers)
            return not (whole and len(self.numbers) == len(self.values))  # as many as rows: an identifier
        return len(self.distinct) <= min(MOST_CLASSES, len(self.values) / 4)


def _plain(name: str) -> str:
    return re.sub(r"[\s_.\-]+", " ", re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name))).strip().lower()


def _number(text: str, decimal: str = ".") -> float | None:
    if "_" in text or not re.search(r"\d", text):
        return None
    try:
        return float(text.replace(",", ".") if decimal == "," and DECIMAL_COMMA.fullmatch(text) else text)
    except ValueError:
        return None


def _table(
    path: Path, table: RawTable, options: FileOptions, settings: Mapping[str, object], facts: list[str], roles: Roles
) -> BareFile:
    """Name the task of a table and the columns that it reads."""
    columns = [_column(table, name, options.decimal) for name in table.columns]
    named = (
        (roles.text,)
        if roles.text and roles.text in table.columns
        else tuple(filter(None, map(str.strip, roles.text.split(","))))
    )
    for name in (*named, *filter(None, (roles.label, roles.score))):
        if name not in table.columns:
            raise unknown_column(name, table)
    texts = _texts(path, columns, named, roles)
    for role in filter(None, (roles.label, roles.score)):
        if role in [column.name for column in texts]:
            raise TaskError(f"column {role!r} of {path.name} is named as the text and as what is predicted; name two.")
    named_split = (column for column in columns if column.is_named(SPLIT_NAMES) and column.distinct)
    split = next((column for column in named_split if all(map(canonical_split, column.distinct))), None)
    target, is_number = _target(path, columns, {*map(id, texts), id(split)}, roles)
    kind = ("pair-files" if len(texts) == 2 else "number-files") if is_number else "class-files"
    if is_number:
        options_of_texts, option = (("sentence1", "sentence2"), "score") if len(texts) == 2 else (("text",), "number")
    else:
        options_of_texts, option = ("text", "text2"), "label"
        settings = settings if split is not None else {**settings, "rare": "drop"}
    chosen = dict(zip(options_of_texts, [column.name for column in texts], strict=False)) | {option: target.name}
    if split is not None and split.name != "split":
        chosen["split_column"] = split.name
    elif split is None and "split" in table.columns:  # which names no splits
        chosen["split_column"] = ""
    n_rows = len(table.rows)
    clauses = [f"{n_rows:,} rows", f"{'texts' if len(texts) == 2 else 'text'} = {_listed(texts)}"]
    if is_number:
        low, high = min(target.numbers), max(target.numbers)
        clauses.append(f"number = {_listed([target])} ({low:g} to {high:g})")
    else:
        n_classes = len({str(value).strip() for value in target.values})
        clauses.append(f"label = {_listed([target])} ({n_classes} classes)")
    if split is not None:
        clauses.append(f"split = {_listed([split])}")
    used = (*texts, target, *([split] if split is not None else []))
    if unused := [column for column in columns if column not in used]:
        clauses.append(f"not read: {_listed(unused)}")
    return BareFile(path, kind, {"files": str(path), **chosen, **settings, "bad_rows": "drop"}, (*clauses, *facts))


def _texts(path: Path, columns: Sequence[Column], named: Sequence[str], roles: Roles) -> list[Column]:
    """Find the column of the text, or both of a pair, unless they are named."""
    by_name = {column.name: column for column in columns}
    if len(named) > 2:
        raise TaskError(f"--text names {len(named)} columns; allowed: one, or two for pairs, as premise,hypothesis.")
    if named:
        return [by_name[name] for name in named]
    by_plain = {column.plain_name.replace(" ", ""): column for column in columns}
    free = [column for column in columns if column.name not in (roles.label, roles.score)]
    for pair in PAIR_NAMES:
        both = [by_plain[name] for name in pair if name in by_plain]
        if len(both) == 2 and all(column in free and column.is_text for column in both):
            return both
    candidates = [column for column in free if column.is_text and not column.is_named(ID_NAMES)]
    strong = [column for column in candidates if column.is_named(TEXT_NAMES)]
    if len(strong) == 1 or len(candidates) == 1:
        return strong if len(strong) == 1 else candidates
    problem = f"{len(strong or candidates)} columns may be the text" if candidates else "no column looks like a text"
    raise _undecided(path, columns, problem, "--text COLUMN, or --text FIRST,SECOND for pairs")


def _target(path: Path, columns: Sequence[Column], used: set[int], roles: Roles) -> tuple[Column, bool]:
    """Find the column of labels or numbers among those that are not used, and whether it is one of numbers."""
    free = [column for column in columns if id(column) not in used]
    named = next((column for column in free if column.name in filter(None, (roles.label, roles.score))), None)
    if named is not None:
        if roles.score and not named.numbers:
            bad = next((value for value in named.values if _number(str(value), named.decimal) is None), "nothing")
            raise TaskError(
                f"--score names column {named.name!r} of {path.name}, which holds {shorten(bad)}, no "
                f"number{_on_commas(named)}."
            )
        return _varied(path, named), bool(roles.score)
    likely = [column for column in free if column.is_named(LABEL_NAMES | SCORE_NAMES) and len(column.distinct) > 1]
    likely = likely or [column for column in free if column.is_target and not column.is_text]
    ask = "--label COLUMN for classes, or --score COLUMN for numbers"
    if len(likely) != 1:
        names = ", ".join(repr(column.name) for column in likely)
        problem = f"{len(likely)} columns may be what is predicted ({names})"
        problem = problem if likely else "no column looks like a label or number"
        raise _undecided(path, columns, problem, ask)
    [target] = likely
    is_number = holds_numbers(target)
    if is_number is not None:
        return target, is_number
    if not target.numbers:
        problem = f"column {target.name!r} holds {len(target.distinct):,} different texts, no numbers"
        problem += _on_commas(target)
        raise _undecided(path, columns, problem, ask)
    problem = f"the {len(target.numbers):,} different whole numbers of column {target.name!r} may be classes or numbers"
    raise _undecided(path, columns, problem, f"--label {target.name} or --score {target.name}")


def _on_commas(column: Column) -> str:
    """Say what to do about commas that may mark thousands, as the end of a sentence."""
    number = next((text for text in sorted(column.distinct) if THOUSANDS.fullmatch(text)), "")
    advice = f" (the comma of {number} may mark thousands or decimals: write plain numbers, or set `decimal: ','`)"
    return advice if number else ""


def holds_numbers(target: Column) -> bool | None:
    """Return whether a column that is predicted holds numbers, not classes; None where the rules do not decide."""
    if not target.numbers:
        is_class = target.is_target or len(target.distinct) <= len(target.values) * LABELLED_SHARE
        return False if is_class else None
    if not all(number.is_integer() for number in target.numbers):
        return True
    if len(target.numbers) == 2:
        return False
    if target.is_named(SCORE_NAMES):
        return True
    return False if target.is_named(LABEL_NAMES) and len(target.numbers) <= MOST_INTEGER_CLASSES else None


def _varied(path: Path, column: Column) -> Column:
    if len(column.distinct) < 2:
        value = next(iter(column.distinct), "nothing")
        raise TaskError(f"column {column.name!r} of {path.name} holds {shorten(value)} alone; two values are needed.")
    return column


def _undecided(path: Path, columns: Sequence[Column], problem: str, options: str) -> TaskError:
    """Build the error for what the rules do not decide, with the columns as they were read."""
    return TaskError(f"{path.name}: {problem}; its columns are {_listed(columns)}. Name it with {options}.")


def _column(table: RawTable, name: str, decimal: str) -> Column:
    cells = [row.values.get(name) for row in table.rows if not row.problem]
    present = [cell for cell in cells if cell is not None and str(cell).strip() not in ("", *MISSING_LABELS)]
    return Column(name, present, decimal)


def _listed(columns: Iterable[Column]) -> str:
    return ", ".join(shorten(column.name) for column in columns)


# --- Words with tags ---


def _first(table: RawTable, column: str) -> object:
    return next((row.values[column] for row in table.rows if row.values.get(column)), None)


def _word_lists(path: Path, table: RawTable, words: str, roles: Roles) -> BareFile:
    """Read the lists of words and tags of a JSON file."""
    lists = [name for name in table.columns if name != words and isinstance(_first(table, name), list)]
    if roles.label:
        if roles.label not in table.columns:
            raise unknown_column(roles.label, table)
        lists = [roles.label]
    named = [name for name in lists if name in TAG_NAMES] if len(lists) > 1 else lists
    if len(named) != 1:
        columns = [Column(name, []) for name in table.columns]
        raise _undecided(path, columns, f"{len(named)} lists may be the tags of the words", "--label COLUMN")
    options: dict[str, object] = {"files": str(path), "words": words, "tags": named[0]}
    facts = (f"{len(table.rows):,} sentences", f"words = {words!r}", f"tags = {named[0]!r}")
    return BareFile(path, "word-files", options, facts)


COLUMN_NAMES = {2: ("word", "tag"), 3: ("word", "pos", "chunk"), 4: ("word", "pos", "chunk", "ner")}
"""Columns of files of CoNLL-2000 and 2003, by their number; of other numbers they are counted."""


def _word_columns(path: Path, roles: Roles, *, is_conllu: bool = False) -> BareFile:
    """Read a file of a word and its tags a line; the last column holds the tags, unless another is named."""
    if is_conllu:
        tags = roles.label or "upos"
        return BareFile(path, "word-files", {"files": str(path), "tags": tags}, (f"tags = {tags!r} of CoNLL-U",))
    blocks = [list(block) for is_blank, block in groupby(split_lines(read_text(path)), _is_blank) if not is_blank]
    rows = [[line for line in block if not line.startswith(DOCUMENT_START)] for block in blocks]
    lines = [line for block in rows for line in block]
    hashes = [line for line in lines if line.startswith("#")]
    words = [line for line in lines if not line.startswith("#")] or lines
    is_tabbed = any("\t" in line for line in words[:1])

    def count(line: str) -> int:
        return len(line.split("\t") if is_tabbed else [part for part in line.strip(BLANK).split(" ") if part])

    width = Counter(map(count, words)).most_common(1)[0][0] if words else 0
    has_comments = 0 < len(hashes) < len(lines) and all(line.startswith("# ") for line in hashes)
    has_comments &= all(block[0] in hashes for block in rows if block) or any(count(line) != width for line in hashes)
    if width < 2:
        raise TaskError(
            f"{path.name} has one column only, so there is nothing to predict; give a file with labels, or use "
            f"icecore embed {path.name} for its latents."
        )
    columns = list(COLUMN_NAMES.get(width, ("word", *(f"column{k}" for k in range(2, width + 1)))))
    if roles.label and roles.label not in columns[1:]:
        raise TaskError(f"--label is {roles.label!r}; the columns of {path.name} are called {', '.join(columns)}.")
    tags = roles.label or columns[-1]
    facts = [f"{len(words if has_comments else lines):,} words", f"columns {', '.join(columns)}", f"tags = {tags!r}"]
    options: dict[str, object] = {"files": str(path), "columns": columns, "tags": tags}
    if has_comments:
        options["has_comments"] = True
        facts.append("lines that begin with # are comments")
    return BareFile(path, "word-files", options, tuple(facts))


def _is_blank(line: str) -> bool:
    return not line.strip(BLANK)
