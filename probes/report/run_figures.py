"""The figures of a run: what its heads score at every layer, how they were fitted, and where they are wrong.

A new figure of all heads is a row of `FIGURES`: a frame, and what draws it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import probplot

from probes.data.task_table import task_title
from probes.heads.result import Curve, HeadResult, Residuals
from probes.metrics.prediction_metrics import CORRELATIONS, NO_PREDICTION
from probes.report import style
from probes.report.blocks import describe_point, interval, metric_label, percent, score_unit, side_by_side
from probes.report.document import Context
from probes.report.scores import (
    NUMBER_COLUMNS,
    AutoencoderInfo,
    BaselineScores,
    Plain,
    PretrainingInfo,
    baseline_rows,
    plans_read,
    tidy_rows,
)

NONE: Mapping[str, BaselineScores] = MappingProxyType({})
LINES = {"test": (0, (1, 1.2))}
"""Style of the line of a split, where it is not drawn through."""
MARKS = {"validation": ("o", "circle", -0.01), "test": ("D", "diamond", 0.01)}
"""Marks of the scores at the chosen point, what they are called, and how far they are moved apart."""
PARTS = {
    "weights": ("weight in the mix", 1),
    "alone": ("alone, score x 100", 100),
    "without": ("lost without, x 100", 100),
    "held_out_squared_errors": ("held-out\nsquared error", 1),
    "held_out_losses": ("held-out\nerror / variance", 1),
    "codes": ("width of\nthe code", 1),
}
"""Values over layers: their label, and what they are multiplied by."""
BARS = ("weight in the mix", "lost without, x 100", "width of\nthe code")
"""Labels of those that are drawn as bars."""
PENALTY = r"(C|alpha) [-+.\de]+"
"""Name of the curve of a value of a penalty."""
MOST_NAMED, MOST_COUNTED = 40, 25
"""Most classes or tags whose names, and whose counts, are written in a confusion matrix."""
MOST_LETTERS = 22
"""Of such a name."""
FEWEST_ROWS = 10
"""Averaged in a group of residuals."""


Scales = Mapping[str, tuple[float, float]]
"""Label of a y-axis to the lowest and highest value on it."""


@dataclass(frozen=True, eq=False)
class FigureInput:
    """What the frames of a head are made from."""

    result: HeadResult
    split: str
    """The reported one."""
    gold: Sequence[object]
    """Gold of every prediction on it: numbers, or names."""
    residuals: Residuals | None = None
    """Predicted minus gold on it; None for predicted names."""
    baselines: Mapping[str, BaselineScores] = field(default_factory=dict)
    """Those of the run."""

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
    """A figure of every head that it has a frame of."""

    title: str
    """`{head}` and `{split}` are filled in; the plan is added."""
    stem: str
    """End of its file name, after the head."""
    frame: Callable[[FigureInput], pd.DataFrame | None]
    """Gives what is drawn; None where the head has no such figure."""
    draw: Callable[[Figure, pd.DataFrame], object]
    note: Callable[[FigureInput], str] = lambda _: ""
    """What is written below it, after task, decoder and pooling."""
    size: tuple[float, float] = style.SIZE
    """Width and height in inches; drawing may change it."""
    table: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame
    """Lays the frame out for reading."""
    scales: Callable[[pd.DataFrame], Scales] = lambda _: {}
    """Gives the range of what is drawn by the label of its axis, which all heads of a run share."""


def draw_figures(album: style.Album, context: Context) -> None:
    """Draw every figure of every head of a run; figures of one sort have one scale."""
    scores, header = context.scores, context.scores.header
    sources = {}
    for name, result in scores.heads.items():
        split, rows = result.reported_split, context.rows[result.reported_split]
        residuals = context.report.residuals(rows, result.predictions[split])
        sources[name] = FigureInput(result, split, rows.gold, residuals, scores.baselines)
    frames = {(name, figure): figure.frame(source) for name, source in sources.items() for figure in FIGURES}
    for figure in FIGURES:
        alike = [frame for (_, other), frame in frames.items() if other is figure and frame is not None]
        for frame in alike if len(alike) > 1 else ():
            ends: dict[str, list[float]] = {}
            for label, both in (item for other in alike for item in figure.scales(other).items()):
                ends.setdefault(label, []).extend(both)
            frame.attrs["scales"] = {label: (min(values), max(values)) for label, values in ends.items()}
    for name, result in scores.heads.items():
        source, split = sources[name], sources[name].split
        plan = " and ".join(plans_read(scores.cache, result.pooling))
        about = f"{task_title(header.task['name'])} on {header.decoder['name']}, pooling {result.pooling}"
        for figure in FIGURES:
            frame = frames[name, figure]
            if frame is not None:
                album.add(
                    f"figures/{name.replace('-', '_')}_{figure.stem}",
                    figure.draw,
                    frame,
                    title=f"{figure.title.format(head=name, split=split)}, plan {plan}",
                    note="; ".join(filter(None, (about, figure.note(source)))),
                    size=figure.size,
                    table=figure.table(frame),
                )


def _set_scale(axes: Axes, frame: pd.DataFrame, label: str) -> None:
    """Give axes the scale that their frame shares with others."""
    if label in frame.attrs.get("scales", {}):
        low, high = frame.attrs["scales"][label]
        margin = 0.05 * (high - low) or 1.0
        axes.set_ylim(low - margin, high + margin)


def layer_curves(result: HeadResult) -> list[Curve]:
    """Return the curves of the metric that chose, none of train; those of the chosen value first."""
    curves = [curve for curve in result.curves if curve.metric == result.metric and curve.split != "train"]
    return sorted(curves, key=lambda curve: not _is_chosen(curve.name, result.chosen))


def _is_chosen(name: str, chosen: Plain) -> bool:
    """Whether a curve is that of the chosen value, as `raw` or `C 0.1`."""
    numbers = {f"{key} {value:g}" for key, value in chosen.items() if isinstance(value, int | float)}
    return name in numbers or name in chosen.values()


def curve_frame(result: HeadResult, baselines: Mapping[str, BaselineScores] = NONE) -> pd.DataFrame | None:
    """Give curves, baselines and chosen scores of a head that scored single layers, the chosen curves first."""
    if not layer_curves(result) or len(result.layers) < 2:
        return None
    rows = tidy_frame(result, baselines).assign(chosen=describe_point(result.chosen))
    rows = rows[(rows["metric"] == result.metric) & (rows["split"] != "train") & (rows["record"] != "seed")]
    chosen = {curve.name for curve in result.curves if _is_chosen(curve.name, result.chosen)}
    is_chosen = (rows["record"] == "curve") & rows["curve"].isin(chosen)
    rows = rows.assign(is_chosen=is_chosen).sort_values("is_chosen", ascending=False, kind="stable")
    return rows.drop_duplicates(["record", "layer", "curve", "split"])  # of curves of one name, the first


def tidy_frame(result: HeadResult, baselines: Mapping[str, BaselineScores] = NONE, **columns: str) -> pd.DataFrame:
    """Make a frame of the numbers of a head and of baselines, as of `icecore.results`, with further columns."""
    names = [name for name in NUMBER_COLUMNS if name != "seed"]
    frame = pd.DataFrame([*tidy_rows(result), *baseline_rows(baselines)], columns=names)
    return frame.astype(dict.fromkeys(names[5:], float)).assign(**columns)


def fold_penalties(curves: pd.DataFrame) -> pd.DataFrame:
    """Make one curve of those of a penalty: the best score of each layer, and as its `floor` the lowest."""
    penalty = curves["curve"].str.extract(PENALTY, expand=False)
    curves = curves.assign(floor=curves["value"])
    if curves.loc[penalty.notna(), "curve"].nunique() < 2:
        return curves
    curves = curves.assign(curve=("best " + penalty).fillna(curves["curve"]))
    along = ["curve", "split", "layer"]
    floors = curves.groupby(along, sort=False)["value"].transform("min")
    best = curves.assign(floor=floors).sort_values("value", ascending=False, kind="stable").drop_duplicates(along)
    return curves.drop_duplicates(along)[along].merge(best, on=along)


def curve_scales(frame: pd.DataFrame) -> Scales:
    """Give the range of curves with their bands, and of the chosen scores with their intervals."""
    curves, scores = frame[frame["record"] == "curve"], frame[frame["record"] == "score"]
    std = curves["std"].fillna(0)
    values = pd.concat([curves["value"] - std, curves["value"] + std, scores["low"], scores["high"]]).dropna()
    return {score_unit(frame): (100 * values.min(), 100 * values.max())} if len(values) else {}


def draw_curves(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw the score of every layer: a colour per curve, a line style per split, baselines, and the chosen point.

    The curves of a penalty are one, the best, with a band down to the lowest.
    """
    axes, curves = style.panel(figure), fold_penalties(frame[frame["record"] == "curve"])
    names, splits, layers = (list(dict.fromkeys(curves[column])) for column in ("curve", "split", "layer"))
    colours = dict(zip(names, style.colours(len(names)), strict=True))
    for (name, split), curve in reversed(list(curves.groupby(["curve", "split"], sort=False))):  # the chosen on top
        style.draw_line(
            axes,
            range(len(layers)),
            100 * curve["value"],
            colour=colours[name],
            label=", ".join(filter(None, (name, split if len(splits) > 1 or not name else ""))),
            spread=100 * curve["std"].fillna(0),
            floor=100 * curve["floor"],
            breaks=style.layer_breaks(layers),
            linestyle=LINES.get(split, "-"),
            linewidth=1.8 if len(names) > 1 and curve["is_chosen"].all() else 1.2,
        )
    _mark_chosen(axes, frame[frame["record"] == "score"], layers)
    _set_scale(axes, frame, score_unit(frame))
    draw_baselines(axes, frame)
    style.mark_layers(axes, layers)
    axes.set_ylabel(score_unit(frame))


def curve_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Lay curves out side by side, with the baselines of their splits."""
    table = side_by_side(frame[frame["record"] == "curve"], "layer", ("curve", "split"), unit=score_unit(frame))
    return table.assign(**baseline_levels(frame))


def baseline_levels(frame: pd.DataFrame) -> dict[str, float]:
    """Return the baselines of a frame on the splits of its curves by their labels, times 100."""
    splits = list(dict.fromkeys(frame.loc[frame["record"] == "curve", "split"]))
    rows = frame[(frame["record"] == "baseline") & frame["split"].isin(splits)]
    labels = rows["curve"] + (", " + rows["split"] if len(splits) > 1 else "")
    return dict(zip(labels, 100 * rows["value"], strict=True))


def draw_baselines(axes: Axes, frame: pd.DataFrame) -> None:
    """Draw what to compare scores with: the baselines of a frame, and 0 for a correlation where it is near.

    Of several splits, those of the first.
    """
    low, high = axes.get_ylim()
    splits = frame.loc[frame["record"] == "curve", "split"]
    is_near = frame["metric"].iloc[0] in CORRELATIONS and low < 0.25 * high
    chance = {"chance": 0.0} if is_near else {}
    levels = baseline_levels(frame[frame["split"] == splits.iloc[0]])
    if splits.nunique() > 1:
        levels = {f"{name}, {splits.iloc[0]}": level for name, level in levels.items()}
    style.draw_levels(axes, levels | chance)


def _mark_chosen(axes: Axes, scores: pd.DataFrame, layers: Sequence[str]) -> None:
    """Mark the chosen layer with the scores there and their intervals, and write what was chosen."""
    layer = scores["layer"].iloc[0] if len(scores) else None
    if layer not in layers:
        return
    position = layers.index(layer)
    axes.axvline(position, color=style.GREY, linewidth=0.8, zorder=1)
    for score in scores.itertuples():
        if score.split in MARKS:
            mark, _, step = MARKS[score.split]
            ends = 100 * np.array([[score.value - score.low], [score.high - score.value]])
            axes.errorbar(
                [position + step * len(layers)],
                [100 * score.value],
                np.maximum(np.nan_to_num(ends), 0),
                fmt=mark,
                zorder=5,
                color=style.INK,
                markerfacecolor="white" if mark == "o" else style.INK,
                markersize=4.5,
                linewidth=0.9,
            )
    side = "left" if position < len(layers) / 3 else "right" if position > 2 * len(layers) / 3 else "center"
    line = int(bool(style.layer_breaks(layers)))  # above the names of views
    style.write_above(axes, f"chosen: {scores['chosen'].iloc[0]}", float(position), side=side, line=line)


def _curves_note(source: FigureInput) -> str:
    """Say what the marks and bands of `draw_curves` are, with the scores at the chosen point."""
    result = source.result
    parts = [
        f"{mark}: {split} {percent(score.mean)} ({interval(score)})"
        for split, (_, mark, _) in MARKS.items()
        if result.chosen.get("layer") and (score := result.summary.get(split, {}).get(result.metric))
    ]
    has_bands = any(any(curve.spread) for curve in layer_curves(result))
    penalties = {match[1] for curve in layer_curves(result) if (match := re.fullmatch(PENALTY, curve.name))}
    n_values = len({curve.name for curve in layer_curves(result)})
    folded = [f"band: from the best to the worst of {n_values} values of {name}" for name in penalties if n_values > 1]
    return ", ".join([*parts, *folded, *["bands: standard deviation over seeds"] * has_bands])


def parts_frame(parts: Plain) -> pd.DataFrame:
    """Take the values of `PARTS` that a head or an autoencoder has, a column each, over its layers."""
    columns = {label: times * np.array(parts[key], float) for key, (label, times) in PARTS.items() if key in parts}
    return pd.DataFrame({"layer": parts["layers"], **columns})


def draw_parts(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw columns over `layer`, a panel each: contributions, weights of a mix, losses of autoencoders."""
    layers, columns = list(frame["layer"]), list(frame.columns[1:])
    all_axes, breaks = style.panels(figure, len(columns), sharex=True), style.layer_breaks(layers)
    for axes, label in zip(all_axes, columns, strict=True):
        if label in BARS:
            axes.bar(range(len(layers)), frame[label], color=style.ORANGE, width=0.7)
        else:
            style.draw_line(axes, range(len(layers)), frame[label], colour=style.BLUE, breaks=breaks)
        if label == BARS[0]:
            style.draw_level(axes, 1 / len(layers), "equal")
        axes.axhline(0, color=style.GREY, linewidth=0.6)
        axes.set_ylabel(label)
        _set_scale(axes, frame, label)
    style.mark_layers(all_axes[-1], layers)
    figure.align_ylabels(all_axes)


def history_frame(result: HeadResult) -> pd.DataFrame | None:
    """List the epochs of every seed: training loss, the score that chose, whether it was kept; None without epochs."""
    if not any(seed.get("history") for seed in result.seeds):
        return None
    key = _history_score(result)
    label = f"{key.partition('_')[0]} {metric_label(result.metric)} x 100"
    rows = [
        {
            "seed": seed["seed"],
            "epoch": epoch,
            "training loss": step["train_loss"],
            **({label: np.nan if step.get(key) is None else 100 * step[key]} if key else {}),
            "is_kept": bool(key) and epoch == seed["best_epoch"],
        }
        for seed in result.seeds
        for epoch, step in enumerate(seed["history"], start=1)
    ]
    return pd.DataFrame(rows)


def draw_history(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw training loss and the score that chose, per epoch: a line per seed, the kept epoch marked."""
    labels = list(frame.columns[2:-1])
    losses, *others = all_axes = style.panels(figure, len(labels), sharex=True)
    for _, seed in frame.groupby("seed", sort=False):
        losses.plot(seed["epoch"], seed[labels[0]], color=style.BLUE, alpha=0.8)
        for axes, label in zip(others, labels[1:], strict=True):
            scored, best = seed[np.isfinite(seed[label])], seed[seed["is_kept"]]
            axes.plot(scored["epoch"], scored[label], color=style.ORANGE, alpha=0.8)
            if len(best):
                axes.plot(best["epoch"], best[label], "o", color=style.INK, markersize=4, zorder=5)
    for axes, label in zip(all_axes, labels, strict=True):
        axes.set_ylabel(label)
    all_axes[-1].set_xlabel("epoch")
    style.count_in_whole_numbers(all_axes[-1])
    figure.align_ylabels(all_axes)


def history_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Lay the epochs of seeds out side by side."""
    table = frame.drop(columns="is_kept").drop_duplicates(["epoch", "seed"]).pivot(index="epoch", columns="seed")
    table.columns = [f"{label}, seed {seed}" for label, seed in table.columns]
    return table.reset_index()


def _history_note(source: FigureInput) -> str:
    """Say what the lines and dots of `draw_history` are."""
    seeds = source.result.seeds
    epochs = [str(seed["best_epoch"]) for seed in seeds if seed["best_epoch"]]
    has_dots = epochs and _history_score(source.result)
    dots = f"dot{'s' * (len(epochs) > 1)}: kept, epoch {', '.join(epochs)}" if has_dots else ""
    return ", ".join(filter(None, ["a line per seed" * (len(seeds) > 1), dots]))


def _history_score(result: HeadResult) -> str:
    """Find the score that the epochs of a head record: of its metric on a split, or of its chosen layer."""
    recorded = {key for seed in result.seeds for step in seed["history"] for key in step}
    keys = (f"{split}_{score}" for split in ("validation", "test") for score in (result.metric, "score"))
    return next((key for key in keys if key in recorded), "")


def confusion_frame(names: Sequence[str], gold: Sequence[object], predicted: NDArray[np.integer]) -> pd.DataFrame:
    """Count gold names (rows) and predicted ones (columns; the last is no prediction, where some are missing)."""
    codes: dict[object, int] = {name: code for code, name in enumerate(names)}
    counts = np.zeros((len(names), len(names) + 1), dtype=np.int64)
    rows = np.array([codes[name] for name in gold])
    np.add.at(counts, (rows, np.asarray(predicted, np.int64)), 1)  # NO_PREDICTION is -1, the last column
    columns = pd.Index([*names, "none"], name="predicted")
    frame = pd.DataFrame(counts, pd.Index(names, name="gold"), columns)
    return frame if (predicted == NO_PREDICTION).any() else frame.iloc[:, :-1]


def draw_confusion(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw the confusion of classes or tags, rows gold: counts, the darker the larger their share of the gold name."""
    counts = frame.to_numpy()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = 2.4 + 0.3 * min(len(frame), 13) + 0.1 * max(0, min(len(frame), MOST_NAMED) - 13)
    figure.set_size_inches(side + 0.8, side)
    axes = style.panel(figure)
    axes.grid(visible=False)
    image = axes.imshow(shares, cmap=style.SHADES, vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the gold name", shrink=0.7, aspect=25)
    style.count_in_whole_numbers(axes, "xy")
    if len(frame) <= MOST_NAMED:
        short = [name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…" for name in frame.columns]
        size = style.SMALL if len(frame) <= MOST_COUNTED else 0.8 * style.SMALL
        axes.set_xticks(range(len(short)), short, rotation=60, ha="right", rotation_mode="anchor", fontsize=size)
        axes.set_yticks(range(len(frame)), short[: len(frame)], fontsize=size)
        for (row, column), count in np.ndenumerate(counts) if len(frame) <= MOST_COUNTED else ():
            colour = "white" if shares[row, column] > 0.6 else style.INK if count else style.PALE
            size = min(style.SMALL, 110 / len(short))
            axes.text(column, row, f"{count:,}", ha="center", va="center", fontsize=size, color=colour)
    axes.set(xlabel="predicted", ylabel="gold")


def residual_frame(residuals: Residuals) -> pd.DataFrame:
    """List predicted and gold of every row, with what a residual may depend on."""
    sides = {"words of the pair": residuals.n_words, "lexical overlap": residuals.overlap}
    return pd.DataFrame({"predicted": residuals.predicted, "gold": residuals.gold, **sides})


def draw_residuals(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw residuals: histogram, Q-Q, calibration, and against gold, length and overlap; with 95 % intervals."""
    histogram, quantiles, calibration, *against = style.panels(figure, 2, 3)
    residuals, groups = (frame["predicted"] - frame["gold"]).to_numpy(), residual_groups(frame)
    histogram.hist(residuals, bins=_n_bins(residuals), color=style.BLUE, rwidth=0.9)
    histogram.set(xlabel="predicted - gold", ylabel="rows")
    style.count_in_whole_numbers(histogram, "y")
    dots: dict[str, Any] = {"color": style.BLUE, "alpha": 0.5, **style.dots(len(frame))}
    (theoretical, ordered), (slope, intercept, _) = probplot(residuals)
    quantiles.plot(theoretical, ordered, **dots)
    quantiles.plot(theoretical, slope * theoretical + intercept, color=style.ORANGE)
    quantiles.set(xlabel="normal quantile", ylabel="residual quantile")
    sides = frame[["predicted", "gold"]]
    ends = [sides.min(axis=None), sides.max(axis=None)]
    calibration.plot(ends, ends, color=style.GREY, linewidth=0.8)
    means = groups[groups["of"] == "gold"]
    calibration.errorbar(means["mean"], means["value"], means["half"], fmt=".-", color=style.BLUE)
    calibration.set(xlabel=f"predicted, mean of {len(means)} groups", ylabel="mean gold")
    for axes, column in zip(against, frame.columns[1:], strict=True):
        axes.sharey(against[0])
        axes.plot(frame[column], residuals, **dots)
        axes.axhline(0, color=style.GREY, linewidth=0.8)
        means = groups[(groups["of"] == "residual") & (groups["along"] == column)]
        low, high = means["value"] - means["half"], means["value"] + means["half"]
        axes.fill_between(means["mean"], low, high, color=style.ORANGE, alpha=0.3, linewidth=0)
        axes.plot(means["mean"], means["value"], color=style.ORANGE)
        axes.set(xlabel=column, ylabel="predicted - gold" if axes is against[0] else "")


def residual_groups(frame: pd.DataFrame) -> pd.DataFrame:
    """Average gold along the predictions, and residuals along everything else, in groups of equal size.

    `mean` is that of the column `along`, `value` that of what is averaged, `half` half its 95 % interval.
    """
    n_groups = max(2, min(12, len(frame) // FEWEST_ROWS))
    columns = frame.assign(residual=frame["predicted"] - frame["gold"])
    parts = []
    for of, along in (("gold", "predicted"), *(("residual", name) for name in frame.columns[1:])):
        means = group_means(columns[along].to_numpy(), columns[of].to_numpy(), n_groups)
        parts.append(
            pd.DataFrame({"of": of, "along": along, **dict(zip(("mean", "value", "half"), means, strict=True))})
        )
    return pd.concat(parts)


def residual_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Write the groups of `residual_groups`, and how many rows are in each bar of the histogram."""
    residuals = (frame["predicted"] - frame["gold"]).to_numpy()
    counts, edges = np.histogram(residuals, bins=_n_bins(residuals))
    bars = {"of": "number of rows", "along": "residual", "mean": (edges[:-1] + edges[1:]) / 2, "value": 1.0 * counts}
    table = pd.concat([residual_groups(frame), pd.DataFrame({**bars, "half": np.nan})])
    return table.rename(columns={"mean": "at", "value": "mean, or number", "half": "± (95 %)"})


def _n_bins(residuals: NDArray[np.float64]) -> int:
    return min(60, len(np.histogram_bin_edges(residuals, "auto")) - 1)


def group_means(x: NDArray[np.float64], y: NDArray[np.float64], n_groups: int) -> tuple[NDArray[np.float64], ...]:
    """Return the means of `x` and `y` in groups of equal size along `x`, and half the 95 % interval of those of `y`."""
    groups = [group for group in np.array_split(np.argsort(x, kind="stable"), n_groups) if len(group)]
    means = [(x[group].mean(), y[group].mean(), 1.96 * y[group].std() / len(group) ** 0.5) for group in groups]
    return tuple(np.array(column) for column in zip(*means, strict=True))


def rows_frame(scores: NDArray[np.float64]) -> pd.DataFrame | None:
    """Sort the scores of rows, with the share of rows that score at most as much; None for rows right or wrong."""
    scored = np.sort(scores[np.isfinite(scores)])
    if len(np.unique(scored)) <= 2:
        return None
    return pd.DataFrame({"score": scored, "% of rows": 100 * np.arange(1, len(scored) + 1) / len(scored)})


def draw_row_scores(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw the share of rows that score at most so much."""
    axes, mean = style.panel(figure), frame["score"].mean()
    axes.step(frame["score"], frame["% of rows"], where="post", color=style.BLUE)
    axes.axvline(mean, color=style.ORANGE, linewidth=1)
    style.write_above(axes, f"mean {mean:.2f}", mean, colour=style.ORANGE)
    axes.set(xlabel="score of a row, higher is better", ylabel="% of rows that score at most this", ylim=(0, 102))


def rows_note(scores: NDArray[np.float64]) -> str:
    """Count the rows with and without a score."""
    missing = int(np.isnan(scores).sum())
    return f"{len(scores) - missing:,} rows" + f", {missing:,} more without a score" * (missing > 0)


def _extra_frame(key: str) -> Callable[[FigureInput], pd.DataFrame | None]:
    """Give the frame of an extra that holds values over layers."""
    return lambda source: parts_frame(source.result.extras[key]) if key in source.result.extras else None


FIGURES: tuple[HeadFigure, ...] = (
    HeadFigure(
        "{head}: score of each layer",
        "layers",
        lambda source: curve_frame(source.result, source.baselines) if source.names else None,
        draw_curves,
        _curves_note,
        table=curve_table,
        scales=curve_scales,
    ),
    HeadFigure(
        "{head}: score of each layer",
        "curve",
        lambda source: None if source.names else curve_frame(source.result, source.baselines),
        draw_curves,
        _curves_note,
        table=curve_table,
        scales=curve_scales,
    ),
    HeadFigure(
        "What each layer gives {head}",
        "layers",
        _extra_frame("contributions"),
        draw_parts,
        lambda source: f"{metric_label(source.result.metric)} on {source.result.extras['contributions']['split']}",
        style.TALL,
        scales=lambda frame: {
            label: (min(0.0, frame[label].min()), max(0.0, frame[label].max())) for label in frame.columns[1:]
        },
    ),
    HeadFigure(
        "What each layer gives {head}",
        "weights",
        _extra_frame("mix"),
        draw_parts,
        lambda source: f"{metric_label(source.result.metric)} on validation",
        (style.TALL[0], 4.9),
    ),
    HeadFigure(
        "Fitting {head}",
        "history",
        lambda source: history_frame(source.result),
        draw_history,
        _history_note,
        style.TALL,
        history_table,
    ),
    HeadFigure(
        "Confusion of {head}, {split}",
        "confusion",
        lambda source: (
            confusion_frame(source.names, source.gold, source.result.predictions[source.split])
            if source.names
            else None
        ),
        draw_confusion,
        lambda source: (
            f"{len(source.gold):,} predictions" + ", counted in the cells" * (len(source.names) <= MOST_COUNTED)
        ),
    ),
    HeadFigure(
        "Residuals of {head}, {split}",
        "residuals",
        lambda source: residual_frame(source.residuals) if source.residuals else None,
        draw_residuals,
        lambda source: (
            f"{len(source.gold):,} rows, in the units of the gold; bands and whiskers: 95 % intervals of means"
        ),
        style.WIDE,
        residual_table,
    ),
    HeadFigure(
        "Scores of single rows, {head}, {split}",
        "rows",
        lambda source: rows_frame(source.row_scores),
        draw_row_scores,
        lambda source: rows_note(source.row_scores),
    ),
)
"""Every figure of a head."""


def draw_autoencoders(album: style.Album, pretraining: PretrainingInfo, *, plan: str) -> None:
    """Draw losses (FREEZE Figure 2) and fitting of the autoencoders of every pooling."""
    for pooling, record in pretraining.get("autoencoders", {}).items():
        name = f"figures/autoencoder_{re.sub(r'[^A-Za-z0-9-]', '_', pooling)}"  # a name in a cache, no path
        # Of raw latents, the loss is the squared error itself.
        left_out = "" if record["standardises_latents"] else "held_out_losses"
        parts = parts_frame({key: value for key, value in record.items() if key != left_out})
        about = f"autoencoders ({pooling}), plan {plan}"
        note = "{train:,} texts, {held_out:,} held out".format(**record["n_texts"])
        album.add(name, draw_parts, parts, title=f"Losses of the {about}", note=note, size=style.TALL, table=parts)
        note += "; means over layers still trained; grey lines: epochs that a layer kept"
        losses = loss_frame(record)
        album.add(f"{name}_history", draw_losses, losses, title=f"Fitting the {about}", note=note, table=losses)


def loss_frame(record: AutoencoderInfo) -> pd.DataFrame:
    """List the epochs of autoencoders: mean losses over layers still trained, and the layers that kept each."""
    loss = "mean squared error" + " / variance" * record["standardises_latents"]
    epochs = range(1, len(record["history"]) + 1)
    frame = pd.DataFrame(
        {
            "epoch": epochs,
            "training\n(with dropout)": [step["train_loss"] for step in record["history"]],
            "held out": [step["held_out_loss"] for step in record["history"]],
            "layers kept": [list(record["best_epochs"]).count(epoch) for epoch in epochs],
        }
    )
    return frame.rename_axis(columns=loss)


def draw_losses(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw the training and held-out loss of autoencoders by epoch, with a line where a layer was kept."""
    axes = style.panel(figure)
    for colour, label in zip((style.BLUE, style.ORANGE), frame.columns[1:3], strict=True):
        style.draw_line(axes, frame["epoch"], frame[label], colour=colour, label=label)
    for epoch in frame.loc[frame["layers kept"] > 0, "epoch"]:
        axes.axvline(epoch, color=style.PALE, linewidth=0.8, zorder=1)
    axes.set_ylim(bottom=0)
    style.count_in_whole_numbers(axes)
    axes.set(xlabel="epoch", ylabel=frame.columns.name)
