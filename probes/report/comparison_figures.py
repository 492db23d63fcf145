"""Figures of many runs: every layer of every task, plan and head on one scale, and where scores are gained."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from probes.report import style
from probes.report.blocks import metric_label

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

CURVE = ["task", "plan", "decoder", "head", "pooling", "run"]
"""Columns that tell curves apart, those that readers know first."""
DEPTH = "relative depth, from the embedding to the top"
ROW_INCHES = 0.26
"""Height of a curve in a heat map."""


def name_curves(frame: "pd.DataFrame") -> dict[str, "pd.DataFrame"]:
    """Divide a frame into curves, each named by what tells it from the others."""
    keys = frame[CURVE].drop_duplicates()
    telling = ["task"]
    for column in CURVE[1:]:
        if keys.duplicated(telling).any() and len(keys[[*telling, column]].drop_duplicates()) > len(
            keys[telling].drop_duplicates()
        ):
            telling.append(column)
    return {
        " ".join(style.shorten(str(each)) for each in key): part for key, part in frame.groupby(telling, sort=False)
    }


def draw_layer_map(axes: Axes, frame: "pd.DataFrame", *, has_key: bool = True) -> Axes:
    """Draw the columns of `probes.layers_across` as a heat map: a row per curve, over relative depth.

    Colours run from the lowest to the highest score of each row, which are written beside it, times 100; a ring is the
    best layer.
    """
    curves = name_curves(frame)
    for place, curve in enumerate(curves.values()):
        shares, values = (curve[name].to_numpy(np.float64) for name in ("share", "value"))
        depths = curve["depth"].to_numpy(np.float64)
        half = 0.5 * np.ptp(depths) / max(len(depths) - 1, 1)
        image = axes.imshow(
            shares[None],
            aspect="auto",
            cmap=style.SCALE,
            vmin=0,
            vmax=1,
            extent=(depths[0] - half, depths[-1] + half, place + 0.46, place - 0.46),
        )
        best = int(np.nanargmax(values))
        axes.plot(depths[best], place, "o", color=style.INK, markerfacecolor="white", markersize=4.5)
        ends = f" {100 * np.nanmin(values):.1f} to {100 * values[best]:.1f} {metric_label(curve['metric'].iloc[0])}"
        axes.annotate(ends, (1.02, place), va="center", fontsize=style.SMALL, annotation_clip=False, color=style.INK)
    _name_rows(axes, list(curves))
    axes.grid(visible=False)
    axes.set_xlim(-0.02, 1.02)
    if has_key and axes.figure is not None:
        axes.figure.colorbar(
            image,
            ax=axes,
            location="bottom",
            label="share of the way from the row's lowest to its highest score",
            aspect=40,
            shrink=0.7,
            pad=0.02,
        )
    return axes


def draw_centres(axes: Axes, frame: "pd.DataFrame") -> Axes:
    """Draw the columns of `probes.centres_of_gravity`: a dot and an interval over seeds per curve."""
    curves = name_curves(frame.sort_values("centre", kind="stable"))
    for place, curve in enumerate(curves.values()):
        centre, low, high = (float(curve[name].iloc[0]) for name in ("centre", "low", "high"))
        axes.plot(centre, place, "o", color=style.BLUE, markersize=5)
        if np.isfinite(low):
            axes.plot([low, high], [place, place], color=style.BLUE, linewidth=1.2)
    _name_rows(axes, list(curves))
    axes.set_xlim(-0.02, 1.02)
    return axes


def draw_layer_gaps(axes: Axes, frame: "pd.DataFrame") -> Axes:
    """Draw the columns of `probes.compare_at_layers`: what one run has over another at every layer, with intervals."""
    places = np.arange(len(frame))
    value, low, high = (100 * frame[name].to_numpy(np.float64) for name in ("difference", "low", "high"))
    breaks = style.layer_breaks(list(frame["layer"]))
    style.draw_line(axes, places, value, colour=style.BLUE, breaks=breaks)
    style.draw_band(axes, places, low, high, colour=style.BLUE, label="interval")
    axes.axhline(0, color=style.GREY, linewidth=0.6)
    style.mark_layers(axes, list(frame["layer"]))
    axes.set_ylabel(f"difference of {metric_label(frame['metric'].iloc[0])} x 100")
    return axes


def draw_across(album: style.Album, frames: "Mapping[str, pd.DataFrame]") -> None:
    """Draw the frames `across` and `centres` into an album."""
    height = 1.7 + ROW_INCHES * len(name_curves(frames["centres"]))
    split = ", ".join(dict.fromkeys(frames["across"]["split"]))
    album.add(
        "across",
        style.on_panel(draw_layer_map),
        frames["across"],
        title="Every layer of every task",
        size=(7.0, height),
        note=f"rings: best layers; scores on {split}",
    )
    album.add(
        "centres",
        style.on_panel(draw_centres),
        frames["centres"],
        title="Centre of gravity of the gains",
        size=(5.2, height - 0.4),
        note="depth weighted by what each layer adds to the best below it (Tenney et al. 2019); bars: 95 % over seeds",
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
    )


def _name_rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(DEPTH)
