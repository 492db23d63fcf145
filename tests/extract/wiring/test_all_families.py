"""The page on families says what happens: no type is certified wrongly, none fails with anything but a sentence."""

import csv
from pathlib import Path

import pytest

from extract.errors import CertificateError
from extract.masks.mask_plan import parse_plan
from extract.wiring.certificate import check_influence
from extract.wiring.plan_wiring import plan_in_force
from tests.extract.wiring.all_families import TABLE, build, outcomes

PAGE = (Path(__file__).parents[3] / "docs" / "families.md").read_text(encoding="utf-8")
with TABLE.open(encoding="utf-8", newline="") as file:
    ROWS = {row[0]: row[1:5] for row in list(csv.reader(file))[1:]}
AGAIN = (
    "bloom",
    "gpt_neo",
    "deepseek_v32",
    "qwen3_next",
    "llama",
    "llama4_text",
    "mllama",
    "gemma3",
    "falcon_h1",
    "zaya",
    "jamba",
    "bert",
    "bart",
    "deepseek_v3",
    "modernbert-decoder",
    "blt",
    "dbrx",
    "gemma4_text",
    "lfm2_moe",
    "zamba",
)


def test_no_type_fails_without_a_sentence() -> None:
    assert len(ROWS) > 180
    assert {state for states in ROWS.values() for state in states} == {"right", "refused", "not built", ""}


def test_the_page_counts_its_rows() -> None:
    n_built = sum("not built" not in states for states in ROWS.values())
    n_causal = sum(states[0] == "right" for states in ROWS.values())
    n_right = sum(states[:3] == ["right"] * 3 for states in ROWS.values())
    n_hybrid = sum(states[3] == "right" for states in ROWS.values())
    assert n_right >= 110
    assert (
        f"Of {len(ROWS)} types {n_built} could be built. {n_causal} are right as they were trained, {n_right}" in PAGE
    )
    assert f": {n_hybrid} are right under it" in PAGE
    assert [name for name, states in ROWS.items() if states[3] == "refused"] == ["zamba"]
    assert len(ROWS) - n_built <= 5


@pytest.mark.slow
@pytest.mark.parametrize("model_type", AGAIN)
def test_a_row_is_what_happens(model_type: str) -> None:
    assert [*(outcome.state for outcome in outcomes(model_type)), ""][:4] == ROWS[model_type]


def test_rows_longer_than_an_indexer_keeps_are_refused() -> None:
    """Sparse attention hides keys of its own choice, so its mask is the plan's only in short rows."""
    decoder, plan = build("deepseek_v32"), parse_plan("nosink-bidirectional:1")
    for block in decoder.blocks:
        block.self_attn.indexer.index_topk = 16  # type: ignore[union-attr]
    with plan_in_force(decoder, plan):
        assert check_influence(decoder, plan, n_rows=4, n_tokens=16).is_as_planned
        with pytest.raises(
            CertificateError, match=r"in 4 unpadded rows of 20 tokens, head \d of token \d+ ignores token"
        ):
            check_influence(decoder, plan, n_rows=4, n_tokens=20)
