"""Class metrics against scikit-learn, one by one and a whole surface at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score

from extract.errors import UnknownNameError
from probes.metrics.prediction_metrics import CLASS_METRICS, score_classes


def oracle(predicted: NDArray[np.int64], gold: NDArray[np.int64], metric: str) -> float:
    if metric == "accuracy":
        return float(accuracy_score(gold, predicted))
    return float(f1_score(gold, predicted, average=metric.removeprefix("f1-"), zero_division=0))


@pytest.mark.parametrize("metric", CLASS_METRICS)
@given(rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40))
def test_every_metric_is_scikit_learns(metric: str, rows: list[tuple[int, int]]) -> None:
    predicted, gold = np.array(rows).T
    assert float(score_classes(predicted, gold, metric=metric)) == pytest.approx(oracle(predicted, gold, metric))


@pytest.mark.parametrize("metric", CLASS_METRICS)
def test_a_surface_is_scored_as_its_points(metric: str) -> None:
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 7, 50)
    surface = rng.integers(0, 7, (3, 4, 50))
    found = score_classes(surface, gold, metric=metric)
    assert found.shape == (3, 4)
    looped = [[oracle(point, gold, metric) for point in row] for row in surface]
    np.testing.assert_allclose(found, looped)


@pytest.mark.parametrize("metric", CLASS_METRICS)
def test_a_perfect_prediction_scores_one_and_a_wrong_one_zero(metric: str) -> None:
    gold = np.array([0, 0, 3, 5])
    assert score_classes(gold, gold, metric=metric) == 1
    assert score_classes(np.array([1, 1, 1, 1]), gold, metric=metric) == 0


def test_macro_counts_a_rare_class_as_much_as_a_frequent_one() -> None:
    gold = np.array([0] * 98 + [1, 1])
    predicted = np.zeros(100, dtype=np.int64)
    scores = {metric: float(score_classes(predicted, gold, metric=metric)) for metric in CLASS_METRICS}
    assert scores["accuracy"] == scores["f1-micro"] == 0.98
    assert scores["f1-macro"] == pytest.approx(0.5 * 2 * 98 / 198)
    assert scores["f1-weighted"] == pytest.approx(0.98 * 2 * 98 / 198)


def test_no_rows_have_no_score() -> None:
    nothing = np.array([], dtype=np.int64)
    assert all(np.isnan(score_classes(nothing, nothing, metric=metric)) for metric in CLASS_METRICS)


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown metric 'f1-marco': did you mean 'f1-macro'\? Allowed: f1-"):
        score_classes(np.array([0]), np.array([0]), metric="f1-marco")
