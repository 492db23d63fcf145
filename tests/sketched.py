"""Figures that are made and not rendered: rendering takes most of the time of a whole run."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

RENDERED = "matplotlib.figure.Figure.draw_without_rendering"
SAVED = "probes.report.style.save_figure"
ON_PAGE = "probes.report.page.svg_text"


@cache
def originals() -> dict[str, Any]:
    """Return what renders figures, by its place, as it is when this is first called."""
    # Imported here: jaxtyping's plugin must come before the first import of the package.
    from matplotlib.figure import Figure

    from probes.report.page import svg_text
    from probes.report.style import save_figure

    return {RENDERED: Figure.draw_without_rendering, SAVED: save_figure, ON_PAGE: svg_text}


@contextmanager
def sketched() -> Iterator[None]:
    """Make every figure, and write a blank one of its size in its place."""
    from matplotlib.figure import Figure

    def blank(place: str) -> Any:
        write = originals()[place]
        return lambda figure, *where, **how: write(Figure(figsize=tuple(figure.get_size_inches())), *where, **how)

    with pytest.MonkeyPatch.context() as patch:
        for place, sketch in ((SAVED, blank(SAVED)), (ON_PAGE, blank(ON_PAGE)), (RENDERED, lambda _: None)):
            patch.setattr(place, sketch)
        # so that figures are drawn after all
        patch.setattr("probes.report.predictions.digest_code", lambda: "sketched")
        yield
