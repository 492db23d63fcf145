import numpy as np
import pytest

from extract.errors import UnknownNameError
from probes.metrics.bootstrap import (
    Resampling,
    UnitScorer,
    class_scorer,
    correlation_scorer,
    mean_scorer,
    number_units,
    resample,
    resample_correlations,
    score_counts,
)
from probes.metrics.prediction_metrics import CLASS_METRICS, CORRELATIONS, ClassCounts, count_by_unit, score_classes

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
    counts = count_by_unit(predicted, gold, number_units(groups, 60))
    expected = resample(
        score_counts(counts, lambda sums: CLASS_METRICS[metric](ClassCounts(*np.split(sums, 3, axis=-1)))),
        n_units=counts.shape[1],
        resampling=HOW,
    )
    assert np.allclose(scorer.resample(predicted, HOW), expected)
    assert np.allclose(scorer.score(predicted), score_classes(predicted, gold, metric=metric))
    summary = scorer.summarise(predicted, HOW)
    assert (summary.low, summary.high) == pytest.approx(np.quantile(expected.mean(axis=0), [0.025, 0.975]))


def test_many_predictions_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    gold, predicted = RNG.normal(size=60), RNG.normal(size=(7, 60))
    scorer = correlation_scorer(gold, metric="pearson")
    whole = scorer.resample(predicted, HOW)
    monkeypatch.setattr("probes.metrics.bootstrap.AT_ONCE", 2 * 60 * 6)
    assert np.allclose(scorer.resample(predicted, HOW), whole)


def test_means_and_shares_weigh_rows_not_units() -> None:
    units = np.array([0, 0, 0, 1])
    losses = np.array([[1.0, 1.0, 1.0, 5.0]])
    mean = mean_scorer(units, metric="bits", unit="groups")
    assert mean.score(losses).tolist() == mean.of_sums(mean.count(losses).sum(1)).tolist() == [2.0]
    right = class_scorer(np.array([1, 1, 1, 0]), metric="accuracy", groups=[*"aaab"])
    guesses = np.array([[1, 1, 1, 1]])
    assert right.of_sums(right.count(guesses).sum(1)).tolist() == right.score(guesses).tolist() == [0.75]


@pytest.mark.parametrize("groups", [None, GROUPS])
@pytest.mark.parametrize("metric", ["pearson", "accuracy", "f1-macro"])
def test_errors_of_leads_are_those_of_each_resample_by_itself(metric: str, groups: list[str] | None) -> None:
    """What a resample's error is, the same rows as a sample of their own say; and its size is that of the bootstrap."""
    rng, how, is_graded = np.random.default_rng(4), Resampling(400), metric == "pearson"
    gold = rng.normal(size=60) if is_graded else rng.integers(0, 3, 60)
    flips = rng.random((2, 3, 60)) < 0.4
    predicted = gold + rng.normal(size=(2, 3, 60)) if is_graded else np.where(flips, 2 - gold, gold)

    def scorer_of(rows: np.ndarray, names: list[str] | None) -> UnitScorer:
        if is_graded:
            return correlation_scorer(gold[rows], metric=metric, groups=names)
        return class_scorer(gold[rows], metric=metric, groups=names)

    scorer = scorer_of(np.arange(60), groups)
    errors = scorer.lead_errors(predicted, how)
    assert errors is not None
    assert errors.shape == (401, 3, 3)
    assert np.allclose(errors, errors.swapaxes(1, 2))
    scores = scorer.resample(predicted.reshape(6, 60), how).reshape(2, 3, -1).mean(0)
    spread = np.arctanh(scores) if is_graded else scores
    assert errors[0, 0, 1] == pytest.approx((spread[0] - spread[1]).std(), rel=0.2)
    drawn = np.random.default_rng(how.seed).integers(0, scorer.n_units, (100, scorer.n_units))[7]
    members = [np.flatnonzero(np.arange(60) // (60 // scorer.n_units) == unit) for unit in drawn]
    rows = np.concatenate(members)
    names = [str(k) for k, part in enumerate(members) for _ in part]
    alone = scorer_of(rows, names if groups else None).lead_errors(predicted[:, :, rows], Resampling(1))
    assert alone is not None
    assert np.allclose(errors[8], alone[0], rtol=1e-4)


def test_a_metric_of_many_counts_has_no_errors_within_resamples() -> None:
    gold = np.arange(80) % 40
    assert class_scorer(gold, metric="f1-macro").lead_errors(gold[None, None], HOW) is None


def test_slopes_of_classes_that_gold_lacks_are_computed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predicted classes beyond those of gold have counts, whose slopes are not what lay in memory."""
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 3, 90)
    flips = rng.random((1, 4, 90)) < np.array([0.3, 0.4, 0.5, 0.6])[:, None]
    predicted = np.where(flips, rng.integers(0, 6, (1, 4, 90)), gold)
    scorer = class_scorer(gold, metric="f1-macro")
    monkeypatch.setattr(np, "empty_like", lambda like: np.full_like(like, 1e6))
    errors = scorer.lead_errors(predicted, Resampling(1))
    assert errors is not None
    resampled = scorer.resample(predicted[0], Resampling(1000))
    assert errors[0, 0, 3] == pytest.approx((resampled[0] - resampled[3]).std(), rel=0.2)
    assert scorer.lead_errors(np.where(predicted == 5, 40, predicted), HOW) is None
