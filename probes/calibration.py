"""From a prediction, whose scale a correlation does not see, to a score in the units of the gold."""

from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import linregress


@dataclass(frozen=True)
class LinearCalibration:
    """`score = slope * prediction + intercept`, kept inside the score range.

    Attributes:
        slope: Gold units per unit of prediction.
        intercept: Gold units.
        low: Lowest score.
        high: Highest score.
    """

    slope: float
    intercept: float
    low: float
    high: float

    def __call__(self, predicted: NDArray[np.floating]) -> Float[np.ndarray, " N"]:
        """Turn `(N,)` predictions into scores."""
        return np.clip(self.slope * np.asarray(predicted, np.float64) + self.intercept, self.low, self.high)

    def to_dict(self) -> dict[str, float]:
        """Return plain values."""
        return asdict(self)


def fit_linear(
    predicted: Float[np.ndarray, " N"], gold: Float[np.ndarray, " N"], *, score_range: tuple[float, float]
) -> LinearCalibration:
    """Fit a calibration by least squares, on validation rows.

    Args:
        predicted: `(N,)` predictions.
        gold: `(N,)` gold in its own units.
        score_range: Lowest and highest score.

    Returns:
        The calibration; constant predictions give the mean gold.
    """
    low, high = score_range
    if np.ptp(predicted) == 0:
        return LinearCalibration(0.0, float(np.mean(gold)), low, high)
    line = linregress(np.asarray(predicted, np.float64), np.asarray(gold, np.float64))
    return LinearCalibration(float(line.slope), float(line.intercept), low, high)
