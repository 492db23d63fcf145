"""Every configuration of the papers by its name there."""

import pytest

from extract.errors import UnknownNameError
from extract.masks.mask_plan import parse_plan
from tests.extract.masks.paper_plans import LBW_PLANS, lbw_plan

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
    assert lbw_plan(name, 0).text == ("nosink-causal" if name == "MASK0-ALL" else "causal")


def test_magnet_is_hybrid_everywhere() -> None:
    assert tuple(map(str, parse_plan("hybrid").kinds(L))) == ("hybrid",) * L


def test_more_blocks_than_there_are_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="'backward:5' needs 5 blocks, but the decoder has 4"):
        lbw_plan("INPLACE-BACK", 5).kinds(L)
