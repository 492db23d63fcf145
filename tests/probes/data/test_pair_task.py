import re

import numpy as np
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.pair_task import PairTask


def columns(n_rows: int, tag: str = "") -> dict[str, list[str] | list[float]]:
    return {
        "sentence1": [f"left {tag}{i}" for i in range(n_rows)],
        "sentence2": [f"right {tag}{i}" for i in range(n_rows)],
        "score": [float(i % 6) for i in range(n_rows)],
    }


def make_task(n_rows: int = 20) -> PairTask:
    splits = PairTask.hold({"test": columns(n_rows, "t"), "train": columns(n_rows)})
    return PairTask("toy", splits, (0.0, 5.0), "made here")


def test_splits_are_ordered_and_texts_unique_in_first_seen_order() -> None:
    task = make_task(8)
    assert list(task.splits) == ["train", "test"]
    texts = task.texts()
    assert texts[:3] == ["left 0", "right 0", "left 1"]
    assert texts[16] == "left t0"
    assert len(texts) == len(set(texts)) == 32
    assert texts == task.texts()


def test_gold01_maps_the_range_to_zero_and_one() -> None:
    gold = make_task().gold01("train")
    assert gold.dtype == np.float32
    np.testing.assert_allclose(gold[:6], [0, 0.2, 0.4, 0.6, 0.8, 1.0], rtol=1e-6)


def test_gold01_of_a_shifted_range() -> None:
    rows = columns(9)
    rows["score"] = [float(value) for value in range(-4, 5)]
    task = PairTask("shifted", PairTask.hold({"train": rows}), (-4.0, 4.0), "made here")
    np.testing.assert_allclose(task.gold01("train"), np.linspace(0, 1, 9), rtol=1e-6)


def test_gold01_of_an_unknown_split_names_those_there() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown split 'tset': did you mean 'test'\? Allowed: train, test\."):
        make_task().gold01("tset")


def test_digest_depends_on_rows_and_range_only() -> None:
    task = make_task()
    same = PairTask("other name", make_task().splits, (0.0, 5.0), "elsewhere", is_sample=True, notes=("a note",))
    wider = PairTask("toy", make_task().splits, (0.0, 6.0), "made here")
    assert task.digest() == same.digest()
    assert re.fullmatch(r"[0-9a-f]{64}", task.digest())
    assert len({task.digest(), wider.digest(), task.subset(8).digest(), make_task(21).digest()}) == 4


def test_digest_tells_where_one_text_ends() -> None:
    rows, moved = columns(8), columns(8)
    rows["sentence1"], rows["sentence2"] = ["a b"] * 8, ["c"] * 8
    moved["sentence1"], moved["sentence2"] = ["a"] * 8, ["b c"] * 8
    one, other = (PairTask("t", PairTask.hold({"train": each}), (0.0, 5.0), "here") for each in (rows, moved))
    assert one.digest() != other.digest()


def test_subset_is_seeded_nested_ordered_and_says_so() -> None:
    task = make_task(40)
    small, large = task.subset(10, seed=3), task.subset(20, seed=3)
    assert small.digest() == task.subset(10, seed=3).digest()
    assert small.digest() != task.subset(10, seed=4).digest()
    assert {split: len(rows) for split, rows in small.splits.items()} == {"train": 10, "test": 10}
    assert set(small.splits["test"]["sentence1"]) < set(large.splits["test"]["sentence1"])
    numbers = [int(text.split()[1]) for text in small.splits["train"]["sentence1"]]
    assert numbers == sorted(numbers)
    assert small.notes[0] == "a random subset of at most 10 rows per split (seed 3), not the whole task"


def test_a_larger_subset_than_the_split_is_the_split() -> None:
    task = make_task(9)
    assert task.subset(100).digest() == task.digest()


def test_unknown_split_and_no_split_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown split 'trian': did you mean 'train'\?"):
        PairTask("t", PairTask.hold({"trian": columns(8)}), (0.0, 5.0), "here")
    with pytest.raises(TaskError, match=r"task 't' has no split; give at least one of train, validation, test"):
        PairTask("t", PairTask.hold({}), (0.0, 5.0), "here")


def test_a_missing_column_is_named() -> None:
    splits = PairTask.hold({"train": columns(8)})
    splits["train"] = splits["train"].rename_column("score", "scores")
    with pytest.raises(UnknownNameError, match=r"unknown column 'score': did you mean 'scores'\?"):
        PairTask("t", splits, (0.0, 5.0), "here")
