"""Correlations over a whole corpus, and calibrations from predictions to the units of the gold."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from extract.errors import unknown_name
from extract.records import Values


def pearson(predicted: NDArray[np.floating], gold: NDArray[np.floating]) -> Float[np.ndarray, "*S"]:
    """Pearson correlation along the last axis, one corpus per leading index; NaN where either side is constant."""
    a, b = _centre(predicted), _centre(gold)
    # divided one after the other, because the product of two tiny norms would underflow
    with np.errstate(invalid="ignore", divide="ignore"):
        a = a / np.sqrt((a * a).sum(-1, keepdims=True))
        b = b / np.sqrt((b * b).sum(-1, keepdims=True))
    return np.asarray((a * b).sum(-1).clip(-1.0, 1.0))


def _centre(values: NDArray[np.floating]) -> NDArray[np.float64]:
    wide = np.asarray(values, np.float64)
    centred: NDArray[np.float64] = wide - wide.mean(-1, keepdims=True)
    # rounding in the mean must not make a constant vary
    return np.where(np.ptp(wide, axis=-1, keepdims=True) == 0, 0.0, centred)


def spearman(predicted: NDArray[np.floating], gold: NDArray[np.floating]) -> Float[np.ndarray, "*S"]:
    """Spearman rank correlation along the last axis, ties sharing their mean rank; shapes and NaN as in `pearson`."""
    from scipy.stats import rankdata  # half a second, which reading a finished run saves

    return pearson(rankdata(predicted, axis=-1), rankdata(gold, axis=-1))


def correlations(predicted: NDArray[np.floating], gold: NDArray[np.floating]) -> dict[str, float]:
    """Pearson and Spearman of one corpus, as plain values."""
    return {name: float(correlate(predicted, gold)) for name, correlate in CORRELATIONS.items()}


CORRELATIONS: dict[str, Callable[[NDArray[np.floating], NDArray[np.floating]], NDArray[np.floating]]] = {
    "pearson": pearson,
    "spearman": spearman,
}


CALIBRATIONS = {
    "linear": "a straight line by least squares, kept inside the score range",
    "isotonic": "the best curve that never falls (needs a few hundred validation rows)",
}
ANCHOR_WEIGHT = 1e6  # rows that the anchor counts for: the isotonic curve goes through it


@dataclass(frozen=True)
class LinearCalibration:
    """`score = slope * prediction + intercept`, kept inside the score range from `low` to `high`."""

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


@dataclass(frozen=True)
class IsotonicCalibration:
    """A curve that never falls, straight between its knots (rising predictions) and level outside them."""

    predictions: tuple[float, ...]
    scores: tuple[float, ...]

    def __call__(self, predicted: NDArray[np.floating]) -> Float[np.ndarray, " N"]:
        """Turn `(N,)` predictions into scores."""
        return np.interp(np.asarray(predicted, np.float64), self.predictions, self.scores)

    def to_dict(self) -> dict[str, list[float]]:
        """Return plain values."""
        return {"predictions": list(self.predictions), "scores": list(self.scores)}


Calibration = LinearCalibration | IsotonicCalibration


def fit_calibration(
    kind: str,
    predicted: Float[np.ndarray, " N"],
    gold: Float[np.ndarray, " N"],
    *,
    score_range: tuple[float, float],
    identical: float | None = None,
) -> Calibration:
    """Fit a calibration from `CALIBRATIONS` on validation rows; constant predictions give the mean gold.

    Predictions have any scale; the gold is in its own units, within the score range. `identical` is the prediction for
    a text paired with itself, which then gets the highest score.
    """
    if kind not in CALIBRATIONS:
        raise unknown_name("calibration", kind, CALIBRATIONS)
    fit: Callable[..., Calibration] = fit_linear if kind == "linear" else fit_isotonic
    return fit(predicted, gold, score_range=score_range, identical=identical)


def fit_linear(
    predicted: Float[np.ndarray, " N"],
    gold: Float[np.ndarray, " N"],
    *,
    score_range: tuple[float, float],
    identical: float | None = None,
) -> LinearCalibration:
    """Fit a straight line by least squares, through the anchor (`identical`, highest score) where there is one.

    Predictions at or above the anchor get the highest score whatever the slope, so an anchored line is fitted on the
    rows below it alone; it never falls there, because no gold is above the highest score.
    """
    low, high = score_range
    x, y = np.asarray(predicted, np.float64), np.asarray(gold, np.float64)
    if np.ptp(x) == 0:
        return LinearCalibration(0.0, float(np.mean(y)), low, high)
    if identical is not None:
        reach, drop = (x - identical)[x < identical], (y - high)[x < identical]
        slope = float(np.dot(reach, drop) / np.dot(reach, reach)) if len(reach) else 0.0
        return LinearCalibration(slope, high - slope * identical, low, high)
    from scipy.stats import linregress

    line = linregress(x, y)
    return LinearCalibration(float(line.slope), float(line.intercept), low, high)


def fit_isotonic(
    predicted: Float[np.ndarray, " N"],
    gold: Float[np.ndarray, " N"],
    *,
    score_range: tuple[float, float],
    identical: float | None = None,
) -> IsotonicCalibration:
    """Fit the curve that never falls with the least squared error, through the anchor where there is one."""
    from sklearn.isotonic import IsotonicRegression  # slow to import

    low, high = score_range
    x, y = np.asarray(predicted, np.float64), np.asarray(gold, np.float64)
    weight = np.ones(len(x))
    if identical is not None:
        x, y, weight = np.append(x, identical), np.append(y, high), np.append(weight, ANCHOR_WEIGHT)
    curve = IsotonicRegression(y_min=low, y_max=high, out_of_bounds="clip").fit(x, y, sample_weight=weight)
    return IsotonicCalibration(tuple(curve.X_thresholds_.tolist()), tuple(curve.y_thresholds_.tolist()))


def read_calibration(values: Values) -> Calibration:
    """Read a calibration from its plain values."""
    if "slope" in values:
        return LinearCalibration(**values)
    return IsotonicCalibration(tuple(values["predictions"]), tuple(values["scores"]))
