"""Significance: paired tests, corrections for many tests, variance over rows and seeds, and sets of the best systems.

Every test compares two systems on the same units (rows, groups, sentences or documents) through counts `(U, C)` of each
unit, of whose sums the metric is computed: a metric of a corpus is never averaged over rows.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, permutation_test

from extract.errors import TaskError, require_name

OfSums = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Computes a metric from sums `(..., C)` of counts."""
CORRECTIONS = {
    "holm": "no false finding among all tests, at the level (Holm 1979)",
    "bh": "no more than the level of the findings are false, on average (Benjamini and Hochberg 1995)",
    "none": "every test by itself",
}
FEW_UNITS = 30
"""With fewer rows (or sentences, groups ...) than this no difference is claimed: resamples of so few are too alike."""
ROUNDING = 1e-12
"""Largest difference of equal scores that are computed in another order."""
AT_ONCE = 500
"""Permutations in memory at once."""


def bootstrap_p_value(gap: float, gaps: Float[np.ndarray, " R"]) -> float:
    """Test whether a difference is 0, two-sided, by its paired resamples, those of the interval of `difference`.

    The p-value is the share of resampled differences, shifted to a mean of 0, that are as far from 0 as the difference.
    Where it is below 0.05 the interval of 95 % excludes 0, but not always the other way round, and it is never below
    `1 / (R + 1)`. Resamples without a value are left out; NaN where no resample has one.
    """
    gaps = gaps[np.isfinite(gaps)]
    if not (len(gaps) and np.isfinite(gap)):
        return float("nan")
    return float((1 + (np.abs(gaps - gap) >= abs(gap) - ROUNDING).sum()) / (1 + len(gaps)))


def permutation_p_value(
    one: Float[np.ndarray, "U C"],
    other: Float[np.ndarray, "U C"],
    of_sums: OfSums,
    *,
    n_permutations: int = 9999,
    seed: int = 0,
) -> float:
    """Test whether two systems can be exchanged, two-sided: predictions of whole units are swapped at random.

    The metric is computed again from the swapped counts of all units. With at most `n_permutations` ways to swap, all
    of them are tried and the test is exact (`scipy.stats.permutation_test`). NaN where the metric has no value. Systems
    are exchanged as they are: predictions of different scales have to be standardised, as `UnitScorer.count` does.
    """
    n_units, gap = len(one), np.asarray(other - one, np.float64)
    both = one.sum(0), other.sum(0)

    def lead(first: NDArray[np.int64], second: NDArray[np.int64], axis: int = -1) -> NDArray[np.float64]:
        del second, axis  # the other half of `first`
        moved = (first >= n_units).astype(np.float64) @ gap
        return np.asarray(of_sums(both[0] + moved) - of_sums(both[1] - moved))

    units = np.arange(n_units)
    if not np.isfinite(lead(units, units)):
        return float("nan")
    test = permutation_test(
        (units, units + n_units),
        lead,
        permutation_type="samples",
        vectorized=True,
        n_resamples=n_permutations,
        batch=AT_ONCE,
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)


def too_few(what: str, n_units: int) -> str:
    """Say why no difference is claimed.

    Example:
        >>> too_few("rows", 18)
        'too few rows (18, fewer than 30)'
    """
    return f"too few {what} ({n_units:,}, fewer than {FEW_UNITS})"


MOST_TESTS = 25
"""Tests for which the usual 1,000 resamples are enough."""
RESAMPLES_OF_A_TEST = 40
"""Of more tests each adds so many resamples, so that a corrected p-value may be as low as 1 / 40."""
MOST_RESAMPLES = 10_000


def resamples_for(n_tests: int, n_resamples: int) -> int:
    """Return how many resamples some tests need, as no p-value is below `1 / (R + 1)` before it is corrected.

    Example:
        >>> resamples_for(25, 1000), resamples_for(120, 1000)
        (1000, 4800)
    """
    if n_tests <= MOST_TESTS:
        return n_resamples
    return max(n_resamples, min(RESAMPLES_OF_A_TEST * n_tests, MOST_RESAMPLES))


def correct_p_values(p_values: Sequence[float], correction: str = "holm") -> Float[np.ndarray, " T"]:
    """Adjust the p-values of `T` tests for their number, in their order; NaN is no test and stays.

    Example:
        >>> correct_p_values([0.01, 0.04, 0.03]).round(3).tolist()
        [0.03, 0.06, 0.06]
    """
    require_name("correction", correction, CORRECTIONS)
    adjusted = np.array(p_values, np.float64)
    tests = np.flatnonzero(np.isfinite(adjusted))
    if correction == "bh" and len(tests):
        adjusted[tests] = false_discovery_control(adjusted[tests], method="bh")
    elif correction == "holm":
        order = tests[np.argsort(adjusted[tests], kind="stable")]
        adjusted[order] = np.maximum.accumulate(adjusted[order] * np.arange(len(order), 0, -1)).clip(max=1.0)
    return adjusted


def seed_errors(values: Sequence[float] | NDArray[np.floating], n_draws: int, *, seed: int = 0) -> NDArray[np.float64]:
    """Draw errors of a mean over seeds: Student's t times the standard error; 0 for fewer than two seeds."""
    if len(values) < 2:
        return np.zeros(n_draws)
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return np.asarray(error * np.random.default_rng(seed).standard_t(len(values) - 1, size=n_draws))


def expected_maximum(
    scores: Sequence[float] | NDArray[np.floating],
    n_draws: Sequence[int] | NDArray[np.integer],
    *,
    n_resamples: int = 1000,
) -> Float[np.ndarray, "4 D"]:
    """Return the expected best score of `n` settings drawn at random, its deviation, and its interval of 95 %.

    `sum_b v_(b) ((b / B)^n - ((b - 1) / B)^n)` over the `B` scores in rising order, for draws with replacement (Dodge
    et al. 2019, Show Your Work, equation 5).

    Example:
        >>> expected_maximum([0.0, 1.0], [1, 2, 3])[0].tolist()
        [0.5, 0.75, 0.875]
    """
    tried, numbers = np.sort(np.asarray(scores, np.float64)), np.asarray(n_draws)
    shares = np.arange(len(tried) + 1) / len(tried)
    weights = np.diff(shares[:, None] ** numbers, axis=0)  # probability of each rank to be the best of n
    mean = tried @ weights
    spread = np.sqrt(np.maximum(tried**2 @ weights - mean**2, 0))
    rng = np.random.default_rng(0)
    samples = np.sort(tried[rng.integers(0, len(tried), (n_resamples, len(tried)))], axis=1)
    return np.stack([mean, spread, *np.quantile(samples @ weights, [0.025, 0.975], axis=0)])


NEAR_ONE = 1 - 1e-12
MISSES = 0.6
"""Share of the allowed misses that the bootstrap is given. With all of them, a set of 95 % held the best in 92 to 95 %
of simulated samples of 100 rows: resamples vary less than samples, the more so the longer the tails."""
LEAST_ERROR = 0.5
"""Least error within a resample, as a share of the error on all rows: a resample may hold none of the few rows that two
systems differ on, and the error would be 0."""


def best_set(
    values: Float[np.ndarray, " L"],
    resampled: Float[np.ndarray, "L R"],
    errors: Float[np.ndarray, "R_1 L L"] | None = None,
    *,
    confidence: float = 0.95,
    is_correlation: bool = False,
) -> Int[np.ndarray, " B"]:
    """Find the systems that are statistically tied with the best: their positions, ascending, never none.

    System `k` stays in where the largest studentised lead of any other system over it is within its resamples:
    `max_j (v_j - v_k) / s_jk` against the quantile of `max_j ((v*_j - v*_k) - (v_j - v_k)) / s*_jk`
    (Hsu 1984, Multiple comparisons with the best; Hall 1988 for the studentised bootstrap). With `errors`, as
    `UnitScorer.lead_errors` gives them, `s*_jk` is estimated within each resample, which holds where the errors of
    systems have heavy tails or unlike forms; without, both are the standard deviation of the resampled difference.
    `MISSES` is calibrated for the confidence; docs/statistics.md has the measured one. Correlations are compared on
    Fisher's z.

    Example:
        >>> draws = np.random.default_rng(0).normal(size=(3, 500))
        >>> best_set(np.array([0.0, 9.0, 8.5]), draws).tolist()
        [1, 2]
    """
    is_scored = _is_scored(values, resampled)
    is_complete = np.isfinite(resampled[is_scored]).all(0)
    points, draws = values[is_scored], resampled[is_scored][:, is_complete]
    if is_correlation:
        points, draws = np.arctanh(points.clip(-NEAR_ONE, NEAR_ONE)), np.arctanh(draws.clip(-NEAR_ONE, NEAR_ONE))
    if errors is not None:
        errors = errors[np.r_[True, is_complete]][:, is_scored][:, :, is_scored]
    members = [
        k
        for k in range(len(points))
        if _may_be_best(k, points, draws, None if errors is None else errors[:, :, k].T, confidence)
    ]
    return np.flatnonzero(is_scored)[members]


def _may_be_best(
    k: int,
    points: Float[np.ndarray, " L"],
    draws: Float[np.ndarray, "L R"],
    errors: Float[np.ndarray, "L R_1"] | None,
    confidence: float,
) -> bool:
    leads, resampled = points - points[k], draws - draws[k]
    spread = resampled.std(axis=1, ddof=1)
    differs = spread > 1e-12  # systems at a constant distance are distinguished by any lead
    if (leads[~differs] > 1e-12).any():
        return False
    if not differs.any():
        return True
    error, resampled_error = spread[differs], spread[differs, None]
    if errors is not None:
        error = np.maximum(errors[differs, 0], 1e-12)
        resampled_error = np.maximum(errors[differs, 1:], LEAST_ERROR * error[:, None])
    largest = ((resampled[differs] - leads[differs, None]) / resampled_error).max(axis=0)
    return float((leads[differs] / error).max()) <= float(np.quantile(largest, 1 - MISSES * (1 - confidence)))


def joint_intervals(
    values: Float[np.ndarray, " L"],
    resampled: Float[np.ndarray, "L R"],
    *,
    confidence: float = 0.95,
    highest: float = np.inf,
    is_correlation: bool = False,
) -> tuple[Float[np.ndarray, " L"], Float[np.ndarray, " L"]]:
    """Return lower and upper ends that hold the scores of all systems at once, at the confidence.

    The ends are `v_k - c s_k` and `v_k + c s_k`, with `s_k` the standard deviation over resamples and `c` the quantile
    of `max_k |v*_k - v_k| / s_k`, no higher than `highest`; NaN for a system without a score. Correlations are
    skewed, so for them all this is done on Fisher's z. All else is as in `best_set`.
    """
    is_scored = _is_scored(values, resampled)
    points, draws = values[is_scored], resampled[is_scored][:, np.isfinite(resampled[is_scored]).all(0)]
    if is_correlation:
        points, draws = np.arctanh(points.clip(-NEAR_ONE, NEAR_ONE)), np.arctanh(draws.clip(-NEAR_ONE, NEAR_ONE))
    spread = draws.std(axis=1, ddof=1)
    scale = np.where(spread > 1e-12, spread, np.inf)
    factor = float(np.quantile((np.abs(draws - points[:, None]) / scale[:, None]).max(axis=0), confidence))
    low, high = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    back = np.tanh if is_correlation else np.asarray
    low[is_scored], high[is_scored] = (
        back(points - factor * spread),
        np.minimum(back(points + factor * spread), highest),
    )
    return low, high


def _is_scored(values: Float[np.ndarray, " L"], resampled: Float[np.ndarray, "L R"]) -> Bool[np.ndarray, " L"]:
    """Mark the systems with a score on all rows and on more than half of the resamples."""
    is_scored: Bool[np.ndarray, " L"] = np.isfinite(values) & (np.isfinite(resampled).mean(axis=1) > 0.5)
    if not is_scored.any():
        raise TaskError("no system has a score that can be resampled; check the predictions for constants.")
    if np.isfinite(resampled[is_scored]).all(0).sum() < 2:
        raise TaskError("no resample has a score of every system; compare on more rows, or leave constant systems out.")
    return is_scored


def normalised_ranks(values: Float[np.ndarray, "M T"]) -> Float[np.ndarray, "M T"]:
    """Rank `M` systems on each of `T` tasks by how far they are from the best: (M - 1) (max - v) / (max - min).

    The best system of a task has 0 and the worst M - 1, as with ranks, but ties stay ties and a close second is close
    (BidirLM, appendix D.3). The mean over tasks compares systems across metrics. NaN where all systems of a task are
    equal, or one has no value.

    Example:
        >>> normalised_ranks(np.array([[4.0, 60.0], [3.0, 70.0], [0.0, 50.0]])).tolist()
        [[0.0, 1.0], [0.5, 0.0], [2.0, 2.0]]
    """
    best, worst = values.max(axis=0), values.min(axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray((len(values) - 1) * (best - values) / np.where(best > worst, best - worst, np.nan))


def centre_of_gravity(values: Float[np.ndarray, "*S L"], depths: Float[np.ndarray, " L"]) -> Float[np.ndarray, "*S"]:
    """Return the mean of the depths of layers, bottom up, each weighted by its gain over the layers below.

    This is the expected layer of Tenney et al. (2019): sum of l * delta_l over the sum of delta_l. Where each layer is
    scored alone, delta_l is the gain of the best score up to l over the best below l, so that it is never negative; the
    lowest layer has none, and a layer without a score, or with none below it, gains nothing. NaN where no layer gains.

    Example:
        >>> float(centre_of_gravity(np.array([0.0, 0.5, 0.25, 1.0]), np.array([0.0, 1.0, 2.0, 3.0])))
        2.0
    """
    gains = np.diff(np.fmax.accumulate(values, axis=-1), axis=-1)
    total = np.nansum(gains, axis=-1)
    return np.asarray(np.nansum(gains * depths[1:], axis=-1) / np.where(total > 0, total, np.nan))
