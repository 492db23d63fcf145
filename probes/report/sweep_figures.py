"""Figures of a sweep over axes, from its tidy frame: heat maps of layers by values, small multiples, and scores."""

import re
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from probes.data.task_table import task_title
from probes.report import style
from probes.report.blocks import metric_label, score_unit
from probes.report.comparison_figures import draw_search, search_frame, search_table
from probes.report.scores import PlansScores, label_of
from probes.report.sweep_frames import (
    axes_of,
    found_name,
    gains_frame,
    layer_scores,
    points_frame,
    score_rows,
    slots_of,
    source_frame,
)

MOST_PANELS = 12
"""Most panels of a figure; the chosen point and the best are among them, the rest is in the table alone."""
NUMBER = re.compile(r"([A-Za-z_-]*[A-Za-z_]-?|[A-Za-z_-]*=)?(-?(?:\d+(?:\.\d+)?|\.\d+)(?:e-?\d+)?)")
"""A value of an axis that is a number, perhaps with a name before it, the same for all: `0.5`, `step512`, `k=-1`."""
MOST_INCHES = 14.0
"""Height of the figure of very many points."""
ROW, PANEL = 0.27, 2.6
"""Inches of a row of a heat map, and of the width of a panel."""


def draw_grid(album: style.Album, scores: PlansScores) -> None:
    """Draw the figures of a sweep over axes: for every head the layers at every point, and the scores of points."""
    frame, axes = points_frame(scores), axes_of(scores)
    if scores.search:
        found = found_name(scores)
        tried = search_frame(scores.search, found, "point")
        note = f"{scores.search.by}; a line for each trial; found: {found}"
        album.add("search", draw_search, tried, title="Search for a point", note=note, table=search_table(tried))
    for slot, metric in _scored_by(scores):
        is_chosen_by = metric == scores.chosen[slot].result.metric
        of = slot if is_chosen_by else f"{slot} {metric}"
        stem = _stem(of)
        layers = layer_scores(frame, slot, metric)
        rows = score_rows(frame, slot, metric)
        where = f"{' and '.join(map(task_title, dict.fromkeys(rows['task'])))} on {scores.header.decoder['name']}"
        chosen = label_of(scores.chosen[slot].point)
        if layers["layer"].nunique() > 1:
            album.add(
                f"layers_{stem}",
                draw_layer_maps,
                layers,
                title=f"{of}: score of each layer at every point",
                note=f"{where}; one scale; square: best layer of a row, star: best of all; ring: chosen, {chosen}"
                f"{_left_out(layers)}",
                size=map_size(layers),
                table=layer_table(layers),
            )
        album.add(
            f"points_{stem}",
            style.on_panel(draw_numbers) if len(axes) == 1 and numbers_of(rows[axes[0]]) else draw_points,
            rows,
            title=f"{of}: every point{' of the sweep' * is_chosen_by}",
            note=f"{where}; bars: intervals over rows; ring: chosen on validation, {chosen}",
            size=(style.WIDE[0], min(1.2 + ROW * max(rows["point"].nunique(), 3), MOST_INCHES)),
            table=_point_table(rows, axes),
        )


def _scored_by(scores: PlansScores) -> Iterator[tuple[str, str]]:
    """Give every head with each metric that points are scored by, that of the choice first; tasks may differ in it."""
    for slot, choice in scores.chosen.items():
        others = (slots_of(scores, row)[slot].metric for row in scores.plans)
        yield from ((slot, metric) for metric in dict.fromkeys([choice.result.metric, *others]))


def _stem(text: str) -> str:
    return text.replace("-", "_").replace(" ", "_")


def draw_parts(album: style.Album, scores: PlansScores) -> None:
    """Draw what a sweep says of parts of its rows: layers on each source, and gains over sources and tasks."""
    for slot, rows in source_frame(scores).groupby("slot", sort=False):
        n_panels = rows["point"].nunique()
        album.add(
            f"sources_{_stem(str(slot))}",
            draw_sources,
            rows,
            title=f"{slot}: score of each layer on each source",
            note="validation; one scale; a point at the best layer of a source",
            size=(style.WIDE[0], 1.2 + 2.6 * n_panels),
            # A row per point and layer, scores times 100.
            table=rows.assign(value=(100 * rows["value"]).round(1))
            .pivot_table(index=["point", "layer"], columns="source", values="value", sort=False)
            .reset_index()
            .rename_axis(columns=f"{score_unit(rows)}, validation"),
        )
    gains = gains_frame(scores)
    for (slot, over), rows in gains.groupby(["slot", "over"], sort=False):
        if not rows["gain"].any():  # the reference was chosen
            continue
        plain = over.partition(",")[0]
        stem = _stem(f"{slot}_{plain}{'_left_out' * (over != plain)}")
        split = str(rows["split"].iloc[0])
        album.add(
            f"gains_{stem}",
            style.on_panel(draw_gains),
            rows,
            title=f"{slot}: gains over {over}",
            note=f"chosen - reference on {split}; bars: 95 % over rows, for the mean over {plain} too, cut at the edge",
            size=(style.SIZE[0], 1.3 + ROW * len(rows)),
            table=rows.drop(columns=["slot", "over"]).rename_axis(columns="scores are fractions"),
        )


def panel_axes(frame: pd.DataFrame) -> tuple[str, list[str]]:
    """Return the axis of the rows of a heat map, the one with most values, and those whose values are panels."""
    axes = list(frame.columns[: list(frame.columns).index("point")])
    rows = max(axes, key=lambda axis: (frame[axis].nunique(), -axes.index(axis)))
    return rows, [axis for axis in axes if axis != rows and frame[axis].nunique() > 1]


def _panels(frame: pd.DataFrame, others: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """Divide a frame by the values of some axes, each part with its title."""
    if not others:
        return [("", frame)]
    parts = []
    for values in product(*(dict.fromkeys(frame[axis]) for axis in others)):
        part = frame[np.logical_and.reduce([frame[axis] == value for axis, value in zip(others, values, strict=True)])]
        if not part.empty:
            parts.append((", ".join(map(str, values)), part))
    if len(parts) > MOST_PANELS:  # the choice and the best are among the first
        parts.sort(key=lambda part: (not part[1]["is_chosen"].any(), part[1]["value"].max() != frame["value"].max()))
    return parts


def _left_out(frame: pd.DataFrame) -> str:
    """Say how many panels a figure of heat maps has no room for."""
    n_panels = len(_panels(frame, panel_axes(frame)[1]))
    return f"; {n_panels - MOST_PANELS} more panels in the table alone" if n_panels > MOST_PANELS else ""


def map_size(frame: pd.DataFrame) -> tuple[float, float]:
    """Return width and height of a figure of heat maps."""
    rows, others = panel_axes(frame)
    n_panels = min(len(_panels(frame, others)), MOST_PANELS)
    n_columns = min(n_panels, 3)
    height = 0.75 + ROW * max(frame[rows].nunique(), 2)
    return max(style.SIZE[0], 1.3 + PANEL * n_columns), 1.2 + height * -(-n_panels // n_columns)


def draw_layer_maps(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw the columns of `layer_scores`: layers by the values of an axis, a panel for each value of the others.

    All panels have one scale. A square is at the best layer of each row, a star at the best of all, and a ring at the
    best layer of the chosen point.
    """
    rows, others = panel_axes(frame)
    parts = _panels(frame, others)[:MOST_PANELS]
    n_columns = min(len(parts), 3)
    axes = style.panels(figure, -(-len(parts) // n_columns), n_columns)
    low, high = (100 * float(end) for end in (frame["value"].min(), frame["value"].max()))
    names = list(dict.fromkeys(frame[rows]))
    image = None
    for number, (panel, (title, part)) in enumerate(zip(axes, parts, strict=False)):
        image = _draw_map(panel, part, rows, names, (low, high))
        if title:
            panel.set_title(style.shorten(title, 40), loc="left")
        if number % n_columns:
            panel.set_yticklabels([])
            panel.set_xlabel("")  # that of the first panel of a row is wider than a panel
    for panel in axes[len(parts) :]:
        panel.set_visible(False)
    if image is not None:
        figure.colorbar(image, ax=axes, label=f"{score_unit(frame)}, {frame['split'].iloc[0]}", aspect=30)


def _draw_map(
    axes: Axes, part: pd.DataFrame, rows: str, names: list[str], ends: tuple[float, float]
) -> AxesImage | None:
    """Draw one heat map; a row whose layers are others than those of the longest is stretched over its depth."""
    curves = {str(name): curve for name, curve in part.groupby(rows, sort=False)}
    longest = max(curves.values(), key=len)
    layers = list(longest["layer"])
    alike = all(list(curve["layer"]) == layers for curve in curves.values())
    image = None
    for row, name in enumerate(names):
        curve = curves.get(str(name))
        if curve is None:
            continue
        values = 100 * curve["value"].to_numpy(np.float64)
        extent = (-0.5, len(layers) - 0.5, row + 0.5, row - 0.5)
        image = axes.imshow(values[None], aspect="auto", cmap=style.SCALE, vmin=ends[0], vmax=ends[1], extent=extent)
        if np.isnan(values).all():
            continue
        best = int(np.nanargmax(values))
        x = (best + 0.5) * len(layers) / len(values) - 0.5
        is_top = values[best] == ends[1]  # of all panels
        size = 9 if is_top else 4.5
        axes.plot(x, row, "*" if is_top else "s", color=style.INK, markerfacecolor="white", markersize=size)
        if bool(curve["is_chosen"].any()):
            axes.plot(x, row, "o", color=style.ORANGE, markerfacecolor="none", markersize=13, markeredgewidth=1.6)
    axes.grid(visible=False)
    axes.set_xlim(-0.5, len(layers) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), [style.shorten(str(name)) for name in names])
    if alike:
        style.mark_layers(axes, layers)
    else:
        axes.set_xticks([-0.5, (len(layers) - 1) / 2, len(layers) - 0.5], ["0", "0.5", "1"])
        axes.set_xlabel("relative depth")
    return image


def layer_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Lay layers and points out side by side, scores times 100."""
    wide = frame.assign(value=(100 * frame["value"]).round(1)).pivot_table(
        index="layer", columns="point", values="value", sort=False
    )
    unit = f"{score_unit(frame)}, {frame['split'].iloc[0]}"
    return wide.reindex(columns=list(dict.fromkeys(frame["point"]))).reset_index().rename_axis(columns=unit)


def draw_points(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw the columns of `score_rows`: validation and, where it was read, test of every point, with intervals."""
    axes, names = style.panel(figure), list(dict.fromkeys(frame["point"]))
    shown = frame[frame["split"] != "train"]
    for shift, (split, rows) in enumerate(shown.groupby("split", sort=False)):
        positions = np.array([names.index(name) for name in rows["point"]]) + 0.16 * (2 * shift - 1)
        value, low, high = (100 * rows[name].to_numpy(np.float64) for name in ("value", "low", "high"))
        colour = style.COLOURS[shift]
        reach = np.nan_to_num(np.stack([value - low, high - value]), nan=0.0).clip(min=0)
        axes.errorbar(value, positions, xerr=reach, fmt="o", color=colour, markersize=4, label=str(split))
        chosen = rows["is_chosen"].to_numpy(bool)
        axes.plot(value[chosen], positions[chosen], "o", color=style.INK, markerfacecolor="none", markersize=9)
    axes.set_yticks(range(len(names)), [style.shorten(name, 48) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{metric_label(frame['metric'].iloc[0])} x 100")
    axes.legend(loc="best", frameon=False, fontsize=style.SMALL)


def numbers_of(names: pd.Series) -> dict[str, float]:
    """Read the values of an axis as numbers, as `0.5` or `step512`; none where one is no number."""
    matches = {str(name): NUMBER.fullmatch(str(name)) for name in names}
    numbers = {name: float(match[2]) for name, match in matches.items() if match}
    names_before = {match[1] for match in matches.values() if match}
    return numbers if len(numbers) == len(matches) and len(names_before) == 1 else {}


def draw_numbers(axes: Axes, frame: pd.DataFrame) -> Axes:
    """Draw the columns of `score_rows` over an axis of numbers, such as ratios or steps of a training, with intervals.

    A line per split; a ring is at the point that was chosen on validation.
    """
    axis = str(frame.columns[0])
    numbers = numbers_of(frame[axis])
    frame = frame.assign(x=[numbers[str(name)] for name in frame[axis]]).sort_values("x", kind="stable")
    shown = frame[frame["split"] != "train"]
    for (split, rows), colour in style.coloured(list(shown.groupby("split", sort=False))):
        x, (value, low, high) = rows["x"], (100 * rows[name].to_numpy(np.float64) for name in ("value", "low", "high"))
        style.draw_line(axes, x, value, colour=colour, label=str(split))
        style.draw_band(axes, x, low, high, colour=colour)
        chosen = rows["is_chosen"].to_numpy(bool)
        axes.plot(x[chosen], value[chosen], "o", color=colour, markerfacecolor="none", markersize=9)
    axes.set_xlabel(axis)
    axes.set_ylabel(f"{metric_label(frame['metric'].iloc[0])} x 100")
    return axes


def draw_sources(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw the columns of `source_frame`: the layers on each source of validation, a panel per point, on one scale.

    A line per source, which ends in its name; a point marks its best layer.
    """
    points = list(frame.groupby("point", sort=False))
    axes = style.panels(figure, len(points), 1)
    ends = 100 * float(frame["value"].min()), 100 * float(frame["value"].max())
    for panel, (point, part) in zip(axes, points, strict=False):
        layers = list(dict.fromkeys(part["layer"]))
        for (source, rows), colour in style.coloured(list(part.groupby("source", sort=False))):
            values = 100 * rows["value"].to_numpy(np.float64)
            style.draw_line(
                panel, range(len(values)), values, colour=colour, label=f"{source}, {rows['n_rows'].iloc[0]}"
            )
            if np.isfinite(values).any():
                best = int(np.nanargmax(values))
                panel.plot(best, values[best], "o", color=colour, markersize=4)
        panel.set_title(style.shorten(f"{point}{', chosen' * bool(part['is_chosen'].any())}", 80), loc="left")
        panel.set_ylim(ends[0] - 2, ends[1] + 2)
        panel.set_ylabel(score_unit(frame))
        style.mark_layers(panel, layers)


def draw_gains(axes: Axes, frame: pd.DataFrame) -> Axes:
    """Draw the columns of `gains_frame`: the gain on every part with its interval, and their mean below a line."""
    names = list(frame["part"])
    value, low, high = (100 * frame[name].to_numpy(np.float64) for name in ("gain", "low", "high"))
    for row, name in enumerate(names):
        colour = style.ORANGE if name == "mean" else style.BLUE
        axes.plot([low[row], high[row]], [row, row], color=colour, linewidth=1.4)
        axes.plot(value[row], row, "D" if name == "mean" else "o", color=colour, markersize=5)
    axes.axvline(0, color=style.GREY, linewidth=0.7)
    axes.axhline(len(names) - 1.5, color=style.PALE, linewidth=0.7)
    chose = frame["is_chosen_on"].to_numpy(bool)
    labels = [style.shorten(name) + ", chose" * bool(of) for name, of in zip(names, chose, strict=True)]
    axes.set_yticks(range(len(names)), labels)
    axes.set_ylim(len(names) - 0.4, -0.6)
    ends = np.concatenate([low[:-1], high[:-1]])  # with few parts the bar of the mean, the last row, is far longer
    if (ends := np.append(ends[np.isfinite(ends)], 0.0)).any():
        axes.set_xlim(ends.min() - 0.3 * np.ptp(ends), ends.max() + 0.3 * np.ptp(ends))
    axes.grid(visible=False, axis="y")
    metrics = [metric_label(metric) for metric in dict.fromkeys(frame["metric"].dropna())]
    axes.set_xlabel(f"gain in {' and '.join(metrics)} x 100")
    return axes


def _point_table(frame: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """Lay the scores of points out: a row per point with its axes, a column per split, times 100."""
    shown = frame[frame["split"] != "train"].assign(value=lambda rows: (100 * rows["value"]).round(1))
    wide = shown.pivot_table(index="point", columns="split", values="value", sort=False)
    table = shown.drop_duplicates("point").set_index("point")[list(axes)].join(wide)
    return table.reset_index(drop=True).rename_axis(columns=f"{metric_label(frame['metric'].iloc[0])} x 100")
