import pytest

from extract.errors import ConfigError
from extract.masks.mask_plan import (
    k_and_k0,
    parse_counts,
    parse_plan,
    plans_over_k,
    plans_over_k_and_k0,
    plans_over_windows,
)


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "1.5"])
def test_counts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a list of counts") as caught:
        parse_counts(text)
    assert repr(text) in str(caught.value)


def test_counts_rise_and_stand_once() -> None:
    assert parse_counts("8, 0-3,2") == (0, 1, 2, 3, 8)


def test_all_k_of_two_kinds_share_the_causal_plan() -> None:
    plans = plans_over_k(["backward", "nosink-bidirectional"], range(31))
    assert len(plans) == 61
    assert plans[0].text == "causal"


def test_a_grid_leaves_out_k0_above_k() -> None:
    texts = [plan.text for plan in plans_over_k_and_k0([0, 1, 2], [0, 1, 2])]
    assert texts == [
        "causal",
        "bidirectional:1",
        "nosink-bidirectional:1",
        "bidirectional:2",
        "nosink-bidirectional:1+bidirectional:1",
        "nosink-bidirectional:2",
    ]


def test_windows_end_in_the_block_that_is_read() -> None:
    plans = plans_over_windows("backward", [1, 3], [2, 4])
    assert [plan.text for plan in plans] == ["backward@2-2", "backward@4-4", "backward@2-4"]


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("causal", (0, 0)),
        ("bidirectional:3", (3, 0)),
        ("nosink-bidirectional:2", (2, 2)),
        ("nosink-bidirectional:2+bidirectional:3", (5, 2)),
        ("bidirectional:3+nosink-bidirectional:2", None),
        ("bidirectional", None),
        ("backward:2", None),
        ("bidirectional@2-3", None),
        ("inter-stack/bidirectional:2", None),
        ("bidirectional:2~skip3@1", None),
    ],
)
def test_a_plan_is_read_as_a_point_of_the_grid(text: str, point: tuple[int, int] | None) -> None:
    assert k_and_k0(parse_plan(text)) == point


def test_points_and_plans_are_the_same() -> None:
    points = [(k, k0) for k in range(5) for k0 in range(k + 1)]
    assert [k_and_k0(plan) for plan in plans_over_k_and_k0(range(5), range(5))] == points
