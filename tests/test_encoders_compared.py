"""The tables of encoders without training are those of the committed JSON, and every encoder is in them."""

import pytest

from benchmarks.training_free import ENCODERS, has_encoder, options_of
from benchmarks.training_free_page import PAGE, TABLE, blocks, csv_text, filled, read_tables

RESULTS = read_tables()


def test_the_tables_are_those_of_the_json() -> None:
    text, tables = PAGE.read_text(encoding="utf-8"), blocks(RESULTS)
    assert [name for name in tables if f"<!-- table: {name} -->" not in text] == []
    assert filled(text, tables) == text
    assert TABLE.read_text(encoding="utf-8") == csv_text(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_every_encoder_that_the_task_has_was_run_as_it_is_said(name: str) -> None:
    decoder, task = name.split()
    found = RESULTS[name]
    assert set(found["encoders"]) == {encoder for encoder in ENCODERS if has_encoder(task, encoder)}
    depth = 30 if decoder.startswith("smollm2") else 18
    for encoder, row in found["encoders"].items():
        options = options_of(task, encoder, "X", rows=found["rows_per_split"], depth=depth)
        assert row["options"].split()[2:] == " ".join(options).split()[2:]
        assert row["test"]["low"] <= row["test"]["mean"] <= row["test"]["high"]
