"""Which of several systems is the best: the set that holds it, and intervals that hold all of them at once."""

import numpy as np
from jaxtyping import Bool, Float, Int

from extract.errors import TaskError

NEAR_ONE = 1 - 1e-12
MISSES = 0.6
"""Share of the misses that a set of 95 % may have which the bootstrap is asked for. With all of them, the set held the
best in 92 to 95 % of simulated samples of 100 rows: resamples vary less than samples, more so the longer the tails."""
LEAST_ERROR = 0.5
"""Share of the error on all rows that the error within a resample has at least: one that drew none of the few rows
that two systems differ on would divide by nothing."""


def best_set(
    values: Float[np.ndarray, " L"],
    resampled: Float[np.ndarray, "L R"],
    errors: Float[np.ndarray, "R_1 L L"] | None = None,
    *,
    confidence: float = 0.95,
    is_correlation: bool = False,
) -> Int[np.ndarray, " B"]:
    """Find the systems that are statistically tied with the best.

    System `k` stays in where the largest studentised lead over it, of any other, is no larger than what resampling
    makes of it: `max_j (v_j - v_k) / s_jk` against the quantile of `max_j ((v*_j - v*_k) - (v_j - v_k)) / s*_jk`
    (Hsu 1984, Multiple comparisons with the best; Hall 1988 for the studentised bootstrap). With `errors`, `s*_jk` is
    estimated within each resample, which holds where the errors of systems have heavy tails or unlike forms; without,
    `s_jk` and `s*_jk` are both the standard deviation of the resampled difference.

    Args:
        values: The score of each system, higher is better; NaN for one that has none, which is never in the set.
        resampled: Their scores on the same `R` resamples.
        errors: Standard errors of every lead, as `UnitScorer.lead_errors` gives them.
        confidence: How often the set is to hold the best, which `MISSES` is calibrated for; docs/statistics.md has how
            often it does.
        is_correlation: Whether scores are correlations, which are compared on Fisher's z.

    Returns:
        Positions, ascending; never empty.

    Raises:
        TaskError: No system has a score.

    Example:
        >>> draws = np.random.default_rng(0).normal(size=(3, 500))
        >>> best_set(np.array([0.0, 9.0, 8.5]), draws).tolist()
        [1, 2]
    """
    known = _known(values, resampled)
    is_drawn = np.isfinite(resampled[known]).all(0)
    points, draws = values[known], resampled[known][:, is_drawn]
    if is_correlation:
        points, draws = np.arctanh(points.clip(-NEAR_ONE, NEAR_ONE)), np.arctanh(draws.clip(-NEAR_ONE, NEAR_ONE))
    if errors is not None:
        errors = errors[np.r_[True, is_drawn]][:, known][:, :, known]
    members = [
        k
        for k in range(len(points))
        if _may_be_best(k, points, draws, None if errors is None else errors[:, :, k].T, confidence)
    ]
    return np.flatnonzero(known)[members]


def _may_be_best(
    k: int,
    points: Float[np.ndarray, " L"],
    draws: Float[np.ndarray, "L R"],
    errors: Float[np.ndarray, "L R_1"] | None,
    confidence: float,
) -> bool:
    leads, resampled = points - points[k], draws - draws[k]
    spread = resampled.std(axis=1, ddof=1)
    differs = spread > 1e-12  # what always has the same distance is distinguished by any lead
    if (leads[~differs] > 1e-12).any():
        return False
    if not differs.any():
        return True
    error, drawn_error = spread[differs], spread[differs, None]
    if errors is not None:
        error = np.maximum(errors[differs, 0], 1e-12)
        drawn_error = np.maximum(errors[differs, 1:], LEAST_ERROR * error[:, None])
    largest = ((resampled[differs] - leads[differs, None]) / drawn_error).max(axis=0)
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
    known = _known(values, resampled)
    points, draws = values[known], resampled[known][:, np.isfinite(resampled[known]).all(0)]
    if is_correlation:
        points, draws = np.arctanh(points.clip(-NEAR_ONE, NEAR_ONE)), np.arctanh(draws.clip(-NEAR_ONE, NEAR_ONE))
    spread = draws.std(axis=1, ddof=1)
    scale = np.where(spread > 1e-12, spread, np.inf)
    factor = float(np.quantile((np.abs(draws - points[:, None]) / scale[:, None]).max(axis=0), confidence))
    low, high = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    back = np.tanh if is_correlation else np.asarray
    low[known], high[known] = back(points - factor * spread), np.minimum(back(points + factor * spread), highest)
    return low, high


def _known(values: Float[np.ndarray, " L"], resampled: Float[np.ndarray, "L R"]) -> Bool[np.ndarray, " L"]:
    """Mark what has a score on all rows and on nearly all resamples."""
    known: Bool[np.ndarray, " L"] = np.isfinite(values) & (np.isfinite(resampled).mean(axis=1) > 0.5)
    if not known.any():
        raise TaskError("no system has a score that can be resampled; check the predictions for constants.")
    return known
