"""Drawn splits: whole, disjoint, repeatable, every class in every part, no group torn apart."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.errors import TaskError
from probes.tasks.splitting import draw_order, hold_out, rare_classes, split_three_ways

sizes = st.lists(st.integers(3, 60), min_size=1, max_size=8)


def mixed(class_sizes: list[int]) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(class_sizes)), class_sizes))


@given(class_sizes=sizes, seed=st.integers(0, 5))
def test_parts_are_whole_disjoint_and_hold_every_class(class_sizes: list[int], seed: int) -> None:
    labels = mixed(class_sizes)
    parts = split_three_ways(labels, seed=seed)
    assert sorted(np.concatenate(list(parts.values()))) == list(range(len(labels)))
    for rows in parts.values():
        assert sorted(rows) == list(rows)
        assert set(labels[rows]) == set(labels)
    again = split_three_ways(labels, seed=seed)
    assert all((again[split] == rows).all() for split, rows in parts.items())


def test_shares_and_seeds() -> None:
    labels = mixed([500, 300, 200])
    parts = split_three_ways(labels, seed=1)
    assert {split: np.bincount(labels[rows]).tolist() for split, rows in parts.items()} == {
        "train": [400, 240, 160],
        "validation": [50, 30, 20],
        "test": [50, 30, 20],
    }
    assert (split_three_ways(labels, seed=2)["test"] != parts["test"]).any()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_groups_are_never_torn_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = [f"g{number}" for number in rng.integers(0, 60, 500)]
    labels = rng.integers(0, 3, 500)
    parts = split_three_ways(labels, seed=seed, groups=groups)
    held = {split: {groups[row] for row in rows} for split, rows in parts.items()}
    assert all(not one & other for one, other in combinations(held.values(), 2))
    assert sum(len(rows) for rows in parts.values()) == 500
    assert 350 <= len(parts["train"]) <= 450
    assert all(set(labels[rows]) == {0, 1, 2} for rows in parts.values())


def test_a_class_of_one_group_raises_no_warning() -> None:
    groups = [str(row // 4) for row in range(80)]
    labels = np.array([2] * 4 + [0, 1] * 38)
    parts = split_three_ways(labels, seed=0, groups=groups)
    assert sum((labels[rows] == 2).any() for rows in parts.values()) == 1


@pytest.mark.parametrize(("n_groups", "n_rows"), [(9, 90), (12, 12)])
def test_too_few_groups_or_rows(n_groups: int, n_rows: int) -> None:
    groups = [str(row % n_groups) for row in range(n_rows)]
    most = -(-n_rows // 2)
    with pytest.raises(TaskError) as caught:
        split_three_ways(np.arange(n_rows) % 2, seed=0, groups=groups)
    said = f"{n_groups} groups with at most {most} rows of one class cannot be cut into 10 parts: give at least 10"
    assert said in str(caught.value)


def test_hold_out_is_stratified_and_keeps_a_single_row_in_training() -> None:
    labels = np.array([0] * 50 + [1] * 20 + [2] * 2 + [3])
    marked = hold_out(labels, share=0.1, seed=0)
    assert np.bincount(labels[marked], minlength=4).tolist() == [5, 2, 1, 0]


def test_hold_out_keeps_groups_whole() -> None:
    groups = [str(row // 5) for row in range(100)]
    marked = hold_out(np.arange(100) % 2, share=0.2, seed=0, groups=groups)
    assert {groups[row] for row in np.flatnonzero(marked)}.isdisjoint(groups[row] for row in np.flatnonzero(~marked))
    assert 10 <= marked.sum() <= 30


@pytest.mark.parametrize("share", [0.0, -0.1, 0.6, float("nan")])
def test_a_share_out_of_range(share: float) -> None:
    with pytest.raises(TaskError) as caught:
        hold_out(np.arange(10) % 2, share=share, seed=0)
    assert f"the validation share is {share:g}, but a number above 0 and at most 0.5" in str(caught.value)


@given(class_sizes=sizes, seed=st.integers(0, 3))
def test_every_beginning_of_the_order_is_stratified(class_sizes: list[int], seed: int) -> None:
    labels = mixed(class_sizes)
    order = draw_order(labels, seed=seed)
    assert sorted(order) == list(range(len(labels)))
    assert set(labels[order[: len(class_sizes)]]) == set(labels)
    half = np.bincount(labels[order[: len(labels) // 2]], minlength=len(class_sizes)) / class_sizes
    assert half.max() - half.min() <= 1 / min(class_sizes) + 1e-9


def test_rare_classes_are_counted() -> None:
    assert rare_classes([4, 4, 4, 7, 1, 1]) == {1: 2, 7: 1}
