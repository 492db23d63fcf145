"""Figures of two checkpoints compared: how alike their weights are over depth."""

from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from probes.report.figures import style

if TYPE_CHECKING:
    import pandas as pd

NAMES = {"block": "both", "attention": "attention", "mlp": "MLP"}
"""Parts of a block, and what the figure calls them."""


def draw_weights(axes: Axes, frame: "pd.DataFrame") -> None:
    """Draw the cosine of two checkpoints over the blocks, a line for attention, MLP, and both together."""
    blocks = frame[frame["layer"] != "embedding"]
    layers = list(dict.fromkeys(blocks["layer"]))
    for (part, name), colour in zip(NAMES.items(), style.colours(len(NAMES)), strict=True):
        values = blocks[blocks["part"] == part].set_index("layer")["cosine"].reindex(layers)
        style.draw_line(axes, range(len(layers)), values.to_numpy(), colour=colour, label=name)
    style.mark_layers(axes, layers)
    axes.set_ylabel("cosine of the weights")
