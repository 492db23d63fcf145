"""How figures look: one theme, one palette, direct labels, and the only way to make a figure and to write it."""

import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.style import context
from matplotlib.text import Annotation, Text
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from extract.decoders.decoder_spec import split_tap
from extract.errors import printable
from extract.files import write_file

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that colour-blind readers can tell apart (Okabe and Ito), without yellow, which is lost on white."""
BLUE, ORANGE = COLOURS[:2]
GREY, PALE, INK = "#7a7a7a", "#c8c8c8", "#222222"
SHADES = "Blues"
"""Colour map of shares; `SCALE` is that of scores. Both grow darker or lighter steadily, in grey too."""
SCALE = "viridis"
SIZE, TALL, WIDE = (5.2, 3.2), (5.2, 3.9), (7.0, 4.4)
"""Width and height of figures in inches: readable in a column of 3.3 inches, and across a page."""
COLUMN, COLUMN_DPI = (8 / 2.54, 2.4), 300
"""Size and resolution of a figure for a column of 8 cm: it is printed as large as it is drawn, letters included."""
SMALL = 7.5
FAR = 0.25
"""How far from the curves a level is drawn, as a share of their height."""
THEME: dict[str, object] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.xmargin": 0.035,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.0,
    "errorbar.capsize": 2.0,
    "image.interpolation": "nearest",
    "figure.dpi": 160,
    "savefig.dpi": 160,
    "text.hinting": "none",
    "text.parse_math": False,
    "svg.hashsalt": "icecore",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}
"""Settings of matplotlib, over its own defaults, whatever a matplotlibrc says. Letters without hinting have the
same width in every format, so that one layout fits all."""
UNDATED = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata by format: a figure that is drawn again has the same bytes."""
END = "label of an end"
MANY_DOTS, MOST_DOTS = "many dots", 300
"""Mark of dots that a page draws as a picture, which keeps it small, and how many are still drawn as shapes."""
DEPTH = "relative depth, from the embedding to the top"
ENDS = {"embedding": "emb", "final_norm": "norm"}
"""How layers that are no blocks are written under an axis."""

Part = TypeVar("Part")
Numbers: TypeAlias = Sequence[Any] | NDArray[Any] | pd.Series
Draw = Callable[..., object]
"""Draws data into a figure."""
Keep = Callable[[Figure, str, str, pd.DataFrame | None], None]
"""Takes a figure, its title, its note and its table."""


@dataclass(frozen=True)
class Album:
    """The figures of a folder, each in every format asked for."""

    folder: Path
    formats: Sequence[str] = ("png",)
    keep: Keep = lambda *_: None
    """Receives every figure with its title, note and table, as a page does; last, so that it may change the figure."""
    drawn: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Title to the files of the figure, relative to the folder."""

    def add(
        self,
        name: str,
        draw: Draw,
        *data: object,
        title: str,
        note: str = "",
        size: tuple[float, float] = SIZE,
        table: pd.DataFrame | None = None,
    ) -> None:
        """Draw a figure as `make_figure` does, and write it to `name` with the ending of each format."""
        figure = make_figure(draw, *data, title=title, note=note, size=size)
        self.drawn[title] = tuple(f"{name}.{suffix}" for suffix in self.formats)
        if self.formats:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        for suffix, file in zip(self.formats, self.drawn[title], strict=True):
            save_figure(figure, self.folder / file, file_format=suffix)
        self.keep(figure, title, note, table)


def make_figure(
    draw: Draw,
    *data: object,
    title: str = "",
    note: str = "",
    size: tuple[float, float] = SIZE,
    dpi: int | None = None,
) -> Figure:
    """Make a figure in the theme: title above, `draw(figure, *data)`, a grey note below; size in inches."""
    with context(["default", THEME]):
        figure = Figure(figsize=size, dpi=dpi, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, *data)
        width = 72 * figure.get_figwidth()
        if title:
            title = textwrap.fill(title, int(width / (0.62 * 9.5)), max_lines=3, placeholder=" …")
            figure.suptitle(title, x=0.01, ha="left", fontsize=9.5, fontweight="bold")
        if note:
            lines = textwrap.wrap(note, int(width / (0.57 * SMALL)))  # all of them: the figure grows
            figure.set_figheight(figure.get_figheight() + max(0, len(lines) - 2) * 1.25 * SMALL / 72)
            figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=SMALL, color=GREY)
        for text in figure.findobj(Text):
            text.set_text(printable(text.get_text()))  # names of users, of which XML can hold no control character
        figure.draw_without_rendering()  # lays it out, once for all formats
        figure.set_layout_engine("none")
        _keep_labels_apart(figure)
    return figure


def save_figure(figure: Figure, path: Path, *, file_format: str) -> None:
    """Write a figure; the same figure always has the same bytes."""
    content = BytesIO()
    with context(["default", THEME]):
        if file_format == "png":  # `savefig` would draw it twice
            canvas: Any = FigureCanvasAgg(figure)
            canvas.print_png(content, metadata=UNDATED["png"])
        else:
            figure.savefig(content, format=file_format, metadata=UNDATED[file_format])
    write_file(path, content.getvalue())


def panels(
    figure: Figure, n_rows: int = 1, n_columns: int = 1, *, sharex: bool = False, sharey: bool = False
) -> list[Axes]:
    """Divide a figure into panels, row by row."""
    grid = figure.subplots(n_rows, n_columns, squeeze=False, sharex=sharex, sharey=sharey)
    axes: list[Axes] = grid.ravel().tolist()
    return axes


def panel(figure: Figure) -> Axes:
    """Take the whole figure as one panel."""
    return panels(figure)[0]


def on_panel(draw: Draw) -> Draw:
    """Let what draws into axes draw into the one panel of a figure."""
    return lambda figure, *data: draw(panel(figure), *data)


def colours(n: int) -> list[str]:
    """Give a colour to each of `n` lines, the most important first; those beyond the palette are pale."""
    return [*COLOURS[:n], *[PALE] * (n - len(COLOURS))]


def coloured(parts: Collection[Part]) -> Iterator[tuple[Part, str]]:
    """Give every part of a figure, the most important first, with its colour."""
    return zip(parts, colours(len(parts)), strict=True)


def draw_line(
    axes: Axes,
    x: Numbers,
    y: Numbers,
    *,
    colour: str,
    label: str = "",
    spread: Numbers = (),
    floor: Numbers = (),
    breaks: Sequence[int] = (),
    **options: Any,
) -> None:
    """Draw a line with its label at its end, bands of `spread` to both sides and down to `floor`, gaps at `breaks`."""
    positions, values = (np.insert(np.asarray(numbers, np.float64), breaks, np.nan) for numbers in (x, y))
    axes.plot(positions, values, **{"color": colour, "marker": ".", "label": label, **options})
    if np.any(spread):
        sides = np.insert(np.asarray(spread, np.float64), breaks, np.nan)
        draw_band(axes, positions, values - sides, values + sides, colour=colour)
    if len(floor) and np.any(values > (lows := np.insert(np.asarray(floor, np.float64), breaks, np.nan))):
        draw_band(axes, positions, lows, values, colour=colour)
    finite = np.flatnonzero(np.isfinite(values))
    if label and len(finite):
        label_end(axes, label, float(positions[finite[-1]]), float(values[finite[-1]]), colour=colour)


def draw_band(axes: Axes, x: Numbers, low: Numbers, high: Numbers, *, colour: str) -> None:
    """Draw a band, as of an interval."""
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def draw_level(axes: Axes, value: float, label: str) -> None:
    """Draw a horizontal line that is there to compare with, as chance or a baseline, with its label."""
    axes.axhline(value, color=GREY, linestyle=(0, (4, 2)), linewidth=0.9, zorder=1, label=label)
    label_end(axes, label, float("inf"), value, colour=GREY)


def dots(n: int) -> dict[str, Any]:
    """Return the options of `Axes.plot` for a number of dots without a line."""
    return {
        "linestyle": "",
        "marker": ".",
        "markersize": 4 if n < 200 else 2,
        "rasterized": n > 2000,
        "gid": MANY_DOTS if n > MOST_DOTS else None,
    }


def draw_levels(axes: Axes, levels: Mapping[str, float]) -> None:
    """Draw levels by their labels; one far from what is drawn, which it would squeeze, is named at the edge."""
    low, high = axes.get_ylim()
    reach = FAR * (high - low)
    near = {label: level for label, level in levels.items() if low - reach <= level <= high + reach}
    for label, level in near.items():
        draw_level(axes, level, label)
    low, high = axes.get_ylim()
    for label, level in levels.items():
        if label not in near:
            edge, arrow = (low, "↓") if level < low else (high, "↑")
            label_end(axes, f"{label} {level:.1f} {arrow}", float("inf"), edge, colour=GREY)
    axes.set_ylim(low, high)


def label_end(axes: Axes, label: str, x: float, y: float, *, colour: str) -> None:
    """Write a label beside the axes for a line that ends at `x` and `y`; at the edge where `x` is infinite."""
    side = axes.get_yaxis_transform()
    is_edge = np.isinf(x)
    axes.annotate(
        f" {label}",
        (1.0 if is_edge else x, y),
        xycoords=side if is_edge else "data",
        textcoords=side,
        va="center",
        xytext=(1.03, y),
        fontsize=SMALL,
        color=INK if colour == PALE else colour,
        annotation_clip=False,
        gid=END,
        arrowprops={
            "arrowstyle": "-",
            "color": colour,
            "linewidth": 0.5,
            "patchA": None,
            "shrinkA": 0,
            "shrinkB": 0,
            "relpos": (0, 0.5),
        },
    )


def mark_layers(axes: Axes, layers: Sequence[str], *, which: str = "x") -> None:
    """Name the layers along an axis: blocks by whole numbers, as many as fit, others by name; poolings side by side."""
    poolings, _, names = zip(*(layer.rpartition("/") for layer in layers), strict=True)
    labels = {k: ENDS.get(name, name) for k, name in enumerate(names) if not name.startswith("block_")}
    blocks = {k: split_tap(name) for k, name in enumerate(names) if k not in labels}
    # Taps stand between the numbers of the blocks, unless there is nothing else.
    is_tapped = all(tap for _, tap in blocks.values())
    numbers = {k: int(name.removeprefix("block_")) for k, (name, tap) in blocks.items() if is_tapped or not tap}
    figure = axes.get_figure()
    share = min(1.0, figure.get_figwidth() / SIZE[0]) if isinstance(figure, Figure) else 1.0
    room = len(layers) / (12 * share)  # positions that a label takes
    step = next(size for size in (1, 2, 5, 10, 20, 50, 100, 1000) if size >= room)
    fit = {k for k, number in numbers.items() if number % step == 0 and all(abs(k - end) > room for end in labels)}
    labels |= {k: str(numbers[k]) for k in fit}
    labels = {k: label for k, label in labels.items() if k - 1 not in labels or room <= 1}  # of two that touch, one
    named = [f"{short}: {name.replace('_', ' ')}" for name, short in ENDS.items() if name in names]
    title = "block" + f" ({', '.join(named)})" * bool(named)
    ticks = sorted(labels)
    axes.set(**{f"{which}ticks": ticks, f"{which}ticklabels": [labels[k] for k in ticks], f"{which}label": title})
    starts = [0, *layer_breaks(layers), len(layers)]
    for first, last in pairwise(starts) if which == "x" else ():
        if len(starts) > 2:
            axes.axvline(first - 0.5, color=PALE, linewidth=0.6)
            write_above(axes, poolings[first], (first + last - 1) / 2, colour=GREY)


def mark_depth(axes: Axes, lists: Collection[tuple[str, ...]]) -> None:
    """Name the layers under an axis, or of curves over different layers the relative depth."""
    if len(lists) == 1:
        mark_layers(axes, next(iter(lists)))
    else:
        axes.set_xlabel(DEPTH)


def write_above(axes: Axes, text: str, x: float, *, colour: str = INK, side: str = "center", line: int = 0) -> None:
    """Write a text above the axes at `x`, on a line counted from there."""
    axes.annotate(
        text,
        (x, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 3 + 1.5 * SMALL * line),
        textcoords="offset points",
        ha=side,
        va="bottom",
        fontsize=SMALL,
        color=colour,
        annotation_clip=False,
    )


def layer_breaks(layers: Sequence[str]) -> list[int]:
    """Find where the layers of another pooling begin."""
    poolings = [layer.rpartition("/")[0] for layer in layers]
    return [k for k in range(1, len(layers)) if poolings[k] != poolings[k - 1]]


def count_in_whole_numbers(axes: Axes, which: str = "x") -> None:
    """Put ticks at whole numbers alone: blocks, epochs, counts."""
    for side in which:
        getattr(axes, f"{side}axis").set_major_locator(MaxNLocator(integer=True, nbins=8))


def shorten(text: str, most: int = 30) -> str:
    """Write the name of a plan shorter: `bidirectional` as `bidir`, and of a very long name the ends alone.

    Example:
        >>> shorten("nosink-bidirectional:5+bidirectional:10")
        'nosink-bidir:5+bidir:10'
    """
    text = text.replace("bidirectional", "bidir") if len(text) > most else text
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - most // 2) + 1 :]}"


def _keep_labels_apart(figure: Figure) -> None:
    """Move the labels at the ends of lines up or down, as little as needed, until none covers another."""
    gap = 1.25 * SMALL * figure.dpi / 72
    for axes in figure.axes:
        children = axes.get_children()
        labels = [child for child in children if isinstance(child, Annotation) and child.get_gid() == END]
        labels.sort(key=lambda label: float(label.xy[1]))
        if not labels:
            continue
        ends = np.array([axes.transData.transform((0, label.xy[1]))[1] for label in labels])
        steps = gap * np.arange(len(labels))
        box = axes.get_window_extent()
        top = max(box.y0, box.y1 - steps[-1])
        heights: NDArray[np.float64] = np.clip(isotonic_regression(ends - steps).x, box.y0, top) + steps
        for label, height in zip(labels, heights, strict=True):
            label.set_position((1.03, float(axes.transData.inverted().transform((0, height))[1])))
