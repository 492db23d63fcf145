"""A report as one HTML page that needs nothing else: what it says and shows as plain data, and the file made of it."""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pandas as pd
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.style import context

from extract.errors import HeadError, printable
from extract.files import write_file
from extract.records import Values
from probes.layers import FINDINGS
from probes.report import style
from probes.report.blocks import Block, Caution, Document, Heading, Item, Table, cell, frame_table, markdown

if TYPE_CHECKING:
    from jinja2 import Template


PAGE = "report.html"
MOST_BYTES = 5_000_000
"""Of a page; the last figures are left out of a larger one."""
MOST_ROWS, MOST_CELLS = 300, 3000
"""Of the table of a figure; a larger one is left out."""
IN_FULL = "In full"
"""Title of the part with what the answer leaves out."""
WIDE = 6.0
"""Inches beyond which a figure takes the whole width."""
HERE = Path(__file__).parent
LIBRARIES, SCRIPT = ("page.d3.min.js", "page.plot.min.js"), "page.js"
"""Scripts of a page that can be explored (their licences are in page.licences.txt), and that of every page."""
PLOT_STYLE = """:where(.plot) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.plot text),
:where(.plot tspan) {
  white-space: pre;
}"""
"""The style that Observable Plot writes into a chart of the class `plot`, which the policy of a page has to allow."""
MARKS = ("backticks", "emphasis", "escape", "list", "table")
"""What of Markdown a page knows: neither HTML nor links nor pictures, so that a text of a user stays one."""
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
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
FONTS = "'DejaVu Sans', Verdana, sans-serif"
"""Of the same width as what the figure was laid out with."""
_NUMBERS = ("d", "x", "y", "x1", "y1", "x2", "y2", "points", "transform", "width", "height")
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Characters that make the text after them run the other way."""


@dataclass(frozen=True)
class Picture:
    """A figure of a page."""

    name: str
    title: str
    note: str
    svg: str
    unit: str = ""
    """What the numbers of the table are, where its titles do not say it."""
    table: Table | None = None
    """The frame that was drawn; None where it is too large."""
    is_wide: bool = False
    """Whether it takes the whole width of the page."""


class Pictures:
    """Takes the figures of a page as they are drawn."""

    def __init__(self) -> None:
        self.classes: dict[str, str] = {}
        self._n_figures, self._pictures = 0, list[Picture]()

    def keep(self, figure: Figure, title: str, note: str, frame: pd.DataFrame | None = None) -> None:
        """Keep a figure, as an `Album` gives it, with the frame that it shows."""
        self._n_figures += 1
        name, unit, table = f"figure-{self._n_figures}", "", None
        if frame is not None and 0 < len(frame) <= MOST_ROWS and frame.size <= MOST_CELLS:
            table, unit = frame_table(frame), "" if frame.index.name else str(frame.columns.name or "")
        about = f"{note}. " * bool(note) + "Its numbers are in the table below it." * bool(table)
        svg = svg_text(figure, name=name, title=title, about=about or title, classes=self.classes)
        self._pictures.append(Picture(name, title, note, svg, unit, table, bool(figure.get_figwidth() > WIDE)))

    def take(self) -> tuple[Picture, ...]:
        """Return the figures since the last call."""
        pictures, self._pictures = tuple(self._pictures), []
        return pictures


@dataclass(frozen=True)
class Part:
    """A section of a page."""

    title: str
    blocks: tuple[Block, ...] = ()
    pictures: tuple[Picture, ...] = ()
    is_main: bool = False
    """Whether it holds the results."""
    is_folded: bool = False
    """Whether it is closed until a reader opens it."""


@dataclass(frozen=True)
class Page:
    """What a page says and shows."""

    title: str
    question: str
    answers: tuple[str, ...]
    warnings: tuple[str, ...]
    parts: tuple[Part, ...]
    exploration: Values = field(default_factory=dict)
    """What a reader can explore (`probes.report.exploring`), embedded as JSON; empty for none."""
    n_left_out: int = 0
    """Figures that would have made it too large."""


def run_page(
    folder: Path, document: Document, pictures: Pictures, exploration: Values, answers: Sequence[str] = ()
) -> Page:
    """Make the page of a run: answers, or that of the document, numbers, then folded figures and details."""
    figures = pictures.take()
    in_full, warnings, parts = _layer_findings(folder, pictures)
    results, *others = parts_of(document, figures)
    in_full += [document.answer] * bool(answers)
    full = [Part(IN_FULL, tuple(map(Item, in_full)))] * bool(in_full)
    return Page(
        document.title,
        document.question,
        tuple(answers) or (document.answer,),
        tuple(dict.fromkeys((*warnings, *warnings_of(document)))),
        (results, *full, *(replace(part, is_folded=True) for part in (*parts, *others))),
        exploration,
    )


def _layer_findings(folder: Path, pictures: Pictures) -> tuple[list[str], list[str], list[Part]]:
    """Say and draw what is in a run folder about its layers: answers, warnings and parts."""
    if not (folder / FINDINGS).exists():
        return [], [], []
    from probes.layers.findings import load_findings
    from probes.report.layer_figures import draw_agreements, findings_blocks, set_sentence

    try:
        heads = load_findings(folder)
    except HeadError as error:
        return [], [str(error)], []
    parts = []
    for findings in heads:
        draw_agreements(style.Album(folder, (), pictures.keep), findings)
        name = f"`{cell(findings.head)}`"
        blocks = (set_sentence(findings), *findings_blocks(findings))
        parts.append(Part(f"Every layer of {name} in numbers", blocks, pictures.take()))
    answers = [f"`{cell(findings.head)}`: {cell(findings.answer)}" for findings in heads if findings.answer]
    return answers, [cell(text) for findings in heads for text in findings.warnings], parts


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
    """Write a page that needs no other file; the same page always has the same bytes."""
    text = page_text(page, classes)
    while len(text.encode()) > MOST_BYTES and any(part.pictures for part in page.parts):
        parts = list(page.parts)  # of which the last figure is left out
        last = max(index for index, part in enumerate(parts) if part.pictures)
        parts[last] = replace(parts[last], pictures=parts[last].pictures[:-1])
        page = replace(page, parts=tuple(parts), n_left_out=page.n_left_out + 1)
        text = page_text(page, classes)
    write_file(path, text)


def page_text(page: Page, classes: Mapping[str, str]) -> str:
    """Write a page as HTML."""
    light, dark = colour_sheet()
    colours = (
        f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}:root[data-theme=light]{{{light}}}"
        f":root[data-theme=dark]{{{dark}}}@media print{{:root:root{{{light}}}}}"
    )
    css = "\n".join((colours, (HERE / "page.css").read_text("utf-8"), style_sheet(classes)))
    scripts = [(HERE / name).read_text("utf-8") for name in (*LIBRARIES * bool(page.exploration), SCRIPT)]
    text = _template().render(
        page=page, css=Markup(css), scripts=list(map(Markup, scripts)), policy=policy(css, scripts)
    )
    text = _TURNS.sub("\N{REPLACEMENT CHARACTER}", printable(text))
    return text.encode("utf-8", "replace").decode()


def policy(css: str, scripts: Sequence[str]) -> Markup:
    """Write the content security policy of a page: its own script and style by their digests, and nothing else."""
    styles, codes = (
        [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts]
        for texts in ((css, PLOT_STYLE), scripts)
    )
    parts = ("default-src 'none'", f"script-src {' '.join(codes)}", f"style-src {' '.join(styles)}", "img-src data:")
    return Markup("; ".join((*parts, "base-uri 'none'", "form-action 'none'")))


@cache
def _template() -> "Template":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # brings a compiler with it

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"marked": marked, "html": html, "as_json": as_json, "svg": Markup, "anchor": anchor}
    return environment.get_template("page.html")


def html(blocks: Sequence[Block]) -> Markup:
    """Write blocks as HTML, columns of numbers to the right."""
    return Markup(_markdown().render(markdown(blocks, is_page=True)))


def marked(text: str) -> Markup:
    """Write one marked text as HTML: `code`, **strong** and *emphasis*; everything else is escaped."""
    return Markup(_markdown().renderInline(text))


@cache
def _markdown() -> MarkdownIt:
    """Make the reader of Markdown, whose tables can be scrolled and sorted."""
    reader = MarkdownIt("zero", {"html": False}).enable(MARKS)
    opening = '<div class="scroll" tabindex="0" role="region" aria-label="table">\n<table>\n'
    reader.add_render_rule("table_open", lambda *_: opening)
    reader.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
    for tag, scope in (("th", ' scope="col"'), ("td", "")):
        cells = [f"<{tag}{scope}>", f'<{tag}{scope} class="n">']
        reader.add_render_rule(f"{tag}_open", lambda _, tokens, k, *__, of=cells: of[bool(tokens[k].attrs)])
    return reader


def as_json(value: object) -> Markup:
    """Write plain values as JSON that cannot end the element it is in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def anchor(title: str) -> str:
    """Make a name for the address of a part."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "part"


def svg_text(figure: Figure, *, name: str, title: str, about: str, classes: dict[str, str]) -> str:
    """Write a figure as an SVG element of a page."""
    for dots in figure.findobj(lambda artist: artist.get_gid() == style.MANY_DOTS):
        dots.set_rasterized(True)
    content = BytesIO()
    with context(["default", {**style.THEME, "svg.fonttype": "none"}]):
        for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
            patch.set_facecolor("none")
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(content, metadata=NO_METADATA)  # `savefig` would draw it twice
    root = ElementTree.fromstring(content.getvalue())
    for parent in root.iter():
        for child in [child for child in parent if child.tag.endswith("}style")]:
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
    for index, (tag, role, text) in enumerate((("title", "title", title), ("desc", "about", about))):
        element = ElementTree.Element(tag, {"id": f"{name}-{role}"})
        element.text = text
        root.insert(index, element)
    return ElementTree.tostring(root, encoding="unicode")


def style_sheet(classes: Mapping[str, str]) -> str:
    """Write the classes of the figures of a page."""
    return "".join(f".{name}{{{text}}}" for text, name in classes.items())


def colour_sheet() -> tuple[str, str]:
    """Write the colours of figures as variables, for a light page and for a dark one."""
    light = "".join(f"--{name}:{colour};" for colour, (name, _) in DARK.items())
    return light, "".join(f"--{name}:{dark};" for name, dark in DARK.values())


def _simplify(element: ElementTree.Element, classes: dict[str, str]) -> None:
    """Drop name spaces, round coordinates, and put a class in place of a style."""
    tag = element.tag.rpartition("}")[2]
    attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    for key in (key for key in _NUMBERS if key in attributes):
        attributes[key] = " ".join(re.sub(r"-?\d+\.\d+", _rounded, attributes[key]).split())
    if attributes.get("transform", "").startswith(("rotate(-0 ", "rotate(0 ")):
        del attributes["transform"]
    if text := attributes.pop("style", ""):
        text = re.sub(r"font-family: [^;]*", f"font-family: {FONTS}", text)
        if tag != "text" or not re.search(r"fill: #(000000|ffffff)", text):  # written on a colour that stays
            text = re.sub(r"#[0-9a-f]{6}\b", _variable, text.lower() if "font" not in text else text)
        attributes["class"] = classes.setdefault(text.replace(": ", ":").replace("; ", ";"), f"s{len(classes)}")
    element.tag, element.attrib = tag, attributes
    if tag not in {"text", "tspan"}:
        element.text = (element.text or "").strip()
    element.tail = None if tag != "tspan" else element.tail


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


def _variable(match: re.Match[str]) -> str:
    name, _ = DARK.get(match[0].lower(), ("", ""))
    return f"var(--{name})" if name else match[0]


def _rename_ids(root: ElementTree.Element, name: str) -> None:
    """Keep the ids that something refers to, under names that no other figure has."""
    names: dict[str, str] = {}
    for element in root.iter():
        for value in element.attrib.values():
            for match in re.finditer(r"^#([\w.-]+)$|url\(#([\w.-]+)\)", value):
                names.setdefault(match[1] or match[2], f"{name}-{len(names)}")
    for element in root.iter():
        new = names.get(element.attrib.pop("id", ""))
        for key, value in element.attrib.items():
            if key == "href" and value.startswith("#"):
                element.set(key, f"#{names[value[1:]]}")
            elif value.startswith("url(#"):
                element.set(key, f"url(#{names[value[5:-1]]})")
        if new:
            element.set("id", new)


# --- Notebooks ---


WIDEST = "max-width:60em"
CARD = "max-width:100%;background:#fff;border-radius:4px"


def notebook_html(title: str, verdict: str, *, picture: bytes = b"", blocks: Sequence[Block] = ()) -> str:
    """Write a title, a marked verdict, a PNG and blocks as HTML; texts are escaped."""
    image = Markup('<img alt="{}" style="{}" src="data:image/png;base64,{}">').format(
        f"figure of {title}", CARD, b64encode(picture).decode()
    )
    body = Markup('<div style="{}"><p><b>{}</b></p><p>{}</p>{}{}</div>').format(
        WIDEST, title, marked(verdict), image if picture else "", html(blocks)
    )
    return printable(str(body))


@dataclass(frozen=True)
class ShownPage:
    """A page that a notebook shows inline, in a frame of its own that cannot reach the notebook."""

    text: str = field(repr=False)
    height: int
    """Pixels."""

    def _repr_html_(self) -> str:
        frame = Markup('<iframe sandbox="allow-scripts" style="width:100%;height:{}px;border:0" srcdoc="{}"></iframe>')
        return str(frame.format(self.height, self.text))


def read_picture(path: Path) -> bytes:
    """Read a PNG; nothing where it cannot be read."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


def picture_of(figure: Figure) -> bytes:
    """Draw a figure as PNG."""
    content = BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(content)
    return content.getvalue()
