"""Correlations against SciPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats

from probes.metrics.prediction_metrics import CORRELATIONS, correlations, pearson, spearman

ORACLES = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}
FUNCTIONS = {"pearson": pearson, "spearman": spearman}
# Whole numbers: ties are common, and squares stay exact.
COLUMNS = hnp.arrays(np.float64, st.integers(3, 40), elements=st.integers(-20, 20).map(float))


def test_every_metric_has_an_oracle() -> None:
    assert list(FUNCTIONS) == list(CORRELATIONS)


@pytest.mark.parametrize("metric", CORRELATIONS)
@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_equals_scipy(metric: str, has_ties: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 200))
    b = b + a
    if has_ties:
        a, b = a.round(), b.round(1)
    assert float(FUNCTIONS[metric](a, b)) == pytest.approx(ORACLES[metric](a, b).statistic, abs=1e-12)
    assert correlations(a, b)[metric] == float(FUNCTIONS[metric](a, b))


@settings(deadline=None, max_examples=60)
@given(a=COLUMNS, seed=st.integers(0, 1000))
def test_any_numbers_equal_scipy(a: NDArray[np.float64], seed: int) -> None:
    b = np.random.default_rng(seed).permutation(a) + np.arange(len(a)) % 3.0
    for metric, function in FUNCTIONS.items():
        found = float(function(a, b))
        if np.ptp(a) == 0 or np.ptp(b) == 0:
            assert np.isnan(found)
        else:
            assert found == pytest.approx(ORACLES[metric](a, b).statistic, abs=1e-9)
            assert -1 <= found <= 1


@pytest.mark.parametrize("metric", CORRELATIONS)
@pytest.mark.parametrize("value", [0.0, 0.1, 1e30])
def test_a_constant_gives_nan_and_no_warning(metric: str, value: float) -> None:
    gold = np.arange(7.0)
    constant = np.full(7, value)
    assert np.isnan(FUNCTIONS[metric](constant, gold))
    assert np.isnan(FUNCTIONS[metric](gold, constant))


@pytest.mark.parametrize("metric", CORRELATIONS)
def test_a_nan_stays_a_nan(metric: str) -> None:
    assert np.isnan(FUNCTIONS[metric](np.array([1.0, np.nan, 2.0]), np.arange(3.0)))


@pytest.mark.parametrize("metric", CORRELATIONS)
def test_many_corpora_at_once_equal_a_loop(metric: str) -> None:
    rng = np.random.default_rng(0)
    many, gold = rng.normal(size=(2, 5, 30)), rng.normal(size=(2, 5, 30))
    many[0, 2] = 1.0
    at_once = FUNCTIONS[metric](many, gold)
    assert at_once.shape == (2, 5)
    looped = [[float(FUNCTIONS[metric](many[i, j], gold[i, j])) for j in range(5)] for i in range(2)]
    np.testing.assert_array_equal(at_once, looped)


def test_one_gold_serves_many_predictions() -> None:
    rng = np.random.default_rng(0)
    many, gold = rng.normal(size=(4, 30)), rng.normal(size=30)
    for function in FUNCTIONS.values():
        np.testing.assert_allclose(function(many, gold), [float(function(row, gold)) for row in many], atol=1e-15)


@pytest.mark.parametrize("metric", CORRELATIONS)
@pytest.mark.parametrize(("scale", "shift"), [(3.0, 0.0), (1.0, -7.0), (1e-8, 5e-9), (1e8, 1e8)])
def test_scale_and_shift_change_nothing(metric: str, scale: float, shift: float) -> None:
    a, b = np.random.default_rng(3).normal(size=(2, 60))
    expected = float(FUNCTIONS[metric](a, b))
    assert float(FUNCTIONS[metric](scale * a + shift, b)) == pytest.approx(expected, abs=1e-9)
    assert float(FUNCTIONS[metric](-scale * a + shift, b)) == pytest.approx(-expected, abs=1e-9)
