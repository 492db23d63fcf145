"""Texts of files of any size, read as they are asked for."""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.errors import InputError, first_line, unknown_name

BATCH_ROWS = 1024
"""Rows of a Parquet file in memory."""


@dataclass(frozen=True)
class TextStream:
    """The texts of a file or folder, which are read again whenever it is iterated; see `stream_texts`."""

    files: tuple[Path, ...]
    column: str

    def __iter__(self) -> Iterator[str]:
        for file in self.files:
            try:
                yield from READERS[file.suffix.lower()](file, self.column)
            except (OSError, ValueError) as error:  # one that Arrow raises is one of them
                raise InputError(f"{str(file)!r} cannot be read ({first_line(error)}); give a sound file.") from error


def stream_texts(path: str | Path, *, column: str = "text") -> TextStream:
    """Read the texts of a file of any size, a few at a time.

    Args:
        path: A `.txt` file with a text on each line, of which blank ones are passed over; a `.jsonl` file with an
            object on each line; a `.csv` or `.tsv` file with a header; a `.parquet` file; or a folder of such files,
            read in the order of their names.
        column: The column of the texts, where the file is a table.

    Raises:
        InputError: No such file, or a folder without any; while reading, a file that is damaged.
        UnknownNameError: Another suffix; while reading, a column that the table does not have.
    """
    place = Path(path)
    if not place.exists():
        raise InputError(f"there is no file {str(path)!r}; give one of {', '.join(READERS)}, or a folder of them.")
    if place.is_dir():
        files = tuple(sorted(each for each in place.iterdir() if each.suffix.lower() in READERS))
        if not files:
            raise InputError(f"folder {str(path)!r} holds no texts; allowed: files of {', '.join(READERS)}.")
        return TextStream(files, column)
    if place.suffix.lower() not in READERS:
        raise unknown_name("suffix of a file of texts", place.suffix, READERS)
    return TextStream((place,), column)


def _read_lines(file: Path, _: str) -> Iterator[str]:
    with file.open(encoding="utf-8-sig") as lines:
        yield from filter(str.strip, (line.rstrip("\n") for line in lines))


def _read_objects(file: Path, column: str) -> Iterator[str]:
    for line in _read_lines(file, column):
        found: Any = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError(f"the line {line[:40]!r} is no object")  # which says where, once it is caught
        if column not in found:
            raise unknown_name(f"column of {str(file)!r}", column, found)
        yield found[column]


def _read_table(file: Path, column: str) -> Iterator[str]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t" if file.suffix.lower() == ".tsv" else ",", strict=True)
        if rows.fieldnames is None:
            raise InputError(f"the file {str(file)!r} is empty; it needs a header that names its columns, and rows.")
        if column not in rows.fieldnames:
            raise unknown_name(f"column of {str(file)!r}", column, rows.fieldnames)
        try:
            yield from (row[column] for row in rows)
        except csv.Error as error:
            raise ValueError(f"line {rows.line_num}: {error}") from error


def _read_parquet(file: Path, column: str) -> Iterator[str]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as table:
        if column not in table.schema_arrow.names:
            raise unknown_name(f"column of {str(file)!r}", column, table.schema_arrow.names)
        for batch in table.iter_batches(BATCH_ROWS, columns=[column]):
            yield from batch.column(0).to_pylist()


READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    ".txt": _read_lines,
    ".jsonl": _read_objects,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".parquet": _read_parquet,
}
"""What reads the texts of a file, by its suffix."""
