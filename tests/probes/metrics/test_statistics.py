"""Intervals over pairs and spreads over seeds."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import bootstrap, pearsonr

from extract.errors import UnknownNameError
from extract.records import to_plain
from probes.metrics.bootstrap import Resampling, summarise_seeds
from probes.metrics.prediction_metrics import CORRELATIONS


def draw(n_pairs: int, *, seed: int = 0, n_seeds: int = 2) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predictions that correlate with gold at about 0.7."""
    rng = np.random.default_rng(seed)
    gold = rng.normal(size=n_pairs)
    return 0.7 * gold + 0.714 * rng.normal(size=(n_seeds, n_pairs)), gold


@pytest.mark.parametrize("metric", CORRELATIONS)
def test_the_interval_holds_the_estimate_and_the_values_are_the_metric(metric: str) -> None:
    predicted, gold = draw(100, n_seeds=3)
    found = summarise_seeds(predicted, gold, metric=metric, resampling=Resampling(300))
    assert found.low < found.mean < found.high
    assert found.values == tuple(float(CORRELATIONS[metric](row, gold)) for row in predicted)
    assert found.mean == pytest.approx(np.mean(found.values))
    assert found.std == pytest.approx(np.std(found.values, ddof=1))
    assert found.confidence == 0.95
    assert to_plain(found)["high"] == found.high


def test_the_interval_narrows_as_pairs_are_added() -> None:
    widths = []
    for n_pairs in (30, 300, 3000):
        found = summarise_seeds(*draw(n_pairs), metric="pearson", resampling=Resampling(300))
        widths.append(found.high - found.low)
    assert widths[0] > 2 * widths[1] > 4 * widths[2]


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    truth = 0.7 / np.hypot(0.7, 0.714)
    hits = 0
    for seed in range(60):
        found = summarise_seeds(*draw(120, seed=seed, n_seeds=1), metric="pearson", resampling=Resampling(200, 0.9))
        hits += found.low <= truth <= found.high
    assert 46 <= hits <= 60  # 54 expected, standard deviation 2.3


def test_the_same_seed_gives_the_same_interval() -> None:
    one, same, other = (
        summarise_seeds(*draw(50), metric="pearson", resampling=Resampling(200, seed=s)) for s in (1, 1, 2)
    )
    assert one == same
    assert one.low != other.low


def test_one_seed_has_no_spread() -> None:
    assert summarise_seeds(*draw(50, n_seeds=1), metric="pearson", resampling=Resampling(100)).std == 0.0


def test_constant_predictions_are_nan_without_a_warning() -> None:
    _, gold = draw(50)
    found = summarise_seeds(np.ones((2, 50)), gold, metric="spearman", resampling=Resampling(100))
    assert all(np.isnan(value) for value in (found.mean, found.std, found.low, found.high, *found.values))


def test_float32_predictions_are_taken() -> None:
    predicted, gold = draw(50)
    found = summarise_seeds(
        predicted.astype(np.float32), gold.astype(np.float32), metric="pearson", resampling=Resampling(100)
    )
    assert found.low < found.high


def test_resamples_that_are_constant_are_left_out_of_the_interval() -> None:
    gold = np.array([0.0] * 7 + [1.0])  # a third of the resamples hold no 1
    found = summarise_seeds(np.arange(8.0)[None], gold, metric="pearson", resampling=Resampling(300))
    assert found.low < found.mean < found.high


def test_the_interval_is_scipys() -> None:
    predicted, gold = draw(60, n_seeds=1)
    oracle = bootstrap(
        (predicted[0], gold),
        lambda a, b: pearsonr(a, b).statistic,
        paired=True,
        vectorized=False,
        n_resamples=200,
        batch=100,
        method="percentile",
        rng=np.random.default_rng(5),
        confidence_level=0.9,
    ).confidence_interval
    found = summarise_seeds(predicted, gold, metric="pearson", resampling=Resampling(200, 0.9, 5))
    assert [found.low, found.high] == pytest.approx([oracle.low, oracle.high])


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown metric 'persons': did you mean 'pearson'\?"):
        summarise_seeds(*draw(10), metric="persons")
