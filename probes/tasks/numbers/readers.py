"""Number tasks from local files by column names, and the sample that ships with the project."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from probes.readers.checked_rows import Fields, check_rows, find_split_column, read_tables
from probes.readers.checks import check_gold, check_group, check_text
from probes.tasks.base import load_shipped
from probes.tasks.graded import split_graded
from probes.tasks.numbers.task import NumberTask, build_number_splits
from probes.tasks.splitting import SplitRule


def read_number_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Mapping[str, str | Path] | str | Path,
    *,
    name: str = "number-files",
    text: str = "text",
    number: str = "number",
    group: str | None = None,
    split_column: str | None = None,
    split: str | None = None,
    seed: int = 0,
    validation_fraction: float = 0.1,
    header: bool = True,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    quoting: bool = True,
    bad_rows: str = "error",
) -> NumberTask:
    """Read texts with numbers; options as for `read_class_files` and, of splits, `read_pair_files`.

    Raises:
        TaskError: A file is broken, a row is bad, a split has fewer than 8 rows, or its numbers are all equal.
        UnknownNameError: An unknown column, split, suffix or `bad_rows`.
    """
    tables, source = read_tables(files, header=header, columns=columns, delimiter=delimiter, quoting=quoting)
    fields: Fields = {"text": (text, check_text), "number": (number, check_gold), "group": (group, check_group)}
    column = find_split_column(tables, split_column)
    rows, notes = check_rows(tables, fields, split_column=column, bad_rows=bad_rows)
    rule = SplitRule(seed, validation_fraction, split=split)
    columns_of_splits, drawn = split_graded(rows, rule, columns=NumberTask.text_columns, name=name)
    task = NumberTask(name, build_number_splits(columns_of_splits), source)
    return task.replaced(notes=(*notes, *filter(None, [drawn]), *task.audit()))


def load_number_sample() -> NumberTask:
    """Load review sentences, rated 1 to 5, that were written for this project: no benchmark.

    Example:
        >>> load_number_sample().n_rows()
        {'train': 70, 'validation': 25, 'test': 25}
    """
    read = partial(read_number_files, name="number-sample", number="rating")
    return load_shipped("probes.tasks.numbers", "samples/ratings.csv", read)
