"""The figures of a run, for heads of every kind. A new figure is one function and one row of `FIGURES`."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import probplot

from probes.heads.pairs.residuals import Residuals
from probes.heads.result import Curve, HeadResult
from probes.metrics.spans import NO_PREDICTION
from probes.report import style
from probes.report.blocks import LABELS, describe_point, interval, metric_label, percent
from probes.report.document import Context


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

    @property
    def names(self) -> tuple[str, ...]:
        """Names that can be predicted; empty for numbers."""
        return self.result.names.get(self.split, ())

    @property
    def row_scores(self) -> NDArray[np.float64]:
        """Scores of single rows; empty where there are none."""
        return self.result.row_scores.get(self.split, np.empty(0))


@dataclass(frozen=True)
class HeadFigure:
    """A figure that is drawn for every head it applies to."""

    title: str
    """`{head}` and `{split}` are filled in; the plan is added."""
    stem: str
    """End of its file name, after the head."""
    applies: Callable[[FigureInput], bool]
    draw: Callable[[Figure, FigureInput], object]
    note: Callable[[FigureInput], str] = lambda _: ""
    """What is written below it, after task, decoder and pooling."""
    size: Callable[[FigureInput], tuple[float, float]] = lambda _: style.SIZE
    """Width and height in inches."""


def draw_figures(album: style.Album, context: Context) -> None:
    """Draw every figure of every head of a run."""
    scores, header = context.scores, context.scores.header
    for name, result in scores.heads.items():
        split, compare = result.reported_split, context.report.residuals
        rows = context.rows[split]
        found = FigureInput(result, split, rows.gold, compare and compare(rows, result.predictions[split]))
        about = f"{header.task['name']} on {header.decoder['name']}, pooling {result.pooling}"
        for each in (each for each in FIGURES if each.applies(found)):
            album.add(
                f"figures/{name.replace('-', '_')}_{each.stem}",
                each.draw,
                found,
                title=f"{each.title.format(head=name, split=split)}, plan {scores.cache['plan']}",
                note="; ".join(filter(None, (about, each.note(found)))),
                size=each.size(found),
            )


def _has_curves(found: FigureInput) -> bool:
    return bool(layer_curves(found.result)) and len(found.result.layers) > 1


def _has_row_scores(found: FigureInput) -> bool:
    """Whether rows score more than right and wrong, which the results table counts."""
    return len(np.unique(found.row_scores[np.isfinite(found.row_scores)])) > 2


def _draw_confusion(figure: Figure, found: FigureInput) -> None:
    counts = confusion(found.names, found.gold, found.result.predictions[found.split])
    draw_confusion(figure, counts, found.names)


def _confusion_size(found: FigureInput) -> tuple[float, float]:
    side = 2.4 + 0.3 * min(len(found.names), 13)
    return side + 0.8, side


def _draw_residuals(figure: Figure, found: FigureInput) -> None:
    if found.residuals is not None:
        draw_residuals(figure, found.residuals)


FIGURES: tuple[HeadFigure, ...] = (
    HeadFigure(
        "{head}: score of each layer",
        "layers",
        lambda it: _has_curves(it) and bool(it.names),
        lambda figure, it: draw_curves(figure, it.result),
        lambda it: chosen_note(it.result),
    ),
    HeadFigure(
        "{head}: score of each layer",
        "curve",
        lambda it: _has_curves(it) and not it.names,
        lambda figure, it: draw_curves(figure, it.result),
        lambda it: chosen_note(it.result),
    ),
    HeadFigure(
        "What each layer gives {head}",
        "layers",
        lambda it: "contributions" in it.result.extras,
        lambda figure, it: draw_parts(figure, it.result.extras["contributions"]),
        lambda it: f"{metric_label(it.result.metric)} on {it.result.extras['contributions']['split']}",
        lambda _: style.TALL,
    ),
    HeadFigure(
        "What each layer gives {head}",
        "weights",
        lambda it: "mix" in it.result.extras,
        lambda figure, it: draw_parts(figure, it.result.extras["mix"]),
        lambda it: f"{metric_label(it.result.metric)} on validation",
        lambda _: (style.TALL[0], 4.9),
    ),
    HeadFigure(
        "Fitting {head}",
        "history",
        lambda it: any(seed.get("history") for seed in it.result.seeds),
        lambda figure, it: draw_history(figure, it.result),
        lambda it: history_note(it.result),
        lambda _: style.TALL,
    ),
    HeadFigure(
        "Confusion of {head}, {split}",
        "confusion",
        lambda it: bool(it.names),
        _draw_confusion,
        lambda it: f"{len(it.gold):,} predictions" + ", counted in the cells" * (len(it.names) <= MOST_NAMED),
        _confusion_size,
    ),
    HeadFigure(
        "Residuals of {head}, {split}",
        "residuals",
        lambda it: it.residuals is not None,
        _draw_residuals,
        lambda it: f"{len(it.gold):,} rows, in the units of the gold; bands and whiskers: 95 % intervals of means",
        lambda _: style.WIDE,
    ),
    HeadFigure(
        "Scores of single rows, {head}, {split}",
        "rows",
        _has_row_scores,
        lambda figure, it: draw_row_scores(figure, it.row_scores),
        lambda it: rows_note(it.row_scores),
    ),
)
"""Every figure of a head."""


LINES = {"test": (0, (1, 1.2))}
"""Style of the line of a split, where it is not drawn through."""
MARKS = {"validation": ("o", "circle", -0.01), "test": ("D", "diamond", 0.01)}
"""Marks of the scores at the chosen point, what they are called, and how far they are moved apart."""
PARTS = {
    "weights": ("weight in the mix", 1, True),
    "alone": ("alone, score x 100", 100, False),
    "without": ("lost without, x 100", 100, True),
    "held_out_squared_errors": ("held-out\nsquared error", 1, False),
    "held_out_losses": ("held-out\nerror / variance", 1, False),
    "codes": ("width of\nthe code", 1, True),
}
"""Values over layers: how they are labelled, multiplied, and whether as bars."""


def layer_curves(result: HeadResult) -> list[Curve]:
    """Return the curves of the metric that chose, none of train; those of the chosen value first."""
    curves = [curve for curve in result.curves if curve.metric == result.metric and curve.split != "train"]
    return sorted(curves, key=lambda curve: not _is_chosen(curve.name, result.chosen))


def _is_chosen(name: str, chosen: Mapping[str, Any]) -> bool:
    """Whether a curve is that of the chosen value, as `raw` or `C 0.1`."""
    numbers = {f"{key} {value:g}" for key, value in chosen.items() if isinstance(value, int | float)}
    return name in numbers or name in chosen.values()


def draw_curves(figure: Figure, result: HeadResult) -> None:
    """Draw the score of every layer: a colour per curve, a line style per split, baselines, and the chosen point."""
    axes, curves = style.panel(figure), layer_curves(result)
    names, splits = (list(dict.fromkeys(each)) for each in zip(*((c.name, c.split) for c in curves), strict=True))
    colours = dict(zip(names, style.colours(len(names)), strict=True))
    for curve in reversed(curves):  # the chosen one on top
        parts = (curve.name, curve.split if len(splits) > 1 or not curve.name else "")
        style.draw_line(
            axes,
            range(len(result.layers)),
            100 * np.array(curve.values),
            colour=colours[curve.name],
            label=", ".join(filter(None, parts)),
            spread=100 * np.array(curve.spread),
            breaks=style.layer_breaks(result.layers),
            linestyle=LINES.get(curve.split, "-"),
            linewidth=1.8 if len(names) > 1 and _is_chosen(curve.name, result.chosen) else 1.2,
        )
    draw_baselines(axes, result, splits)
    _mark_chosen(axes, result)
    style.mark_layers(axes, result.layers)
    axes.set_ylabel(f"{metric_label(result.metric)} x 100")


def draw_runs(figure: Figure, results: Mapping[str, HeadResult], split: str) -> None:
    """Draw the layers of several runs on one scale, the best of a head's values at each layer, chosen layers marked.

    Layers of decoders with different numbers of blocks are drawn by relative depth, from the embedding to the top.
    """
    axes = style.panel(figure)
    lists = {result.layers for result in results.values()}
    is_same = len(lists) == 1
    for (label, result), colour in zip(results.items(), style.colours(len(results)), strict=True):
        curves = [curve.values for curve in layer_curves(result) if curve.split == split]
        scores = 100 * np.asarray(np.fmax.reduce(np.array(curves, np.float64)))
        n = len(result.layers)
        places = np.arange(n, dtype=np.float64) if is_same else np.arange(n) / max(n - 1, 1)
        breaks = style.layer_breaks(result.layers) if is_same else ()
        style.draw_line(axes, places, scores, colour=colour, label=style.shorten(label), breaks=breaks)
        if result.chosen.get("layer") in result.layers:
            place = result.layers.index(result.chosen["layer"])
            axes.plot(places[place], scores[place], "o", color=colour, markersize=6, markerfacecolor="white", zorder=5)
    if is_same:
        style.mark_layers(axes, next(iter(lists)))
    else:
        axes.set_xlabel("relative depth, from the embedding to the top")
    axes.set_ylabel(f"{metric_label(next(iter(results.values())).metric)} x 100, {split}")


def draw_baselines(axes: Axes, result: HeadResult, splits: Sequence[str], *, only_near: bool = False) -> None:
    """Draw what to compare scores with: baselines of these splits, and 0 for a correlation where it is near."""
    low, high = axes.get_ylim()
    for name, scores in result.baselines.items():
        for split in (split for split in splits if split in scores):
            if not only_near or 100 * scores[split] > 1.5 * low - 0.5 * high:
                style.draw_level(axes, 100 * scores[split], f"{name}, {split}" if len(splits) > 1 else name)
    if result.metric in LABELS and low < 0.25 * high:  # a correlation
        style.draw_level(axes, 0.0, "chance")


def _mark_chosen(axes: Axes, result: HeadResult) -> None:
    """Mark the chosen layer with the scores there and their intervals, and write what was chosen."""
    layer, n_layers = result.chosen.get("layer"), len(result.layers)
    if layer not in result.layers:
        return
    place = result.layers.index(layer)
    axes.axvline(place, color=style.GREY, linewidth=0.8, zorder=1)
    for split, (mark, _, step) in MARKS.items():
        if found := result.summary.get(split, {}).get(result.metric):
            ends = 100 * np.array([[found.mean - found.low], [found.high - found.mean]])
            axes.errorbar(
                [place + step * n_layers],
                [100 * found.mean],
                np.maximum(np.nan_to_num(ends), 0),
                fmt=mark,
                zorder=5,
                color=style.INK,
                markerfacecolor="white" if mark == "o" else style.INK,
                markersize=4.5,
                linewidth=0.9,
            )
    side = "left" if place < n_layers / 3 else "right" if place > 2 * n_layers / 3 else "center"
    style.write_above(axes, f"chosen: {describe_point(result.chosen)}", float(place), side=side)


def chosen_note(result: HeadResult) -> str:
    """Say what the marks and bands of `draw_curves` are, with the scores at the chosen point."""
    parts = [
        f"{mark}: {split} {percent(found.mean)} ({interval(found)})"
        for split, (_, mark, _) in MARKS.items()
        if result.chosen.get("layer") and (found := result.summary.get(split, {}).get(result.metric))
    ]
    has_bands = any(any(curve.spread) for curve in layer_curves(result))
    return ", ".join([*parts, *["bands: standard deviation over seeds"] * has_bands])


def draw_parts(figure: Figure, parts: Mapping[str, Any]) -> None:
    """Draw lists over `layers`, a panel for each of `PARTS`: contributions, weights of a mix, autoencoders' losses."""
    shown = [(key, *how) for key, how in PARTS.items() if key in parts]
    all_axes, layers = style.panels(figure, len(shown), sharex=True), parts["layers"]
    places, breaks = range(len(layers)), style.layer_breaks(layers)
    for axes, (key, label, times, is_bar) in zip(all_axes, shown, strict=True):
        values = times * np.array(parts[key], float)
        if is_bar:
            axes.bar(places, values, color=style.ORANGE, width=0.7)
        else:
            style.draw_line(axes, places, values, colour=style.BLUE, breaks=breaks)
        if key == "weights":
            style.draw_level(axes, 1 / len(values), "equal")
        axes.axhline(0, color=style.GREY, linewidth=0.6)
        axes.set_ylabel(label)
    style.mark_layers(all_axes[-1], layers)
    figure.align_ylabels(all_axes)


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
        "color": style.BLUE,
        "linestyle": "",
        "marker": ".",
        "alpha": 0.5,
        "markersize": 4 if len(values) < 200 else 2,
        "rasterized": len(values) > 2000,
    }
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
        album.add(name, draw_parts, parts, title=f"Losses of the {about}", note=note, size=style.TALL)
        album.add(
            f"{name}_history",
            draw_losses,
            record,
            title=f"Fitting the {about}",
            note=f"{note}; grey lines: epochs that a layer kept",
        )


def draw_losses(figure: Figure, record: Mapping[str, Any]) -> None:
    """Draw the training and held-out loss of autoencoders by epoch, mean over layers; a line where a layer was kept."""
    axes = style.panel(figure)
    epochs = range(1, len(record["history"]) + 1)
    for colour, key, label in (
        (style.BLUE, "train_loss", "training\n(with dropout)"),
        (style.ORANGE, "held_out_loss", "held out"),
    ):
        style.draw_line(axes, epochs, [step[key] for step in record["history"]], colour=colour, label=label)
    for epoch in sorted(set(record["best_epochs"])):
        axes.axvline(epoch, color=style.PALE, linewidth=0.8, zorder=1)
    axes.set_ylim(bottom=0)
    style.count_in_whole_numbers(axes)
    axes.set_xlabel("epoch")
    axes.set_ylabel("mean squared error" + " / variance" * record["standardises_latents"])
