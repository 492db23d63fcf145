"""Figures of influence and attention."""

from pathlib import Path

from jaxtyping import Bool, Shaped
from torch import Tensor

from extract.wiring.attention_maps import AttentionMaps
from probes.report.style import COLOURS, new_figure, panels, save_figure

SHOWN = 12  # panels at most


def draw_influence(moved: Bool[Tensor, "L T T"], layers: tuple[str, ...], path: Path, *, title: str) -> None:
    """Draw influence matrices, a panel per layer: dark where output i moves with input j."""
    _panels(moved, layers, path, title=title)


def draw_attention(found: AttentionMaps, path: Path, *, title: str) -> None:
    """Draw mean attention, a panel per block (LBW Figures 3 and 8)."""
    _panels(found.maps, found.blocks, path, title=title)


def draw_sink_mass(found: AttentionMaps, path: Path, *, title: str) -> None:
    """Draw the attention on each of the first four tokens, block by block (LBW Figure 9)."""
    figure = new_figure()
    (axes,) = panels(figure)
    blocks = range(1, len(found.blocks) + 1)
    for position, (mass, colour) in enumerate(zip(found.sink_mass.T.tolist(), COLOURS, strict=False), start=1):
        axes.plot(blocks, mass, "o-", color=colour, label=f"token {position}")
    axes.legend(frameon=False)
    axes.set_ylim(0, 1)
    axes.set_xlabel("block")
    axes.set_ylabel("attention of the tokens after it")
    save_figure(figure, path, title=title)


def _panels(matrices: Shaped[Tensor, "N T T"], names: tuple[str, ...], path: Path, *, title: str) -> None:
    step = max(1, -(-len(names) // SHOWN))
    picks = sorted({*range(0, len(names), step), len(names) - 1})
    columns = min(6, len(picks))
    rows = -(-len(picks) // columns)
    figure = new_figure(1.9 * columns, 2.1 * rows + 0.5)
    for place, pick in enumerate(picks, start=1):
        axes = figure.add_subplot(rows, columns, place)
        matrix = matrices[pick].float().cpu().numpy()
        axes.imshow(matrix, cmap="Blues", vmin=0, vmax=max(1e-6, matrix.max()))
        axes.set_title(names[pick], fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
    save_figure(figure, path, title=title)
