"""Classification tasks from local files, from the hub by column names, and the sample that ships with the project."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from probes.readers.hub import read_hub
from probes.readers.raw_rows import FileFormat, RawTable, read_raw
from probes.readers.splits import files_or_file, name_splits
from probes.tasks.classes.assemble import SplitRule, TaskCard, assemble_task
from probes.tasks.classes.examples import ClassColumns, Example, check_examples
from probes.tasks.classes.task import ClassTask

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
        split_column: Column of the split, when `files` is one file that has one.
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

    Returns:
        The task, its texts exactly as in the files.

    Raises:
        TaskError: If a file is missing, empty or broken, a row is bad (with file, line, column, value), training holds
            one class only, labels are of mixed type, or a class is too small to be split.
        UnknownNameError: If a column, split, suffix, class, metric or `bad_rows` is unknown.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "all.tsv")
        >>> rows = [f"text {i}\t{'even' if i % 2 == 0 else 'odd'}" for i in range(40)]
        >>> _ = path.write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")
        >>> read_class_files(path).class_names
        ('even', 'odd')
    """
    rule = SplitRule(seed, validation_fraction, rare)
    file_format = FileFormat(header, None if columns is None else tuple(columns), delimiter, quoting)
    names = ClassColumns(text, label, text2, group, None if isinstance(files, Mapping) else split_column)
    paths = files_or_file(files)
    tables = {split: read_raw(path, file_format) for split, path in paths.items()}
    examples, notes = gather_examples(tables, names, bad_rows=bad_rows)
    source = ", ".join(str(path) for path in paths.values())
    card = TaskCard(name, source, (metric,), class_names=None if class_names is None else tuple(class_names))
    return assemble_task(examples, card, rule=rule, notes=notes)


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
) -> ClassTask:
    """Load a classification dataset by its column names through `datasets`.

    Args:
        hub_id: A dataset of the hub, or a local folder laid out like one.
        config: Its configuration, where the repository keeps several in folders of their own.
        revision: Branch, tag or commit; None is the main branch.
        text: Column of the text.
        label: Column of the class: texts, or whole numbers.
        text2: Column of a second text, for pairs.
        group: Column that names rows which must not be torn apart.
        class_names: Names in the order of their numbers; None takes the labels that occur.
        metric: The metric to choose by, a key of `CLASS_METRICS`.
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.
        seed: Seed of splits that the dataset lacks.
        validation_fraction: Part of the training rows that becomes validation when only that split is missing.
        rare: Classes of fewer than 3 rows, where all splits are drawn: `error` or `drop`.

    Returns:
        The task; its source names the commit.

    Raises:
        TaskError: If the hub is out of reach and the cache has no copy (noticed in seconds), or a row is bad.
        UnknownNameError: If a configuration, column, class, metric or `bad_rows` is unknown.
    """
    rule = SplitRule(seed, validation_fraction, rare)
    tables, source = read_hub(hub_id, config, revision=revision, help_text=_NO_HUB)
    columns = ClassColumns(text, label, text2, group)
    examples, notes = gather_examples(name_splits(tables, source), columns, bad_rows=bad_rows)
    name = Path(hub_id).name if config is None else f"{Path(hub_id).name}-{config}"
    card = TaskCard(name, source, (metric,), class_names=None if class_names is None else tuple(class_names))
    return assemble_task(examples, card, rule=rule, notes=notes)


def load_class_sample() -> ClassTask:
    """Load the sentences of six topics written for this project and shipped with it: a sample, not a benchmark.

    Returns:
        Splits train, validation and test, none of which shares a text with another.

    Example:
        >>> load_class_sample().n_classes
        6
    """
    with resources.as_file(resources.files("probes.tasks.classes") / "samples" / "classes.csv") as path:
        task = read_class_files(path, name="class-sample", label="topic", split_column="split", metric="f1-macro")
    note = "a sample written for this project: good for trying things out, no benchmark"
    source = "samples/classes.csv, shipped with icecore"
    return replace(task, source=source, licence="Apache-2.0", is_sample=True, notes=(note, *task.notes))


def gather_examples(
    tables: Mapping[Any, RawTable], columns: ClassColumns, *, bad_rows: str
) -> tuple[list[Example], tuple[str, ...]]:
    """Check the rows of several tables.

    Args:
        tables: Split to its rows; None for rows without splits, or with a split column.
        columns: The columns to read.
        bad_rows: As in `check_examples`.

    Returns:
        All examples, table after table, and the notes about rows dropped.

    Raises:
        TaskError: If a row is bad and `bad_rows` is `error`.
        UnknownNameError: If a column is not there.
    """
    examples: list[Example] = []
    notes: list[str] = []
    for split, table in tables.items():
        found, dropped = check_examples(table, columns, split=split, bad_rows=bad_rows)
        examples += found
        notes += dropped
    return examples, tuple(notes)
