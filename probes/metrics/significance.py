"""Whether a difference can be told from chance: paired tests, corrections for many of them, and what chance is made of.

Every test compares two systems on the same units (rows, groups, sentences or documents) through counts `(U, C)` of each
unit, of whose sums the metric is computed: a metric of a corpus is never averaged over rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, permutation_test

from extract.errors import unknown_name

OfSums = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Computes a metric from sums `(..., C)` of counts."""
CORRECTIONS = {
    "holm": "no false finding among all tests, at the level (Holm 1979)",
    "bh": "no more than the level of the findings are false, on average (Benjamini and Hochberg 1995)",
    "none": "every test by itself",
}
ROUNDING = 1e-12
"""Differences of scores that are equal, computed in another order."""
AT_ONCE = 500
"""Permutations in memory at once."""


def bootstrap_p_value(gap: float, gaps: Float[np.ndarray, " R"]) -> float:
    """Test whether a difference is 0, two-sided, by its paired resamples; what `difference` takes its interval from.

    It is the share of resamples that, shifted by the difference found to have none, are as far from 0 as it is. So it
    is below 0.05 where the interval of 95 % leaves 0 out. Never below `1 / (R + 1)`; resamples without a value are left
    out, and NaN where none has one.
    """
    known = gaps[np.isfinite(gaps)]
    if not (len(known) and np.isfinite(gap)):
        return float("nan")
    return float((1 + (np.abs(known - gap) >= abs(gap) - ROUNDING).sum()) / (1 + len(known)))


def permutation_p_value(
    one: Float[np.ndarray, "U C"],
    other: Float[np.ndarray, "U C"],
    of_sums: OfSums,
    *,
    n_permutations: int = 9999,
    seed: int = 0,
) -> float:
    """Test whether two systems can be exchanged, two-sided: predictions of whole units are swapped at random.

    The metric is computed again from the swapped predictions of all units. With at most `n_permutations` ways to swap,
    all of them are tried and the test is exact (`scipy.stats.permutation_test`). NaN where the metric has no value.

    Args:
        one: Counts of one system, in every unit. Systems are exchanged as they are: predictions of different scales
            have to be standardised first, as `UnitScorer.count` does.
        other: Those of the other.
        of_sums: The metric.
        n_permutations: How many swaps to try.
        seed: Seed of the swaps.
    """
    n_units, gap = len(one), np.asarray(other - one, np.float64)
    both = one.sum(0), other.sum(0)

    def lead(first: NDArray[np.int64], second: NDArray[np.int64], axis: int = -1) -> NDArray[np.float64]:
        del second, axis  # what is not first
        moved = (first >= n_units).astype(np.float64) @ gap
        return np.asarray(of_sums(both[0] + moved) - of_sums(both[1] - moved))

    places = np.arange(n_units)
    if not np.isfinite(lead(places, places)):
        return float("nan")
    found = permutation_test(
        (places, places + n_units),
        lead,
        permutation_type="samples",
        vectorized=True,
        n_resamples=n_permutations,
        batch=AT_ONCE,
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue)


def correct_p_values(p_values: Sequence[float], correction: str = "holm") -> Float[np.ndarray, " T"]:
    """Adjust the p-values of `T` tests for their number, in their order; NaN is no test and stays.

    Raises:
        UnknownNameError: A correction that is not in `CORRECTIONS`.

    Example:
        >>> correct_p_values([0.01, 0.04, 0.03]).round(3).tolist()
        [0.03, 0.06, 0.06]
    """
    if correction not in CORRECTIONS:
        raise unknown_name("correction", correction, CORRECTIONS)
    adjusted = np.array(p_values, np.float64)
    known = np.flatnonzero(np.isfinite(adjusted))
    if correction == "bh" and len(known):
        adjusted[known] = false_discovery_control(adjusted[known], method="bh")
    elif correction == "holm":
        order = known[np.argsort(adjusted[known], kind="stable")]
        adjusted[order] = np.maximum.accumulate(adjusted[order] * np.arange(len(order), 0, -1)).clip(max=1.0)
    return adjusted


@dataclass(frozen=True)
class VarianceComponents:
    """What a score would vary by, as standard deviations, if a head were fitted and tested again.

    Attributes:
        seeds: From seed to seed, on the same rows; NaN for one seed.
        rows: From one sample of rows to another, with the same seeds.
        both: What a seed does on some rows and not on others.
        total: All three, for one fit on one sample of rows.
        low: Lower end of the interval of the mean over seeds that reflects rows and seeds.
        high: Its upper end.
    """

    seeds: float
    rows: float
    both: float
    total: float
    low: float
    high: float


def variance_components(
    values: Float[np.ndarray, " S"], resampled: Float[np.ndarray, "S R"], *, confidence: float = 0.95, seed: int = 0
) -> VarianceComponents:
    """Tell the variance of rows from that of seeds, given the scores of `S` seeds on all rows and on `R` resamples.

    A score is taken for the sum of an effect of the seed, one of the rows and one of both (two-way analysis of
    variance, with resamples for samples of rows). The interval is that of the resampled means plus, in each resample,
    a draw from Student's t with `S - 1` degrees of freedom times the standard error over seeds: for few seeds it is
    wider than resampling the seeds would make it. One seed tells nothing of others: the interval is then that of the
    rows.
    """
    n_seeds, means = len(values), resampled.mean(axis=0)
    tail, draws = (1 - confidence) / 2, means
    of_rows, of_both, of_seeds = float(means.var(ddof=1)), 0.0, float("nan")
    if n_seeds > 1:
        left = resampled - means - resampled.mean(axis=1, keepdims=True) + means.mean()
        of_both = float((left**2).sum() / ((n_seeds - 1) * (len(means) - 1)))
        over_seeds = float(values.var(ddof=1))
        of_seeds, of_rows = max(0.0, over_seeds - of_both), max(0.0, of_rows - of_both / n_seeds)
        draws = means + seed_errors(values, len(means), seed=seed)
    low, high = np.quantile(draws, [tail, 1 - tail])
    total = of_rows + of_both + (of_seeds if n_seeds > 1 else 0.0)
    seeds, rows, both, whole = (float(np.sqrt(part)) for part in (of_seeds, of_rows, of_both, total))
    return VarianceComponents(seeds, rows, both, whole, float(low), float(high))


def seed_errors(values: Sequence[float] | NDArray[np.floating], n_draws: int, *, seed: int = 0) -> NDArray[np.float64]:
    """Draw what seeds add to a mean of scores: Student's t times the standard error; 0 for fewer than two seeds."""
    if len(values) < 2:
        return np.zeros(n_draws)
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return np.asarray(error * np.random.default_rng(seed).standard_t(len(values) - 1, size=n_draws))


def expected_maximum(
    scores: Sequence[float] | NDArray[np.floating],
    n_draws: Sequence[int] | NDArray[np.integer],
    *,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Float[np.ndarray, "4 D"]:
    """Expect the best score of `n` settings drawn at random, given those of all settings that were tried.

    `sum_b v_(b) ((b / B)^n - ((b - 1) / B)^n)` over the `B` scores in rising order, for draws with replacement (Dodge
    et al. 2019, Show Your Work, equation 5).

    Returns:
        For every number of draws: the expectation, the standard deviation of the best score, and the ends of the
        interval of the expectation, from resampling the settings.

    Example:
        >>> expected_maximum([0.0, 1.0], [1, 2, 3])[0].tolist()
        [0.5, 0.75, 0.875]
    """
    tried, numbers = np.sort(np.asarray(scores, np.float64)), np.asarray(n_draws)
    shares = np.arange(len(tried) + 1) / len(tried)
    weights = np.diff(shares[:, None] ** numbers, axis=0)  # how often each rank is the best of n
    mean = tried @ weights
    spread = np.sqrt(np.maximum(tried**2 @ weights - mean**2, 0))
    rng, tail = np.random.default_rng(seed), (1 - confidence) / 2
    drawn = np.sort(tried[rng.integers(0, len(tried), (n_resamples, len(tried)))], axis=1)
    return np.stack([mean, spread, *np.quantile(drawn @ weights, [tail, 1 - tail], axis=0)])
