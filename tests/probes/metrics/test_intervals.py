"""Bootstrap intervals: SciPy's over rows, a plain loop's over groups."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import bootstrap

from extract.errors import TaskError, UnknownNameError
from extract.records import to_plain
from probes.metrics.bootstrap import (
    Resampling,
    SeedSummary,
    class_scorer,
    resample_correlations,
    summarise_seeds,
)
from probes.metrics.prediction_metrics import CLASS_METRICS, CORRELATIONS, score_classes


def draw(n_rows: int, *, seed: int = 0, n_seeds: int = 2) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Predictions of four classes that are right about three times in four."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 4, n_rows)
    wrong = rng.random((n_seeds, n_rows)) > 0.75
    return np.where(wrong, rng.integers(0, 4, (n_seeds, n_rows)), gold), gold


def summarise_class_seeds(
    predicted: NDArray[np.int64],
    gold: NDArray[np.int64],
    *,
    metric: str,
    groups: list[str] | None = None,
    resampling: Resampling = Resampling(),  # noqa: B008 - frozen
) -> SeedSummary:
    return class_scorer(gold, metric=metric, groups=groups).summarise(predicted, resampling)


@pytest.mark.parametrize("metric", CLASS_METRICS)
def test_the_interval_is_scipys(metric: str) -> None:
    predicted, gold = draw(60)

    def statistic(rows: NDArray[np.int64], axis: int = -1) -> NDArray[np.float64]:
        drawn = np.moveaxis(rows, axis, -1).reshape(-1, rows.shape[axis])
        scores = [np.mean(score_classes(predicted[:, each], gold[each], metric=metric)) for each in drawn]
        return np.array(scores)

    oracle = bootstrap(
        (np.arange(60),),
        statistic,
        vectorized=True,
        n_resamples=250,
        batch=100,
        method="percentile",
        rng=np.random.default_rng(5),
        confidence_level=0.9,
    ).confidence_interval
    found = summarise_class_seeds(predicted, gold, metric=metric, resampling=Resampling(250, 0.9, 5))
    assert [found.low, found.high] == pytest.approx([oracle.low, oracle.high])


def test_groups_are_drawn_whole() -> None:
    predicted, gold = draw(40, n_seeds=1)
    groups = [f"abstract {row // 5}" for row in range(40)]
    found = class_scorer(gold, metric="f1-macro", groups=groups).resample(predicted, Resampling(20))
    drawn = np.random.default_rng(0).integers(0, 8, (20, 8))
    for score, chosen in zip(found[0], drawn, strict=True):
        rows = np.concatenate([np.arange(5 * group, 5 * group + 5) for group in chosen])
        assert score == pytest.approx(float(score_classes(predicted[0, rows], gold[rows], metric="f1-macro")))


def test_rows_that_agree_within_groups_widen_the_interval() -> None:
    gold = np.repeat(np.arange(40) % 2, 10)
    predicted = np.where(np.repeat(np.arange(40) % 3 == 0, 10), 1 - gold, gold)[None]
    groups = [str(row // 10) for row in range(400)]
    alone = summarise_class_seeds(predicted, gold, metric="accuracy")
    whole = summarise_class_seeds(predicted, gold, metric="accuracy", groups=groups)
    assert alone.mean == whole.mean
    assert whole.high - whole.low > 2 * (alone.high - alone.low)


def test_groups_of_one_row_are_rows() -> None:
    gold = np.random.default_rng(0).normal(size=30)
    predicted, groups = (gold + np.sin(np.arange(30)))[None], [f"row {row}" for row in range(30)]
    rows = summarise_seeds(predicted, gold, metric="pearson", resampling=Resampling(100))
    assert summarise_seeds(predicted, gold, metric="pearson", groups=groups, resampling=Resampling(100)) == rows


@pytest.mark.parametrize("metric", CLASS_METRICS)
def test_values_are_the_metric_and_the_interval_holds_the_mean(metric: str) -> None:
    predicted, gold = draw(200, n_seeds=3)
    found = summarise_class_seeds(predicted, gold, metric=metric)
    assert found.low < found.mean < found.high
    assert found.values == tuple(float(value) for value in score_classes(predicted, gold, metric=metric))
    assert found.std == pytest.approx(np.std(found.values, ddof=1))
    assert to_plain(found)["confidence"] == 0.95


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    truth = 0.75 + 0.25 / 4
    hits = 0
    for seed in range(60):
        predicted, gold = draw(200, seed=seed, n_seeds=1)
        found = summarise_class_seeds(predicted, gold, metric="accuracy", resampling=Resampling(200, 0.9))
        hits += found.low <= truth <= found.high
    assert 46 <= hits <= 60  # 54 expected, standard deviation 2.3


def test_equal_seeds_pair_the_resamples_of_two_systems() -> None:
    predicted, gold = draw(80)
    together = class_scorer(gold, metric="accuracy").resample(predicted, Resampling(50, seed=3))
    alone = class_scorer(gold, metric="accuracy").resample(predicted[1:], Resampling(50, seed=3))
    np.testing.assert_array_equal(together[1:], alone)
    other = class_scorer(gold, metric="accuracy").resample(predicted[1:], Resampling(50, seed=4))
    assert (other != alone).any()


def test_one_row_or_one_group_has_no_interval() -> None:
    predicted, gold = draw(10, n_seeds=1)
    for found in (
        summarise_class_seeds(predicted[:, :1], gold[:1], metric="accuracy"),
        summarise_class_seeds(predicted, gold, metric="accuracy", groups=["all"] * 10),
    ):
        assert np.isnan([found.low, found.high]).all()
        assert found.std == 0
        assert found.mean in found.values


def test_a_group_name_is_missing() -> None:
    predicted, gold = draw(10)
    with pytest.raises(TaskError, match=r"9 group names for 10 rows: give one name per row"):
        summarise_class_seeds(predicted, gold, metric="accuracy", groups=[str(row) for row in range(9)])


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown metric 'acuracy': did you mean 'accuracy'\?"):
        class_scorer(draw(10)[1], metric="acuracy")


@pytest.mark.parametrize("groups", [None, ("a", "b", "b", "c", "c", "c", "d", "a")])
@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_draws_are_scored_to_the_bit_as_one_by_one(groups: tuple[str, ...] | None, metric: str) -> None:
    """Ranks of draws are counted, not sorted; ties, groups of unequal size and missing values change nothing."""
    rng = np.random.default_rng(0)
    predicted = np.stack([rng.normal(size=8), rng.integers(0, 3, 8), np.where(np.arange(8) == 5, np.nan, 1.5)])
    gold = rng.integers(0, 4, 8).astype(np.float64)
    resampled = resample_correlations(predicted, gold, metric=metric, groups=groups, resampling=Resampling(60))
    units = np.arange(8) if groups is None else np.array([sorted(set(groups)).index(group) for group in groups])
    drawn = np.random.default_rng(0).integers(0, units.max() + 1, (60, units.max() + 1))
    one_by_one = [
        [float(CORRELATIONS[metric](row[sample], gold[sample])) for row in predicted]
        for sample in (np.concatenate([np.flatnonzero(units == unit) for unit in row]) for row in drawn)
    ]
    np.testing.assert_array_equal(resampled, np.array(one_by_one).T)
