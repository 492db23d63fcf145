"""Figures of single rows: their scores, what is taken for what, and where predicted numbers are wrong."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import probplot

from probes.heads.pairs.residuals import Residuals
from probes.metrics.spans import NO_PREDICTION
from probes.report.figures import style

MOST_NAMED = 25
"""Most classes or tags whose names and counts are written in a confusion matrix."""
MOST_LETTERS = 22
"""Of such a name."""
FEWEST_ROWS = 10
"""Averaged in a group."""


def draw_row_scores(figure: Figure, scores: NDArray[np.float64]) -> None:
    """Draw the share of rows that score at most so much; rows without a score are left out."""
    known = np.sort(scores[np.isfinite(scores)])
    axes = style.panel(figure)
    axes.step(known, 100 * np.arange(1, len(known) + 1) / len(known), where="post", color=style.BLUE)
    axes.axvline(known.mean(), color=style.ORANGE, linewidth=1)
    style.write_above(axes, f"mean {known.mean():.2f}", known.mean(), colour=style.ORANGE)
    axes.set_xlabel("score of a row, higher is better")
    axes.set_ylabel("% of rows that score at most this")
    axes.set_ylim(0, 102)


def rows_note(scores: NDArray[np.float64]) -> str:
    """Count the rows with and without a score."""
    missing = int(np.isnan(scores).sum())
    return f"{len(scores) - missing:,} rows" + f", {missing:,} more without a score" * (missing > 0)


def draw_confusion(figure: Figure, counts: NDArray[np.int64], names: Sequence[str]) -> None:
    """Draw the confusion of classes or tags, rows gold: counts, the darker the larger their share of the gold name."""
    columns = (*names, "none")[: counts.shape[1]]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes = style.panel(figure)
    axes.grid(visible=False)
    image = axes.imshow(shares, cmap=style.SHADES, vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the gold name", shrink=0.7, aspect=25)
    style.count_in_whole_numbers(axes, "xy")
    if len(names) <= MOST_NAMED:
        short = [name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…" for name in columns]
        axes.set_xticks(range(len(columns)), short, rotation=60, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(names)), short[: len(names)])
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if shares[row, column] > 0.6 else style.INK if count else style.PALE
            size = min(style.SMALL, 110 / len(columns))
            axes.text(column, row, f"{count:,}", ha="center", va="center", fontsize=size, color=colour)
    axes.set_xlabel("predicted")
    axes.set_ylabel("gold")


def confusion(names: Sequence[str], gold: Sequence[str], predicted: NDArray[np.integer]) -> NDArray[np.int64]:
    """Count gold names (rows) and predicted ones (columns; the last is no prediction, where some are missing)."""
    places = {name: place for place, name in enumerate(names)}
    counts = np.zeros((len(names), len(names) + 1), dtype=np.int64)
    rows = np.array([places[name] for name in gold])
    np.add.at(counts, (rows, np.asarray(predicted, np.int64)), 1)  # NO_PREDICTION is -1, the last column
    return counts if (predicted == NO_PREDICTION).any() else counts[:, :-1]


def draw_residuals(figure: Figure, found: Residuals) -> None:
    """Draw residuals in six panels: histogram, Q-Q, calibration, against gold, length and lexical overlap.

    Bins, groups and the size of dots follow from the number of rows; whiskers and bands are 95 % intervals of means.
    """
    histogram, quantiles, calibration, *against = style.panels(figure, 2, 3)
    values, n_groups = found.values, max(2, min(12, len(found.values) // FEWEST_ROWS))
    histogram.hist(values, bins=min(60, len(np.histogram_bin_edges(values, "auto")) - 1), color=style.BLUE)
    _label(histogram, "predicted - gold", "rows")
    style.count_in_whole_numbers(histogram, "y")
    dots: dict[str, Any] = {
        "color": style.BLUE, "linestyle": "", "marker": ".", "alpha": 0.5, "markersize": 4 if len(values) < 200 else 2,
        "rasterized": len(values) > 2000,
    }  # fmt: skip
    (theoretical, ordered), (slope, intercept, _) = probplot(values)
    quantiles.plot(theoretical, ordered, **dots)
    quantiles.plot(theoretical, slope * theoretical + intercept, color=style.ORANGE)
    _label(quantiles, "normal quantile", "residual quantile")
    ends = [min(found.predicted.min(), found.gold.min()), max(found.predicted.max(), found.gold.max())]
    calibration.plot(ends, ends, color=style.GREY, linewidth=0.8)
    x, y, sizes = group_means(found.predicted, found.gold, n_groups)
    calibration.errorbar(x, y, sizes, fmt=".-", color=style.BLUE)
    _label(calibration, f"predicted, mean of {n_groups} groups", "mean gold")
    sides = (("gold", found.gold), ("words in both texts", found.n_words), ("lexical overlap", found.overlap))
    for axes, (label, side) in zip(against, sides, strict=True):
        axes.sharey(against[0])
        axes.plot(side, values, **dots)
        axes.axhline(0, color=style.GREY, linewidth=0.8)
        middles, means, sizes = group_means(side, values, n_groups)
        axes.fill_between(middles, means - sizes, means + sizes, color=style.ORANGE, alpha=0.3, linewidth=0)
        axes.plot(middles, means, color=style.ORANGE)
        _label(axes, label, "predicted - gold" if axes is against[0] else "")


def group_means(x: NDArray[np.float64], y: NDArray[np.float64], n_groups: int) -> tuple[NDArray[np.float64], ...]:
    """Return the means of `x` and `y` in groups of equal size along `x`, and half the 95 % interval of those of `y`."""
    groups = [group for group in np.array_split(np.argsort(x, kind="stable"), n_groups) if len(group)]
    means = [(x[group].mean(), y[group].mean(), 1.96 * y[group].std() / len(group) ** 0.5) for group in groups]
    return tuple(np.array(each) for each in zip(*means, strict=True))


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
