"""Number tasks from local files by column names, and the sample that ships with the project."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from extract.errors import TaskError
from probes.readers.checks import check_gold, check_group, check_split, check_table, check_text
from probes.readers.raw_rows import FileFormat, RawRow, read_raw
from probes.readers.splits import files_or_file
from probes.tasks.numbers.task import NumberTask, build_number_splits


def read_number_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Mapping[str, str | Path] | str | Path,
    *,
    name: str = "number-files",
    text: str = "text",
    number: str = "number",
    group: str | None = None,
    split_column: str = "split",
    header: bool = True,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    quoting: bool = True,
    bad_rows: str = "error",
) -> NumberTask:
    r"""Read texts with numbers from one file per split, or from one file with a split column.

    Args:
        files: Split (train, validation or dev, test) to its file; or one file that holds all splits. The format goes
            by the suffix: .csv, .tsv, .tab, .jsonl, .ndjson, .json, .parquet.
        name: What reports call the task.
        text: Column of the text.
        number: Column of the number.
        group: Column that names rows which must not be torn apart (a document, an author).
        split_column: Column of the split, used only when `files` is one file.
        header: The first row of delimited text names the columns.
        columns: Column names, in order, of delimited text without a header.
        delimiter: One character; None goes by the suffix.
        quoting: False takes quotes for plain characters (TSV with unbalanced quotes).
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.

    Returns:
        The task, its texts exactly as in the files.

    Raises:
        TaskError: A file is missing, empty or broken, a row is bad (with file, line, column, value), a split has fewer
            than 8 rows, or its numbers are all equal.
        UnknownNameError: An unknown column, split, suffix or `bad_rows`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "all.tsv")
        >>> rows = [f"text {i}\t{i / 2}\ttrain" for i in range(8)]
        >>> _ = path.write_text("\n".join(["text\tnumber\tsplit", *rows]), encoding="utf-8")
        >>> read_number_files(path).numbers("train")[:3].tolist()
        [0.0, 0.5, 1.0]
    """
    file_format = FileFormat(header, None if columns is None else tuple(columns), delimiter, quoting)
    paths = files_or_file(files)
    needed = (text, number, group, split_column if None in paths else None)
    found: dict[str, dict[str, list[object]]] = {}
    notes: list[str] = []

    def check(row: RawRow) -> tuple[str, dict[str, object]]:
        values = row.values
        own: dict[str, object] = {
            "text": check_text(text, values.get(text)), "number": check_gold(number, values.get(number))
        }  # fmt: skip
        if group is not None:
            own["group"] = check_group(group, values.get(group))
        return check_split(split_column, values.get(split_column)) if needed[3] else "", own

    for split, path in paths.items():
        rows, dropped = check_table(read_raw(path, file_format), needed, check, bad_rows=bad_rows)
        if not rows:
            raise TaskError(f"{path} has no row left: {'; '.join(dropped)}.")
        notes += dropped
        for own_split, row in rows:
            for column, value in row.items():
                found.setdefault(split or own_split, {}).setdefault(column, []).append(value)
    task = NumberTask(name, build_number_splits(found), ", ".join(map(str, paths.values())))
    return replace(task, notes=(*notes, *task.audit()))


def load_number_sample() -> NumberTask:
    """Load the review sentences, rated 1 to 5, written for this project and shipped with it: no benchmark.

    Returns:
        Splits train, validation and test, none of which shares a text with another.

    Example:
        >>> load_number_sample().n_rows()
        {'train': 70, 'validation': 25, 'test': 25}
    """
    with resources.as_file(resources.files("probes.tasks.numbers") / "samples" / "ratings.csv") as path:
        task = read_number_files(path, name="number-sample", number="rating")
    note = "a sample written for this project: good for trying things out, no benchmark"
    source = "samples/ratings.csv, shipped with icecore"
    return replace(task, source=source, is_sample=True, notes=(note, *task.notes))
