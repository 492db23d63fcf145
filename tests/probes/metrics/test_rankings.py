"""Rankings against trec_eval, similarities and clusters against scikit-learn."""

from typing import Any

import numpy as np
import pytest
import pytrec_eval
from sklearn.metrics import average_precision_score, v_measure_score

from probes.metrics.bootstrap import (
    MOST_STEPS,
    Resampling,
    cluster_scorer,
    paired_scores,
    precision_scorer,
    score_counts,
    summarise,
)
from probes.metrics.prediction_metrics import average_precision, ndcg, recall, reciprocal_rank

MEASURES = {"ndcg_cut.10", "recall.10,100", "map", "recip_rank"}


def test_rankings_score_as_trec_eval_does() -> None:
    """Graded and negative relevance, ties, unjudged documents, and relevant ones that are not found."""
    rng = np.random.default_rng(0)
    names = sorted((f"d{k:03d}" for k in range(150)), reverse=True)
    qrels, run, ranked, ideal, counts = {}, {}, [], [], []
    for q in range(20):
        judged = {names[k]: int(rng.integers(-1, 4)) for k in rng.choice(150, 12, replace=False)}
        judged[names[q]] = 1
        scores = rng.integers(0, 30, 150).astype(float)  # many ties
        kept = np.argsort(-scores, kind="stable")[:100]  # names fall: of equals the higher name comes first
        qrels[f"q{q}"], run[f"q{q}"] = judged, {names[k]: scores[k] for k in range(150)}
        ranked.append([judged.get(names[k], 0) for k in kept])
        ideal.append(sorted((max(grade, 0) for grade in judged.values()), reverse=True) + [0] * (13 - len(judged)))
        counts.append(sum(grade > 0 for grade in judged.values()))
    found = pytrec_eval.RelevanceEvaluator(qrels, MEASURES).evaluate(run)
    grades, n_relevant = np.array(ranked, float), np.array(counts)
    ours = {
        "ndcg_cut_10": ndcg(grades, np.array(ideal, float), 10),
        "recall_10": recall(grades, n_relevant, 10),
        "recall_100": recall(grades, n_relevant, 100),
        "recip_rank": reciprocal_rank(grades),
    }
    for name, values in ours.items():
        np.testing.assert_allclose(values, [found[f"q{q}"][name] for q in range(20)], atol=1e-6, err_msg=name)
    whole = [sorted(run[q], key=lambda d: (-run[q][d], names.index(d))) for q in run]
    everything = np.array([[qrels[q].get(d, 0) for d in row] for q, row in zip(run, whole, strict=True)], float)
    maps = average_precision(everything, n_relevant)
    np.testing.assert_allclose(maps, [found[f"q{q}"]["map"] for q in range(20)], atol=1e-6)


def test_similarities_score_as_in_scikit_learn_also_in_resamples() -> None:
    rng = np.random.default_rng(1)
    gold, predicted = rng.integers(0, 2, 60), rng.integers(0, 20, (2, 60)) / 20
    scorer = precision_scorer(gold)
    assert scorer.score(predicted) == pytest.approx([average_precision_score(gold, row) for row in predicted])
    how = Resampling(20, seed=3)
    drawn = np.random.default_rng(3).integers(0, 60, (20, 60))
    expected = [[average_precision_score(gold[rows], row[rows]) for rows in drawn] for row in predicted]
    np.testing.assert_allclose(scorer.resample(predicted, how), expected, atol=1e-12)


def test_many_similarities_are_counted_in_steps() -> None:
    rng = np.random.default_rng(2)
    gold = rng.integers(0, 2, 3 * MOST_STEPS)
    predicted = (gold + rng.normal(size=(1, len(gold)))).astype(np.float32)
    scorer = precision_scorer(gold)
    stepped = scorer.of_sums(scorer.count(predicted).sum(1))
    assert scorer.n_counts == 2 * MOST_STEPS
    assert stepped == pytest.approx(scorer.score(predicted), abs=2e-3)


def test_clusters_score_as_in_scikit_learn_whatever_their_numbers() -> None:
    rng = np.random.default_rng(4)
    gold = rng.integers(0, 4, 80)
    predicted = np.stack([rng.integers(0, 4, 80), (gold + 1) % 4, np.zeros(80, int)])
    scorer = cluster_scorer(gold)
    assert scorer.score(predicted) == pytest.approx([v_measure_score(gold, row) for row in predicted])
    assert scorer.score(predicted)[1:] == pytest.approx([1.0, 0.0])
    assert scorer.score((predicted + 2) % 4) == pytest.approx(scorer.score(predicted))
    drawn = np.random.default_rng(3).integers(0, 80, (10, 80))
    expected = [[v_measure_score(gold[rows], row[rows]) for rows in drawn] for row in predicted]
    np.testing.assert_allclose(scorer.resample(predicted, Resampling(10, seed=3)), expected, atol=1e-12)


def test_the_interval_of_many_small_clusters_holds_their_v_measure() -> None:
    """Rows that are drawn twice are always together: where clusters are small, every resample scores higher."""
    rng = np.random.default_rng(5)
    gold = rng.integers(0, 60, 180)
    predicted = np.where(rng.random(180) < 0.6, gold, rng.integers(0, 60, 180))[None]
    scorer = cluster_scorer(gold)
    assert scorer.is_lifted
    [value], score = scorer.score(predicted), score_counts(scorer.count(predicted), scorer.of_sums)
    lifted, centred = (
        summarise(np.array([value]), score, n_units=scorer.n_units, is_centred=is_centred)
        for is_centred in (False, True)
    )
    assert lifted.low > value
    assert centred.low < value < centred.high
    assert centred.high - centred.low == pytest.approx(lifted.high - lifted.low)


@pytest.mark.parametrize(
    ("metric", "gold", "predicted", "expected"),
    [
        ("ndcg@10", [1.0] * 4, [[1, 0, 0.5, 0.5], [0, 0, 0, 1]], [0.5, 0.25]),
        ("average-precision", [1, 0, 1, 0], [[0.9, 0.1, 0.8, 0.2], [0.1, 0.9, 0.2, 0.8]], [1.0, 5 / 12]),
        ("v-measure", ["a", "a", "b", "b"], [["1", "1", "2", "2"], ["1", "2", "1", "2"]], [1.0, 0.0]),
    ],
)
def test_runs_are_compared_by_what_they_predict(
    metric: str, gold: list[Any], predicted: list[Any], expected: list[float]
) -> None:
    values, resampled = paired_scores(predicted, gold, metric=metric, units=list("abcd"), resampling=Resampling(10))
    assert values == pytest.approx(expected)
    assert resampled.shape == (2, 10)
