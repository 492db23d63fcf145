"""Pair tasks from local CSV, TSV, JSON, JSON Lines and Parquet files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.errors import TaskError
from probes.readers.checks import check_gold, check_split, check_table, check_text, is_number
from probes.readers.raw_rows import FileFormat, RawRow, RawTable, read_raw
from probes.readers.splits import files_or_file
from probes.tasks.pairs.audit import audit_notes
from probes.tasks.pairs.task import PairTask, build_splits


@dataclass(frozen=True)
class ColumnNames:
    """Names of the columns that hold the parts of a pair."""

    sentence1: str = "sentence1"
    sentence2: str = "sentence2"
    score: str = "score"
    split: str | None = None
    """Only for a table that holds several splits."""


@dataclass(frozen=True)
class Pair:
    """One checked row."""

    split: str
    sentence1: str
    sentence2: str
    score: float


def read_pair_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Mapping[str, str | Path] | str | Path,
    *,
    name: str = "pair-files",
    sentence1: str = "sentence1",
    sentence2: str = "sentence2",
    score: str = "score",
    split_column: str = "split",
    score_range: Sequence[float | int] = (0.0, 5.0),
    header: bool = True,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    quoting: bool = True,
    bad_rows: str = "error",
) -> PairTask:
    r"""Read a pair task from one file per split, or from one file with a split column.

    Args:
        files: Split (train, validation or dev, test) to its file; or one file that holds all splits. The format goes
            by the suffix: .csv, .tsv, .tab, .jsonl, .ndjson, .json, .parquet.
        name: What reports call the task.
        sentence1: Column of the first text.
        sentence2: Column of the second text.
        score: Column of the gold similarity.
        split_column: Column of the split, used only when `files` is one file.
        score_range: Lowest and highest gold allowed; scales the gold to [0, 1].
        header: The first row of delimited text names the columns.
        columns: Column names, in order, of delimited text without a header.
        delimiter: One character; None goes by the suffix.
        quoting: False takes quotes for plain characters (TSV with unbalanced quotes).
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.

    Returns:
        The task, its texts exactly as in the files, its notes naming rows dropped, duplicates and overlap.

    Raises:
        TaskError: If a file is missing, empty or broken, a row is bad (with file, line, column, value), a split has
            fewer than 8 rows, or its gold is constant.
        UnknownNameError: If a column, split, suffix or `bad_rows` is unknown.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> rows = [f"text {i}\tother {i}\t{i % 6}" for i in range(8)]
        >>> _ = (folder / "test.tsv").write_text("\n".join(["a\tb\tgold", *rows]), encoding="utf-8")
        >>> task = read_pair_files({"test": folder / "test.tsv"}, sentence1="a", sentence2="b", score="gold")
        >>> task.splits["test"]["sentence2"][:2]
        ['other 0', 'other 1']
    """
    limits = parse_score_range(score_range)
    file_format = FileFormat(header, None if columns is None else tuple(columns), delimiter, quoting)
    paths = files_or_file(files)
    names = ColumnNames(sentence1, sentence2, score, split_column if None in paths else None)
    pairs: list[Pair] = []
    notes: list[str] = []
    for split, path in paths.items():
        table = read_raw(path, file_format)
        rows, dropped = check_pairs(table, names, split=split, score_range=limits, bad_rows=bad_rows)
        if not rows:
            raise TaskError(f"{path} has no row left: {'; '.join(dropped)}.")
        pairs += rows
        notes += dropped
    splits = build_splits(columns_of(pairs))
    source = ", ".join(str(path) for path in paths.values())
    return PairTask(name, splits, limits, source, notes=(*notes, *audit_notes(splits)))


def check_pairs(
    table: RawTable, names: ColumnNames, *, split: str | None, score_range: tuple[float, float], bad_rows: str
) -> tuple[list[Pair], tuple[str, ...]]:
    """Turn the rows of one table into pairs.

    Args:
        table: Rows with their line or row numbers.
        names: The columns to read.
        split: The split of all rows; None reads it from the split column.
        score_range: Lowest and highest gold allowed.
        bad_rows: `error` stops at bad rows; `drop` leaves them out and counts them in a note.

    Returns:
        The good rows in order, and at most one note about those dropped.

    Raises:
        TaskError: A row is bad and `bad_rows` is `error`; names file, line, column and value.
        UnknownNameError: A column is missing, or `bad_rows` is neither of the two.
    """

    def check(row: RawRow) -> Pair:
        named = check_split(names.split, row.values.get(names.split)) if names.split is not None else split or ""
        first = check_text(names.sentence1, row.values.get(names.sentence1))
        second = check_text(names.sentence2, row.values.get(names.sentence2))
        return Pair(named, first, second, check_gold(names.score, row.values.get(names.score), score_range))

    return check_table(table, (names.sentence1, names.sentence2, names.score, names.split), check, bad_rows=bad_rows)


def parse_score_range(value: object) -> tuple[float, float]:
    """Check a score range that came from a YAML file.

    Args:
        value: Two finite numbers, the lower first.

    Returns:
        Both as floats.

    Raises:
        TaskError: If it is anything else.
    """
    numbers = [v for v in value if is_number(v) and math.isfinite(v)] if isinstance(value, list | tuple) else []
    if not isinstance(value, list | tuple) or len(value) != 2 or len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise TaskError(f"`score_range` is {value!r}, but two numbers are needed, the lower first, such as [0, 5].")
    return float(numbers[0]), float(numbers[1])


def columns_of(pairs: Sequence[Pair]) -> dict[str, dict[str, Any]]:
    """Gather pairs by split, column by column.

    Args:
        pairs: Checked rows of any splits.

    Returns:
        Split to its columns `sentence1`, `sentence2` and `score`, rows in the order given.
    """
    splits: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        columns = splits.setdefault(pair.split, {"sentence1": [], "sentence2": [], "score": []})
        columns["sentence1"].append(pair.sentence1)
        columns["sentence2"].append(pair.sentence2)
        columns["score"].append(pair.score)
    return splits
