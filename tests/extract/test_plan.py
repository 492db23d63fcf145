"""Mask plans in their text form."""

import pytest

from extract.errors import UnknownNameError
from extract.plan import PLANS, parse_plan


@pytest.mark.parametrize("text", PLANS)
def test_the_canonical_form_reads_back(text: str) -> None:
    plan = parse_plan(f" {text}\n")
    assert plan.text == text
    assert parse_plan(plan.text) == plan


def test_a_causal_plan_reaches_the_lower_triangle() -> None:
    plan = parse_plan("causal")
    assert plan.reachable(3, 0) == [[True, False, False], [False, True, False], [False, False, True]]
    for depth in (1, 5):
        assert plan.reachable(3, depth) == [[True, False, False], [True, True, False], [True, True, True]]


def test_a_misspelt_plan_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown mask plan 'casual': did you mean 'causal'"):
        parse_plan("casual")
