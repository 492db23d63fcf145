"""p-values against SciPy and exact enumeration, corrections against hand-computed cases, curves against brute force."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from extract.errors import UnknownNameError
from probes.metrics.bootstrap import Resampling, difference, paired_scores, unit_counts
from probes.metrics.significance import (
    bootstrap_p_value,
    correct_p_values,
    expected_maximum,
    permutation_p_value,
    seed_errors,
)

RNG = np.random.default_rng(0)
NAMES = ["a", "b", "c"]


def two_systems(metric: str, n: int) -> tuple[list[list[str]], list[str]]:
    """Predictions of two systems and gold, as the rows of predictions.csv."""
    if metric in ("pearson", "spearman"):
        gold = RNG.normal(size=n)
        systems = [gold + RNG.normal(size=n), 3 * gold + 2 * RNG.normal(size=n)]
        return [[f"{value:.4f}" for value in row] for row in systems], [f"{value:.4f}" for value in gold]
    names = ["O", "B-X", "I-X"] if metric == "span-f1" else NAMES
    gold_names = [names[k] for k in RNG.integers(0, 3, n)]
    systems = [np.where(RNG.random(n) < share, gold_names, RNG.permutation(gold_names)) for share in (0.8, 0.4)]
    return [row.tolist() for row in systems], gold_names


def enumerated(systems: list[list[str]], gold: list[str], units: list[str], sentences: list[str], metric: str) -> float:
    """The two-sided p-value over every way to swap whole units, each scored from its rows."""

    def lead(one: list[str], other: list[str]) -> float:
        a, b = paired_scores(
            [one, other], gold, metric=metric, units=units, sentences=sentences, resampling=Resampling(1)
        )[0]
        return float(a - b)

    if metric in ("pearson", "spearman"):  # each on its own scale, so that they can be exchanged
        change = stats.rankdata if metric == "spearman" else stats.zscore
        systems = [[f"{value:.15g}" for value in change(np.array(row, float))] for row in systems]
        metric = "pearson"
        if change is stats.rankdata:
            gold = [f"{value:.15g}" for value in stats.rankdata(np.array(gold, float))]
    names = list(dict.fromkeys(units))
    found = []
    for swaps in product((False, True), repeat=len(names)):
        is_swapped = dict(zip(names, swaps, strict=True))
        pairs = [(b, a) if is_swapped[u] else (a, b) for a, b, u in zip(*systems, units, strict=True)]
        found.append(lead([a for a, _ in pairs], [b for _, b in pairs]))
    null, observed = np.array(found), found[0]
    slack = 1e-9
    return float(min(1, 2 * min((null >= observed - slack).mean(), (null <= observed + slack).mean())))


@pytest.mark.parametrize("metric", ["pearson", "spearman", "accuracy", "f1-macro", "span-f1"])
@pytest.mark.parametrize("size", [1, 3])
def test_few_units_are_swapped_in_every_way(metric: str, size: int) -> None:
    n_units = 7
    systems, gold = two_systems(metric, n_units * size)
    units = [f"u{k // size}" for k in range(len(gold))]
    counts, of_sums = unit_counts(systems, gold, metric=metric, units=units, sentences=units)
    assert counts.shape[:2] == (2, n_units)
    found = permutation_p_value(counts[0], counts[1], of_sums)
    assert found == pytest.approx(enumerated(systems, gold, units, units, metric))
    assert found == pytest.approx(permutation_p_value(counts[1], counts[0], of_sums))


def test_many_units_are_swapped_at_random() -> None:
    systems, gold = two_systems("accuracy", 400)
    counts, of_sums = unit_counts(systems, gold, metric="accuracy", units=[str(k) for k in range(400)])
    one, other = (np.array(row) == gold for row in systems)
    found = stats.permutation_test(
        (one, other),
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=999,
        rng=np.random.default_rng(5),
    )
    assert permutation_p_value(counts[0], counts[1], of_sums, n_permutations=999) == found.pvalue == 0.002
    assert permutation_p_value(counts[0], counts[0], of_sums, n_permutations=99) == 1.0
    right = permutation_p_value(counts[0], counts[1], of_sums, n_permutations=99, seed=3)
    assert right == permutation_p_value(counts[0], counts[1], of_sums, n_permutations=99, seed=3)


def test_a_correlation_without_a_value_has_no_p_value() -> None:
    gold = [str(value) for value in RNG.normal(size=20)]
    counts, of_sums = unit_counts([["1.0"] * 20, gold], gold, metric="pearson", units=[str(k) for k in range(20)])
    assert np.isnan(permutation_p_value(counts[0], counts[1], of_sums))
    assert np.isnan(bootstrap_p_value(0.1, np.full(9, np.nan)))


def test_ten_thousand_swaps_of_a_test_set_take_seconds() -> None:
    from time import perf_counter

    systems, gold = two_systems("pearson", 1379)
    counts, of_sums = unit_counts(systems, gold, metric="pearson", units=[str(k) for k in range(1379)])
    started = perf_counter()
    permutation_p_value(counts[0], counts[1], of_sums, n_permutations=2000)
    assert perf_counter() - started < 6  # 0.2 s on two idle cores


@pytest.mark.parametrize("lead", [0.0, 0.15, 0.3, 0.6])
def test_the_bootstrap_p_value_agrees_with_the_interval(lead: float) -> None:
    """At every level, the interval leaves 0 out where the p-value is below it, whatever form the differences have."""
    gaps = lead + 0.2 * (RNG.exponential(size=2000) - 1)
    p_value = bootstrap_p_value(lead, gaps)
    values, resampled = np.array([lead, 0.0]), np.stack([gaps, np.zeros(2000)])
    for level in (0.5, 0.2, 0.1, 0.05, 0.01):
        if abs(p_value - level) > 2 / 2000:
            gain = difference(values, resampled, 0, 1, n_units=9, confidence=1 - level)
            assert (gain.low > 0 or gain.high < 0) == (p_value < level)
    normal = bootstrap_p_value(lead, RNG.normal(lead, 0.2, size=2000))
    assert normal == pytest.approx(2 * stats.norm.sf(lead / 0.2), abs=0.03)


def test_the_bootstrap_is_scipys() -> None:
    systems, gold = two_systems("accuracy", 200)
    _, resampled = paired_scores(
        systems, gold, metric="accuracy", units=[str(k) for k in range(200)], resampling=Resampling(4000)
    )
    gaps = np.subtract(*[np.array(row) == gold for row in systems], dtype=float)
    found = stats.bootstrap((gaps,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(1))
    gain = difference(gaps.mean() * np.array([1, 0]), resampled, 0, 1, n_units=200)
    assert (gain.low, gain.high) == pytest.approx(tuple(found.confidence_interval), abs=0.015)
    assert np.std(resampled[0] - resampled[1]) == pytest.approx(found.standard_error, rel=0.05)


def test_holm_by_hand() -> None:
    """Four tests: 0.005 x 4, 0.01 x 3, 0.03 x 2, and 0.04, which is not below the one before it."""
    assert correct_p_values([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert correct_p_values([0.6, 0.7]).tolist() == [1.0, 1.0]
    assert correct_p_values([0.02]).tolist() == [0.02]
    assert correct_p_values([]).tolist() == []
    with_nan = correct_p_values([0.01, np.nan, 0.02])
    assert with_nan[[0, 2]].tolist() == [0.02, 0.02]
    assert np.isnan(with_nan[1])


def test_benjamini_hochberg_is_scipys() -> None:
    p_values = RNG.random(50) ** 2
    expected = stats.false_discovery_control(p_values, method="bh")
    assert np.array_equal(correct_p_values(p_values.tolist(), "bh"), expected)
    assert correct_p_values([0.01, np.nan, 0.04], "bh")[[0, 2]].tolist() == [0.02, 0.04]
    assert correct_p_values([0.3, 0.1], "none").tolist() == [0.3, 0.1]
    with pytest.raises(UnknownNameError, match="unknown correction 'bonferoni'"):
        correct_p_values([0.1], "bonferoni")


def test_the_error_of_few_seeds_is_that_of_student() -> None:
    values = np.array([0.70, 0.72, 0.74])
    low, high = np.quantile(values.mean() + seed_errors(values, 20_000), [0.025, 0.975])
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 2, loc=0.72, scale=0.02 / np.sqrt(3)), abs=0.004)
    assert not seed_errors(values[:1], 3).any()


def test_the_expected_maximum_is_that_of_every_draw() -> None:
    scores = [0.3, 0.9, 0.5, 0.5]
    found = expected_maximum(scores, [1, 2, 3])
    for column, n in enumerate((1, 2, 3)):
        best = [max(drawn) for drawn in product(scores, repeat=n)]
        assert found[0, column] == pytest.approx(np.mean(best))
        assert found[1, column] == pytest.approx(np.std(best))
    assert (np.diff(found[0]) > 0).all()
    assert (found[2] <= found[0]).all()
    assert (found[0] <= found[3] + 1e-9).all()
    assert expected_maximum([0.4], [1, 7]).tolist() == [[0.4, 0.4], [0, 0], [0.4, 0.4], [0.4, 0.4]]
