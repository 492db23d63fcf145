"""Every configuration of the papers by its name there."""

import pytest

from extract.errors import UnknownNameError
from extract.masks.mask_plan import LBW_PLANS, lbw_plan, magnet_plan

L = 4
C, B, A, N, F = "causal", "backward", "bidirectional", "nosink-bidirectional", "nosink-causal"
INPLACE = {
    "INPLACE-BACK": (C, C, B, B),
    "INPLACE-BIDIR": (C, C, A, A),
    "MASK0-FOR": (C, C, F, F),
    "MASK0-BIDIR": (C, C, N, N),
    "MASK0-ALL": (F, F, N, N),
    "MASK3": (C, C, "nosink4-bidirectional", "nosink4-bidirectional"),
    "MASK5": (C, C, "nosink6-bidirectional", "nosink6-bidirectional"),
    "MASK7": (C, C, "nosink8-bidirectional", "nosink8-bidirectional"),
}
OTHERS = {
    "INTER-BACK": "inter-stack/backward:2",
    "INTER-BIDIR": "inter-stack/bidirectional:2",
    "INTER-BACK-TEXT": "inter-block/backward:2",
    "INTER-BIDIR-TEXT": "inter-block/bidirectional:2",
    "EXTRA-BACK": "extra/backward:2",
    "EXTRA-BIDIR": "extra/bidirectional:2",
    "EXTEND-BACK": "extend/backward:2",
    "EXTEND-BIDIR": "extend/bidirectional:2",
}


def test_no_configuration_is_left_out() -> None:
    assert set(LBW_PLANS) == {*INPLACE, *OTHERS, "MASK0&BIDIR"}


@pytest.mark.parametrize("name", INPLACE)
def test_masks_of_the_inplace_configurations(name: str) -> None:
    assert tuple(map(str, lbw_plan(name, 2).kinds(L))) == INPLACE[name]
    assert lbw_plan(name.lower(), 2) == lbw_plan(name, 2)


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_architectures(name: str) -> None:
    assert lbw_plan(name, 2).text == OTHERS[name]


@pytest.mark.parametrize(
    ("k", "k0", "kinds"), [(3, 1, (C, A, A, N)), (3, 3, (C, N, N, N)), (2, 0, (C, C, A, A)), (4, 2, (A, A, N, N))]
)
def test_mask0_and_bidir(k: int, k0: int, kinds: tuple[str, ...]) -> None:
    assert tuple(map(str, lbw_plan("MASK0&BIDIR", k, k0=k0).kinds(L))) == kinds


@pytest.mark.parametrize("name", LBW_PLANS)
def test_no_converted_block_is_causal(name: str) -> None:
    plan = lbw_plan(name, 0, k0=0 if "{k0}" in LBW_PLANS[name] else None)
    assert plan.text == ("nosink-causal" if name == "MASK0-ALL" else "causal")


def test_more_tokens_can_be_hidden() -> None:
    assert lbw_plan("MASK0-ALL", 2, m=3).text == "nosink3-bidirectional:2+nosink3-causal"
    assert lbw_plan("MASK0-BIDIR", 2, m=6) == lbw_plan("MASK5", 2)


@pytest.mark.parametrize(
    ("name", "k", "k0", "text"),
    [
        ("MASK0-BIDIR", 10, None, "nosink-bidirectional:10~skip3@10"),
        ("INPLACE-BACK", 3, None, "backward:3~skip3@3"),
        ("INTER-BACK", 2, None, "inter-stack/backward:2~skip3@2"),
        ("MASK0&BIDIR", 18, 10, "nosink-bidirectional:10+bidirectional:8~skip3@10"),
        ("INPLACE-BIDIR", 10, None, "bidirectional:10~skip3@0"),
        ("EXTRA-BIDIR", 2, None, "extra/bidirectional:2~skip3@0"),
        ("INPLACE-BIDIR", 0, None, "causal~skip3@0"),
    ],
)
def test_the_skip_begins_at_the_number_of_converted_blocks(name: str, k: int, k0: int | None, text: str) -> None:
    assert lbw_plan(name, k, k0=k0, skip=3).text == text


def test_magnet_is_hybrid_everywhere() -> None:
    assert tuple(map(str, magnet_plan().kinds(L))) == ("hybrid",) * L
    assert tuple(map(str, magnet_plan(1).kinds(L))) == (C, C, C, "hybrid")
    assert magnet_plan(0).text == "causal"
    with pytest.raises(UnknownNameError, match="the hybrid plan was given k = -1"):
        magnet_plan(-1)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Look Both Ways 'INPLACE-BACKWARD': did you mean 'INPLACE-BACK'"):
        lbw_plan("INPLACE-BACKWARD", 2)


@pytest.mark.parametrize(
    ("name", "k", "options", "message"),
    [
        ("EXTRA-BACK", -1, {}, "EXTRA-BACK was given k = -1; allowed: 0 to the number of blocks"),
        ("MASK0&BIDIR", 3, {}, "MASK0&BIDIR was given k0 = None; allowed: 0 to k = 3"),
        ("MASK0&BIDIR", 3, {"k0": 4}, "MASK0&BIDIR was given k0 = 4; allowed: 0 to k = 3"),
        ("MASK0-BIDIR", 3, {"k0": 2}, "MASK0-BIDIR was given k0 = 2; allowed: none"),
        ("MASK3", 3, {"m": 5}, "MASK3 was given m = 5; allowed: none, its name says"),
        ("MASK0-BIDIR", 3, {"skip": 0}, "MASK0-BIDIR was given skip = 0; allowed: 1 or more"),
        ("MASK0-ALL", 3, {"skip": 3}, "MASK0-ALL was given skip = 3; allowed: none, the released code has no such"),
        ("INPLACE-BACK", 3, {"m": 1}, "INPLACE-BACK was given m = 1; allowed: none"),
        ("MASK0-FOR", 3, {"m": 0}, "MASK0-FOR was given m = 0; allowed: 1 or more"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(name: str, k: int, options: dict[str, int], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        lbw_plan(name, k, **options)


def test_more_blocks_than_there_are_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="'backward:5' needs 5 blocks, but the decoder has 4"):
        lbw_plan("INPLACE-BACK", 5).kinds(L)
