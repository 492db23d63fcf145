from typing import Any

from probes.data.class_task import class_notes
from probes.data.domains import look_both_ways_split
from probes.data.task import text_keys, why_optimistic
from tests.probes.data.planted_classes import make_class_task

Columns = dict[str, list[Any]]

TRAIN: Columns = {
    "text": ["a", "a", "a", "b", "c", "c"],
    "label": [0, 0, 1, 1, 1, 2],
    "group": ["1", "1", "2", "2", "3", "3"],
}
TEST: Columns = {"text": ["a", "x", "y"], "label": [0, 3, 3], "group": ["3", "4", "5"]}
NAMES = ("zero", "one", "two", "three")


def test_notes_hold_every_count_and_leave_zeros_out() -> None:
    assert class_notes({"train": TRAIN, "test": TEST}, NAMES) == (
        "train: 3 of 6 rows repeat the texts of an earlier row",
        "train: 2 texts occur more than once with different labels ('a': zero, one; 'c': one, two)",
        "test: the text of 1 of 3 rows is also in train",
        "test: 1 groups also have rows in train",
        "train: 2 classes have fewer than 3 rows (zero, two)",
        "test: 2 rows are of classes that train lacks (three: 2), and cannot be right",
        "test: 2 classes have no row (one, two)",
    )


def test_a_clean_task_needs_no_note() -> None:
    train: Columns = {"text": list("abcdef"), "label": [0, 1] * 3}
    test: Columns = {"text": list("gh"), "label": [0, 1]}
    assert class_notes({"train": train, "test": test}, ("no", "yes")) == ()


def test_pairs_are_compared_in_either_order() -> None:
    rows: Columns = {"text1": ["a", "b", "a"], "text2": ["b", "a", "c"], "label": [0, 1, 1]}
    assert text_keys(rows, ("text1", "text2")) == [("a", "b"), ("a", "b"), ("a", "c")]
    assert class_notes({"test": rows}, ("no", "yes")) == (
        "test: 1 of 3 rows repeat the pairs of an earlier row",
        "test: 1 pair occurs more than once with different labels ('a' / 'b': no, yes)",
    )


def test_many_classes_are_listed_in_part() -> None:
    rows: Columns = {"text": [str(i) for i in range(9)], "label": list(range(9))}
    names = ["a name that goes on and on and will not come to an end", *(f"c{i}" for i in range(1, 9))]
    listed = "a name that goes on and on and will n..., c1, c2, c3, c4, ..."
    assert class_notes({"train": rows}, names) == (f"train: 9 classes have fewer than 3 rows ({listed})",)


def test_torn_groups_are_a_reason() -> None:
    whole = make_class_task(sizes={"train": 20, "test": 10}, groups=5)
    assert why_optimistic(whole) == why_optimistic(make_class_task()) == ""
    cut = look_both_ways_split(whole)
    groups = set(cut.groups("train") or ())
    n_torn = sum(group in groups for group in cut.groups("test") or ())
    assert n_torn > 0
    assert why_optimistic(cut) == f"{n_torn} of 6 test rows are of a group that also has rows in train"
