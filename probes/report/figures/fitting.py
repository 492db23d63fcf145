"""Figures of how heads and autoencoders were fitted, epoch by epoch."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from probes.heads.result import HeadResult
from probes.report.figures import style
from probes.report.figures.layers import draw_parts
from probes.report.table import metric_label


def draw_history(figure: Figure, result: HeadResult) -> None:
    """Draw training loss and the score that chose, per epoch: a line per seed, the kept epoch marked."""
    key = _history_score(result)
    losses, *others = all_axes = style.panels(figure, 2 if key else 1, sharex=True)
    for seed in result.seeds:
        epochs = np.arange(1, len(seed["history"]) + 1)
        losses.plot(epochs, [step["train_loss"] for step in seed["history"]], color=style.BLUE, alpha=0.8)
        for axes in others:
            scores = 100 * np.array([step.get(key) for step in seed["history"]], float)
            is_known = np.isfinite(scores)
            axes.plot(epochs[is_known], scores[is_known], color=style.ORANGE, alpha=0.8)
            if 0 < seed["best_epoch"] <= len(scores):
                kept = scores[seed["best_epoch"] - 1]
                axes.plot(seed["best_epoch"], kept, "o", color=style.INK, markersize=4, zorder=5)
    losses.set_ylabel("training loss")
    for axes in others:
        axes.set_ylabel(f"{key.partition('_')[0]} {metric_label(result.metric)} x 100")
    all_axes[-1].set_xlabel("epoch")
    style.count_in_whole_numbers(all_axes[-1])
    figure.align_ylabels(all_axes)


def history_note(result: HeadResult) -> str:
    """Say what the lines and dots of `draw_history` are."""
    kept = [str(seed["best_epoch"]) for seed in result.seeds if seed["best_epoch"]]
    dots = f"dot{'s' * (len(kept) > 1)}: kept, epoch {', '.join(kept)}" if kept and _history_score(result) else ""
    return ", ".join(filter(None, ["a line per seed" * (len(result.seeds) > 1), dots]))


def _history_score(result: HeadResult) -> str:
    """Find the score that the epochs of a head record: of its metric on a split, or of its chosen layer."""
    recorded = {key for seed in result.seeds for step in seed["history"] for key in step}
    wanted = (f"{split}_{what}" for split in ("validation", "test") for what in (result.metric, "score"))
    return next((key for key in wanted if key in recorded), "")


def draw_autoencoders(album: style.Album, pretraining: Mapping[str, Any], *, plan: str) -> None:
    """Draw losses (FREEZE Figure 2) and fitting of the autoencoders of every pooling."""
    for pooling, record in pretraining.get("autoencoders", {}).items():
        name = f"figures/autoencoder_{re.sub(r'[^A-Za-z0-9-]', '_', pooling)}"  # a name in a cache, no path
        # Of raw latents, the loss is the squared error itself.
        left_out = "" if record["standardises_latents"] else "held_out_losses"
        parts = {key: value for key, value in record.items() if key != left_out}
        about = f"autoencoders ({pooling}), plan {plan}"
        note = "{train:,} texts, {held_out:,} held out".format(**record["n_texts"])
        album.add(
            name, draw_parts, parts, title=f"Losses of the {about}", note=note, size=style.TALL
        )  # fmt: skip
        album.add(
            f"{name}_history", draw_losses, record, title=f"Fitting the {about}",
            note=f"{note}; grey lines: epochs that a layer kept",
        )  # fmt: skip


def draw_losses(figure: Figure, record: Mapping[str, Any]) -> None:
    """Draw the training and held-out loss of autoencoders by epoch, mean over layers; a line where a layer was kept."""
    axes = style.panel(figure)
    epochs = range(1, len(record["history"]) + 1)
    for colour, key, label in (
        (style.BLUE, "train_loss", "training\n(with dropout)"), (style.ORANGE, "held_out_loss", "held out"),
    ):  # fmt: skip
        style.draw_line(axes, epochs, [step[key] for step in record["history"]], colour=colour, label=label)
    for epoch in sorted(set(record["best_epochs"])):
        axes.axvline(epoch, color=style.PALE, linewidth=0.8, zorder=1)
    axes.set_ylim(bottom=0)
    style.count_in_whole_numbers(axes)
    axes.set_xlabel("epoch")
    axes.set_ylabel("mean squared error" + " / variance" * record["standardises_latents"])
