"""Figures of influence and attention."""

from collections.abc import Sequence

from jaxtyping import Float, Shaped
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from probes.report.figures import style

SHOWN = 12  # panels at most


def draw_maps(figure: Figure, maps: Shaped[Tensor, "N T T"], names: Sequence[str], *, label: str = "attention") -> None:
    """Draw a panel per block (LBW Figures 3 and 8), all on one scale from 0 to 1, on which 0.25 is half dark.

    Without a label they are influence matrices: dark where output i moves with input j.
    """
    step = max(1, -(-len(names) // SHOWN))
    picks = sorted({*range(0, len(names), step), len(names) - 1})
    n_columns = min(5, len(picks))
    n_rows = -(-len(picks) // n_columns)
    figure.set_size_inches(1.3 * n_columns + 1.1, 1.45 * n_rows + 0.9)
    all_axes = style.panels(figure, n_rows, n_columns, sharex=True, sharey=True)
    for axes, pick in zip(all_axes, picks, strict=False):
        image = axes.imshow(maps[pick].float().cpu().numpy(), cmap=style.SHADES, norm=PowerNorm(0.5, vmin=0, vmax=1))
        axes.set_title(names[pick].replace("_", " "), fontsize=style.SMALL)
        axes.grid(visible=False)
        style.count_in_whole_numbers(axes, "xy")
    for axes in all_axes[len(picks) :]:
        axes.remove()
    all_axes[0].set_ylabel("token")
    all_axes[(n_rows - 1) * n_columns].set_xlabel("attends to" if label else "depends on")
    if label:
        figure.colorbar(image, ax=all_axes[: len(picks)], label=label, ticks=[0, 0.05, 0.25, 0.5, 1], aspect=30)


def draw_sink_mass(figure: Figure, sink_mass: Float[Tensor, "L 4"]) -> None:
    """Draw the attention on each of the first four tokens, block by block (LBW Figure 9)."""
    axes = style.panel(figure)
    for position, (mass, colour) in enumerate(zip(sink_mass.T.tolist(), style.COLOURS, strict=False), start=1):
        style.draw_line(axes, range(1, len(mass) + 1), mass, colour=colour, label=f"token {position}")
    axes.set_ylim(0, 1)
    style.count_in_whole_numbers(axes)
    axes.set_xlabel("block")
    axes.set_ylabel("attention of the tokens after it")
