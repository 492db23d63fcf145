"""Classification tasks from local files, from the hub by column names, and the sample that ships with the project."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from probes.readers.checked_rows import check_rows, find_split_column, read_tables
from probes.readers.checks import MISSING_LABELS
from probes.readers.hub import read_hub
from probes.readers.splits import name_splits
from probes.tasks.base import load_shipped
from probes.tasks.classes.assemble import assemble_task, class_fields
from probes.tasks.classes.task import ClassTask
from probes.tasks.splitting import SplitRule

_NO_HUB = "check the name and the connection, or give local files to task 'class-files'"


def read_class_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Mapping[str, str | Path] | str | Path,
    *,
    name: str = "class-files",
    text: str = "text",
    label: str = "label",
    text2: str | None = None,
    group: str | None = None,
    split_column: str | None = None,
    split: str = "auto",
    class_names: Sequence[str] | None = None,
    metric: str = "accuracy",
    header: bool = True,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    quoting: bool = True,
    bad_rows: str = "error",
    seed: int = 0,
    validation_fraction: float = 0.1,
    rare: str = "error",
    missing_labels: Sequence[str] = MISSING_LABELS,
) -> ClassTask:
    r"""Read a classification task from one file per split, or from one file with or without a split column.

    Args:
        files: Split (train, validation or dev, test) to its file; or one file. The format goes by the suffix: .csv,
            .tsv, .tab, .jsonl, .ndjson, .json, .parquet.
        name: What reports call the task.
        text: Column of the text.
        label: Column of the class: texts, or whole numbers.
        text2: Column of a second text, for pairs.
        group: Column that names rows which must not be torn apart (a document, an author).
        split_column: Column of the split, where `files` is one file; None takes `split` if the file has it.
        split: `auto` draws the splits that are missing, stratified by class; `given` draws none.
        class_names: Names in the order of their numbers; None takes the labels that occur.
        metric: The metric to choose by, a key of `CLASS_METRICS`.
        header: The first row of delimited text names the columns.
        columns: Column names, in order, of delimited text without a header.
        delimiter: One character; None goes by the suffix.
        quoting: False takes quotes for plain characters (TSV with unbalanced quotes).
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.
        seed: Seed of splits that the files lack.
        validation_fraction: Part of the training rows that becomes validation when only that split is missing.
        rare: Classes of fewer than 3 rows, where all splits are drawn: `error` or `drop`.
        missing_labels: What stands for no label, which makes a bad row.

    Returns:
        The task, its texts exactly as in the files.

    Raises:
        TaskError: A file is missing, empty or broken, a row is bad (with file, line, column, value), training holds
            one class only, labels are of mixed type, or a class is too small to be split.
        UnknownNameError: A column, split, suffix, class, metric or `bad_rows` is unknown.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "all.tsv")
        >>> rows = [f"text {i}\t{'even' if i % 2 == 0 else 'odd'}" for i in range(40)]
        >>> _ = path.write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")
        >>> read_class_files(path).class_names
        ('even', 'odd')
    """
    rule = SplitRule(seed, validation_fraction, rare, split)
    tables, source = read_tables(files, header=header, columns=columns, delimiter=delimiter, quoting=quoting)
    fields = class_fields(text, label, text2, group, missing_labels)
    column = find_split_column(tables, split_column)
    rows, notes = check_rows(tables, fields, split_column=column, bad_rows=bad_rows)
    return assemble_task(
        rows, name=name, source=source, metrics=(metric,), class_names=class_names, rule=rule, notes=notes
    )


def load_class_hub(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    hub_id: str,
    *,
    config: str | None = None,
    revision: str | None = None,
    text: str = "text",
    label: str = "label",
    text2: str | None = None,
    group: str | None = None,
    class_names: Sequence[str] | None = None,
    metric: str = "accuracy",
    bad_rows: str = "error",
    seed: int = 0,
    validation_fraction: float = 0.1,
    rare: str = "error",
    missing_labels: Sequence[str] = MISSING_LABELS,
) -> ClassTask:
    """Load a classification dataset by its column names through `datasets`; the source names the commit.

    `hub_id` is a dataset of the hub, or a local folder laid out like one; `config` its configuration, where it keeps
    several in folders of their own; `revision` a branch, tag or commit. The other options are those of
    `read_class_files`.

    Raises:
        TaskError: The hub is out of reach and the cache has no copy (noticed in seconds), or a row is bad.
        UnknownNameError: A configuration, column, class, metric or `bad_rows` is unknown.
    """
    rule = SplitRule(seed, validation_fraction, rare)
    tables, source = read_hub(hub_id, config, revision=revision, help_text=_NO_HUB)
    fields = class_fields(text, label, text2, group, missing_labels)
    rows, notes = check_rows(name_splits(tables, source), fields, bad_rows=bad_rows)
    name = Path(hub_id).name if config is None else f"{Path(hub_id).name}-{config}"
    return assemble_task(
        rows, name=name, source=source, metrics=(metric,), class_names=class_names, rule=rule, notes=notes
    )


def load_class_sample() -> ClassTask:
    """Load the sentences of six topics written for this project and shipped with it: a sample, not a benchmark.

    Example:
        >>> load_class_sample().n_classes
        6
    """
    read = partial(read_class_files, name="class-sample", label="topic", split_column="split", metric="f1-macro")
    return replace(load_shipped("probes.tasks.classes", "samples/classes.csv", read), licence="Apache-2.0")
