"""Widths of codes: one size, a rule for the upper half, or a list; what is none of them is told in a sentence."""

from collections.abc import Sequence

import pytest

from extract.errors import HeadError
from probes.networks.network_options import Widths, check_widths, code_widths, is_same_rule


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (256, (256,) * 5),
        (1, (1,) * 5),
        ("256", (256,) * 5),
        ("D", (576,) * 5),
        ("D/4", (144,) * 5),
        (" D / 5 ", (115,) * 5),  # rounded down
        ("256, upper half 512", (256, 256, 256, 512, 512)),  # the odd layer in the middle is of the lower half
        ("D/2,upper half D", (288, 288, 288, 576, 576)),
        ("D,  upper half  D/9 ", (576, 576, 576, 64, 64)),
        ([5, 4, 3, 2, 1], (5, 4, 3, 2, 1)),
        ((7, 7, 9, 7, 9), (7, 7, 9, 7, 9)),
    ],
)
def test_a_rule_gives_every_layer_its_width(rule: int | str | Sequence[int], expected: tuple[int, ...]) -> None:
    assert code_widths(rule, 5, width=576) == expected


@pytest.mark.parametrize(
    ("n_layers", "expected"), [(1, (8,)), (2, (8, 9)), (3, (8, 8, 9)), (4, (8, 8, 9, 9)), (31, (8,) * 16 + (9,) * 15)]
)
def test_the_upper_half_are_the_last_layers_rounded_down(n_layers: int, expected: tuple[int, ...]) -> None:
    assert code_widths("8, upper half 9", n_layers, width=64) == expected


@pytest.mark.parametrize(
    "rule",
    [
        0,
        -3,
        True,
        "0",
        "-3",
        "",
        "wide",
        "2.5",
        "d",
        "D/0",
        "D/577",
        "D/",
        "D*2",
        "2D",
        "256,",
        "256, upper 512",
        "256, upper half",
        "256, lower half 512",
        "256, upper half 0",
        "256, upper half 512, upper half 3",
        [5, 4, 3, 2, 0],
        [5, 4, 3, 2, True],
    ],
)
def test_what_is_no_width_is_refused(rule: int | str | Sequence[int]) -> None:
    with pytest.raises(HeadError) as caught:
        code_widths(rule, 5, width=576)
    assert str(caught.value) == (
        f"bottleneck is {rule!r}; allowed: a size (256, D or D/4), 'SIZE, upper half SIZE', or a list of one size of "
        "at least 1 per layer."
    )


@pytest.mark.parametrize(
    "value",
    [1.5, 256.0, float("nan"), None, False, [], {}, {4: 1}, [1.5], [None], [[4], [4]], ["4"], {4}, b"4"],
    ids=repr,
)
def test_what_is_of_another_kind_is_refused_before_it_is_read(value: object) -> None:
    with pytest.raises(HeadError) as caught:
        check_widths(value)
    assert str(caught.value).startswith(f"bottleneck is {value!r}; allowed: a size (256, D or D/4), 'SIZE, upper half")


@pytest.mark.parametrize("value", [1, 256, "wide", [3, 4], (3, 4)])
def test_what_may_be_a_rule_goes_through(value: Widths) -> None:
    assert check_widths(value) is value  # whether a text can be read is told when it is


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (256, "256", True),
        ("256", " 256 ", True),
        ("256, upper half 512", "256,upper half  512", True),
        ("8, upper half 8", 8, True),
        ([3, 4], (3, 4), True),
        ("D/4", "D / 4", True),
        (256, 512, False),
        ("256, upper half 512", 256, False),
        ("256, upper half 512", "512, upper half 256", False),
        ([3, 4], [3, 4, 3], False),
        ([8, 8], 8, False),
        ("D", 576, False),
    ],
)
def test_two_rules_may_say_the_same(one: Widths, other: Widths, is_same: bool) -> None:
    assert is_same_rule(one, other) is is_same_rule(other, one) is is_same


@pytest.mark.parametrize("rule", [[8], [8] * 4, (8,) * 6])
def test_a_list_of_another_length_is_refused(rule: Sequence[int]) -> None:
    with pytest.raises(
        HeadError, match=rf"bottleneck lists {len(rule)} sizes; allowed: one size for each of the 5 layers"
    ):
        code_widths(rule, 5, width=576)
