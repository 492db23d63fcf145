"""Figures of what was found about layers: every view with its intervals, the set that holds the best, and agreement."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from extract.errors import HeadError
from probes.layers.findings import OF_EVERY_LAYER, VIEWS, HeadFindings, ViewCurve, load_findings
from probes.report import style
from probes.report.blocks import NOTHING, Block, Document, Item, Table, cell, metric_label, number
from probes.report.page import Page, Part, Pictures, parts_of, warnings_of

UNITS = {"bits": ("bits", 1.0), "weight": ("weight", 1.0)}
"""Metrics that are not written times 100: how they are labelled, and what they are multiplied by."""
LINES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
"""Styles that tell the curves of a view apart without colours."""
IN_ORDER = ("greedy", "greedy-gap")
"""Views whose layers stand in the order of their choice."""
AGREE = "PuOr"
"""Colour map of correlations: white at 0, darker to both sides."""


def draw_view(axes: Axes, findings: HeadFindings, view: str) -> Axes:
    """Draw a view over layers: bars for what is gained or lost, a curve per name for scores, with their intervals.

    Groups of layers, and layers in the order of their choice, stand side by side under their names.
    """
    curves = [curve for curve in findings.curves if curve.view == view]
    is_bars = VIEWS[view].is_gain and len(curves) == 1
    for curve, colour, line in zip(curves, style.colours(len(curves)), _repeated(LINES, len(curves)), strict=True):
        if is_bars:
            _draw_bars(axes, findings, curve)
        else:
            _draw_curve(axes, findings, curve, colour=colour, line=line)
    if VIEWS[view].is_gain:
        axes.axhline(0, color=style.GREY, linewidth=0.6)
    _name_layers(axes, findings, curves[0])
    axes.set_ylabel(_label(curves[0], view))
    return axes


def draw_alone(axes: Axes, findings: HeadFindings) -> Axes:
    """Draw the score of every layer alone with its interval, the set that holds the best, controls and baselines."""
    shade_set(axes, findings)
    for curve, colour, line in zip(
        (each for each in findings.curves if each.view == "alone"), style.COLOURS, _repeated(LINES, 7), strict=False
    ):
        _draw_curve(axes, findings, curve, colour=colour, line=line)
    controls = [curve for curve in findings.curves if curve.view == "control"]
    for curve, line in zip(controls, _repeated(LINES[1:], len(controls)), strict=True):
        label = f"control, {curve.name}" if curve.name else "control"
        _draw_curve(axes, findings, curve, colour=style.GREY, line=line, label=label)
    baselines = findings.curve("baseline")
    if baselines is not None:
        for name, value in zip(baselines.layers, _scaled(baselines.values, baselines), strict=True):
            style.draw_level(axes, float(value), style.shorten(name))
    alone = findings.curve("alone")
    if alone is not None:
        values, place = _scaled(alone.values, alone), alone.layers.index(findings.best)
        axes.plot(place, values[place], "o", color=style.INK, markersize=6, markerfacecolor="none", zorder=5)
        style.mark_layers(axes, findings.layers)
        axes.set_ylabel(_label(alone, "alone"))
    return axes


def draw_agreement(axes: Axes, findings: HeadFindings) -> Axes:
    """Draw how far views rank the layers alike: Spearman's correlation in the cells, its interval below."""
    views = [key for key in VIEWS if any(key in (each.one, each.other) for each in findings.agreement)]
    values = np.full((len(views), len(views)), np.nan)
    axes.grid(visible=False)
    for each in findings.agreement:
        one, other = views.index(each.one), views.index(each.other)
        values[one, other] = values[other, one] = each.value
        for x, y in ((one, other), (other, one)):
            colour = "white" if abs(each.value) > 0.6 else "black"
            ends = f"\n{each.low:.2f} to {each.high:.2f}" if np.isfinite(each.low) else ""
            size = min(style.SMALL, 40 / max(len(views), 1)) if ends else style.SMALL
            axes.text(x, y, f"{each.value:+.2f}{ends}", ha="center", va="center", fontsize=size, color=colour)
    axes.imshow(values, cmap=AGREE, vmin=-1, vmax=1)
    titles = [VIEWS[view].title.replace(", ", ",\n") for view in views]
    axes.set_xticks(range(len(views)), titles, rotation=90)
    axes.set_yticks(range(len(views)), titles)
    return axes


def shade_set(axes: Axes, findings: HeadFindings) -> Axes:
    """Shade the layers that cannot be told from the best."""
    places = sorted(findings.layers.index(layer) for layer in findings.best_set)
    starts = [place for before, place in pairwise((-2, *places)) if place != before + 1]
    ends = [place for place, after in pairwise((*places, -2)) if after != place + 1]
    for start, end in zip(starts, ends, strict=True):
        axes.axvspan(start - 0.5, end + 0.5, color=style.PALE, alpha=0.45, linewidth=0, zorder=0)
    return axes


def findings_note(findings: HeadFindings, *, has_set: bool = False) -> str:
    """Say what intervals are of, and what the shade is."""
    drawn = f"{findings.n_units:,} {findings.unit} of {findings.split}"
    intervals = f"intervals: {100 * findings.confidence:g} % for all layers together, drawn from {drawn}"
    shade = "; shaded: the layers that cannot be told from the best (circle)" * has_set
    return f"{findings.head}, pooling {findings.pooling}; {intervals}{shade}"


def _repeated(lines: Sequence[object], n: int) -> list[object]:
    return [lines[place % len(lines)] for place in range(n)]


def _scaled(values: Sequence[float], curve: ViewCurve) -> NDArray[np.float64]:
    return UNITS.get(curve.metric, ("", 100.0))[1] * np.asarray(values, np.float64)


def _label(curve: ViewCurve, view: str) -> str:
    """Label the axis of values with what they are, and their unit."""
    unit = UNITS.get(curve.metric, (f"{metric_label(curve.metric)} x 100", 0))[0]
    return unit if not VIEWS[view].is_gain else f"{VIEWS[view].title.replace(', ', ',' + chr(10))},\n{unit}"


def _places(findings: HeadFindings, curve: ViewCurve) -> list[int]:
    """Place layers bottom up; groups, and layers in the order of their choice, one after the other."""
    if is_over_layers(findings, curve):
        return [findings.layers.index(layer) for layer in curve.layers]
    return list(range(len(curve.layers)))


def is_over_layers(findings: HeadFindings, curve: ViewCurve) -> bool:
    """Whether a curve has a value for single layers, and not for groups or in an order of their choice."""
    return curve.view not in IN_ORDER and set(curve.layers) <= set(findings.layers)


def _name_layers(axes: Axes, findings: HeadFindings, curve: ViewCurve) -> None:
    if is_over_layers(findings, curve):
        style.mark_layers(axes, findings.layers)
        return
    names = [layer.replace("_", " ") for layer in curve.layers]
    axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 6 else 0)
    axes.fmt_xdata = lambda place: curve.layers[round(place)]
    axes.set_xlabel("layers, in the order in which they are taken" if curve.view in IN_ORDER else "group of layers")


def _draw_bars(axes: Axes, findings: HeadFindings, curve: ViewCurve) -> None:
    places, values = _places(findings, curve), _scaled(curve.values, curve)
    axes.bar(places, values, color=style.ORANGE, width=0.7)
    if curve.low:
        ends = np.array([values - _scaled(curve.low, curve), _scaled(curve.high, curve) - values])
        axes.errorbar(
            places,
            values,
            np.maximum(np.nan_to_num(ends), 0),
            fmt="none",
            ecolor=style.INK,
            elinewidth=0.8,
            label="interval",
        )


def _draw_curve(
    axes: Axes, findings: HeadFindings, curve: ViewCurve, *, colour: str, line: object, label: str = ""
) -> None:
    places = np.array(_places(findings, curve), np.float64)
    label = label or curve.name or VIEWS[curve.view].title
    breaks = style.layer_breaks(findings.layers) if len(places) == len(findings.layers) else ()
    style.draw_line(
        axes,
        places,
        _scaled(curve.values, curve),
        colour=colour,
        label=label,
        breaks=breaks,
        linestyle=line,
        spread=() if curve.low else _scaled(curve.spread, curve),
    )
    if curve.low:
        low, high = (_scaled(each, curve) for each in (curve.low, curve.high))
        style.draw_band(axes, places, low, high, colour=colour, label=f"{label}, interval")


def draw_findings(album: style.Album, findings: HeadFindings) -> None:
    """Draw every view of a head, and how far they agree."""
    head = findings.head
    if findings.curve("alone"):
        album.add(
            "layers_alone",
            lambda figure: draw_alone(style.panel(figure), findings),
            size=style.TALL,
            title=f"{head}: {VIEWS['alone'].asks}",
            note=findings_note(findings, has_set=True),
        )
    elsewhere = (*OF_EVERY_LAYER, "baseline")
    for view in dict.fromkeys(curve.view for curve in findings.curves if curve.view not in elsewhere):
        album.add(
            f"layers_{view}",
            _draw_one,
            findings,
            view,
            title=f"{head}, {VIEWS[view].title}: {VIEWS[view].asks}",
            note="; ".join(filter(None, (findings_note(findings), *_notes(findings, view)))),
        )
    if findings.agreement:
        side = 2.6 + 0.5 * len({name for each in findings.agreement for name in (each.one, each.other)})
        album.add(
            "layers_agreement",
            lambda figure: draw_agreement(style.panel(figure), findings),
            size=(side, side),
            title=f"{head}: do the views rank the layers alike?",
            note="Spearman's correlation, its interval",
        )


def _draw_one(figure: Figure, findings: HeadFindings, view: str) -> None:
    draw_view(style.panel(figure), findings, view)


def _notes(findings: HeadFindings, view: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(curve.note for curve in findings.curves if curve.view == view and curve.note))


def set_sentence(findings: HeadFindings) -> str:
    """Name the best layer and those that cannot be told from it."""
    names = ", ".join(f"`{cell(layer)}`" for layer in findings.best_set)
    return (
        f"Best alone is `{cell(findings.best)}`; {len(findings.best_set)} of {len(findings.layers)} layers cannot be "
        f"told from it at {100 * findings.confidence:g} % for all together: {names}."
    )


def findings_blocks(findings: HeadFindings) -> Iterator[Block]:
    """Write every view in tables, a row per layer and a column per view, and what each of them asks."""
    curves = [curve for curve in findings.curves if is_over_layers(findings, curve)]
    yield (
        f"Scores and their differences are {metric_label(cell(findings.metric))} x 100; in brackets intervals over "
        f"{findings.n_units:,} {cell(findings.unit)}, of {100 * findings.confidence:g} % for all layers together."
    )
    if curves:
        rows = [_row(layer, findings, curves) for layer in findings.layers]
        yield Table(("layer", "in the set", *(_title(curve, findings) for curve in curves)), rows)
    for curve in (each for each in findings.curves if each not in curves):
        places = [(cell(layer), _text(curve, place)) for place, layer in enumerate(curve.layers)]
        what = "baseline" if curve.view == "baseline" else "layers"
        yield Table((what, _title(curve, findings)), places)
    for view in dict.fromkeys(curve.view for curve in findings.curves):
        how = "probes fitted again" if VIEWS[view].is_retrained else "the fitted head"
        yield Item(f"{VIEWS[view].title}: {VIEWS[view].asks} ({'; '.join((how, *map(cell, _notes(findings, view))))})")


def _title(curve: ViewCurve, findings: HeadFindings) -> str:
    unit = "" if curve.metric == findings.metric else f", {cell(curve.metric)}"
    return f"{VIEWS[curve.view].title}{f' ({cell(curve.name)})' if curve.name else ''}{unit}"


def _row(layer: str, findings: HeadFindings, curves: list[ViewCurve]) -> tuple[str, ...]:
    values = (_text(curve, curve.layers.index(layer)) if layer in curve.layers else NOTHING for curve in curves)
    return (cell(layer), "yes" if layer in findings.best_set else NOTHING, *values)


def _text(curve: ViewCurve, place: int) -> str:
    times = UNITS.get(curve.metric, ("", 100.0))[1]
    digits = 1 if times == 100 else 3
    text = number(curve.values[place], digits, times=times)
    if curve.low and math.isfinite(curve.low[place]):
        ends = (number(each[place], digits, times=times) for each in (curve.low, curve.high))
        text += f" ({' to '.join(ends)})"
    return text


def run_page(folder: Path, document: Document, pictures: Pictures, values: Mapping[str, Any]) -> Page:
    """Make the page of a run: what was found about its layers first, where that is in its folder.

    Args:
        folder: The run folder.
        document: Its report.
        pictures: Holds its figures; those of its layers are drawn here.
        values: The content of scores.json.
    """
    figures, parts = pictures.take(), list[Part]()
    found, complaint = list[HeadFindings](), ""
    try:
        found = load_findings(folder)
    except HeadError as error:
        complaint = str(error)
    for each in found:
        draw_findings(style.Album(folder, (), pictures.keep), each)
        head = f"`{cell(each.head)}`"
        parts.append(Part(f"Which layers matter to {head}", (set_sentence(each),), pictures.take()))
        parts.append(Part(f"Every layer of {head} in numbers", tuple(findings_blocks(each))))
    answers = [f"`{cell(each.head)}`: {cell(each.answer)}" for each in found if each.answer]
    warnings = (complaint, *(cell(text) for each in found for text in each.warnings), *warnings_of(document))
    return Page(
        document.title,
        document.question,
        (*answers, document.answer),
        tuple(filter(None, warnings)),
        (*parts, *parts_of(document, figures)),
        {document.title: values},
    )
