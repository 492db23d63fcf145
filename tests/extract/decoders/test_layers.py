"""Layer names and selections."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.decoders.decoder_spec import layer_names, relative_depths, select_from, select_layers, split_layers
from extract.errors import UnknownNameError


@pytest.mark.parametrize(("n_blocks", "last"), [(1, "block_01"), (99, "block_99"), (120, "block_120")])
def test_names_sort_as_they_stand(n_blocks: int, last: str) -> None:
    names = layer_names(n_blocks)
    assert (len(names), names[0], names[-2], names[-1]) == (n_blocks + 2, "embedding", last, "final_norm")
    assert list(names[1:-1]) == sorted(names[1:-1])


@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(1, 12), st.data())
def test_a_selection_is_ordered_and_without_repeats(n_blocks: int, data: st.DataObject) -> None:
    names = layer_names(n_blocks)
    wanted = data.draw(st.lists(st.sampled_from(names), min_size=1))
    chosen = select_layers(wanted, n_blocks)
    assert chosen == tuple(name for name in names if name in set(wanted))
    assert select_layers(chosen, n_blocks) == chosen
    assert select_layers([*wanted, "all"], n_blocks) == names


def test_groups() -> None:
    assert select_layers("all", 4) == layer_names(4)
    assert select_layers("blocks", 4) == layer_names(4)[1:-1]
    assert select_layers("upper-half", 4) == ("block_03", "block_04", "final_norm")
    assert select_layers("upper-half", 3) == ("block_02", "block_03", "final_norm")
    assert select_layers("block_02", 4) == ("block_02",)
    assert select_from("upper-half", ("embedding", "block_01", "block_02")) == ("block_02",)


def test_unknown_names_get_the_nearest_match() -> None:
    with pytest.raises(UnknownNameError, match="unknown layer 'block_5': did you mean 'block_0"):
        select_layers("block_5", 4)
    with pytest.raises(UnknownNameError, match=r"no layer was selected by \[\]. Allowed: all, blocks, upper-half"):
        select_layers([], 2)


def test_numbers_name_blocks_and_count_down_from_the_last_layer() -> None:
    assert select_layers(12, 30) == select_layers("12", 30) == select_layers("block_12", 30) == ("block_12",)
    assert select_layers([4, "-1"], 12) == select_layers("4, -1", 12) == ("block_04", "final_norm")
    assert select_layers("-2,0,blocks", 2) == ("embedding", "block_01", "block_02")
    assert select_from(-1, ("block_03", "block_07")) == select_from(7, ("block_03", "block_07")) == ("block_07",)


@pytest.mark.parametrize("number", [5, -7, 99])
def test_a_number_out_of_range_is_one_sentence(number: int) -> None:
    with pytest.raises(UnknownNameError) as error:
        select_layers(["all", number], 4)
    assert str(error.value) == (
        f"layer {number} is not there; allowed: 0 to 4 for blocks (0 is the embedding), or -1 to -6 from the last down."
    )


@pytest.mark.parametrize("spec", [1.5, [True], ["4", None], "4,,8"])
def test_what_is_no_layer_is_named(spec: object) -> None:
    with pytest.raises(UnknownNameError, match="allowed: names or numbers"):
        split_layers(spec)


def test_taps_come_by_name_alone_and_stand_before_the_output_of_their_block() -> None:
    assert select_layers("taps:value, block_01", 2) == ("block_01.value", "block_01", "block_02.value")
    assert select_layers(["block_02.mid", "all"], 2) == (
        "embedding",
        "block_01",
        "block_02.mid",
        "block_02",
        "final_norm",
    )
    at_hand = ("block_01.value", "block_01", "block_02.mid")
    assert select_from("all", at_hand) == at_hand
    assert select_from("blocks", at_hand) == select_from(-1, at_hand) == ("block_01",)
    assert select_from("taps:mid", at_hand) == ("block_02.mid",)
    assert relative_depths(["block_01.mid", "block_02"], 2) == relative_depths(["block_01", "block_02"], 2)
    with pytest.raises(
        UnknownNameError, match=r"unknown layer 'taps:attention'.*Allowed: all, blocks, upper-half, taps:"
    ):
        select_from("taps:attention", at_hand)
    with pytest.raises(UnknownNameError, match=r"unknown layer 'block_01.values': did you mean 'block_01.value'"):
        select_layers("block_01.values", 2)


def test_numbers_of_numpy_and_ranges_are_numbers() -> None:
    assert select_layers(np.array([1, 2]), 4) == select_layers(range(1, 3), 4) == ("block_01", "block_02")
    assert split_layers(np.int64(20)) == split_layers(20) == ("20",)
    with pytest.raises(UnknownNameError, match="layers are True"):
        split_layers(True)
