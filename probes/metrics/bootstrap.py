"""Intervals and spreads."""

import warnings
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import DegenerateDataWarning, bootstrap

from extract.errors import unknown_name
from probes.metrics.correlation import METRICS, pearson, spearman

FUNCTIONS = {"pearson": pearson, "spearman": spearman}


@dataclass(frozen=True)
class SeedSummary:
    """One metric over several seeds.

    Attributes:
        mean: Mean over seeds.
        std: Standard deviation over seeds (n - 1); 0 for one seed.
        low: Lower end of the interval.
        high: Upper end of the interval.
        confidence: Confidence level of the interval.
        values: One value per seed.
    """

    mean: float
    std: float
    low: float
    high: float
    confidence: float
    values: tuple[float, ...]

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self)


def summarise_seeds(
    predicted: Float[np.ndarray, "S N"],
    gold: Float[np.ndarray, " N"],
    *,
    metric: str,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> SeedSummary:
    """Mean and spread of a correlation over seeds, with a bootstrap interval over the pairs.

    Pairs are resampled, the same for every seed, and the mean over seeds is taken in each resample (percentile
    interval, `scipy.stats.bootstrap`): the interval speaks of the sampling of the pairs, `std` of the seeds.

    Args:
        predicted: `(S, N)` predictions of `S` seeds.
        gold: `(N,)` gold.
        metric: `pearson` or `spearman`.
        n_resamples: Bootstrap resamples.
        confidence: Confidence level, 0 to 1.
        seed: Seed of the resampling.

    Returns:
        The summary. With constant predictions every value is NaN.

    Raises:
        UnknownNameError: Another metric.
    """
    if metric not in FUNCTIONS:
        raise unknown_name("metric", metric, METRICS)
    function = FUNCTIONS[metric]
    values = tuple(float(function(row, gold)) for row in predicted)

    def statistic(*columns: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        *rows, target = (np.moveaxis(column, axis, -1) for column in columns)
        return np.asarray(np.mean([function(row, target) for row in rows], axis=0))

    low, high = float("nan"), float("nan")
    if np.isfinite(values).all():
        with warnings.catch_warnings():
            # A resample of few pairs can be constant; it has no correlation and is left out of the interval below.
            warnings.simplefilter("ignore", DegenerateDataWarning)
            resampled = bootstrap(
                (*predicted.astype(np.float64), gold.astype(np.float64)), statistic, paired=True, vectorized=True,
                n_resamples=n_resamples, batch=100, method="percentile", rng=np.random.default_rng(seed),
            ).bootstrap_distribution  # fmt: skip
        tail = (1 - confidence) / 2
        low, high = (float(end) for end in np.nanquantile(resampled, [tail, 1 - tail]))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return SeedSummary(float(np.mean(values)), spread, low, high, confidence, values)
