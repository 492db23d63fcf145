"""A file of new rows goes on past those that cannot be read, which are told apart, and is refused where they cannot."""

from pathlib import Path

import pytest

from extract.errors import TaskError
from probes.data.table_files import MOST_BROKEN, FileOptions, read_raw
from probes.runs.new_rows import NewRow, RowReader

BYTE = "byte 0xe9 is not UTF-8"


def read(path: Path, content: bytes, *, n_texts: int = 1, is_words: bool = False) -> list[NewRow]:
    path.write_bytes(content)
    return RowReader("words" if is_words else "classes", n_texts, is_words, columns=("text",)).read_file(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"id,text\n" + b"1,caf\xc3\xa9\n2,caf\xe9\n" + b"3,tea\n" * 20),
        ("a.csv", b"id,text\n" + b"1,caf\xc3\xa9\n2\xe9,milk\n" + b"3,tea\n" * 20),
        ("a.jsonl", b'{"text": "caf\xc3\xa9"}\n{"text": "caf\xe9"}\n' + b'{"text": "tea"}\n' * 20),
        ("a.txt", b"caf\xc3\xa9\ncaf\xe9\n" + b"tea\n" * 20),
    ],
    ids=["text", "other column", "JSON Lines", "lines"],
)
def test_one_byte_of_another_encoding_costs_its_row_alone(name: str, content: bytes, tmp_path: Path) -> None:
    rows = read(tmp_path / name, content)
    assert [row.row for row in rows] == ["café", None, *["tea"] * 20]
    assert BYTE in rows[1].error
    assert not any(row.error for row in (rows[0], *rows[2:]))
    if "id" in rows[1].values:
        assert rows[1].values["id"].startswith("2")
        " ".join(map(str, rows[1].values.values())).encode()  # can be written to a file


def test_a_byte_costs_the_sentence_of_its_word(tmp_path: Path) -> None:
    rows = read(tmp_path / "a.conll", b"caf\xe9 O\nau O\n\n" + b"tea O\n\n" * 30, is_words=True)
    assert [row.row for row in rows] == [None, *[["tea"]] * 30]
    assert BYTE in rows[0].error


def test_a_file_of_another_encoding_is_refused_whole(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"a.csv, line 2: byte 0xe9 is not UTF-8: save the file as UTF-8"):
        read(tmp_path / "a.csv", b"id,text\n" + b"1,caf\xe9\n" * 5)


@pytest.mark.parametrize(
    ("lines", "texts", "bad"),
    [
        (['1,"open', "2,tea", "3,milk"], [None, "tea", "milk"], 2),
        (["1,tea", '2,"open', '3,"closed"', "4,milk"], ["tea", None, "closed", "milk"], 3),
        (['1,"two', 'lines"', '2,"a"b', "3,milk"], ["two\nlines", None, "milk"], 4),
        (["1,tea", '2,"open'], ["tea", None], 3),
    ],
    ids=["first", "before a quoted one", "after two lines", "last"],
)
def test_an_open_quote_costs_its_line_alone(
    lines: list[str], texts: list[str | None], bad: int, tmp_path: Path
) -> None:
    rows = read(tmp_path / "a.csv", "\n".join(["id,text", *lines]).encode())
    assert [row.row for row in rows] == texts
    [row] = [row for row in rows if row.error]
    assert f"a.csv, line {bad}: the row cannot be split at ','" in row.error
    assert row.error.endswith("close its quote.")


def test_a_file_in_which_quotes_are_plain_is_refused_with_its_line(tmp_path: Path) -> None:
    content = "id,text\n" + '1,"a"b\n' * (MOST_BROKEN + 1)
    with pytest.raises(TaskError, match=rf"line {MOST_BROKEN + 2}: the row that starts here cannot be split"):
        read(tmp_path / "a.csv", content.encode())
    (tmp_path / "a.csv").write_text('id,"text\n1,tea\n', encoding="utf-8")
    with pytest.raises(TaskError, match="line 1: the row that starts here cannot be split"):
        read_raw(tmp_path / "a.csv", goes_on=True)


def test_a_run_still_stops_at_them(tmp_path: Path) -> None:
    for content, reason in (
        (b"text\ncaf\xe9\n" + b"tea\n" * 20, BYTE),
        (b'text\n"open\ntea\n', "line 2: the row"),
    ):
        (tmp_path / "a.csv").write_bytes(content)
        with pytest.raises(TaskError, match=reason):
            read_raw(tmp_path / "a.csv", FileOptions())
