"""What objects show in a notebook: a verdict, a picture and tables, in HTML that any viewer of notebooks keeps."""

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from extract.errors import printable
from probes.report.blocks import Block
from probes.report.page import html, marked

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


def read_picture(path: Path) -> bytes:
    """Read a PNG; nothing where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def picture_of(figure: Figure) -> bytes:
    """Draw a figure as PNG."""
    content = BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(content)
    return content.getvalue()
