"""STS Benchmark, from local files or the hub, and the sample that ships with the project."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from extract.errors import TaskError
from probes.readers.hub import read_hub
from probes.readers.local import DATA_VARIABLE, find_local, need_local
from probes.readers.splits import name_splits
from probes.tasks.pairs.audit import audit_notes
from probes.tasks.pairs.files import ColumnNames, Pair, check_pairs, columns_of, parse_score_range, read_pair_files
from probes.tasks.pairs.task import PairTask, build_splits

STSB_FILES = {"train": "stsb-en-train.csv", "validation": "stsb-en-dev.csv", "test": "stsb-en-test.csv"}
STSB_HUB_ID = "sentence-transformers/stsb"
_NO_HUB = (
    f"set {DATA_VARIABLE} to a folder that holds stsb/{STSB_FILES['train']} and its siblings, or give local files to "
    "task 'pair-files'"
)


def load_stsb_local(folder: str | Path | None = None, *, bad_rows: str = "error") -> PairTask:
    """Read the English STS Benchmark from its three headerless CSV files, gold 0 to 5.

    Args:
        folder: Where `stsb-en-train.csv`, `stsb-en-dev.csv` and `stsb-en-test.csv` are; None is `$ICECORE_DATA/stsb`.
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.

    Returns:
        5,749 training, 1,500 validation and 1,379 test pairs.

    Raises:
        TaskError: If `ICECORE_DATA` is not set, or a file is missing or broken.
    """
    local = need_local("stsb", folder, example=STSB_FILES["train"])
    task = read_pair_files(
        {split: local.find(file) for split, file in STSB_FILES.items()},
        name="stsb", header=False, columns=("sentence1", "sentence2", "score"), bad_rows=bad_rows,
    )  # fmt: skip
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
        TaskError: If the hub is out of reach and the cache has no copy (noticed in seconds), or a row is bad.
        UnknownNameError: If a column or `bad_rows` is unknown.
    """
    limits = parse_score_range(score_range)
    tables, source = read_hub(hub_id, revision=revision, help_text=_NO_HUB)
    pairs: list[Pair] = []
    notes: list[str] = []
    for split, table in name_splits(tables, source).items():
        rows, dropped = check_pairs(table, ColumnNames(), split=split, score_range=limits, bad_rows=bad_rows)
        pairs += rows
        notes += dropped
    if not pairs:
        raise TaskError(f"{source} has no usable row in a split named train, validation or test: {'; '.join(notes)}.")
    splits = build_splits(columns_of(pairs))
    name = "stsb" if hub_id == STSB_HUB_ID else Path(hub_id).name
    return PairTask(name, splits, limits, source, notes=(*notes, *audit_notes(splits)))


def load_stsb() -> PairTask:
    """Load STS-B from `$ICECORE_DATA/stsb` where that folder exists, else from the hub; the source says which.

    Returns:
        The task, gold 0 to 5 from the local files and 0 to 1 from the hub.

    Raises:
        TaskError: If the local files are broken, or there are none and the hub cannot be reached.
    """
    return load_stsb_hub() if find_local("stsb") is None else load_stsb_local()


def load_sample() -> PairTask:
    """Load the pairs written for this project and shipped with it, gold 0 to 5: a sample, not a benchmark.

    Returns:
        Splits train, validation and test, none of which shares a pair with another.
    """
    with resources.as_file(resources.files("probes.tasks.pairs") / "samples" / "sts.csv") as path:
        task = read_pair_files(path, name="sts-sample")
    note = "a sample written for this project: good for trying things out, no benchmark"
    return replace(task, source="samples/sts.csv, shipped with icecore", is_sample=True, notes=(note, *task.notes))
