"""The figure of where a head's predicted numbers are wrong."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import probplot

from probes.heads.pairs.residuals import Residuals
from probes.report.style import BLUE, GREY, ORANGE, panels


def draw_residuals(figure: Figure, found: Residuals) -> None:
    """Draw residuals in six panels: histogram, Q-Q, calibration, against gold, length and lexical overlap."""
    histogram, quantiles, calibration, *against = panels(figure, 2, 3)
    values = found.values
    histogram.hist(values, bins=40, color=BLUE)
    _label(histogram, "predicted - gold", f"rows (of {len(values):,})")
    (theoretical, ordered), (slope, intercept, _) = probplot(values)
    quantiles.plot(theoretical, ordered, ".", color=BLUE, markersize=3)
    quantiles.plot(theoretical, slope * theoretical + intercept, color=ORANGE)
    _label(quantiles, "normal quantile", "residual quantile")
    predicted, gold = found.calibration_curve()
    ends = [min(predicted.min(), gold.min()), max(predicted.max(), gold.max())]
    calibration.plot(ends, ends, color=GREY, linewidth=0.8)
    calibration.plot(predicted, gold, marker=".", color=BLUE)
    _label(calibration, "mean prediction, tenths of the rows", "mean gold")
    sides = (("gold", found.gold), ("words in both texts", found.n_words), ("lexical overlap", found.overlap))
    for axes, (label, side) in zip(against, sides, strict=True):
        axes.plot(side, values, ".", color=BLUE, markersize=2, alpha=0.5)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.plot(*_running_mean(side, values), color=ORANGE, label="mean")
        _label(axes, label, "predicted - gold")
    against[0].legend(fontsize=8, frameon=False)


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _running_mean(
    side: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    groups = [group for group in np.array_split(np.argsort(side, kind="stable"), 12) if len(group)]
    return np.array([side[group].mean() for group in groups]), np.array([values[group].mean() for group in groups])
