"""What is drawn whole: rows that share a text, and rows of a group, found across both."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from probes.data.class_task import ClassTask
from probes.data.pair_task import PairTask
from probes.data.task import find_units
from probes.metrics.bootstrap import Resampling, paired_scores
from probes.metrics.significance import bootstrap_p_value

N = 40


def make_pairs(first: list[str], second: list[str]) -> PairTask:
    scores = [float(k % 6) for k in range(len(first))]
    splits = PairTask.hold({"test": {"sentence1": first, "sentence2": second, "score": scores}})
    return PairTask("shared", splits, (0.0, 5.0), "a test")


def test_rows_that_share_no_text_are_drawn_by_themselves() -> None:
    assert find_units([["a", "b"], ["c", "d"]]) is None
    assert find_units([["a", "b"], ["c", "d"]], ["g", "g"]) is None
    assert find_units([]) is None
    task = make_pairs([f"a{k}" for k in range(N)], [f"b{k}" for k in range(N)])
    assert task.units("test") is None
    assert "shared_rows" not in task.describe().to_plain()


def test_a_pair_shares_a_text_on_either_side_and_over_other_pairs() -> None:
    first = ["a", "b", "c", "d", *(f"x{k}" for k in range(20))]
    second = ["b", "c", "e", "f", *(f"y{k}" for k in range(20))]
    units = find_units([first, second])
    assert units is not None
    assert units.names == ("0", "0", "0", *map(str, range(3, 24)))
    assert (units.n, units.n_shared, units.linked) == (22, 3, "")


def test_a_pair_of_one_text_with_itself_shares_nothing() -> None:
    assert find_units([["a", "b"], ["a", "c"]]) is None


def test_copies_are_one_unit_and_the_task_says_so() -> None:
    first = [f"a{k // 4}" for k in range(N)]
    task = make_pairs(first, [f"b{k // 4}" for k in range(N)])
    assert task.units("test") == tuple(str(k - k % 4) for k in range(N))
    assert task.describe().shared_rows == {
        "test": "test: 40 of 40 rows share a text with other rows; intervals draw the 10 sets of rows that share no "
        "text whole"
    }


def test_groups_that_share_a_text_are_one_unit() -> None:
    texts = [f"t{k}" for k in range(N)]
    texts[8] = texts[3]
    groups = [f"g{k // 4}" for k in range(N)]
    units = find_units([texts], groups)
    assert units is not None
    assert units.n == 9
    assert units.names[:4] == units.names[8:12] == ("g0",) * 4
    assert units.names[4] == "g1"
    assert find_units([[f"t{k // 2}" for k in range(N)]], groups) is None  # copies within a group


def test_texts_that_link_most_rows_hold_them_by_the_most_frequent_text_alone() -> None:
    """A chain, a-b, b-c and so on, would be one unit; a text with many others stays whole."""
    first = ["hub"] * 10 + [f"c{k}" for k in range(30)]
    second = [f"c{k}" for k in range(10)] + [f"c{k + 1}" for k in range(30)]
    units = find_units([first, second])
    assert units is not None
    assert units.linked == "texts"
    assert len(set(units.names[:10])) == 1
    assert units.n > 10
    assert "too narrow" in units.note("test", "pairs")
    grouped = find_units([first, second], [f"g{k // 4}" for k in range(40)])
    assert grouped is not None
    assert (grouped.linked, grouped.n) == ("groups", 10)
    assert "the 10 groups whole" in grouped.note("test", "pairs")


def test_classes_with_copied_texts_have_units() -> None:
    rows: dict[str, Sequence[Any]] = {
        "text": [f"t{k // 2}" for k in range(20)],
        "label": [0, 0, 1, 1] * 5,
        "row": list(range(20)),
    }
    splits = ClassTask.hold({"train": rows, "test": rows})
    task = ClassTask("copied", splits, ("no", "yes"), ("accuracy",), "a test", licence="none")
    units = task.units("test")
    assert units is not None
    assert len(set(units)) == 10


@pytest.mark.parametrize("n_copies", [1, 4])
def test_copied_rows_make_no_findings(n_copies: int) -> None:
    """Two systems that are equally good: copies drawn as rows found a difference in nearly half of the samples."""
    by_rows = by_units = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        gold, *errors = np.repeat(rng.normal(size=(3, 50)), n_copies, axis=1)
        systems = [0.8 * gold + 0.6 * error for error in errors]
        texts = [f"t{k // n_copies}" for k in range(50 * n_copies)]
        rows = [str(k) for k in range(len(texts))]
        units = find_units([texts])
        names = (rows, rows if units is None else list(units.names))
        values = [
            paired_scores(systems, gold, metric="pearson", units=each, resampling=Resampling(200, seed=seed))
            for each in names
        ]
        found = [bootstrap_p_value(score[0] - score[1], drawn[0] - drawn[1]) < 0.05 for score, drawn in values]
        by_rows, by_units = by_rows + found[0], by_units + found[1]
    assert by_units / 150 < 0.11
    assert (by_rows / 150 > 0.25) == (n_copies == 4)
