"""Figures of many runs: every layer of every task, plan and head on one scale, and where scores are gained."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from probes.report import style
from probes.report.blocks import metric_label, score_unit, side_by_side

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

CURVE = ["task", "plan", "decoder", "head", "pooling", "run"]
"""Columns that tell curves apart, those that readers know first."""
ROW_INCHES = 0.26
"""Height of a curve in a heat map."""


def draw_runs(axes: Axes, frame: "pd.DataFrame") -> Axes:
    """Draw the layers of several runs on one scale, the best of a head's values at each layer, chosen layers ringed."""
    curves, scores = (frame[frame["record"] == record] for record in ("curve", "score"))
    best = best_of_layers(curves)
    lists = {tuple(run["layer"]) for _, run in best.groupby("run", sort=False)}
    for (name, run), colour in style.coloured(list(best.groupby("run", sort=False))):
        n, values = len(run), 100 * run["value"].to_numpy(np.float64)
        positions = np.arange(n, dtype=np.float64) if len(lists) == 1 else np.arange(n) / max(n - 1, 1)
        breaks = style.layer_breaks(list(run["layer"])) if len(lists) == 1 else ()
        style.draw_line(axes, positions, values, colour=colour, label=style.shorten(name), breaks=breaks)
        is_chosen = run["layer"].isin(scores.loc[scores["run"] == name, "layer"]).to_numpy()
        axes.plot(
            positions[is_chosen], values[is_chosen], "o", color=colour, markersize=6, markerfacecolor="white", zorder=5
        )
    style.mark_depth(axes, lists)
    axes.set_ylabel(_unit(frame))
    return axes


def best_of_layers(curves: "pd.DataFrame") -> "pd.DataFrame":
    """Take the best of a head's values at each layer of each run, in the order of the frame."""
    return curves.groupby(["run", "layer"], sort=False, as_index=False).agg({"value": "max"})


def runs_table(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Lay the lines of `draw_runs` out side by side."""
    return side_by_side(best_of_layers(frame[frame["record"] == "curve"]), "layer", ("run",), unit=_unit(frame))


def _unit(frame: "pd.DataFrame") -> str:
    return f"{score_unit(frame)}, {frame['split'].iloc[0]}"


def name_curves(frame: "pd.DataFrame") -> dict[str, "pd.DataFrame"]:
    """Divide a frame into curves, each named by what tells it from the others."""
    keys = frame[CURVE].drop_duplicates()
    telling = ["task"]
    for column in CURVE[1:]:
        more = keys[[*telling, column]].drop_duplicates()
        if keys.duplicated(telling).any() and len(more) > len(keys[telling].drop_duplicates()):
            telling.append(column)
    return {
        " ".join(style.shorten(str(value)) for value in key): part for key, part in frame.groupby(telling, sort=False)
    }


def draw_layer_map(axes: Axes, frame: "pd.DataFrame", *, has_key: bool = True) -> Axes:
    """Draw the columns of `icecore.layers_across` as a heat map over depth: a row per curve, its best layer ringed.

    Colours run from the lowest to the highest score of each row, which are written beside it, times 100.
    """
    curves = name_curves(frame)
    for row, curve in enumerate(curves.values()):
        shares, values, depths = (curve[name].to_numpy(np.float64) for name in ("share", "value", "depth"))
        half = 0.5 * np.ptp(depths) / max(len(depths) - 1, 1)
        extent = (depths[0] - half, depths[-1] + half, row + 0.46, row - 0.46)
        image = axes.imshow(shares[None], aspect="auto", cmap=style.SCALE, vmin=0, vmax=1, extent=extent)
        best = int(np.nanargmax(values))
        axes.plot(depths[best], row, "o", color=style.INK, markerfacecolor="white", markersize=4.5)
        ends = f" {100 * np.nanmin(values):.1f} to {100 * values[best]:.1f} {metric_label(curve['metric'].iloc[0])}"
        axes.annotate(ends, (1.02, row), va="center", fontsize=style.SMALL, annotation_clip=False, color=style.INK)
    _name_rows(axes, list(curves))
    axes.grid(visible=False)
    axes.set_xlim(-0.02, 1.02)
    if has_key and axes.figure is not None:
        label = "share of the way from the row's lowest to its highest score"
        axes.figure.colorbar(image, ax=axes, location="bottom", label=label, aspect=40, shrink=0.7, pad=0.02)
    return axes


def draw_centres(axes: Axes, frame: "pd.DataFrame") -> Axes:
    """Draw the columns of `icecore.centres_of_gravity`: a dot and an interval over seeds per curve."""
    curves = name_curves(frame.sort_values("centre", kind="stable"))
    for row, curve in enumerate(curves.values()):
        centre, low, high = (float(curve[name].iloc[0]) for name in ("centre", "low", "high"))
        axes.plot(centre, row, "o", color=style.BLUE, markersize=5)
        if np.isfinite(low):
            axes.plot([low, high], [row, row], color=style.BLUE, linewidth=1.2)
    _name_rows(axes, list(curves))
    axes.set_xlim(-0.02, 1.02)
    return axes


def draw_layer_gaps(axes: Axes, frame: "pd.DataFrame") -> Axes:
    """Draw the columns of `icecore.compare_at_layers`: what one run has over another at every layer, with intervals."""
    layers, positions = list(frame["layer"]), np.arange(len(frame))
    value, low, high = (100 * frame[name].to_numpy(np.float64) for name in ("difference", "low", "high"))
    style.draw_line(axes, positions, value, colour=style.BLUE, breaks=style.layer_breaks(layers))
    style.draw_band(axes, positions, low, high, colour=style.BLUE)
    axes.axhline(0, color=style.GREY, linewidth=0.6)
    style.mark_layers(axes, layers)
    axes.set_ylabel(f"difference of {score_unit(frame)}")
    return axes


def draw_across(album: style.Album, frames: "Mapping[str, pd.DataFrame]") -> None:
    """Draw the frames `across` and `centres` into an album."""
    across, centres = frames["across"], frames["centres"]
    height = 1.7 + ROW_INCHES * len(name_curves(centres))
    album.add(
        "across",
        style.on_panel(draw_layer_map),
        across,
        title="Every layer of every task",
        size=(7.0, height),
        note=f"rings: best layers; scores on {', '.join(dict.fromkeys(across['split']))}",
        table=_without_constants(across),
    )
    album.add(
        "centres",
        style.on_panel(draw_centres),
        centres,
        title="Centre of gravity of the gains",
        size=(5.2, height - 0.4),
        note="depth weighted by what each layer adds to the best below it (Tenney et al. 2019); bars: 95 % over seeds",
        table=_without_constants(centres),
    )


def draw_gaps(album: style.Album, frames: "Mapping[str, pd.DataFrame]") -> None:
    """Draw the frame `by-layer` into an album."""
    frame = frames["by-layer"]
    where = frame.iloc[0]
    album.add(
        "by-layer",
        style.on_panel(draw_layer_gaps),
        frame,
        title=f"{where['one']} over {where['other']}",
        note=f"{where['head']} on {where['split']}, every layer alone; band: 95 % for all layers together, paired",
        table=_without_constants(frame),
    )


def _without_constants(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Leave out the columns that say the same in every row, but the numbers, for a table as a page prints it."""
    names = [name for name in frame if frame[name].dtype.kind == "f" or frame[name].nunique() > 1]
    return frame[names].rename_axis(columns="scores are fractions")


def _name_rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(style.DEPTH)
