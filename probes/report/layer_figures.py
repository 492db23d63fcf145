"""Which layers matter to a head: figures of every view with its intervals, and the tables of a page.

A figure draws the rows of one head in the frame of `icecore.compare_layers`, or the findings of a run folder.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import cycle, pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from probes.layers.findings import OF_TEXTS, VIEWS, HeadFindings, ViewCurve
from probes.report import style
from probes.report.blocks import NOTHING, Block, Item, Table, cell, metric_label, number

UNITS = {"bits": ("bits", 1.0), "weight": ("weight", 1.0)}
"""Metrics that are not written times 100: how they are labelled, and what they are multiplied by."""
LINES: tuple[object, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
"""Styles that tell the curves of a view apart without colours."""
IN_ORDER = ("greedy", "greedy-gap")
"""Views whose layers stand in the order of their choice."""
SCORES = ("alone", "prefix", "suffix", "greedy")
"""Views of scores, which share one scale."""
AGREE = "PuOr"
"""Colour map of correlations: white at 0, darker to both sides."""


def draw_agreements(album: style.Album, findings: HeadFindings) -> None:
    """Draw how far the views of a head agree, where there are several."""
    if findings.agreement:
        agreement = pd.DataFrame(map(asdict, findings.agreement))
        side = 2.6 + 0.5 * len({*agreement["one"], *agreement["other"]})
        album.add(
            "layers_agreement",
            style.on_panel(draw_agreement),
            agreement,
            size=(side, side),
            title=f"{findings.head}: do the views rank the layers alike?",
            note="Spearman's correlation, its interval",
            table=agreement,
        )


def write_curve(findings: HeadFindings, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write the curve of `draw_alone` for a column of 8 cm; what does not fit is for `curve_caption` to say."""
    draw = style.on_panel(lambda axes, rows: draw_alone(axes, rows).set_xlabel("block"))
    figure = style.make_figure(draw, findings, size=style.COLUMN, dpi=style.COLUMN_DPI)
    name = f"layer_curve_{findings.head.replace('-', '_')}"
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in formats:
        style.save_figure(figure, folder / f"{name}.{suffix}", file_format=suffix)
    return [folder / f"{name}.{suffix}" for suffix in formats]


def curve_caption(findings: HeadFindings) -> str:
    """Say what the figure of `write_curve` shows, as the caption of a paper does."""
    tops = {layer.rpartition("/")[2] for layer in findings.layers}
    names = "".join(f"; {short}: {name.replace('_', ' ')}" for name, short in style.ENDS.items() if name in tops)
    return f"Every layer alone. {findings_note(findings)}{names}."


def draw_view(axes: Axes, rows: pd.DataFrame | HeadFindings, view: str) -> Axes:
    """Draw a view over layers: bars for what is gained or lost, a curve per name for scores, with their intervals.

    Groups of layers, and layers in the order of their choice, stand side by side under their names.
    """
    frame, is_gain = _frame_of(rows), VIEWS[view].is_gain
    layers, views = _layers_of(frame), frame[frame["view"] == view]
    curves = [curve for _, curve in views.groupby("name", sort=False)]
    for curve, colour, line in zip(curves, style.colours(len(curves)), cycle(LINES), strict=False):
        if is_gain and len(curves) == 1:
            _draw_bars(axes, curve, layers)
        else:
            label = curve["name"].iloc[0] or VIEWS[view].title
            _draw_curve(axes, curve, layers, colour=colour, linestyle=line, label=label)
    if is_gain:
        axes.axhline(0, color=style.GREY, linewidth=0.6)
    elif view in SCORES:
        scores = frame[frame["view"].isin(SCORES) & (frame["metric"] == views["metric"].iloc[0])]
        ends = np.concatenate([_scaled(scores, name) for name in ("value", "low", "high")])
        margin = 0.05 * float(np.nanmax(ends) - np.nanmin(ends)) or 1.0
        axes.set_ylim(np.nanmin(ends) - margin, np.nanmax(ends) + margin)
    if _is_over(layers, curves[0]):
        style.mark_layers(axes, layers)
    else:
        names = [layer.replace("_", " ") for layer in curves[0]["layer"]]
        axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 6 else 0)
        groups = "view of the texts" if view in OF_TEXTS else "group of layers"
        axes.set_xlabel("layers, in the order in which they are taken" if view in IN_ORDER else groups)
    title = f"{VIEWS[view].title},\n".replace(", ", ",\n") * is_gain
    axes.set_ylabel(title + _unit(views))
    return axes


def draw_alone(axes: Axes, rows: pd.DataFrame | HeadFindings) -> Axes:
    """Draw the score of every layer alone with its interval, the set that holds the best, controls and baselines."""
    frame = _frame_of(rows)
    alone, control, baseline = (frame[frame["view"] == view] for view in ("alone", "control", "baseline"))
    layers, first = _layers_of(frame), alone[alone["name"] == alone["name"].iloc[0]]
    shade_set(axes, first["in_set"].tolist())
    curves = [curve for _, curve in alone.groupby("name", sort=False)]
    for curve, colour, line in zip(curves, style.COLOURS, cycle(LINES), strict=False):
        label = curve["name"].iloc[0] or VIEWS["alone"].title
        _draw_curve(axes, curve, layers, colour=colour, linestyle=line, label=label)
    for (name, curve), dashes in zip(control.groupby("name", sort=False), cycle(LINES[1:]), strict=False):
        label = f"control, {name}" if name else "control"
        _draw_curve(axes, curve, layers, colour=style.GREY, linestyle=dashes, label=label)
    values = dict(zip(map(style.shorten, baseline["layer"]), _scaled(baseline, "value").tolist(), strict=True))
    style.draw_levels(axes, values)
    scores = _scaled(first, "value")
    if np.isfinite(scores).any():
        best = int(first["is_chosen"].to_numpy(bool).argmax()) if "is_chosen" in first else int(np.nanargmax(scores))
        axes.plot(best, scores[best], "o", color=style.INK, markersize=6, markerfacecolor="none", zorder=5)
    style.mark_layers(axes, layers)
    axes.set_ylabel(_unit(alone))
    return axes


def draw_agreement(axes: Axes, frame: pd.DataFrame) -> Axes:
    """Draw how far views rank the layers alike: Spearman's correlation in the cells, its interval below."""
    views = [view for view in VIEWS if view in {*frame["one"], *frame["other"]}]
    values = np.full((len(views), len(views)), np.nan)
    axes.grid(visible=False)
    for pair in frame.itertuples():
        one, other = views.index(pair.one), views.index(pair.other)
        values[one, other] = values[other, one] = pair.value
        for x, y in ((one, other), (other, one)):
            colour = "white" if abs(pair.value) > 0.6 else "black"
            ends = f"\n{pair.low:.2f} to {pair.high:.2f}" if np.isfinite(pair.low) else ""
            size = min(style.SMALL, 40 / max(len(views), 1)) if ends else style.SMALL
            text = f"{pair.value:+.2f}{ends}" if np.isfinite(pair.value) else "-"
            axes.text(x, y, text, ha="center", va="center", fontsize=size, color=colour)
    axes.imshow(values, cmap=AGREE, vmin=-1, vmax=1)
    titles = [VIEWS[view].title.replace(", ", ",\n") for view in views]
    axes.set_xticks(range(len(views)), titles, rotation=90)
    axes.set_yticks(range(len(views)), titles)
    return axes


def shade_set(axes: Axes, in_set: Sequence[bool]) -> Axes:
    """Shade the layers that are statistically tied with the best."""
    positions = np.flatnonzero(in_set).tolist()
    starts = [position for before, position in pairwise((-2, *positions)) if position != before + 1]
    ends = [position for position, after in pairwise((*positions, -2)) if after != position + 1]
    for start, end in zip(starts, ends, strict=True):
        axes.axvspan(start - 0.5, end + 0.5, color=style.PALE, alpha=0.45, linewidth=0, zorder=0)
    return axes


def findings_note(findings: HeadFindings) -> str:
    """Say what intervals are of, and what the shade is."""
    units = f"{findings.n_units:,} {findings.unit} of {findings.split}"
    intervals = f"intervals: {100 * findings.confidence:g} % for all layers together, drawn from {units}"
    circle = f", circle: {findings.recommended}, chosen on {findings.chosen_on}" if findings.chosen_on else ""
    shade = f"shaded: the layers statistically tied with the best{circle}"
    return f"{findings.head}, pooling {findings.pooling}; {intervals}; {shade}"


def _frame_of(rows: pd.DataFrame | HeadFindings) -> pd.DataFrame:
    return pd.DataFrame(rows.rows()) if isinstance(rows, HeadFindings) else rows


def _layers_of(frame: pd.DataFrame) -> list[str]:
    """List all layers, bottom up: those of `alone`, or of what the frame has."""
    alone = frame.loc[frame["view"] == "alone", "layer"]
    return list(dict.fromkeys(alone if len(alone) else frame["layer"]))


def _is_over(layers: Sequence[str], curve: pd.DataFrame) -> bool:
    """Whether a curve has a value for single layers, and not for groups or in an order of their choice."""
    return curve["view"].iloc[0] not in IN_ORDER and set(curve["layer"]) <= set(layers)


def _positions(curve: pd.DataFrame, layers: Sequence[str]) -> NDArray[np.float64]:
    """Place layers bottom up; groups, and layers in the order of their choice, one after the other."""
    if _is_over(layers, curve):
        return np.array([layers.index(layer) for layer in curve["layer"]], np.float64)
    return np.arange(len(curve), dtype=np.float64)


def _draw_bars(axes: Axes, curve: pd.DataFrame, layers: Sequence[str]) -> None:
    positions = _positions(curve, layers)
    values, low, high = (_scaled(curve, name) for name in ("value", "low", "high"))
    axes.bar(positions, values, color=style.ORANGE, width=0.7)
    if np.isfinite(low).any():
        ends = np.maximum(np.nan_to_num([values - low, high - values]), 0)
        axes.errorbar(positions, values, ends, fmt="none", ecolor=style.INK, elinewidth=0.8)


def _draw_curve(
    axes: Axes, curve: pd.DataFrame, layers: Sequence[str], *, colour: str, linestyle: object, label: str
) -> None:
    positions = _positions(curve, layers)
    values, low, high, std = (_scaled(curve, name) for name in ("value", "low", "high", "std"))
    has_interval = np.isfinite(low).any()
    breaks = style.layer_breaks(layers) if len(curve) == len(layers) else ()
    spread = () if has_interval else np.nan_to_num(std)
    style.draw_line(
        axes, positions, values, colour=colour, label=label, breaks=breaks, linestyle=linestyle, spread=spread
    )
    if has_interval:
        style.draw_band(axes, positions, low, high, colour=colour)


def _scaled(frame: pd.DataFrame, column: str) -> NDArray[np.float64]:
    times = [UNITS.get(metric, ("", 100.0))[1] for metric in frame["metric"]]
    scaled: NDArray[np.float64] = np.array(times, np.float64) * frame[column].to_numpy(np.float64)
    return scaled


def _unit(frame: pd.DataFrame) -> str:
    metric = frame["metric"].iloc[0]
    return UNITS.get(metric, (f"{metric_label(metric)} x 100", 0))[0]


def set_sentence(findings: HeadFindings) -> str:
    """Name the layers that are statistically tied with the best, and the one to use."""
    names = ", ".join(f"`{cell(layer)}`" for layer in findings.best_set)
    return (
        f"{len(findings.best_set)} of {len(findings.layers)} layers are statistically tied with the best at "
        f"{100 * findings.confidence:g} % for all together: {names}. The one to use is `{cell(findings.recommended)}`."
    )


def findings_blocks(findings: HeadFindings) -> Iterator[Block]:
    """Write every view in tables, a row per layer and a column per view, and what each of them asks."""
    layers = set(findings.layers)
    curves = [c for c in findings.curves if c.view not in IN_ORDER and set(c.layers) <= layers]
    yield (
        f"Scores and their differences are {metric_label(cell(findings.metric))} x 100; in brackets intervals over "
        f"{findings.n_units:,} {cell(findings.unit)}, of {100 * findings.confidence:g} % for all layers together."
    )
    if curves:
        rows = []
        for layer in findings.layers:
            texts = (_text(c, c.layers.index(layer)) if layer in c.layers else NOTHING for c in curves)
            rows.append((cell(layer), "yes" if layer in findings.best_set else NOTHING, *texts))
        yield Table(("layer", "in the set", *(_title(curve, findings) for curve in curves)), rows)
    for curve in (curve for curve in findings.curves if curve not in curves):
        rows = [(cell(layer), _text(curve, index)) for index, layer in enumerate(curve.layers)]
        of = "baseline" if curve.view == "baseline" else "views" if curve.view in OF_TEXTS else "layers"
        yield Table((of, _title(curve, findings)), rows)
    for view in dict.fromkeys(curve.view for curve in findings.curves):
        source = "probes fitted again" if VIEWS[view].is_retrained else "the fitted head"
        notes = dict.fromkeys(curve.note for curve in findings.curves if curve.view == view and curve.note)
        yield Item(f"{VIEWS[view].title}: {VIEWS[view].asks} ({'; '.join((source, *map(cell, notes)))})")


def _title(curve: ViewCurve, findings: HeadFindings) -> str:
    unit = "" if curve.metric == findings.metric else f", {cell(curve.metric)}"
    return f"{VIEWS[curve.view].title}{f' ({cell(curve.name)})' if curve.name else ''}{unit}"


def _text(curve: ViewCurve, index: int) -> str:
    times = UNITS.get(curve.metric, ("", 100.0))[1]
    digits = 1 if times == 100 else 3
    text = number(curve.values[index], digits, times=times)
    if curve.low and math.isfinite(curve.low[index]):
        low, high = (number(ends[index], digits, times=times) for ends in (curve.low, curve.high))
        text += f" ({low} to {high})"
    return text
