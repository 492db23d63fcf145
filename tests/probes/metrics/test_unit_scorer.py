import numpy as np
import pytest

from extract.errors import UnknownNameError
from probes.metrics.bootstrap import Resampling
from probes.metrics.class_metrics import CLASS_METRICS, score_classes
from probes.metrics.correlation import CORRELATIONS
from probes.metrics.intervals import resample_correlations, resample_scores
from probes.metrics.unit_scorer import class_scorer, correlation_scorer, mean_scorer, right_scorer

RNG = np.random.default_rng(0)
GROUPS = [f"g{k // 3}" for k in range(60)]
HOW = Resampling(40)


@pytest.mark.parametrize("groups", [None, GROUPS])
def test_pearson_of_resamples_is_that_of_the_rows_drawn(groups: list[str] | None) -> None:
    gold, predicted = RNG.normal(size=60), 1e4 + RNG.normal(size=(5, 60))
    scorer = correlation_scorer(gold, metric="pearson", groups=groups)
    expected = resample_correlations(predicted, gold, metric="pearson", groups=groups, resampling=HOW)
    assert np.allclose(scorer.resample(predicted, HOW), expected, atol=1e-9)
    assert np.allclose(scorer.score(predicted), CORRELATIONS["pearson"](predicted, gold))
    assert np.allclose(scorer.of_sums(scorer.count(predicted).sum(1)), scorer.score(predicted))
    assert scorer.n_units == (60 if groups is None else 20)


def test_spearman_is_pearson_of_ranks() -> None:
    gold, predicted = RNG.normal(size=60), RNG.normal(size=(3, 60))
    scorer = correlation_scorer(gold, metric="spearman")
    assert np.allclose(scorer.of_sums(scorer.count(predicted).sum(1)), CORRELATIONS["spearman"](predicted, gold))


def test_constant_predictions_have_no_score() -> None:
    scorer = correlation_scorer(RNG.normal(size=60), metric="pearson")
    assert np.isnan(scorer.score(np.full((1, 60), 0.1))).all()
    assert np.isnan(scorer.resample(np.full((1, 60), 0.1), HOW)).all()
    with pytest.raises(UnknownNameError, match="metric"):
        correlation_scorer(RNG.normal(size=60), metric="f1")


@pytest.mark.parametrize("metric", CLASS_METRICS)
@pytest.mark.parametrize("groups", [None, GROUPS])
def test_classes_are_scored_as_elsewhere(metric: str, groups: list[str] | None) -> None:
    gold, predicted = RNG.integers(0, 4, 60), RNG.integers(0, 5, (6, 60))
    scorer = class_scorer(gold, metric=metric, groups=groups)
    expected = resample_scores(predicted, gold, metric=metric, groups=groups, resampling=HOW)
    assert np.allclose(scorer.resample(predicted, HOW), expected)
    assert np.allclose(scorer.score(predicted), score_classes(predicted, gold, metric=metric))


def test_many_predictions_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    gold, predicted = RNG.normal(size=60), RNG.normal(size=(7, 60))
    scorer = correlation_scorer(gold, metric="pearson")
    whole = scorer.resample(predicted, HOW)
    monkeypatch.setattr("probes.metrics.unit_scorer.AT_ONCE", 2 * 60 * 6)
    assert np.allclose(scorer.resample(predicted, HOW), whole)


def test_means_and_shares_weigh_rows_not_units() -> None:
    units = np.array([0, 0, 0, 1])
    losses = np.array([[1.0, 1.0, 1.0, 5.0]])
    mean = mean_scorer(units, metric="bits", unit="groups")
    assert mean.score(losses).tolist() == mean.of_sums(mean.count(losses).sum(1)).tolist() == [2.0]
    right = right_scorer(np.array([1, 1, 1, 0]), units, unit="groups")
    guesses = np.array([[1, 1, 1, 1]])
    assert right.of_sums(right.count(guesses).sum(1)).tolist() == right.score(guesses).tolist() == [0.75]
