"""Figures as SVG of a page: the page's colours, ids of their own, few bytes."""

import re

import numpy as np
from matplotlib.figure import Figure

from probes.report.figures import style
from probes.report.figures.rows import draw_confusion
from probes.report.page.svg import DARK, colour_sheet, style_sheet, svg_text


def svg_of(draw: style.Draw, *what: object, name: str = "f", classes: dict[str, str] | None = None) -> str:
    figure = style.make_figure(draw, *what, title="A <title>", note="a & note")
    return svg_text(figure, name=name, title="A <title>", about="a & note", classes={} if classes is None else classes)


def draw_lines(figure: Figure) -> None:
    axes = style.panel(figure)
    for k, colour in enumerate(style.COLOURS):
        style.draw_line(axes, [0, 1], [k, k], colour=colour, label=f"line {k}", spread=[0.1, 0.1])
    axes.plot([0.5], [2], "o", color=style.INK, markerfacecolor="white")


def draw_dots(figure: Figure, n: int) -> None:
    style.panel(figure).plot(range(n), range(n), ".", linestyle="")


def test_lines_and_texts_have_colours_that_turn_with_the_page() -> None:
    classes: dict[str, str] = {}
    svg = svg_of(draw_lines, classes=classes)
    sheet = style_sheet(classes)
    assert not re.findall(r"#[0-9a-fA-F]{6}", svg + sheet)
    for name in ("ink", "grey", "grid", "card", *("blue", "orange", "green", "pink", "amber", "sky", "black")):
        assert f"var(--{name})" in sheet
    light, dark = colour_sheet()
    assert [text.count("--") for text in (light, dark)] == [len(DARK)] * 2
    assert set(style.COLOURS) <= {colour.upper() if colour.upper() in style.COLOURS else colour for colour in DARK}
    assert "style=" not in svg
    assert "Verdana" in sheet
    assert len(svg) < 12_000


def test_what_is_written_on_a_heat_map_keeps_its_colour() -> None:
    classes: dict[str, str] = {}
    svg = svg_of(draw_confusion, np.array([[9, 1], [0, 3]]), ["a", "b"], classes=classes)
    sheet = style_sheet(classes)
    assert "fill:#ffffff" in sheet
    assert "data:image/png;base64," in svg


def test_texts_are_texts_and_the_figure_says_what_it_is() -> None:
    svg = svg_of(draw_lines, name="figure-3")
    assert '<title id="figure-3-title">A &lt;title&gt;</title><desc id="figure-3-about">a &amp; note</desc>' in svg
    assert 'aria-labelledby="figure-3-title figure-3-about"' in svg
    assert "> line 3</text>" in svg
    assert all(each.startswith("figure-3-") for each in re.findall(r' id="([^"]+)"', svg))
    assert set(re.findall(r"url\(#([^)]+)\)", svg)) <= set(re.findall(r' id="([^"]+)"', svg))
    assert not re.search(r"\d\.\d{3}", svg), "coordinates are rounded"
    assert "xmlns" not in svg


def test_very_many_dots_are_a_picture() -> None:
    few, many = svg_of(draw_dots, 200), svg_of(draw_dots, 3000)
    assert few.count("<use") >= 200
    assert "data:image/png" not in few
    assert many.count("<use") < 60
    assert "data:image/png" in many
    assert len(many) < 60_000
