"""The bootstrap: intervals by resampling rows, groups, sentences or documents; equal seeds give paired resamples."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from extract.errors import TaskError

Score = Callable[[Int[np.ndarray, "R U"]], Float[np.ndarray, "S R"]]
"""Scores `S` seeds on `R` resamples, given the units drawn."""
BATCH = 100
"""Resamples in memory at once."""


@dataclass(frozen=True)
class Resampling:
    """How the bootstrap draws. Equal seeds draw the same units, so differences between two systems are paired."""

    n_resamples: int = 1000
    confidence: float = 0.95
    seed: int = 0


DEFAULT = Resampling()


@dataclass(frozen=True)
class SeedSummary:
    """One metric over several seeds."""

    mean: float
    std: float
    """Standard deviation over seeds (n - 1); 0 for one seed."""
    low: float
    high: float
    confidence: float
    """Confidence level of the interval from `low` to `high`."""
    values: tuple[float, ...]
    """One per seed."""

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self)


def summarise(
    values: Float[np.ndarray, " S"],
    score: Score,
    *,
    n_units: int,
    resampling: Resampling = DEFAULT,
    is_centred: bool = False,
) -> SeedSummary:
    """Mean and spread of a metric over seeds, with a bootstrap interval over `n_units` units.

    Units are drawn with replacement, the same for every seed, and the mean over seeds is taken in each resample
    (percentile interval): the interval reflects the sampling of the units, `std` that of the seeds. The interval is NaN
    for fewer than two units, or where a value is NaN; a resample without a value (constant predictions have no
    correlation) is left out. Where units that are drawn twice lift a metric, `is_centred` moves the resamples so that
    their mean is the metric's own value.
    """
    low = high = float("nan")
    if n_units > 1 and np.isfinite(values).all():
        tail = (1 - resampling.confidence) / 2
        means = resample(score, n_units=n_units, resampling=resampling).mean(axis=0)
        if is_centred:
            means = means - np.nanmean(means) + values.mean()
        low, high = (float(end) for end in np.nanquantile(means, [tail, 1 - tail]))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    plain = tuple(float(value) for value in values)
    return SeedSummary(float(np.mean(values)), spread, low, high, resampling.confidence, plain)


def resample(score: Score, *, n_units: int, resampling: Resampling = DEFAULT) -> Float[np.ndarray, "S R"]:
    """Score every seed, or every system to compare, on the same resamples; differences between rows are paired."""
    rng = np.random.default_rng(resampling.seed)
    starts = range(0, resampling.n_resamples, BATCH)
    sizes = [min(BATCH, resampling.n_resamples - start) for start in starts]
    return np.concatenate([score(rng.integers(0, n_units, (size, n_units))) for size in sizes], axis=1)


def summarise_counts(
    counts: NDArray[np.number],
    compute: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    resampling: Resampling = DEFAULT,
) -> SeedSummary:
    """Summarise a metric that needs only sums of the counts of each seed and unit, which is fast."""
    values = np.asarray(compute(counts.sum(axis=1).astype(np.float64)))
    return summarise(values, score_counts(counts, compute), n_units=counts.shape[1], resampling=resampling)


def score_counts(counts: NDArray[np.number], compute: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Score:
    """Turn a metric of sums of counts into a score of resamples."""
    counts, n_units = counts.astype(np.float64), counts.shape[1]

    def score(drawn: Int[np.ndarray, "R U"]) -> Float[np.ndarray, "S R"]:
        cells = drawn + n_units * np.arange(len(drawn))[:, None]
        times = np.bincount(cells.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)
        sums = np.einsum("ru,suc->src", times, counts, optimize=True)  # exact: whole numbers
        return np.asarray(compute(np.ascontiguousarray(sums)))

    return score


def number_units(groups: Sequence[str] | None, n_rows: int, *, is_sorted: bool = False) -> Int[np.ndarray, " N"]:
    """Number the unit of each row from 0: its group, or the row itself where there are no groups.

    Units are numbered by name if `is_sorted`, else by first appearance; the draws depend on it.
    """
    if groups is None:
        return np.arange(n_rows)
    if len(groups) != n_rows:
        raise TaskError(f"{len(groups)} group names for {n_rows} rows: give one name per row.")
    names = sorted(set(groups)) if is_sorted else dict.fromkeys(groups)
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[group] for group in groups], dtype=np.int64)
