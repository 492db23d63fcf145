"""Batches by length: a partition, within its bounds, the same every time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.inputs.batches import collate, group_by_length
from extract.inputs.joined_text import SPECIAL, TEXT
from extract.inputs.tokens import EncodedText

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=120)
FEW = settings(max_examples=60, deadline=None, database=None)


def encoded(*ids: int, n_special: int = 0) -> EncodedText:
    """Make an encoded text of given ids, the first few special."""
    roles = [SPECIAL] * n_special + [TEXT] * (len(ids) - n_special)
    return EncodedText(np.array(ids, np.int64), np.array(roles, np.int8), is_truncated=n_special > 1)


@FEW
@given(LENGTHS, st.integers(1, 300), st.integers(0, 100), st.floats(0, 1))
def test_groups_are_a_partition_within_bounds(lengths: list[int], most: int, fewest: int, padding: float) -> None:
    groups = group_by_length(lengths, batch_tokens=most, min_tokens=fewest, max_padding=padding)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        widths = [lengths[i] for i in group]
        n_padded = max(widths) * len(group)
        assert n_padded <= most or len(group) == 1
        assert 1 - sum(widths) / n_padded <= padding + 1e-9 or len(set(widths)) == 1
    longest = [max(lengths[i] for i in group) for group in groups]
    assert longest == sorted(longest, reverse=True)
    assert groups == group_by_length(list(lengths), batch_tokens=most, min_tokens=fewest, max_padding=padding)


@FEW
@given(LENGTHS)
def test_without_a_floor_nothing_is_padded(lengths: list[int]) -> None:
    groups = group_by_length(lengths, batch_tokens=10_000)
    assert len(groups) == len(set(lengths))


@FEW
@given(LENGTHS, st.integers(1, 100))
def test_small_groups_are_joined_where_the_bounds_allow(lengths: list[int], fewest: int) -> None:
    groups = group_by_length(lengths, batch_tokens=10_000, min_tokens=fewest, max_padding=1.0)
    assert all(sum(lengths[i] for i in group) >= fewest for group in groups[1:])


@FEW
@given(LENGTHS, st.integers(1, 60))
def test_no_group_crosses_the_length_where_rotary_frequencies_change(lengths: list[int], split: int) -> None:
    groups = group_by_length(lengths, batch_tokens=10_000, min_tokens=1000, max_padding=1.0, split_length=split)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert all(len({lengths[i] > split for i in group}) == 1 for group in groups)


def test_no_texts_no_groups() -> None:
    assert group_by_length([], batch_tokens=8) == []


def test_an_overlong_text_is_alone() -> None:
    assert group_by_length([9, 2, 2], batch_tokens=4) == [[0], [1, 2]]


def test_collate_right_and_left() -> None:
    texts = [encoded(5, 6, 7, n_special=1), encoded(8)]
    right = collate(texts, [3, 4], positions=[10, 11], pad_id=2)
    assert right.ids.tolist() == [[5, 6, 7], [8, 2, 2]]
    assert right.is_real.tolist() == [[True] * 3, [True, False, False]]
    assert right.is_text.tolist() == [[False, True, True], [True, False, False]]
    left = collate(texts, [3, 4], pad_id=2, side="left")
    assert left.ids.tolist() == [[5, 6, 7], [2, 2, 8]]
    assert left.is_real.tolist() == [[True] * 3, [False, False, True]]
    assert left.is_text.tolist() == [[False, True, True], [False, False, True]]
    assert (right.rows.tolist(), right.positions.tolist(), left.positions.tolist()) == ([3, 4], [10, 11], [3, 4])
    assert (right.n_tokens.tolist(), right.is_padded) == ([3, 1], True)


@pytest.mark.parametrize("side", ["right", "left"])
def test_collate_to_a_width(side: str) -> None:
    batch = collate([encoded(5, 6)], [0], width=4, side="left" if side == "left" else "right")
    assert batch.ids.shape == (1, 4)
    assert batch.is_padded
    assert batch.ids[batch.is_real].tolist() == [5, 6]


def test_a_width_never_cuts() -> None:
    batch = collate([encoded(5, 6, n_special=2)], [0], width=1)
    assert batch.ids.tolist() == [[5, 6]]
    assert not batch.is_padded
    assert batch.is_truncated.tolist() == [True]
