"""A page: what it says and shows as plain data, and the file that a template makes of it."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup, escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.style import context

from extract.errors import printable
from extract.files import write_file
from probes.report import style
from probes.report.blocks import NOTHING, Block, Caution, Document, Heading, Item, Table
from probes.report.numbers import Numbers, numbers_of

if TYPE_CHECKING:
    from jinja2 import Template

PAGE = "report.html"
MOST_BYTES = 950_000
"""Of a page; figures, and before them the embedded scores, are left out of a larger one."""
WIDE = 6.0
"""Inches beyond which a figure takes the whole width."""
HERE = Path(__file__).parent
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Characters that make the text after them run the other way."""
_NUMBER = re.compile(r"[-+]?[\d.,]+( ?[%±(].*| to .*)?")


@dataclass(frozen=True)
class Picture:
    """A figure of a page."""

    name: str
    title: str
    note: str
    svg: str
    numbers: tuple[Numbers, ...]
    is_wide: bool = False
    """Whether it takes the whole width of the page."""


class Pictures:
    """Takes the figures of a page as they are drawn."""

    def __init__(self) -> None:
        self.classes: dict[str, str] = {}
        self._n_kept, self._kept = 0, list[Picture]()

    def keep(self, figure: Figure, title: str, note: str) -> None:
        """Keep a figure, as an `Album` gives it."""
        self._n_kept += 1
        name, numbers = f"figure-{self._n_kept}", numbers_of(figure)
        about = f"{note}. " * bool(note) + "Its numbers are in the table below it." * bool(numbers)
        svg = svg_text(figure, name=name, title=title, about=about or title, classes=self.classes)
        self._kept.append(Picture(name, title, note, svg, numbers, bool(figure.get_figwidth() > WIDE)))

    def take(self) -> tuple[Picture, ...]:
        """Return the figures since they were taken before."""
        taken, self._kept = tuple(self._kept), []
        return taken


@dataclass(frozen=True)
class Part:
    """A section of a page."""

    title: str
    blocks: tuple[Block, ...] = ()
    pictures: tuple[Picture, ...] = ()
    is_main: bool = False
    """Whether it holds the results."""


@dataclass(frozen=True)
class Page:
    """What a page says and shows."""

    title: str
    question: str
    answers: tuple[str, ...]
    warnings: tuple[str, ...]
    parts: tuple[Part, ...]
    data: Mapping[str, Any] = field(default_factory=dict)
    """Name to the scores of a run, embedded as JSON."""
    n_left_out: int = 0
    """Figures that would have made it too large."""


def parts_of(document: Document, pictures: tuple[Picture, ...]) -> tuple[Part, ...]:
    """Sort a document into parts, the first with a table first, then the figures; warnings are left to the top."""
    parts = [Part("Results")]
    for block in document.blocks:
        if isinstance(block, Heading):
            parts.append(Part(block.text))
        elif not isinstance(block, Caution):
            parts[-1] = replace(parts[-1], blocks=(*parts[-1].blocks, block))
    if len(parts) > 1 and not any(isinstance(block, Table) for block in parts[0].blocks):
        parts = [*parts[1:], replace(parts[0], title="What was done")]
    figures = [Part("Figures", (), pictures)] * bool(pictures)
    return (replace(parts[0], is_main=True), *figures, *parts[1:])


def warnings_of(document: Document) -> tuple[str, ...]:
    """Return what a document warns of."""
    return tuple(block.text for block in document.blocks if isinstance(block, Caution))


def write_page(path: Path, page: Page, classes: Mapping[str, str]) -> None:
    """Write a page that needs no other file and stays under a megabyte; the same page always has the same bytes."""
    text = page_text(page, classes)
    while len(text.encode()) > MOST_BYTES and (page.data or any(part.pictures for part in page.parts)):
        page = _smaller(page)
        text = page_text(page, classes)
    write_file(path, text)


def _smaller(page: Page) -> Page:
    """Leave the embedded scores out, or else the last figure."""
    if page.data:
        return replace(page, data={})
    last = max(place for place, part in enumerate(page.parts) if part.pictures)
    shorter = replace(page.parts[last], pictures=page.parts[last].pictures[:-1])
    parts = (*page.parts[:last], shorter, *page.parts[last + 1 :])
    return replace(page, parts=parts, n_left_out=page.n_left_out + 1)


def page_text(page: Page, classes: Mapping[str, str]) -> str:
    """Write a page as HTML."""
    light, dark = colour_sheet()
    text = _template().render(
        page=page,
        colours={"light": Markup(light), "dark": Markup(dark)},
        classes=Markup(style_sheet(classes)),
        css=Markup((HERE / "page.css").read_text("utf-8")),
        script=Markup((HERE / "page.js").read_text("utf-8")),
    )
    text = _TURNS.sub("\N{REPLACEMENT CHARACTER}", printable(text))
    return text.encode("utf-8", "replace").decode()


@cache
def _template() -> "Template":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # brings a compiler with it

    found = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters |= {"marked": marked, "cell": cell_text, "as_json": as_json, "svg": Markup, "anchor": anchor}
    found.globals |= {"groups": groups, "is_number_column": is_number_column}
    return found.get_template("page.html")


def marked(text: str) -> Markup:
    """Write a marked text as HTML: `code`, **strong** and *emphasis*; everything else is escaped."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a mark that nothing closes
        parts[-2:] = ["`".join(parts[-2:])]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else _emphasised(part) for place, part in enumerate(parts)
    )


def _emphasised(text: str) -> Markup:
    html = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", str(escape(text)))
    return Markup(re.sub(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])", r"<em>\1</em>", html))


def cell_text(text: str) -> Markup:
    """Write a cell of a table: only `code` is marked, so that a text of a user keeps its asterisks."""
    return marked(text) if "*" not in text else Markup(escape(text))


def as_json(value: Any) -> Markup:
    """Write plain values as JSON that cannot end the element it is in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def anchor(title: str) -> str:
    """Make a name for the address of a part."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "part"


def groups(blocks: Iterable[Block]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Group blocks as HTML does: `list` with the texts of its items, `table`, or `text`."""
    items: list[str] = []
    for block in (*blocks, ""):
        if isinstance(block, Item):
            items.append(block.text)
            continue
        if items:
            yield "list", items
            items = []
        if isinstance(block, Table):
            yield "table", [block]
        elif isinstance(block, str) and block:
            yield "text", [block]


def is_number_column(table: Table, place: int) -> bool:
    """Whether a column holds numbers, which stand to the right."""
    texts = [row[place] for row in table.rows if row[place] not in (NOTHING, "")]
    return bool(texts) and all(_NUMBER.fullmatch(text) for text in texts)


DARK = {
    style.INK: ("ink", "#e6e6e6"),
    style.GREY: ("grey", "#9a9a9a"),
    style.PALE: ("pale", "#4c4c4c"),
    "#e8e8e8": ("grid", "#333333"),
    "#000000": ("black", "#e6e6e6"),
    "#ffffff": ("card", "#1b1d20"),
    "#0072b2": ("blue", "#4aa3df"),
    "#d55e00": ("orange", "#f0853a"),
    "#009e73": ("green", "#35c79b"),
    "#cc79a7": ("pink", "#e3a5c6"),
    "#e69f00": ("amber", "#f2bd45"),
    "#56b4e9": ("sky", "#a5dbfa"),
}
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
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-about",
        "width": str(width),
        "height": str(round(width * figure.get_figheight() / figure.get_figwidth())),
    }
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
