"""The page on families says what happens: no type is certified wrongly, none fails with anything but a sentence."""

from pathlib import Path

import pytest

from tests.extract.wiring.all_families import outcomes

PAGE = (Path(__file__).parents[3] / "docs" / "families.md").read_text(encoding="utf-8")
ROWS = {
    row.split("`")[1]: [cell.strip() for cell in row.split("|")[2:5]]
    for row in PAGE.splitlines()
    if row.startswith("| `")
}
AGAIN = ("llama", "llama4_text", "mllama", "gemma3", "falcon_h1", "zaya", "jamba", "bert", "bart", "deepseek_v3")


def test_no_type_fails_without_a_sentence() -> None:
    assert len(ROWS) > 180
    assert {state for states in ROWS.values() for state in states} == {"right", "refused", "not built"}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", AGAIN)
def test_a_row_is_what_happens(model_type: str) -> None:
    assert [outcome.state for outcome in outcomes(model_type)] == ROWS[model_type]
