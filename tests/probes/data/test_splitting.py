"""Drawn splits: whole, disjoint, repeatable, every class in every part, no group torn apart."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.errors import TaskError
from probes.data.splits import (
    SplitRule,
    draw_missing,
    draw_order,
    hold_out,
    name_splits,
    rare_classes,
    split_three_ways,
)

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


def test_missing_splits_are_drawn_the_same_way_and_keep_equal_rows_together() -> None:
    keys = [f"k{i % 40}" for i in range(60)]  # 20 of them twice
    parts, note = draw_missing([None] * 60, keys, SplitRule(), task="t", fewest=4)
    again, _ = draw_missing(["train"] * 60, keys, SplitRule(), task="t", fewest=4)
    assert {split: rows.tolist() for split, rows in parts.items()} == {s: rows.tolist() for s, rows in again.items()}
    assert list(parts) == ["train", "validation", "test"]
    assert sorted(row for rows in parts.values() for row in rows.tolist()) == list(range(60))
    found = {split: {keys[row] for row in rows} for split, rows in parts.items()}
    assert not (found["train"] & found["test"] or found["train"] & found["validation"])
    assert 6 <= len(parts["test"]) <= 7
    assert note == f"splits drawn: {len(parts['train'])} train, {len(parts['validation'])} validation, " + (
        f"{len(parts['test'])} test with seed 0"
    )
    other, _ = draw_missing([None] * 60, keys, SplitRule(seed=1), task="t")
    assert other["test"].tolist() != parts["test"].tolist()


def test_validation_is_drawn_from_train_and_official_splits_are_kept() -> None:
    given = ["train"] * 20 + ["test"] * 5
    parts, note = draw_missing(given, list(range(25)), SplitRule(validation_fraction=0.25), task="t")
    assert parts["test"].tolist() == [20, 21, 22, 23, 24]
    assert (len(parts["train"]), len(parts["validation"])) == (15, 5)
    assert note.startswith("splits drawn: 15 train, 5 validation, 5 test")
    for official in (["test"] * 3, ["train", "validation", "train"], ["validation", "test", "test"]):
        kept, note = draw_missing(official, [0, 1, 2], SplitRule(), task="t")
        assert ({split: len(rows) for split, rows in kept.items()}, note) == (dict(Counter(official)), "")
    kept, note = draw_missing(given, list(range(25)), SplitRule(split="given"), task="t")
    assert (list(kept), note) == (["train", "test"], "")


@pytest.mark.parametrize(
    ("given", "rule", "sentence"),
    [
        ([None] * 9, SplitRule(split="given"), "task 't' has rows without a split: name their column, or set `split: "),
        ([None, "test"] * 9, SplitRule(), "task 't' has rows without a split: "),
        (
            [None] * 9,
            SplitRule(),
            "task 't' has 9 rows, 9 of them different, too few to draw splits of at least 4 rows",
        ),
    ],
)
def test_what_cannot_be_split_is_named(given: list[str | None], rule: SplitRule, sentence: str) -> None:
    with pytest.raises(TaskError) as error:
        draw_missing(given, list(range(len(given))), rule, task="t", fewest=4)
    assert str(error.value).startswith(sentence)
    with pytest.raises(TaskError, match="`split` is 'all', but one of auto, given is needed"):
        SplitRule(split="all")


@pytest.mark.parametrize("share", [0.1, 0.15, 0.3, 0.4, 0.5])
def test_groups_are_held_out_by_their_share(share: float) -> None:
    groups = [f"g{k % 60}" for k in range(240)]
    marked = hold_out(np.arange(240) % 2, share=share, seed=0, groups=groups)
    assert abs(marked.mean() - share) < 0.02
    few = [f"g{k % 12}" for k in range(240)]  # as near as so few groups come
    assert abs(hold_out(np.arange(240) % 2, share=share, seed=0, groups=few).mean() - share) < 0.11
    assert not {groups[k] for k in np.flatnonzero(marked)} & {groups[k] for k in np.flatnonzero(~marked)}


@pytest.mark.parametrize("names", ["dev validation train", "train validation dev val"])
def test_a_split_of_the_exact_name_goes_before_an_alias(names: str) -> None:
    tables = {name: name for name in names.split()}
    assert name_splits(tables, "a set") == {"train": "train", "validation": "validation"}
    assert name_splits({"train": "", "val": "its rows"}, "a set")["validation"] == "its rows"


def test_two_aliases_of_one_split_are_refused() -> None:
    tables = dict.fromkeys(("train", "dev", "val"), "")
    with pytest.raises(TaskError, match="a set has more than one validation split, dev and val; give local files"):
        name_splits(tables, "a set")
    with pytest.raises(TaskError, match="dev and val; name them with `splits`"):
        name_splits(tables, "a set", hint="; name them with `splits`")
