"""Figures of influence and attention."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from probes.report.figures import style

SHOWN = 12  # panels at most


def draw_maps(
    figure: Figure,
    maps: Shaped[Tensor, "N T T"],
    names: Sequence[str],
    *,
    label: str = "attention, shade by square root",
) -> None:
    """Draw a panel per block (LBW Figures 3 and 8), all on one scale from 0 to 1, on which 0.25 is half dark.

    Without a label they are influence matrices: dark where output i moves with input j.
    """
    picks = np.unique(np.linspace(0, len(names) - 1, SHOWN).round().astype(int)).tolist()
    n_columns, n_tokens = min(4, len(picks)), maps.shape[-1]
    n_rows = -(-len(picks) // n_columns)
    figure.set_size_inches(1.4 * n_columns + 1.2, 1.5 * n_rows + 0.9)
    all_axes = style.panels(figure, n_rows, n_columns, sharex=True, sharey=True)
    place = (0.5, n_tokens + 0.5, n_tokens + 0.5, 0.5)  # tokens count from 1
    for axes, pick in zip(all_axes, picks, strict=False):
        values, norm = maps[pick].float().cpu().numpy(), PowerNorm(0.5, vmin=0, vmax=1)
        image = axes.imshow(values, cmap=style.SHADES, norm=norm, extent=place)
        axes.set_title(names[pick].replace("_", " "), fontsize=style.SMALL)
        axes.grid(visible=False)
        style.count_in_whole_numbers(axes, "xy")
    for axes in all_axes[len(picks) :]:
        axes.remove()
    all_axes[0].set_ylabel("token")
    all_axes[(n_rows - 1) * n_columns].set_xlabel("attends to" if label else "depends on")
    if label:
        figure.colorbar(
            image, ax=all_axes[: len(picks)], label=label, ticks=[0, 0.05, 0.25, 0.5, 1], aspect=30, shrink=0.9
        )


def draw_sink_mass(figure: Figure, sink_mass: Float[Tensor, "L 4"]) -> None:
    """Draw the attention on each of the first four tokens, block by block (LBW Figure 9)."""
    axes = style.panel(figure)
    for position, (mass, colour) in enumerate(zip(sink_mass.T.tolist(), style.COLOURS, strict=False), start=1):
        style.draw_line(axes, range(1, len(mass) + 1), mass, colour=colour, label=f"token {position}")
    axes.set_ylim(0, 1)
    style.count_in_whole_numbers(axes)
    axes.set_xlabel("block")
    axes.set_ylabel("attention of the tokens after it")
