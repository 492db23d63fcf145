"""Figures of scores of mteb: every task over the layers."""

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from probes.report.figures import style

if TYPE_CHECKING:
    import pandas as pd


def draw_scores(figure: Figure, frame: "pd.DataFrame") -> None:
    """Draw the score of every layer, a line per task, split and pooling; names only what tells them apart."""
    axes = style.panel(figure)
    keys = ["task", "split", "pooling"]
    telling = [key for key in keys if frame[key].nunique() > 1]
    layers = list(dict.fromkeys(frame["layer"]))
    groups = list(frame.groupby(keys, sort=False))
    for (key, rows), colour in zip(groups, style.colours(len(groups)), strict=True):
        label = " ".join(str(value) for name, value in zip(keys, key, strict=True) if name in telling)
        scores = 100 * rows.set_index("layer")["score"].reindex(layers)
        style.draw_line(axes, range(len(layers)), scores.to_numpy(), colour=colour, label=label)
    style.mark_layers(axes, layers)
    metrics = ", ".join(dict.fromkeys(frame["metric"]))
    axes.set_ylabel(f"{metrics} x 100")
