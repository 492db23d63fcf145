"""Layer names and selections."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.decoders.layers import layer_names, select_from, select_layers
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
