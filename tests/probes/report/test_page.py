"""The page: escaped, whole by itself, the same every time, and true to the scores."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from probes.report import page as page_module
from probes.report import style
from probes.report.blocks import Block, Caution, Document, Heading, Item, Table
from probes.report.page import (
    DARK,
    LIBRARIES,
    MOST_ROWS,
    PAGE,
    Page,
    Part,
    Pictures,
    anchor,
    as_json,
    colour_sheet,
    html,
    marked,
    page_text,
    parts_of,
    style_sheet,
    svg_text,
    warnings_of,
    write_page,
)
from probes.report.run_figures import draw_confusion
from tests.probes.report.made_runs import MadeRun
from tests.probes.report.reading import ReadPage, require_whole

HOSTILE = "</script></title></style><script>alert('1')</script>\"' onload=\"x\" & \u202e gnp.exe \x08 {{ 7 * 7 }} a\\|b"
SEEN = "</script></title></style><script>alert('1')</script>\"' onload=\"x\" & \ufffd gnp.exe  {{ 7 * 7 }}"


def draw(figure: Figure, name: str = "a", n: int = 5) -> None:
    axes = style.panel(figure)
    style.draw_line(axes, range(n), range(n), colour=style.BLUE, label=name, spread=[0.5] * n)
    axes.set_ylabel("score")


def keep(pictures: Pictures, title: str, name: str = "a") -> None:
    frame = pd.DataFrame({"x": range(5), name: range(5)}).rename_axis(columns=name)
    pictures.keep(style.make_figure(draw, name, title=title, note=f"note {name}"), title, f"note {name}", frame)


def make_page(**fields: Any) -> Page:
    values: dict[str, Any] = {
        "title": "t",
        "question": "Why?",
        "answers": ("Because.",),
        "warnings": (),
        "parts": (Part("Results"),),
    }
    return Page(**{**values, **fields})


def test_the_page_of_every_kind_is_whole(made: MadeRun, folder: Path, read_json: Callable[[Path], Any]) -> None:
    text = (folder / PAGE).read_text(encoding="utf-8")
    page = require_whole(text)
    scores = read_json(folder / "scores.json")
    assert {source["head"] for source in page.data["exploration"]["sources"]} == set(scores["heads"])
    n_figures = len(list((folder / "figures").glob("*.png")))
    assert page.tags.count("figure") == n_figures
    assert page.tags.count("details") >= n_figures - 2  # of very many dots alone there are no numbers
    shown = page.text
    summary = (folder / "summary.md").read_text(encoding="utf-8")
    answer = summary.split("\n\n")[1].replace("`", "").replace("**", "")
    assert answer in shown
    assert page.texts["p"][1].strip()
    assert made.scores.header.task["name"] in page.texts["p"][0]
    for row in (line for line in summary.splitlines() if line.startswith("| ") and "\\" not in line):
        assert all(cell.replace("`", "") in shown for cell in row.strip("| ").split(" | "))


def test_hostile_names_are_text_everywhere() -> None:
    pictures = Pictures()
    keep(pictures, HOSTILE, "<script>\u202e\x08")
    table = Table((HOSTILE, f"`{HOSTILE}`"), [(HOSTILE, HOSTILE), (f"**{HOSTILE}**", HOSTILE)])
    part = Part(HOSTILE, (HOSTILE, Item(HOSTILE), table), pictures.take())
    page = make_page(
        title=HOSTILE,
        question=HOSTILE,
        answers=(HOSTILE,),
        warnings=(HOSTILE,),
        parts=(part,),
        exploration={HOSTILE: HOSTILE},
    )
    text = page_text(page, pictures.classes)
    found = require_whole(text)
    assert found.tags.count("script") == 2 + len(LIBRARIES)
    assert found.data == {"exploration": {HOSTILE: HOSTILE}}
    assert SEEN in found.texts["h1"][0]
    assert SEEN in found.texts["td"][0]
    assert found.texts["title"][0].startswith(SEEN)
    assert " <script>\ufffd" in found.texts["text"]
    assert not {"\u202e", "\x08"} & set(text)
    assert "49" not in found.text.replace("{{ 7 * 7 }}", "")


def test_marks_are_code_strong_and_emphasis_and_nothing_else() -> None:
    assert str(marked("a `b<` **c** *d* 2 * 3 * 4 <i>")) == (
        "a <code>b&lt;</code> <strong>c</strong> <em>d</em> 2 * 3 * 4 &lt;i&gt;"
    )
    assert str(marked("a ` b")) == "a ` b"
    assert str(marked("`**x**`")) == "<code>**x**</code>"
    assert str(marked("[a](https://b.c) ![](https://d.e) <https://f.g> &amp;")) == (
        "[a](https://b.c) ![](https://d.e) &lt;https://f.g&gt; &amp;amp;"
    )
    assert "<" not in as_json({"a": "</script>"})
    assert anchor("Which `x`? <b>") == "which-x-b"
    assert anchor("\u202e") == "part"


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("*a* and `b`", "*a* and <code>b</code>"),
        ("2 * 3 * 4 = _24_ [a](b)", "2 * 3 * 4 = _24_ [a](b)"),
        ("`block_02|x`", "<code>block_02|x</code>"),
        ("a|b \\* \\| `", "a|b \\* \\| `"),
        ("<b> & **c**", "&lt;b&gt; &amp; **c**"),
        ("`nosink*` and *", "<code>nosink*</code> and *"),
    ],
)
def test_only_code_is_marked_in_a_cell(cell: str, shown: str) -> None:
    assert f"<td>{shown}</td>" in html([Table(("column",), [(cell,)])])


def test_the_table_of_a_figure_is_its_frame() -> None:
    pictures = Pictures()
    figure = style.make_figure(draw, title="t")
    matrix = pd.DataFrame([[1000, 2]], pd.Index(["a|b"], name="gold"), pd.Index(["x", "y"], name="predicted"))
    curve = pd.DataFrame({"layer": ["block_01"], "score": [12.34567], "is_kept": [True], "std": [float("nan")]})
    frames = (matrix, curve.rename_axis(columns="unit"), pd.DataFrame({"x": range(MOST_ROWS + 1)}), None)
    for frame in frames:
        pictures.keep(figure, "t", "", frame)
    first, second, *others = pictures.take()
    assert (first.table, first.unit) == (Table(["gold \\ predicted", "x", "y"], [["a|b", "1,000", "2"]]), "")
    assert second.table == Table(["layer", "score", "is_kept", "std"], [["block_01", "12.35", "yes", ""]])
    assert second.unit == "unit"
    assert [picture.table for picture in others] == [None, None]


def test_a_surrogate_or_a_missing_value_does_not_stop_a_page(tmp_path: Path) -> None:
    write_page(tmp_path / PAGE, make_page(title="a\ud800b"), {})
    assert ReadPage((tmp_path / PAGE).read_text(encoding="utf-8")).texts["h1"] == ["a?b"]


def test_warnings_go_to_the_top_and_figures_after_the_results() -> None:
    table = Table(("a",), [("1",)])
    blocks: list[Block] = [Caution("careful"), table, Caution("again"), Heading("More"), "text"]
    document = Document("t", "q", "a", blocks)
    pictures = Pictures()
    keep(pictures, "A figure")
    parts = parts_of(document, taken := pictures.take())
    assert [(part.title, part.blocks, part.pictures, part.is_main) for part in parts] == [
        ("Results", (table,), (), True),
        ("Figures", (), taken, False),
        ("More", ("text",), (), False),
    ]
    assert warnings_of(document) == ("careful", "again")
    text = page_text(make_page(warnings=warnings_of(document), parts=parts), pictures.classes)
    shown = require_whole(text).text
    assert shown.index("careful") < shown.index("Results") < shown.index("Figures")
    parts = parts_of(Document("t", "q", "a", ["how", Heading("Chosen"), table]), ())
    assert [part.title for part in parts] == ["Chosen", "What was done"]


def test_numbers_stand_to_the_right_and_tables_can_be_sorted() -> None:
    table = Table(("head", "score", "ends", "plan"), [("a", "1.5", "1.0 to 2.0", "2 plans"), ("b", "-", "-", "")])
    text = page_text(make_page(parts=(Part("p", (table, Item("x"), Item("y"))),)), {})
    assert text.count('<th scope="col" class="n">') == 2
    assert '<td class="n">1.0 to 2.0</td>' in text
    assert require_whole(text).texts["li"][-2:] == ["x", "y"]
    assert "thead th" in text.rpartition("<script>")[2]


def test_figures_of_one_page_share_no_id_and_say_the_same_twice() -> None:
    texts = []
    for _ in range(2):
        pictures = Pictures()
        for title in ("one", "two"):
            keep(pictures, title)
        texts.append(page_text(make_page(parts=(Part("p", (), pictures.take()),)), pictures.classes))
    assert texts[0] == texts[1]
    page = require_whole(texts[0])
    assert page.texts["title"][1:] == ["one", "two"]
    assert page.texts["desc"] == ["note a. Its numbers are in the table below it."] * 2
    assert "figure-2-title" in page.ids


def test_a_page_that_is_too_large_leaves_out_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = Pictures()
    for title in ("one", "two", "three"):
        keep(pictures, title)
    page = make_page(parts=(Part("p", (), pictures.take()),))
    size = len(page_text(page, pictures.classes).encode())
    for most, n_figures in ((size, 3), (size - 500, 2)):
        monkeypatch.setattr(page_module, "MOST_BYTES", most)
        write_page(tmp_path / PAGE, page, pictures.classes)
        text = (tmp_path / PAGE).read_text(encoding="utf-8")
        found = require_whole(text)
        assert found.tags.count("figure") == n_figures
        assert ("1 more figures would make this page too large" in text) is (n_figures == 2)


def svg_of(draw: style.Draw, *what: object, name: str = "f", classes: dict[str, str] | None = None) -> str:
    figure = style.make_figure(draw, *what, title="A <title>", note="a & note")
    return svg_text(figure, name=name, title="A <title>", about="a & note", classes={} if classes is None else classes)


def draw_lines(figure: Figure) -> None:
    axes = style.panel(figure)
    for k, colour in enumerate(style.COLOURS):
        style.draw_line(axes, [0, 1], [k, k], colour=colour, label=f"line {k}", spread=[0.1, 0.1])
    axes.plot([0.5], [2], "o", color=style.INK, markerfacecolor="white")


def draw_dots(figure: Figure, n: int) -> None:
    style.panel(figure).plot(range(n), range(n), **style.dots(n))


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
    svg = svg_of(draw_confusion, pd.DataFrame([[9, 1], [0, 3]], ["a", "b"], ["a", "b"]), classes=classes)
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
    few, many = svg_of(draw_dots, 300), svg_of(draw_dots, 301)
    assert few.count("<use") >= 300
    assert "data:image/png" not in few
    assert many.count("<use") < 60
    assert "data:image/png" in many
    assert len(many) < 60_000
