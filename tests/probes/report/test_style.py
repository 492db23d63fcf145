"""The one style of all figures: what every figure of every kind has, where labels stand, and what is written."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text

from probes.report import style
from probes.report.comparison_figures import draw_sink_mass
from probes.report.document import Context
from probes.report.run_figures import draw_autoencoders, draw_figures
from probes.report.style import Album, draw_line, make_figure, mark_layers, panel, shorten
from tests.probes.report.made_runs import AUTOENCODERS, HEADS_OF, MadeRun

LAYERS = ("embedding", *(f"block_{k:02d}" for k in range(1, 31)), "final_norm")
SIGNATURES = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@dataclass(frozen=True)
class Shelf(Album):
    """Keeps figures in place of writing them."""

    figures: list[Figure] = field(default_factory=list)

    def add(self, name: str, draw: style.Draw, *data: Any, title: str, table: Any = None, **options: Any) -> None:
        figure = make_figure(draw, *data, title=title, **options)
        assert table is not None
        self.figures.append(figure)
        self.drawn[title] = (name,)


@pytest.fixture(scope="module", params=HEADS_OF)
def shelf(request: pytest.FixtureRequest, made_runs: dict[str, MadeRun]) -> Shelf:
    """Every figure of a run of each kind in turn, and those of autoencoders."""
    made, found = made_runs[request.param], Shelf(Path())
    draw_figures(found, Context(made.scores, made.kind.report.rows(made.task), made.kind.report))
    if request.param == "pairs":
        draw_autoencoders(found, {"autoencoders": AUTOENCODERS}, plan="causal")
    return found


def shown_texts(figure: Figure) -> Iterator[Text]:
    """Yield the texts that can be read: titles, labels, ticks within their axes, notes."""
    yield from (text for text in (figure._suptitle, figure._supxlabel) if text)  # type: ignore[attr-defined]
    for axes in figure.axes:
        sides = ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim())))
        ticks = [
            label
            for axis, (low, high) in sides
            for tick in axis.get_major_ticks()
            for label in (tick.label1, tick.label2)
            if low <= tick.get_loc() <= high and label.get_visible()
        ]
        yield from (t for t in (*axes.texts, *ticks, axes.xaxis.label, axes.yaxis.label, axes.title) if t.get_text())


def test_every_figure_of_every_kind_is_whole(shelf: Shelf) -> None:
    for figure in shelf.figures:
        assert "plan causal" in figure.get_suptitle().replace("\n", " ")
        for one, other in combinations(figure.axes, 2):  # no two axes in one place: nothing has a second scale
            assert one.get_position().bounds != other.get_position().bounds
        edges = figure.bbox.padded(2)
        for text in shown_texts(figure):
            box = text.get_window_extent()
            assert edges.x0 <= box.x0 <= box.x1 <= edges.x1, text.get_text()
            assert edges.y0 <= box.y0 <= box.y1 <= edges.y1, text.get_text()


def test_layers_and_epochs_have_whole_numbers(shelf: Shelf) -> None:
    named = [axes for figure in shelf.figures for axes in figure.axes if "block" in axes.get_xlabel()]
    assert named
    for axes in named:
        assert all(label.get_text() in {"emb", "norm", "1", "2", "3"} for label in axes.get_xticklabels())
    counted = [axes for figure in shelf.figures for axes in figure.axes if axes.get_xlabel() == "epoch"]
    assert all(float(tick).is_integer() for axes in counted for tick in axes.get_xticks())


def test_blocks_of_a_deep_decoder_are_counted_in_steps() -> None:
    [axes] = make_figure(lambda figure: mark_layers(panel(figure), LAYERS), title="t").axes
    labels = {label.get_text(): place for label, place in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)}
    assert labels == {"emb": 0, "norm": 31, "5": 5, "10": 10, "15": 15, "20": 20, "25": 25}
    boxes = sorted((label.get_window_extent() for label in axes.get_xticklabels()), key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def draw_ends(figure: Figure, ends: list[float]) -> None:
    axes = panel(figure)
    for number, end in enumerate(ends):
        draw_line(axes, (0, 1), (0.5, end), colour=style.BLUE, label=f"line {number}")
    axes.set_ylim(0, 1)


@pytest.mark.parametrize(
    "ends", [[0.5] * 8, [0.0, 0.01, 0.02], [0.99, 1.0, 1.0], [0.2, 0.8], [0.1, 0.5, 0.51, 0.52, 0.9]]
)
def test_labels_at_the_ends_of_lines_keep_apart_and_in_order(ends: list[float]) -> None:
    figure = make_figure(draw_ends, ends, title="t")
    [axes] = figure.axes
    labels = sorted(axes.texts, key=lambda text: text.xy[1])  # type: ignore[attr-defined]
    boxes = [Text.get_window_extent(label) for label in labels]
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    inside = axes.get_window_extent()
    assert all(inside.y0 <= (box.y0 + box.y1) / 2 <= inside.y1 and box.x0 >= inside.x1 for box in boxes)
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)


def test_a_label_that_nothing_crowds_stands_at_its_end() -> None:
    [axes] = make_figure(draw_ends, [0.2, 0.8], title="t").axes
    assert [text.xyann[1] for text in axes.texts] == pytest.approx([0.2, 0.8])  # type: ignore[attr-defined]


def test_titles_and_notes_are_broken_before_the_edge() -> None:
    plan = f"[{','.join(['nosink-bidirectional'] * 30)}]"
    figure = make_figure(panel, title=f"score of each layer, plan {plan}", note="word " * 60)
    figure.canvas.draw()
    for text in (figure._suptitle, figure._supxlabel):  # type: ignore[attr-defined]
        assert text.get_window_extent().x1 <= figure.bbox.x1
    assert figure.get_suptitle().count("\n") == 2
    assert figure.get_supxlabel().split() == ["word"] * 60, "a caption is never cut"
    assert figure.get_figheight() > make_figure(panel, title="t").get_figheight()


def test_what_is_no_formula_is_not_read_as_one(tmp_path: Path) -> None:
    Album(tmp_path, ("svg",)).add("a", panel, title="$x^ and $", note="\\frac{")
    assert (tmp_path / "a.svg").stat().st_size > 1000


def draw_colours(figure: Figure) -> None:
    draw_sink_mass(figure, torch.linspace(0, 1, 12).reshape(3, 4))


@pytest.mark.parametrize("formats", [("png",), ("svg", "pdf"), ("pdf", "png", "svg")])
def test_exactly_the_formats_that_were_asked_for_are_written(formats: tuple[str, ...], tmp_path: Path) -> None:
    album = Album(tmp_path, formats)
    album.add("figures/a", draw_colours, title="A title")
    assert album.drawn == {"A title": tuple(f"figures/a.{each}" for each in formats)}
    written = {path.suffix[1:]: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    assert sorted(written) == sorted(formats)
    for each, content in written.items():
        assert content.startswith(SIGNATURES[each])


def test_a_figure_drawn_again_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formats = tuple(SIGNATURES)
    for folder, epoch in (("one", "100000000"), ("two", "200000000")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)  # what matplotlib would date files by
        Album(tmp_path / folder, formats).add("a", draw_colours, title="A title", note="a note")
    for each in formats:
        assert (tmp_path / "one" / f"a.{each}").read_bytes() == (tmp_path / "two" / f"a.{each}").read_bytes()


def test_the_theme_holds_whatever_was_set_and_leaves_no_trace(tmp_path: Path) -> None:
    album = Album(tmp_path)
    album.add("a", draw_colours, title="A title")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 30}):
        before = dict(mpl.rcParams)
        album.add("b", draw_colours, title="A title")
        assert dict(mpl.rcParams) == before
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_long_names_keep_both_ends() -> None:
    assert shorten("causal") == "causal"
    assert shorten("nosink-bidirectional:10") == "nosink-bidirectional:10"
    assert shorten("nosink-bidirectional:10+bidirectional:8") == "nosink-bidir:10+bidir:8"
    assert shorten(f"[{','.join(['causal'] * 30)}]") == "[causal,causal,…causal,causal]"
