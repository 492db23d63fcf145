"""Figures over layers: scores, contributions, weights, losses."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probes.heads.result import Curve, HeadResult
from probes.report.figures import style
from probes.report.table import LABELS, describe_point, interval, metric_label, percent

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
            axes, range(len(result.layers)), 100 * np.array(curve.values), colour=colours[curve.name],
            label=", ".join(filter(None, parts)), spread=100 * np.array(curve.spread),
            breaks=style.layer_breaks(result.layers), linestyle=LINES.get(curve.split, "-"),
            linewidth=1.8 if len(names) > 1 and _is_chosen(curve.name, result.chosen) else 1.2,
        )  # fmt: skip
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
                [place + step * n_layers], [100 * found.mean], np.maximum(np.nan_to_num(ends), 0), fmt=mark, zorder=5,
                color=style.INK, markerfacecolor="white" if mark == "o" else style.INK, markersize=4.5, linewidth=0.9,
            )  # fmt: skip
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
