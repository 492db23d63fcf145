import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.class_task import ClassTask

NAMES = ("no", "yes", "maybe")
Columns = dict[str, list[Any]]


def columns(n_rows: int, tag: str = "", *, labels: Sequence[int] = (0, 1, 2)) -> Columns:
    return {
        "text": [f"text {tag}{i}" for i in range(n_rows)],
        "label": [labels[i % len(labels)] for i in range(n_rows)],
        "row": list(range(n_rows)),
    }


def make_task(n_rows: int = 30, **changes: object) -> ClassTask:
    splits = ClassTask.hold({"test": columns(n_rows, "t"), "train": columns(n_rows)})
    return ClassTask("toy", splits, NAMES, ("f1-macro",), "made here", **changes)  # type: ignore[arg-type]


def fails(splits: dict[str, Columns], **changes: object) -> str:
    given = {"class_names": NAMES, "metrics": ("accuracy",), **changes}
    with pytest.raises((TaskError, UnknownNameError)) as caught:
        ClassTask("toy", ClassTask.hold(splits), source="here", **given)  # type: ignore[arg-type]
    return str(caught.value)


def test_splits_are_ordered_and_texts_unique_in_first_seen_order() -> None:
    task = make_task(8)
    assert list(task.splits) == ["train", "test"]
    assert task.texts()[:2] == ["text 0", "text 1"]
    assert len(task.texts()) == 16
    assert (task.metric, task.n_classes, task.is_pairs, task.text_columns) == ("f1-macro", 3, False, ("text",))


def test_labels_and_groups() -> None:
    rows: Columns = {**columns(4), "group": ["a", "a", "b", "b"]}
    task = ClassTask("toy", ClassTask.hold({"train": rows}), NAMES, ("accuracy",), "made here")
    assert task.labels("train").dtype == np.int64
    assert task.labels("train").tolist() == [0, 1, 2, 0]
    assert task.groups("train") == ("a", "a", "b", "b")
    assert make_task().groups("train") is None
    with pytest.raises(UnknownNameError, match=r"unknown split 'tset': did you mean 'test'\? Allowed: train, test\."):
        make_task().labels("tset")


def test_pairs_hold_two_texts() -> None:
    rows: Columns = {"text1": ["a", "b"], "text2": ["c", "a"], "label": [0, 1], "row": [0, 1]}
    task = ClassTask("toy", ClassTask.hold({"train": rows}), NAMES, ("accuracy",), "made here")
    assert task.is_pairs
    assert task.texts() == ["a", "c", "b"]


def test_digest_depends_on_rows_and_classes_only() -> None:
    task = make_task()
    same = make_task(licence="MIT", is_sample=True, notes=("a note",))
    renamed = ClassTask("toy", task.splits, ("no", "yes", "perhaps"), ("f1-macro",), "made here")
    grouped: dict[str, Columns] = {
        split: {**columns(30, tag), "group": ["g"] * 30} for split, tag in (("train", ""), ("test", "t"))
    }
    with_groups = ClassTask("toy", ClassTask.hold(grouped), NAMES, ("f1-macro",), "made here")
    assert task.digest() == same.digest()
    assert re.fullmatch(r"[0-9a-f]{64}", task.digest())
    digests = {task.digest(), renamed.digest(), with_groups.digest(), task.subset(9).digest(), make_task(31).digest()}
    assert len(digests) == 5


def test_subset_is_stratified_nested_seeded_ordered_and_says_so() -> None:
    task = make_task(60, notes=("kept",))
    small, large = task.subset(9, seed=3), task.subset(30, seed=3)
    assert np.bincount(small.labels("train")).tolist() == [3, 3, 3]
    assert set(small.splits["test"]["text"]) < set(large.splits["test"]["text"])
    assert small.digest() == task.subset(9, seed=3).digest() != task.subset(9, seed=4).digest()
    rows = small.splits["train"]["row"]
    assert rows == sorted(rows)
    note = "a stratified subset of at most 9 rows per split (seed 3), not the whole task"
    assert small.notes == (note, "kept")
    assert task.subset(1000).digest() == task.digest()


def test_a_subset_smaller_than_the_classes_is_refused() -> None:
    with pytest.raises(TaskError, match=r"n_per_split is 2, but split 'train' of task 'toy' has 3 classes: give at"):
        make_task().subset(2)


def test_remarks_about_rows_that_left_are_forgotten() -> None:
    twice: Columns = {"text": ["a", "a", *"bcdefghi"], "label": [0, 0, 1, 2, 1, 0, 1, 2, 2, 0], "row": list(range(10))}
    note = "train: 1 of 10 rows repeat the texts of an earlier row"
    task = ClassTask("toy", ClassTask.hold({"train": twice}), NAMES, ("accuracy",), "here", notes=("mine", note))
    once = {name: values[1:] for name, values in twice.items()}
    changed = task.replace_splits(ClassTask.hold({"train": once}), note="one row left out")
    assert changed.notes == ("one row left out", "mine")


def test_one_class_is_refused() -> None:
    message = fails({"train": columns(9, labels=(1,))})
    assert "every training row of task 'toy' is of the one class 'yes', so there is nothing to learn" in message


def test_an_empty_split_is_refused() -> None:
    assert "split 'test' of task 'toy' has no rows" in fails({"train": columns(9), "test": columns(0)})


def test_no_training_split_is_refused() -> None:
    assert "task 'toy' has no training split (its splits: test)" in fails({"test": columns(9)})
    assert "task 'toy' has no training split (its splits: none)" in fails({})


def test_a_label_without_a_class_is_refused() -> None:
    message = fails({"train": columns(9, labels=(0, 3))})
    assert "split 'train' of task 'toy' holds labels 0 to 3, but its 3 classes are numbered from 0" in message


def test_unknown_names_are_refused() -> None:
    assert "unknown split 'trian': did you mean 'train'?" in fails({"trian": columns(9)})
    lacking = {name: values for name, values in columns(9).items() if name != "label"}
    assert "unknown column 'label'. Allowed: text, row. Split 'train' lacks it" in fails({"train": lacking})
    assert "unknown metric 'f1'. Allowed: f1-weighted, f1-micro" in fails({"train": columns(9)}, metrics=("f1",))
    assert "task 'toy' has no metric" in fails({"train": columns(9)}, metrics=())
