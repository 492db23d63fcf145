"""Pair tasks from local files by column names, STS Benchmark, and the sample that ships with the project."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from extract.errors import TaskError
from probes.readers.checked_rows import Fields, check_rows, columns_by_split, find_split_column, read_tables
from probes.readers.checks import check_gold, check_text, is_number
from probes.readers.hub import read_hub
from probes.readers.local import DATA_VARIABLE, find_local, need_local
from probes.readers.splits import name_splits
from probes.tasks.base import load_shipped
from probes.tasks.graded import split_graded
from probes.tasks.pairs.audit import audit_notes
from probes.tasks.pairs.task import PairTask, build_splits
from probes.tasks.splitting import SplitRule

STSB_FILES = {"train": "stsb-en-train.csv", "validation": "stsb-en-dev.csv", "test": "stsb-en-test.csv"}
STSB_HUB_ID = "sentence-transformers/stsb"
_NO_HUB = (
    f"set {DATA_VARIABLE} to a folder that holds stsb/{STSB_FILES['train']} and its siblings, or give local files to "
    "task 'pair-files'"
)


def read_pair_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Mapping[str, str | Path] | str | Path,
    *,
    name: str = "pair-files",
    sentence1: str = "sentence1",
    sentence2: str = "sentence2",
    score: str = "score",
    split_column: str | None = None,
    split: str | None = None,
    seed: int = 0,
    validation_fraction: float = 0.1,
    score_range: Sequence[float | int] | None = None,
    header: bool = True,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    quoting: bool = True,
    bad_rows: str = "error",
) -> PairTask:
    r"""Read a pair task from one file per split, or from one file with or without a split column.

    Args:
        files: Split (train, validation or dev, test) to its file; or one file that holds all splits. The format goes
            by the suffix: .csv, .tsv, .tab, .jsonl, .ndjson, .json, .parquet.
        name: What reports call the task.
        sentence1: Column of the first text.
        sentence2: Column of the second text.
        score: Column of the gold similarity.
        split_column: Column of the split, where `files` is one file; None takes `split` if the file has it.
        split: `auto` draws the splits that are missing, equal pairs together: all three (80/10/10) of rows in train or
            in no split, validation where there is train and test. `given` draws none. None is `auto` where a file has
            no splits.
        seed: Seed of that draw.
        validation_fraction: Part of the training rows that becomes validation when only that split is missing.
        score_range: Lowest and highest gold allowed; scales the gold to [0, 1]. None takes the lowest and highest of
            train (of all rows, where there is no train), and a note says so.
        header: The first row of delimited text names the columns.
        columns: Column names, in order, of delimited text without a header.
        delimiter: One character; None goes by the suffix.
        quoting: False takes quotes for plain characters (TSV with unbalanced quotes).
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.

    Returns:
        The task, its texts exactly as in the files, its notes naming rows dropped, duplicates and overlap.

    Raises:
        TaskError: A file is missing, empty or broken, a row is bad (with file, line, column, value), a split has fewer
            than 8 rows, or its gold is constant.
        UnknownNameError: A column, split, suffix or `bad_rows` is unknown.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "test.tsv")
        >>> rows = [f"text {i}\tother {i}\t{i % 6}" for i in range(8)]
        >>> _ = path.write_text("\n".join(["a\tb\tgold", *rows]), encoding="utf-8")
        >>> read_pair_files({"test": path}, sentence1="a", sentence2="b", score="gold").texts()[:2]
        ['text 0', 'other 0']
    """
    limits = None if score_range is None else parse_score_range(score_range)
    tables, source = read_tables(files, header=header, columns=columns, delimiter=delimiter, quoting=quoting)
    fields = _fields(sentence1, sentence2, score, limits=limits)
    column = find_split_column(tables, split_column)
    rows, notes = check_rows(tables, fields, split_column=column, bad_rows=bad_rows)
    rule = SplitRule(seed, validation_fraction, split=split)
    columns_of_splits, drawn = split_graded(rows, rule, columns=PairTask.text_columns, name=name)
    splits = build_splits(columns_of_splits)
    where = "train" if "train" in splits else "all rows"
    scores = splits["train"]["score"] if "train" in splits else [x for rows in splits.values() for x in rows["score"]]
    observed = (min(scores), max(scores))
    told = (
        f"score_range is {observed[0]:g} to {observed[1]:g}, the scores of {where}; set score_range for another scale"
    )
    return PairTask(
        name,
        splits,
        limits or observed,
        source,
        has_inferred_range=limits is None,
        notes=(*notes, *[told] * (limits is None), *filter(None, [drawn]), *audit_notes(splits)),
    )


def _fields(
    sentence1: str = "sentence1",
    sentence2: str = "sentence2",
    score: str = "score",
    *,
    limits: tuple[float, float] | None,
) -> Fields:
    gold = partial(check_gold, limits=limits) if limits else check_gold
    return {"sentence1": (sentence1, check_text), "sentence2": (sentence2, check_text), "score": (score, gold)}


def parse_score_range(value: object) -> tuple[float, float]:
    """Check a score range that came from a YAML file: two finite numbers, the lower first."""
    numbers = [v for v in value if is_number(v) and math.isfinite(v)] if isinstance(value, list | tuple) else []
    if not isinstance(value, list | tuple) or len(value) != 2 or len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise TaskError(f"`score_range` is {value!r}, but two numbers are needed, the lower first, such as [0, 5].")
    return float(numbers[0]), float(numbers[1])


def load_stsb_local(folder: str | Path | None = None, *, bad_rows: str = "error") -> PairTask:
    """Read the English STS Benchmark from its three headerless CSV files, gold 0 to 5.

    Args:
        folder: Where `stsb-en-train.csv`, `stsb-en-dev.csv` and `stsb-en-test.csv` are; None is `$ICECORE_DATA/stsb`.
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.

    Returns:
        5,749 training, 1,500 validation and 1,379 test pairs.

    Raises:
        TaskError: `ICECORE_DATA` is not set, or a file is missing or broken.
    """
    local = need_local("stsb", folder, example=STSB_FILES["train"])
    task = read_pair_files(
        {split: local.find(file) for split, file in STSB_FILES.items()},
        name="stsb",
        header=False,
        columns=("sentence1", "sentence2", "score"),
        score_range=(0.0, 5.0),
        bad_rows=bad_rows,
    )
    return replace(task, source=local.source(*STSB_FILES.values()))


def load_stsb_hub(
    hub_id: str = STSB_HUB_ID,
    *,
    revision: str | None = None,
    score_range: Sequence[float | int] = (0.0, 1.0),
    bad_rows: str = "error",
) -> PairTask:
    """Load a pair dataset with columns `sentence1`, `sentence2`, `score` through `datasets`.

    Args:
        hub_id: A dataset of the hub (the default holds STS-B, gold already scaled to 0..1), or a local folder laid
            out like one.
        revision: Branch, tag or commit; None is the main branch.
        score_range: Lowest and highest gold the dataset can hold.
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.

    Returns:
        The task; its source names the commit.

    Raises:
        TaskError: The hub is out of reach and the cache has no copy (noticed in seconds), or a row is bad.
        UnknownNameError: A column or `bad_rows` is unknown.
    """
    limits = parse_score_range(score_range)
    tables, source = read_hub(hub_id, revision=revision, help_text=_NO_HUB)
    rows, notes = check_rows(name_splits(tables, source), _fields(limits=limits), bad_rows=bad_rows)
    splits = build_splits(columns_by_split(rows))
    name = "stsb" if hub_id == STSB_HUB_ID else Path(hub_id).name
    return PairTask(name, splits, limits, source, notes=(*notes, *audit_notes(splits)))


def load_stsb() -> PairTask:
    """Load STS-B from `$ICECORE_DATA/stsb` (gold 0 to 5) where that folder exists, else from the hub (gold 0 to 1)."""
    return load_stsb_hub() if find_local("stsb") is None else load_stsb_local()


def load_sample() -> PairTask:
    """Load the pairs written for this project and shipped with it, gold 0 to 5: a sample, not a benchmark."""
    return load_shipped(
        "probes.tasks.pairs", "samples/sts.csv", partial(read_pair_files, name="sts-sample", score_range=(0.0, 5.0))
    )
