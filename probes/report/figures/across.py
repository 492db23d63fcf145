"""Figures of many runs: every layer of every task, plan and head on one scale, and where scores are gained."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from probes.report.figures import style
from probes.report.table import metric_label

if TYPE_CHECKING:
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
            shares[None], aspect="auto", cmap=style.SCALE, vmin=0, vmax=1,
            extent=(depths[0] - half, depths[-1] + half, place + 0.46, place - 0.46),
        )  # fmt: skip
        best = int(np.nanargmax(values))
        axes.plot(depths[best], place, "o", color=style.INK, markerfacecolor="white", markersize=4.5)
        ends = f" {100 * np.nanmin(values):.1f} to {100 * values[best]:.1f} {metric_label(curve['metric'].iloc[0])}"
        axes.annotate(ends, (1.02, place), va="center", fontsize=style.SMALL, annotation_clip=False, color=style.INK)
    _name_rows(axes, list(curves))
    axes.grid(visible=False)
    axes.set_xlim(-0.02, 1.02)
    if has_key and axes.figure is not None:
        axes.figure.colorbar(
            image, ax=axes, location="bottom", label="share of the way from the row's lowest to its highest score",
            aspect=40, shrink=0.7, pad=0.02,
        )  # fmt: skip
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


def _name_rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(DEPTH)
