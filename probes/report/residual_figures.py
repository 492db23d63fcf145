"""Figures of where a head is wrong, and of what autoencoders lose."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import probplot

from probes.heads.pairs.residuals import Residuals
from probes.report.figures import mark_layers, new_figure


def draw_residuals(found: Residuals, path: Path, *, title: str) -> None:
    """Draw residuals in six panels: histogram, Q-Q, calibration, against gold, length and lexical overlap.

    Args:
        found: The residuals.
        path: Where the PNG goes.
        title: Title.
    """
    figure = Figure(figsize=(11.0, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels: list[Axes] = [figure.add_subplot(2, 3, k) for k in range(1, 7)]
    values = found.values
    panels[0].hist(values, bins=40, color="tab:blue")
    panels[0].set_xlabel("predicted - gold")
    panels[0].set_ylabel("pairs")
    (theoretical, ordered), (slope, intercept, _) = probplot(values)
    panels[1].plot(theoretical, ordered, ".", markersize=3)
    panels[1].plot(theoretical, slope * theoretical + intercept, color="tab:orange")
    panels[1].set_xlabel("normal quantile")
    panels[1].set_ylabel("residual quantile")
    _calibration(panels[2], found)
    for axes, (label, side) in zip(
        panels[3:], (("gold", found.gold), ("words in both texts", found.n_words), ("lexical overlap", found.overlap)),
        strict=True,
    ):  # fmt: skip
        axes.plot(side, values, ".", markersize=2, alpha=0.5)
        axes.axhline(0, color="grey", linewidth=0.8)
        centres, means = _running_mean(side, values)
        axes.plot(centres, means, color="tab:orange", label="mean")
        axes.set_xlabel(label)
        axes.set_ylabel("predicted - gold")
    panels[3].legend(fontsize=8)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)


def _calibration(axes: Axes, found: Residuals) -> None:
    predicted, gold = found.calibration_curve()
    ends = [min(predicted.min(), gold.min()), max(predicted.max(), gold.max())]
    axes.plot(ends, ends, color="grey", linewidth=0.8)
    axes.plot(predicted, gold, marker=".", color="tab:blue")
    axes.set_xlabel("mean prediction, tenths of the pairs")
    axes.set_ylabel("mean gold")


def _running_mean(
    side: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    groups = [group for group in np.array_split(np.argsort(side, kind="stable"), 12) if len(group)]
    return np.array([side[group].mean() for group in groups]), np.array([values[group].mean() for group in groups])


def draw_reconstruction(found: dict[str, Any], path: Path, *, title: str) -> None:
    """Draw the loss of every layer's autoencoder on held-out texts, and its code width (FREEZE Figure 2).

    Args:
        found: What scores.json tells of the autoencoders of one pooling.
        path: Where the PNG goes.
        title: Title.
    """
    figure, axes = new_figure()
    axes.plot(found["held_out_losses"], marker=".", color="tab:blue")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("mean squared error / variance, held-out texts", color="tab:blue")
    other = axes.twinx()
    other.step(range(len(found["codes"])), found["codes"], where="mid", color="tab:orange", alpha=0.7)
    other.set_ylim(bottom=0)
    other.set_ylabel("width of the code", color="tab:orange")
    mark_layers(axes, found["layers"])
    axes.set_title(title)
    figure.savefig(path, dpi=130)


def draw_pretraining(found: dict[str, Any], path: Path, *, title: str) -> None:
    """Draw the training and held-out loss of the autoencoders by epoch, mean over layers.

    Args:
        found: What scores.json tells of the autoencoders of one pooling.
        path: Where the PNG goes.
        title: Title.
    """
    figure, axes = new_figure()
    epochs = range(1, len(found["history"]) + 1)
    for key, label in (("train_loss", "training (with dropout)"), ("held_out_loss", "held-out")):
        axes.plot(epochs, [step[key] for step in found["history"]], marker=".", label=label)
    for epoch in sorted(set(found["best_epochs"])):
        axes.axvline(epoch, color="grey", linewidth=0.8)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("epoch (lines: kept by a layer)")
    axes.set_ylabel("mean squared error / variance, mean over layers")
    axes.legend(fontsize=8)
    axes.set_title(title)
    figure.savefig(path, dpi=130)
