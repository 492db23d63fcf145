"""The tables of docs/speed.md show the numbers of the committed JSON."""

import pytest

from benchmarks.curves import read_results
from benchmarks.speed_page import PAGE, tables
from benchmarks.training_free_page import filled


def test_the_page_has_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in tables() if f"<!-- table: {name} -->" not in page] == []
    assert filled(page, tables()) == page


def test_the_parts_of_the_time_are_all_of_it() -> None:
    parts = dict(read_results("cpu-roofline")["roofline"])
    assert parts.pop("seconds") > 0
    assert sum(parts.values()) == pytest.approx(1)
