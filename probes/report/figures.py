"""The figures of a run, for heads of every kind. A new figure is one function and one row of `FIGURES`."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from probes.heads.pairs.residuals import Residuals
from probes.heads.result import Curve, HeadResult
from probes.metrics.spans import NO_PREDICTION
from probes.report import style
from probes.report.document import KindReport, reported_split
from probes.report.residual_figure import draw_residuals
from probes.report.table import metric_label
from probes.tasks.base import Task

LINES = {"validation": "-", "test": ":"}
MOST_NAMED = 25
"""Most classes or tags whose names are written beside a confusion matrix."""
PARTS = {
    "weights": ("weight in the mix", 1, True),
    "alone": ("score x 100, layer alone", 100, False),
    "without": ("score x 100 lost without it", 100, True),
    "held_out_squared_errors": ("held-out squared error", 1, False),
    "held_out_losses": ("held-out error / variance", 1, False),
    "codes": ("width of the code", 1, True),
}
"""Values over layers: how they are labelled, multiplied, and whether as bars."""


@dataclass(frozen=True, eq=False)
class FigureInput:
    """What a figure of a head is drawn from."""

    result: HeadResult
    split: str
    """The reported one."""
    gold: Sequence[Any]
    """Gold of every prediction on it: numbers, or names."""
    residuals: Residuals | None = None
    """Predicted minus gold on it; None for predicted names."""


@dataclass(frozen=True)
class HeadFigure:
    """A figure that is drawn for every head it applies to."""

    title: str
    """`{head}` and `{split}` are filled in."""
    stem: str
    """End of its file name, after the head."""
    applies: Callable[[FigureInput], bool]
    draw: Callable[[Figure, FigureInput], None]
    size: tuple[float, float] = style.SIZE
    """Width and height in inches."""


def draw_figures(folder: Path, heads: Mapping[str, HeadResult], task: Task, report: KindReport) -> dict[str, str]:
    """Draw every figure of every head into the folder of a run, and give title to file name in that folder."""
    drawn: dict[str, str] = {}
    for name, result in heads.items():
        split = reported_split(result.splits)
        residuals = report.residuals(task, split, result.predictions[split]) if report.residuals else None
        found = FigureInput(result, split, report.gold(task, split), residuals)
        for each in (each for each in FIGURES if each.applies(found)):
            title = each.title.format(head=name, split=split)
            drawn[title] = f"figures/{name.replace('-', '_')}_{each.stem}.png"
            figure = style.new_figure(*each.size)
            each.draw(figure, found)
            style.save_figure(figure, folder / drawn[title], title=title)
    return drawn


def draw_autoencoders(folder: Path, pretraining: Mapping[str, Any]) -> dict[str, str]:
    """Draw losses (FREEZE Figure 2) and fitting of the autoencoders of every pooling; give title to file name."""
    drawn: dict[str, str] = {}
    for pooling, record in pretraining.get("autoencoders", {}).items():
        stem = f"figures/autoencoder_{re.sub(r'[^A-Za-z0-9-]', '_', pooling)}"  # a name in a cache, no path
        for what, file, draw, size in (
            ("What the autoencoders lose", f"{stem}.png", draw_parts, (8.0, 5.2)),
            ("Fitting the autoencoders", f"{stem}_history.png", draw_losses, style.SIZE),
        ):
            figure, title = style.new_figure(*size), f"{what} ({pooling})"
            # Of raw latents, the loss is the squared error itself.
            left_out = "" if record["standardises_latents"] else "held_out_losses"
            draw(figure, {key: value for key, value in record.items() if key != left_out})
            style.save_figure(figure, folder / file, title=title)
            drawn[title] = file
    return drawn


def draw_curves(figure: Figure, found: FigureInput) -> None:
    """Draw the score of every layer: a colour per curve, a line style per split, spread over seeds, baselines."""
    (axes,) = style.panels(figure)
    result, curves = found.result, _curves(found.result)
    names = list(dict.fromkeys(curve.name for curve in curves))
    colours = (
        style.COLOURS if len(names) <= len(style.COLOURS) else colormaps["viridis"](np.linspace(0, 0.95, len(names)))
    )
    places = range(len(result.layers))
    for curve in curves:
        colour, values = colours[names.index(curve.name)], 100 * np.array(curve.values)
        label = ", ".join(filter(None, (curve.name, curve.split)))
        axes.plot(places, values, LINES.get(curve.split, "-"), color=colour, marker=".", label=label)
        if any(curve.spread):
            spread = 100 * np.array(curve.spread)
            axes.fill_between(places, values - spread, values + spread, color=colour, alpha=0.2, linewidth=0)
    for name, scores in result.baselines.items():
        for split in dict.fromkeys(curve.split for curve in curves if curve.split in scores):
            axes.axhline(100 * scores[split], color=style.GREY, linestyle="--", label=f"{name}, {split}")
    if result.chosen.get("layer") in result.layers:
        axes.axvline(result.layers.index(result.chosen["layer"]), color=style.GREY, linewidth=0.8, label="chosen")
    style.mark_layers(axes, result.layers)
    axes.set_ylabel(f"{metric_label(result.metric)} x 100")
    style.set_legend(axes)


def draw_parts(figure: Figure, parts: Mapping[str, Any]) -> None:
    """Draw lists over `layers`, a panel for each of `PARTS`: contributions, weights of a mix, autoencoders' losses."""
    shown = [(axis, *how) for axis, how in PARTS.items() if axis in parts]
    all_axes = style.panels(figure, len(shown), shares_x=True)
    for axes, (key, label, times, is_bar) in zip(all_axes, shown, strict=True):
        values = times * np.array(parts[key], float)
        if is_bar:
            axes.bar(range(len(values)), values, color=style.ORANGE)
        else:
            axes.plot(values, marker=".", color=style.BLUE)
        axes.axhline(0, color=style.GREY, linewidth=0.5)
        axes.set_ylabel(label, fontsize=8)
    style.mark_layers(all_axes[-1], parts["layers"])


def draw_losses(figure: Figure, record: Mapping[str, Any]) -> None:
    """Draw the training and held-out loss of autoencoders by epoch, mean over layers; a line where a layer was kept."""
    (axes,) = style.panels(figure)
    epochs = range(1, len(record["history"]) + 1)
    for key, label, line in (("train_loss", "training (with dropout)", "-"), ("held_out_loss", "held-out", "--")):
        axes.plot(epochs, [step[key] for step in record["history"]], line, marker=".", label=label)
    for epoch in sorted(set(record["best_epochs"])):
        axes.axvline(epoch, color=style.GREY, linewidth=0.8)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("epoch (lines: kept by a layer)")
    unit = " / variance" if record["standardises_latents"] else ""
    axes.set_ylabel(f"mean squared error{unit}, mean over layers")
    axes.legend(fontsize=8, frameon=False)


def draw_history(figure: Figure, found: FigureInput) -> None:
    """Draw training loss and the score that chose, per epoch: a line per seed, the kept epoch marked."""
    result = found.result
    key = _history_score(result)
    losses, *others = style.panels(figure, 2 if key else 1, shares_x=True)
    for seed in result.seeds:
        epochs = np.arange(1, len(seed["history"]) + 1)
        losses.plot(epochs, [step["train_loss"] for step in seed["history"]], color=style.BLUE, alpha=0.7, marker=".")
        for axes in others:
            scores = 100 * np.array([step.get(key) for step in seed["history"]], float)
            is_known = np.isfinite(scores)
            axes.plot(epochs[is_known], scores[is_known], color=style.ORANGE, alpha=0.8)
            if 0 < seed["best_epoch"] <= len(scores):
                axes.plot(seed["best_epoch"], scores[seed["best_epoch"] - 1], "o", color=style.ORANGE)
    losses.set_ylabel("training loss")
    losses.locator_params(axis="x", integer=True)
    for axes in others:
        axes.set_ylabel(f"{key.partition('_')[0]} {metric_label(result.metric)} x 100")
    (losses, *others)[-1].set_xlabel("epoch" + " (dot: kept)" * bool(others))


def draw_row_scores(figure: Figure, found: FigureInput) -> None:
    """Draw the share of rows that score at most so much; rows without a score are counted in the label only."""
    scores = found.result.row_scores[found.split]
    known = np.sort(scores[np.isfinite(scores)])
    (axes,) = style.panels(figure)
    axes.step(known, np.arange(1, len(known) + 1) / len(known), where="post", color=style.BLUE)
    axes.axvline(known.mean(), color=style.ORANGE, linewidth=0.8, label=f"mean {known.mean():.3f}")
    missing = f", {len(scores) - len(known):,} more without a score" * (len(known) < len(scores))
    axes.set_xlabel(f"score of a row, higher is better (n = {len(known):,} rows{missing})")
    axes.set_ylabel("share of rows that score at most this")
    axes.set_ylim(0, 1.02)
    style.set_legend(axes)


def draw_confusion(figure: Figure, found: FigureInput) -> None:
    """Draw the confusion of classes or tags, rows gold, as shares of the gold name."""
    names = found.result.names[found.split]
    table = confusion(found)
    columns = (*names, "none")[: table.shape[1]]
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    (axes,) = style.panels(figure)
    axes.grid(visible=False)
    figure.colorbar(axes.imshow(shares, cmap="Blues", vmin=0, vmax=1), ax=axes, label="share of the gold name")
    if len(names) <= MOST_NAMED:
        axes.set_xticks(range(len(columns)), columns, rotation=60, fontsize=7, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("predicted")
    axes.set_ylabel(f"gold ({int(table.sum()):,} predictions)")


def confusion(found: FigureInput) -> np.ndarray:
    """Count gold names (rows) and predicted ones (columns; the last is no prediction, where some are missing)."""
    names, predicted = found.result.names[found.split], found.result.predictions[found.split]
    places = {name: place for place, name in enumerate(names)}
    table = np.zeros((len(names), len(names) + 1), dtype=np.int64)
    gold = np.array([places[name] for name in found.gold])
    np.add.at(table, (gold, np.asarray(predicted, np.int64)), 1)  # NO_PREDICTION is -1, the last column
    return table if (predicted == NO_PREDICTION).any() else table[:, :-1]


def _curves(result: HeadResult) -> list[Curve]:
    return [curve for curve in result.curves if curve.metric == result.metric and curve.split != "train"]


def _has_curves(found: FigureInput) -> bool:
    return bool(_curves(found.result)) and len(found.result.layers) > 1


def _has_row_scores(found: FigureInput) -> bool:
    return bool(np.isfinite(found.result.row_scores.get(found.split, np.empty(0))).any())


def _history_score(result: HeadResult) -> str:
    """Find the score that the epochs of a head record: of its metric on a split, or of its chosen layer."""
    recorded = {key for seed in result.seeds for step in seed["history"] for key in step}
    wanted = (f"{split}_{what}" for split in ("validation", "test") for what in (result.metric, "score"))
    return next((key for key in wanted if key in recorded), "")


def _draw_residuals(figure: Figure, found: FigureInput) -> None:
    if found.residuals is not None:
        draw_residuals(figure, found.residuals)


FIGURES: tuple[HeadFigure, ...] = (
    HeadFigure(
        "{head}: score of each layer", "layers", lambda it: _has_curves(it) and bool(it.result.names), draw_curves
    ),
    HeadFigure(
        "{head}: score of each layer", "curve", lambda it: _has_curves(it) and not it.result.names, draw_curves
    ),
    HeadFigure(
        "What each layer gives {head}", "layers", lambda it: "contributions" in it.result.extras,
        lambda figure, it: draw_parts(figure, it.result.extras["contributions"]), (8.0, 5.2),
    ),
    HeadFigure(
        "What each layer gives {head}", "weights", lambda it: "mix" in it.result.extras,
        lambda figure, it: draw_parts(figure, it.result.extras["mix"]), (8.0, 6.4),
    ),
    HeadFigure(
        "Fitting {head}", "history", lambda it: any(seed.get("history") for seed in it.result.seeds), draw_history,
        (8.0, 5.2),
    ),
    HeadFigure(
        "Confusion of {head} ({split})", "confusion", lambda it: bool(it.result.names), draw_confusion, (7.4, 6.4)
    ),
    HeadFigure(
        "Residuals of {head} ({split})", "residuals", lambda it: it.residuals is not None, _draw_residuals, (11.0, 6.4)
    ),
    HeadFigure("Scores of single rows, {head} ({split})", "rows", _has_row_scores, draw_row_scores),
)  # fmt: skip
"""Every figure of a head."""
