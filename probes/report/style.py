"""How figures look. Matplotlib's object interface only: no global state is touched."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from extract.files import write_file

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that colour-blind readers can tell apart (Okabe and Ito)."""
BLUE, ORANGE, GREEN = COLOURS[:3]
GREY = "#808080"
SIZE = (8.0, 4.2)
"""Width and height of a figure in inches."""


def new_figure(width: float = SIZE[0], height: float = SIZE[1]) -> Figure:
    """Make an empty figure, sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(figure: Figure, n_rows: int = 1, n_columns: int = 1, *, shares_x: bool = False) -> list[Axes]:
    """Divide a figure into panels without boxes, row by row; a shared x axis is labelled below the last."""
    found: list[Axes] = figure.subplots(n_rows, n_columns, sharex=shares_x, squeeze=False).ravel().tolist()
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
    return found


def mark_layers(axes: Axes, layers: Sequence[str]) -> None:
    """Write the names of layers under an axis, no more than fit."""
    step = max(1, len(layers) // 16)
    ticks = sorted({*range(0, len(layers), step), len(layers) - 1})
    axes.set_xticks(ticks, [layers[k].replace("block_", "") for k in ticks], rotation=60, fontsize=8)
    axes.set_xlabel("layer")


def set_legend(axes: Axes) -> None:
    """Put the legend beside the axes, where it hides nothing."""
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def save_figure(figure: Figure, path: Path, *, title: str) -> None:
    """Write a figure with its title to a PNG file."""
    figure.suptitle(title, fontsize=11)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=130, format="png")
    write_file(path, drawn.getvalue())
