from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import bootstrap

from extract.errors import TaskError
from probes.heads.word_fits import TagScorer
from probes.latents.word_latents import GoldTags
from probes.metrics.bootstrap import DEFAULT, Resampling, SeedSummary, UnitScorer, add_up, number_units
from probes.metrics.prediction_metrics import f1_of_counts


def draw(n_rows: int, *, n_seeds: int = 1, seed: int = 0) -> NDArray[np.int64]:
    """Counts of sentences whose spans are found with probability 0.8, and one in four sentences has a false one."""
    rng = np.random.default_rng(seed)
    n_gold = np.broadcast_to(rng.integers(0, 4, n_rows), (n_seeds, n_rows))
    n_correct = rng.binomial(n_gold, 0.8)
    return np.stack([n_correct, n_correct + (rng.random((n_seeds, n_rows)) < 0.25), n_gold], axis=2)


def summarise_span_f1(
    counts: NDArray[Any], *, documents: list[str] | None = None, resampling: Resampling = DEFAULT
) -> SeedSummary:
    """Summarise the F1 of counts of sentences, by document where they are named."""
    units = number_units(documents, counts.shape[1], is_sorted=True)
    summed = add_up(counts.astype(np.float64), units, int(units.max()) + 1)
    scorer = UnitScorer("span-f1", "units", summed.shape[1], 3, lambda seeds: summed[seeds], f1_of_counts)
    return scorer.summarise(np.arange(len(counts)), resampling)


def f1(counts: NDArray[Any]) -> Any:
    n_correct, n_predicted, n_gold = counts.sum(-2).T
    return 2 * n_correct / (n_predicted + n_gold)


def test_the_summary_holds_the_estimate_of_each_seed() -> None:
    counts = draw(200, n_seeds=3)
    found = summarise_span_f1(counts, resampling=Resampling(200))
    assert found.values == pytest.approx(f1(counts))
    assert found.mean == pytest.approx(f1(counts).mean())
    assert found.std == pytest.approx(f1(counts).std(ddof=1))
    assert found.low < found.mean < found.high
    assert summarise_span_f1(counts[:1], resampling=Resampling(20)).std == 0.0


def test_the_interval_is_that_of_a_plain_loop() -> None:
    counts = draw(40, n_seeds=2)
    found = summarise_span_f1(counts, resampling=Resampling(100, 0.9, 3))
    rows = np.random.default_rng(3).integers(40, size=(100, 40))
    means = [f1(counts[:, drawn]).mean() for drawn in rows]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.05, 0.95])))


def test_the_interval_is_that_of_scipy_up_to_chance() -> None:
    counts = draw(300)

    def statistic(a: Any, b: Any, c: Any, axis: int) -> Any:
        return 2 * a.sum(axis) / (b.sum(axis) + c.sum(axis))

    theirs = bootstrap(
        tuple(counts[0].T),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    ours = summarise_span_f1(counts, resampling=Resampling(2000))
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.004)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    truth = 2 * 1.2 / (1.2 + 0.25 + 1.5)
    hits = 0
    for seed in range(60):
        found = summarise_span_f1(draw(150, seed=seed), resampling=Resampling(200, 0.9))
        hits += found.low <= truth <= found.high
    assert 46 <= hits <= 60  # 54 expected, standard deviation 2.3


def test_documents_are_drawn_whole() -> None:
    counts = np.repeat(draw(30), 10, axis=1)  # documents of ten sentences that are all right or all wrong together
    names = [str(row // 10) for row in range(300)]
    by_document = summarise_span_f1(counts, documents=names, resampling=Resampling(500))
    by_sentence = summarise_span_f1(counts, resampling=Resampling(500))
    assert by_document.values == by_sentence.values
    assert by_document.high - by_document.low > 2 * (by_sentence.high - by_sentence.low)
    shuffled = np.random.default_rng(0).permutation(300)
    other = summarise_span_f1(
        counts[:, shuffled], documents=[names[row] for row in shuffled], resampling=Resampling(500)
    )
    assert (other.low, other.high) == pytest.approx((by_document.low, by_document.high))


def test_equal_seeds_draw_equal_resamples() -> None:
    counts = draw(50)
    one, same, other = (summarise_span_f1(counts, resampling=Resampling(100, seed=seed)) for seed in (1, 1, 2))
    assert one == same
    assert (one.low, one.high) != (other.low, other.high)


def test_accuracy_by_sentence() -> None:
    right = np.array([[True, True, False, True, True], [True, False, False, True, True]])
    gold = GoldTags(("A", "B"), np.ones(5, np.int64))
    scorer = TagScorer(gold, np.array([0, 2, 2, 5]), ["w"] * 5, None, "accuracy")
    found = scorer.summarise(right.astype(np.int64), n_resamples=100)
    assert found.values == (0.8, 0.6)
    assert found.mean == pytest.approx(0.7)
    rows = np.random.default_rng(0).integers(3, size=(100, 3))
    n_right, n_words = np.array([[2, 0, 2], [1, 0, 2]]), np.array([2, 0, 3])
    means = [(n_right[:, drawn].sum(1) / max(n_words[drawn].sum(), 1)).mean() for drawn in rows]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))


def test_one_sentence_or_document_has_no_interval() -> None:
    for found in (summarise_span_f1(draw(1)), summarise_span_f1(draw(5), documents=["a"] * 5)):
        assert np.isnan([found.low, found.high]).all()
        assert found.mean in found.values
    with pytest.raises(TaskError, match="4 group names for 5 rows: give one name per row"):
        summarise_span_f1(draw(5), documents=["a"] * 4)
