"""The numbers of a figure, read back from what was drawn: a table for each of its panels."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from probes.report.blocks import Table

MOST_POINTS, MOST_CELLS = 300, 1000
"""Of a line and of a matrix whose numbers are written."""
COLOUR_BAR = "<colorbar>"

Column = dict[float, str]
"""Place along the axis to what is written for it."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of a panel, and what they are."""

    title: str
    table: Table


def numbers_of(figure: Figure) -> tuple[Numbers, ...]:
    """Read the numbers of every panel that has some; those of very many points are left out."""
    return tuple(found for axes in figure.axes if axes.get_label() != COLOUR_BAR for found in _panel(axes))


def _panel(axes: Axes) -> Iterator[Numbers]:
    title = " ".join((axes.get_title() or axes.get_ylabel() or axes.get_xlabel()).split())
    table = _matrix(axes) if axes.images else _over_places(axes, _columns(axes))
    if table.rows:
        yield Numbers(title, table)


def _matrix(axes: Axes) -> Table:
    """Write what stands in the cells of a matrix, or else its values."""
    values = np.asarray(axes.images[0].get_array(), np.float64)
    if values.size > MOST_CELLS:
        return Table((), ())
    written = {(round(text.get_position()[1]), round(text.get_position()[0])): text.get_text() for text in axes.texts}
    ticks = (axes.get_yticklabels(), axes.get_xticklabels())
    rows, columns = ([each.get_text() for each in labels] for labels in ticks)
    corner = f"{axes.get_ylabel()} \\ {axes.get_xlabel()}"
    height, width = values.shape
    return Table(
        (corner, *(columns if len(columns) == width else map(str, range(1, width + 1)))),
        [
            (name, *(written.get((y, x), _number(values[y, x])) for x in range(width)))
            for y, name in enumerate(rows if len(rows) == height else map(str, range(1, height + 1)))
        ],
    )


def _columns(axes: Axes) -> dict[str, Column]:
    """Read lines, bands, bars, whiskers and levels by their labels."""
    columns: dict[str, Column] = {}
    for label, column in (*_drawn_lines(axes), *_drawn_bars(axes)):
        columns[_free(columns, label, " ".join(_value_label(axes).split()) or "value")] = column
    places = {place for column in columns.values() for place in column}
    for line in axes.get_lines():
        if line.get_transform() != axes.transData and _is_named(line.get_label()):  # a level across the axes
            level = _number(float(np.asarray(line.get_ydata(), np.float64)[0]))
            columns[_free(columns, line.get_label(), "level")] = dict.fromkeys(places, level)
    return columns


def _drawn_lines(axes: Axes) -> Iterator[tuple[object, Column]]:
    whiskers = [each for each in axes.containers if isinstance(each, ErrorbarContainer)]
    caps = {id(cap) for marks in whiskers for cap in marks[1]}
    for line in axes.get_lines():
        points = _points(line) if line.get_transform() == axes.transData and id(line) not in caps else {}
        if 1 < len(points) <= MOST_POINTS:
            yield line.get_label(), points
    for band in axes.collections:
        if isinstance(band, PolyCollection) and _is_named(band.get_label()):
            yield band.get_label(), _band(band)


def _drawn_bars(axes: Axes) -> Iterator[tuple[object, Column]]:
    is_upright = _is_upright(axes)
    for each in axes.containers:
        if isinstance(each, BarContainer):
            starts = [(bar.get_x(), bar.get_width()) if is_upright else (bar.get_y(), bar.get_height()) for bar in each]
            middles = [round(float(start + size / 2), 6) for start, size in starts]
            sizes = [_number(bar.get_height() if is_upright else bar.get_width()) for bar in each]
            yield each.get_label(), dict(zip(middles, sizes, strict=True))
        elif isinstance(each, ErrorbarContainer) and _is_named(each.get_label()):
            ends = [segment for lines in each[2] for segment in lines.get_segments()]
            yield each.get_label(), {float(x): _ends(low, high) for (x, low), (_, high) in ends}


def _is_upright(axes: Axes) -> bool:
    bars = (each for each in axes.containers if isinstance(each, BarContainer))
    return next((each.orientation != "horizontal" for each in bars), True)


def _value_label(axes: Axes) -> str:
    return axes.get_ylabel() if _is_upright(axes) else axes.get_xlabel()


def _over_places(axes: Axes, columns: Mapping[str, Column]) -> Table:
    is_upright = _is_upright(axes)
    places = sorted({place for column in columns.values() for place in column})
    along = " ".join((axes.get_xlabel() if is_upright else axes.get_ylabel()).split())
    sharing = axes.get_shared_x_axes().get_siblings(axes)
    named = next((each for each in sharing if each.fmt_xdata is not None), None)
    ticks: dict[float, str] = {}
    if not is_upright:
        ticks = dict(zip(axes.get_yticks(), (each.get_text() for each in axes.get_yticklabels()), strict=False))
    along = along or next((each.get_xlabel() for each in sharing if each.get_xlabel()), "")
    rows = [
        (
            named.format_xdata(place) if named and is_upright else ticks.get(place, _number(place)),
            *(column.get(place, "") for column in columns.values()),
        )
        for place in places
    ]
    return Table(("layer" if named else along, *columns), rows)


def _points(line: Line2D) -> Column:
    x, y = (np.asarray(each, np.float64) for each in (line.get_xdata(), line.get_ydata()))
    return {float(a): _number(float(b)) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)}


def _band(band: PolyCollection) -> Column:
    ends: dict[float, list[float]] = {}
    for path in band.get_paths():
        for x, y in np.asarray(path.vertices).tolist():
            if math.isfinite(x) and math.isfinite(y):
                ends.setdefault(x, []).append(y)
    return {x: _ends(min(found), max(found)) for x, found in ends.items()}


def _ends(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"


def _is_named(label: object) -> bool:
    return isinstance(label, str) and bool(label) and not label.startswith("_")


def _free(columns: Mapping[str, Column], label: object, otherwise: str) -> str:
    """Name a column by its label, or otherwise, unlike those before it."""
    name = " ".join(str(label).split()) if _is_named(label) else otherwise
    found, count = name, 1
    while found in columns:
        count += 1
        found = f"{name} ({count})"
    return found


def _number(value: float) -> str:
    return "" if not math.isfinite(value) else f"{value:.4g}"
