"""The released code's one split, held against scikit-learn called as that code calls it."""

from collections import Counter

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from extract.errors import TaskError
from probes.data.class_task import ClassTask, assemble_task
from probes.data.domains import look_both_ways_split
from probes.data.splits import SplitRule
from probes.data.table_files import FileRows
from tests.probes.data.planted_classes import row_of


def make(labels: list[str], *, n_taken: int | None = None, official: bool = False) -> ClassTask:
    """Rows in a known order; official splits put every fifth row into test and the next into validation."""
    names = {0: "test", 1: "validation"}
    rows = [
        row_of(f"text {i}", label, names.get(i % 5, "train") if official else None) for i, label in enumerate(labels)
    ]
    classes = tuple(dict.fromkeys(labels))
    return assemble_task(
        FileRows(rows, "here"),
        name="toy",
        class_names=classes,
        look_both_ways_rows=n_taken,
        rule=SplitRule(rare="drop"),
    )


@pytest.mark.parametrize("official", [False, True])
def test_it_is_the_released_codes_split(official: bool) -> None:
    labels = [["yes", "no", "maybe"][i] for i in np.random.default_rng(0).choice(3, 200, p=[0.55, 0.34, 0.11])]
    found = look_both_ways_split(make(labels, official=official))
    texts = [f"text {i}" for i in range(200)]
    numbers = [list(dict.fromkeys(labels)).index(label) for label in labels]
    train, test, train_labels, _ = train_test_split(texts, numbers, test_size=0.2, random_state=42, stratify=numbers)
    assert list(found.splits) == ["train", "test"]
    assert list(found.splits["train"]["text"]) == train
    assert list(found.splits["test"]["text"]) == test
    assert found.labels("train").tolist() == train_labels
    assert found.notes == ("split as by the code released with Look Both Ways does: 200 rows, 80/20, seed 42",)


def test_classes_under_three_rows_are_dropped_and_the_rest_numbered_anew() -> None:
    labels = [*["a"] * 20, "b", "b", *["c"] * 20, "d"]
    found = look_both_ways_split(make(labels, official=True))
    assert found.class_names == ("a", "c")
    assert Counter([*found.labels("train"), *found.labels("test")]) == {0: 20, 1: 20}
    said = "43 rows, 80/20, seed 42; 2 classes of fewer than 3 rows (3 rows) dropped"
    assert said in found.notes[0]


def test_only_the_first_rows_are_taken() -> None:
    found = look_both_ways_split(make(["a", "b"] * 100, n_taken=50))
    assert sum(len(rows) for rows in found.splits.values()) == 50
    assert max(max(rows["row"]) for rows in found.splits.values()) == 49


def test_another_seed_is_another_split() -> None:
    task = make(["a", "b"] * 50)
    assert look_both_ways_split(task, seed=1).digest() != look_both_ways_split(task).digest()


def test_too_few_rows_for_the_classes() -> None:
    labels = [f"class {i // 3}" for i in range(30)]
    with pytest.raises(TaskError, match=r"'toy' has 30 rows in 10 classes of 3 rows or more, but the 80/20 split of"):
        look_both_ways_split(make(labels, official=True))
