"""Mask plans in their text form."""

import pytest

from extract.errors import UnknownNameError
from extract.plan import parse_plan

PLANS = (
    "causal", "bidirectional", "backward:3", "nosink-bidirectional:10+bidirectional:8", "nosink3-causal:2",
    "nosink-bidirectional:4+nosink-causal", "backward@17-20", "backward@1-2+bidirectional@4-4", "causal:3+hybrid:2",
    "[causal,backward,nosink2-bidirectional]",
)  # fmt: skip


@pytest.mark.parametrize("text", PLANS)
def test_the_canonical_form_reads_back(text: str) -> None:
    plan = parse_plan(f" {text}\n")
    assert plan.text == text
    assert parse_plan(plan.text) == plan


def test_a_misspelt_plan_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown mask plan 'casual': did you mean 'causal'"):
        parse_plan("casual")
