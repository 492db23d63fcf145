"""The tables of encoders without training are those of the committed JSON, of encoders that the preset still has."""

import re
import shlex

import pytest

from benchmarks.training_free_page import (
    ENCODERS,
    HEADS,
    PAGE,
    TABLE,
    blocks,
    command_of,
    csv_text,
    filled,
    read_tables,
)
from probes.runs.config_file import read_config
from probes.runs.grid import grid_of
from probes.runs.run_config import RunConfig, TaskSpec

RESULTS = read_tables()


def test_the_tables_are_those_of_the_json() -> None:
    text, tables = PAGE.read_text(encoding="utf-8"), blocks(RESULTS)
    assert [name for name in tables if f"<!-- table: {name} -->" not in text] == []
    assert filled(text, tables) == text
    assert TABLE.read_text(encoding="utf-8") == csv_text(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_the_preset_is_what_was_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, task = name.split()
    monkeypatch.setattr("extract.decoders.decoder.read_n_blocks", lambda _: 30 if "smollm2" in decoder else 18)
    rows = RESULTS[name]["encoders"]
    points = grid_of(RunConfig(task=TaskSpec(task), heads={HEADS[task]: {}}), ["encoders"]).points
    assert [ENCODERS[point.values["encoder"]] for point in points] == list(rows)
    for point in points:
        row = rows[ENCODERS[point.values["encoder"]]]
        words = shlex.split(command_of(row))[2:]
        keys = [word.removeprefix("--") for word in words[::2]]
        typed = read_config(list(zip(keys, words[1::2], strict=True)))
        assert point.config.extraction.plan == typed.extraction.plan
        assert point.config.extraction.template == typed.extraction.template
        assert point.config.extraction.layers == typed.extraction.layers
        read = re.search(r"pooling: ([\w-]+)", row["options"])
        assert read is not None
        [head], [options] = point.config.heads, point.config.heads.values()
        poolings = point.config.extraction.words.poolings if task == "odd-sample" else point.config.extraction.poolings
        assert (head, poolings) == (HEADS[task], (read[1],))
        if head == "layer-cosine":
            assert (options or {})["transform"] == (typed.heads[head] or {})["transform"]
        assert row["test"]["low"] <= row["test"]["mean"] <= row["test"]["high"]
