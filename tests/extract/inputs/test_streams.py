"""Texts of files of any size."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extract.errors import InputError, UnknownNameError
from extract.inputs import batches as streams
from extract.inputs.batches import stream_texts
from extract.run.shards import read_windows

TEXTS = ["Ice\u2028floats.", "Schnee fällt.", "氷"]


def write_txt(path: Path) -> None:
    path.write_text("\ufeff" + "\n\n".join(TEXTS) + "\n \n", encoding="utf-8")


def write_jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps({"body": text, "n": 1}) + "\n" for text in TEXTS), encoding="utf-8")


def write_parquet(path: Path) -> None:
    pq.write_table(pa.table({"n": [1] * len(TEXTS), "body": TEXTS}), path)


def write_table(path: Path) -> None:
    rows = [["n", "body"], *(["1", text] for text in TEXTS)]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",", quoting=csv.QUOTE_ALL).writerows(rows)


WRITERS: dict[str, Callable[[Path], None]] = {
    ".txt": write_txt,
    ".jsonl": write_jsonl,
    ".csv": write_table,
    ".tsv": write_table,
    ".parquet": write_parquet,
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_file_is_read_again_and_again(suffix: str, tmp_path: Path) -> None:
    WRITERS[suffix](tmp_path / f"some{suffix}")
    found = stream_texts(tmp_path / f"some{suffix}", column="body")
    assert list(found) == list(found) == TEXTS
    assert set(WRITERS) == set(streams.READERS), "another format needs a case"


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("2.parquet", "1.jsonl"):
        WRITERS[Path(name).suffix](tmp_path / name)
    (tmp_path / "README.md").write_text("not texts")
    assert list(stream_texts(tmp_path, column="body")) == TEXTS * 2


def test_only_what_is_asked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a Parquet file a batch at a time, of which the next is read when the one before is used up."""
    monkeypatch.setattr(streams, "PARQUET_ROWS", 2)
    read: list[int] = []
    inner = pq.ParquetFile.iter_batches

    def counted(self: Any, *args: Any, **how: Any) -> Any:
        for batch in inner(self, *args, **how):
            read.append(len(batch))
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    pq.write_table(pa.table({"text": [f"Core {i}." for i in range(7)]}), tmp_path / "cores.parquet")
    windows = read_windows(stream_texts(tmp_path / "cores.parquet"), 3)
    assert next(windows).texts == ["Core 0.", "Core 1.", "Core 2."]
    assert sum(read) == 4
    assert [str(window) for window in windows] == ["window 1 (texts 3 to 5)", "window 2 (texts 6 to 6)"]


def test_a_column_of_a_dataset_is_streamed() -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"body": TEXTS, "n": [1, 2, 3]})
    assert [text for window in read_windows(rows["body"], 2) for text in window.texts] == TEXTS


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"there is no file .*none\.txt'; give one of \.txt, \.jsonl, \.csv, \.tsv, \.parquet, or a"
    ):
        stream_texts(tmp_path / "none.txt")
    with pytest.raises(InputError, match="holds no texts; allowed: files of"):
        stream_texts(tmp_path)
    (tmp_path / "some.docx").write_text("Ice")
    with pytest.raises(UnknownNameError, match=r"unknown suffix of a file of texts '\.docx'"):
        stream_texts(tmp_path / "some.docx")
    for suffix in (".jsonl", ".csv", ".parquet"):
        WRITERS[suffix](tmp_path / f"some{suffix}")
        with pytest.raises(UnknownNameError, match=r"unknown column of .* 'text'.*Allowed: .*body.*--column"):
            list(stream_texts(tmp_path / f"some{suffix}"))
    for name, content in (
        ("a.txt", b"\xff\xfe"),
        ("a.jsonl", b"{"),
        ("b.jsonl", b"[1]"),
        ("a.csv", b'text\n"Ice'),
        ("a.parquet", b"PAR1"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"{name}' cannot be read \("):
            list(stream_texts(tmp_path / name))
    (tmp_path / "empty.csv").touch()
    with pytest.raises(InputError, match=r"the file .*empty\.csv' is empty; it needs a header"):
        list(stream_texts(tmp_path / "empty.csv"))


def test_a_cell_of_any_length_is_read_and_a_short_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("id,text\n1," + "x" * 200_000 + "\n\n2,short\n", encoding="utf-8")
    assert list(map(len, stream_texts(path))) == [200_000, 5]
    path.write_text("id,text\n1,a\n2\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 3: 1 instead of 2 columns"):
        list(stream_texts(path))
