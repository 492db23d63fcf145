"""Pair tasks from local CSV, TSV, JSON, JSON Lines and Parquet files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from extract.errors import TaskError, unknown_name
from probes.readers.raw_rows import FileFormat, read_raw
from probes.tasks.pairs.audit import audit_notes
from probes.tasks.pairs.task import SPLITS, PairTask, build_splits
from probes.tasks.pairs.validate import (
    ColumnNames,
    Pair,
    canonical_split,
    check_rows,
    columns_of,
    parse_score_range,
)


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
    is_one_file = not isinstance(files, Mapping)
    names = ColumnNames(sentence1, sentence2, score, split_column if is_one_file else None)
    pairs: list[Pair] = []
    notes: list[str] = []
    for split, path in files_by_split(files).items():
        table = read_raw(path, file_format)
        rows, dropped = check_rows(table, names, split=split, score_range=limits, bad_rows=bad_rows)
        if not rows:
            raise TaskError(f"{path} has no row left: {'; '.join(dropped)}.")
        pairs += rows
        notes += dropped
    splits = build_splits(columns_of(pairs))
    source = ", ".join(str(path) for path in files_by_split(files).values())
    return PairTask(name, splits, limits, source, notes=(*notes, *audit_notes(splits)))


def files_by_split(files: Mapping[str, str | Path] | str | Path) -> dict[str | None, Path]:
    """Name the split of each file.

    Args:
        files: Split, or an alias such as `dev`, to its file; or one file.

    Returns:
        Split to path; None stands for one file that may have a split column.

    Raises:
        TaskError: If there is no file, or two for one split.
        UnknownNameError: If a name means no split.

    Example:
        >>> [(split, path.name) for split, path in files_by_split({"dev": "rows.csv"}).items()]
        [('validation', 'rows.csv')]
    """
    if not isinstance(files, Mapping):
        return {None: Path(files).expanduser()}
    if not files:
        raise TaskError(f"`files` names no file: give at least one of {', '.join(SPLITS)}.")
    paths: dict[str | None, Path] = {}
    for key, path in files.items():
        split = canonical_split(key)
        if split is None:
            raise unknown_name("split", key, SPLITS, hint="`files` maps a split to its file.")
        if split in paths:
            raise TaskError(f"`files` names the {split} split twice ({paths[split]} and {path}): leave one out.")
        paths[split] = Path(path).expanduser()
    return paths
