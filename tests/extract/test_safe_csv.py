"""Texts of users in the CSV that a run writes for people."""

import csv
from io import StringIO

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.files import plain_text, read_csv, safe_text, write_csv, write_frame

STARTS = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
HOSTILE = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1", "\uff1d1+1", "-", "-x", "+1.5.2"]
HARMLESS = ["", "a=1", "'", "'a", "''a", "it's", " =1", "-1.5", "+1", "-1e-05", "-inf", "nan", "7"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_that_would_run_gets_a_quote(text: str) -> None:
    assert safe_text(text) == f"'{text}"
    assert safe_text(f"'{text}") == f"''{text}"


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_and_numbers_stay_as_they_are(text: str) -> None:
    assert safe_text(text) == text
    assert plain_text(text) == text


@given(st.text(st.sampled_from(STARTS + "'1.ea "), max_size=6) | st.text(max_size=8))
def test_reading_gives_the_text_that_was_written(text: str) -> None:
    safe = safe_text(text)
    assert plain_text(safe) == text
    assert not safe.startswith(tuple(STARTS)) or float(safe) is not None


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=2, max_size=2), min_size=1))
def test_a_file_is_read_back_as_it_was_written(rows: list[list[str]]) -> None:
    assert read_csv(write_csv(rows)) == rows


def test_a_frame_is_safe_and_its_numbers_stay() -> None:
    frame = pd.DataFrame({"=run": [*HOSTILE, "a"], "n": range(12), "low": [-0.25] * 12, "high": [None, *[-1e-7] * 11]})
    rows = list(csv.reader(StringIO(write_frame(frame), newline="")))
    assert rows[0] == ["'=run", "n", "low", "high"]
    assert rows[1] == [f"'{HOSTILE[0]}", "0", "-0.25", ""]
    assert [row[0] for row in read_csv(write_frame(frame))] == ["=run", *HOSTILE, "a"]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_carriage_return_within_a_text_begins_no_row(newline: str) -> None:
    assert write_csv([["a\r=1+1", "b"]], newline=newline) == f'"a\r=1+1",b{newline}'


def test_a_cell_of_any_length_comes_back() -> None:
    rows = [["text"], ["x" * 200_000]]
    assert read_csv(write_csv(rows)) == rows
