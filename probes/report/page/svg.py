"""Figures as SVG inside a page: readable by screen readers, in the page's colours, with ids of their own, and small."""

import re
from collections.abc import Mapping
from io import BytesIO
from typing import Any
from xml.etree import ElementTree

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.style import context

from probes.report.figures import style

DARK = {
    style.INK: ("ink", "#e6e6e6"), style.GREY: ("grey", "#9a9a9a"), style.PALE: ("pale", "#4c4c4c"),
    "#e8e8e8": ("grid", "#333333"), "#000000": ("black", "#e6e6e6"), "#ffffff": ("card", "#1b1d20"),
    "#0072b2": ("blue", "#4aa3df"), "#d55e00": ("orange", "#f0853a"), "#009e73": ("green", "#35c79b"),
    "#cc79a7": ("pink", "#e3a5c6"), "#e69f00": ("amber", "#f2bd45"), "#56b4e9": ("sky", "#a5dbfa"),
}  # fmt: skip
"""Colour of a figure to its name on a page and what it is there when the page is dark."""
MOST_DOTS = 300
"""Drawn as shapes; more are drawn as a picture, which keeps the page small."""
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
FONTS = "'DejaVu Sans', Verdana, sans-serif"
"""Of the same width as what the figure was laid out with."""
_NUMBERS = ("d", "x", "y", "x1", "y1", "x2", "y2", "points", "transform", "width", "height")


def svg_text(figure: Figure, *, name: str, title: str, about: str, classes: dict[str, str]) -> str:
    """Write a figure as an SVG element of a page.

    Args:
        figure: The figure; rows of very many dots become pictures in it.
        name: Begins every id, so that those of no other figure on the page are the same.
        title: Read out in place of the figure.
        about: Read out after it.
        classes: Style to the class that stands for it, shared by all figures of a page; new ones are added.
    """
    for dots in (each for each in figure.findobj(_has_many_dots)):
        dots.set_rasterized(True)
    drawn = BytesIO()
    with context(["default", {**style.THEME, "svg.fonttype": "none"}]):
        for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
            patch.set_facecolor("none")
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(drawn, metadata=NO_METADATA)  # `savefig` would draw it twice
    root = ElementTree.fromstring(drawn.getvalue())
    for parent in root.iter():
        for child in [each for each in parent if each.tag.endswith("}style")]:
            parent.remove(child)
    for element in root.iter():
        _simplify(element, classes)
    _rename_ids(root, name)
    width = round(1.45 * figure.get_figwidth() * 72)
    root.attrib = {
        "viewBox": root.attrib["viewBox"], "role": "img", "aria-labelledby": f"{name}-title {name}-about",
        "width": str(width), "height": str(round(width * figure.get_figheight() / figure.get_figwidth())),
    }  # fmt: skip
    for place, (tag, text) in enumerate((("title", title), ("desc", about))):
        element = ElementTree.Element(tag, {"id": f"{name}-{'title' if tag == 'title' else 'about'}"})
        element.text = text
        root.insert(place, element)
    return ElementTree.tostring(root, encoding="unicode")


def style_sheet(classes: Mapping[str, str]) -> str:
    """Write the classes of the figures of a page."""
    return "".join(f".{name}{{{text}}}" for text, name in classes.items())


def colour_sheet() -> tuple[str, str]:
    """Write the colours of figures as variables, for a light page and for a dark one."""
    light = "".join(f"--{name}:{colour};" for colour, (name, _) in DARK.items())
    return light, "".join(f"--{name}:{dark};" for name, dark in DARK.values())


def _has_many_dots(artist: object) -> bool:
    dots: Any = ()
    if isinstance(artist, PathCollection):
        dots = artist.get_offsets()
    elif isinstance(artist, Line2D) and artist.get_linestyle() == "None":
        dots = artist.get_xdata()
    return len(dots) > MOST_DOTS


def _simplify(element: ElementTree.Element, classes: dict[str, str]) -> None:
    """Drop name spaces, round coordinates, and put a class in place of a style."""
    tag = element.tag.rpartition("}")[2]
    found = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    for key in (key for key in _NUMBERS if key in found):
        found[key] = " ".join(re.sub(r"-?\d+\.\d+", _rounded, found[key]).split())
    if found.get("transform", "").startswith(("rotate(-0 ", "rotate(0 ")):
        del found["transform"]
    if text := found.pop("style", ""):
        text = re.sub(r"font-family: [^;]*", f"font-family: {FONTS}", text)
        if tag != "text" or not re.search(r"fill: #(000000|ffffff)", text):  # written on a colour that stays
            text = re.sub(r"#[0-9a-f]{6}\b", _variable, text.lower() if "font" not in text else text)
        found["class"] = classes.setdefault(text.replace(": ", ":").replace("; ", ";"), f"s{len(classes)}")
    element.tag, element.attrib = tag, found
    if tag not in {"text", "tspan"}:
        element.text = (element.text or "").strip()
    element.tail = None if tag != "tspan" else element.tail


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def _variable(found: re.Match[str]) -> str:
    name, _ = DARK.get(found[0].lower(), ("", ""))
    return f"var(--{name})" if name else found[0]


def _rename_ids(root: ElementTree.Element, name: str) -> None:
    """Keep the ids that something refers to, under names that no other figure has."""
    used: dict[str, str] = {}
    for element in root.iter():
        for value in element.attrib.values():
            for found in re.findall(r"^#([\w.-]+)$|url\(#([\w.-]+)\)", value):
                used.setdefault(found[0] or found[1], f"{name}-{len(used)}")
    for element in root.iter():
        kept = used.get(element.attrib.pop("id", ""))
        for key, value in element.attrib.items():
            if key == "href" and value.startswith("#"):
                element.set(key, f"#{used[value[1:]]}")
            elif value.startswith("url(#"):
                element.set(key, f"url(#{used[value[5:-1]]})")
        if kept:
            element.set("id", kept)
