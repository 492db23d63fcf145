"""Tasks with numbers as gold: what both kinds refuse, because a correlation would mean nothing."""

from typing import Any

import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.class_task import NumberTask
from probes.data.pair_task import PairTask


def make_task(kind: str, gold: Any) -> PairTask | NumberTask:
    texts = [f"text {i}" for i in range(8 if gold is None else len(gold))]
    if kind == "pairs":
        rows = {"sentence1": texts, "sentence2": texts, "score": gold}
        return PairTask(
            "t", PairTask.hold({"test": {k: v for k, v in rows.items() if v is not None}}), (0.0, 5.0), "here"
        )
    rows = {"text": texts, "number": gold}
    return NumberTask("t", NumberTask.hold({"test": {k: v for k, v in rows.items() if v is not None}}), "here")


@pytest.mark.parametrize("kind", ["pairs", "numbers"])
@pytest.mark.parametrize(
    ("gold", "message"),
    [
        ([*range(7)], "split 'test' of task 't' has 7 rows, but a correlation needs at least 8"),
        ([2.5] * 8, r"split 'test' of task 't' has the same gold 2\.5 in all 8 rows"),
        ([float("nan"), *range(9)], "split 'test' of task 't' holds a number that is not finite"),
        (None, "unknown column '(score|number)'"),
    ],
)
def test_rows_without_a_correlation_are_refused(kind: str, gold: Any, message: str) -> None:
    with pytest.raises((TaskError, UnknownNameError), match=message):
        make_task(kind, gold)


@pytest.mark.parametrize("kind", ["pairs", "numbers"])
def test_a_subset_below_eight_rows_is_refused(kind: str) -> None:
    with pytest.raises(TaskError, match=r"n_per_split is 7, but a split needs at least 8 rows"):
        make_task(kind, [*range(9)]).subset(7)
