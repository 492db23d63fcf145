"""Figures of findings: every value where its layer is, the set shaded, intervals and units named."""

import json
import math
import re
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from probes.layers import FINDINGS
from probes.layers.findings import VIEWS, Agreement, load_findings
from probes.report import style
from probes.report.blocks import Document, Item, Table
from probes.report.layer_figures import (
    curve_caption,
    draw_agreement,
    draw_alone,
    draw_view,
    findings_blocks,
    findings_note,
    shade_set,
    write_curve,
)
from probes.report.page import Pictures, page_text, run_page
from probes.report.style import make_figure, panel
from tests.probes.report.made_findings import (
    BEST,
    GAINS,
    LAYERS,
    ORDER,
    SCORES,
    make_curve,
    make_findings,
    write_findings,
)
from tests.probes.report.reading import require_whole
from tests.probes.report.test_style import shown_texts

MADE = make_findings()
FRAME = pd.DataFrame(MADE.rows())


@pytest.fixture
def axes() -> Axes:
    return panel(Figure())


def test_single_layers_have_their_set_shaded_and_controls_beside_them(axes: Axes) -> None:
    assert draw_alone(axes, FRAME) is axes
    shades = [
        (patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches if isinstance(patch, Rectangle)
    ]
    assert shades == [(4.5, 8.5), (12.5, 13.5)]
    lines = {line.get_label(): line for line in axes.get_lines()}
    np.testing.assert_allclose(np.asarray(lines["alone"].get_ydata(), float), 100 * np.array(SCORES))
    assert {"control, word types", "control, shuffled gold"} <= set(lines)
    assert lines["alone"].get_linestyle() != lines["control, word types"].get_linestyle()
    assert axes.get_ylabel() == "Pearson x 100"


def test_findings_are_drawn_as_their_frame() -> None:
    lines = []
    for rows in (MADE, FRAME):
        alone = draw_alone(panel(Figure()), rows)
        greedy = draw_view(panel(Figure()), rows, "greedy")
        lines.append([np.asarray(line.get_xydata()).tolist() for axes in (alone, greedy) for line in axes.lines])
    assert lines[0] == lines[1]


def test_gains_are_bars_with_intervals_around_zero(axes: Axes) -> None:
    draw_view(axes, FRAME, "shapley")
    heights = [bar.get_height() for bar in axes.containers[0]]
    np.testing.assert_allclose(heights, 100 * np.array(GAINS))
    assert any(isinstance(each, ErrorbarContainer) for each in axes.containers)
    assert axes.get_ylabel() == "Shapley value,\nPearson x 100"


@pytest.mark.parametrize(
    ("view", "label", "ticks"),
    [
        ("shapley-group", "Shapley value of a group,\nPearson x 100", ["embedding", "lower half", "upper half"]),
        ("greedy", "Pearson x 100", [layer.replace("_", " ") for layer in ORDER]),
        ("new-information", "new information,\nbits", None),
        ("mix", "weight", None),
        ("without", "lost without,\nretrained,\nPearson x 100", None),
    ],
)
def test_every_view_names_its_layers_and_its_unit(view: str, label: str, ticks: list[str] | None, axes: Axes) -> None:
    draw_view(axes, FRAME, view)
    assert axes.get_ylabel() == label
    names = [text.get_text() for text in axes.get_xticklabels()]
    assert names == ticks if ticks else {"emb", "norm"} <= set(names)


def test_agreement_has_its_intervals_and_the_views_that_were_compared(axes: Axes) -> None:
    draw_agreement(axes, pd.DataFrame(map(asdict, MADE.agreement)))
    written = sorted(text.get_text() for text in axes.texts)
    assert written == sorted(2 * ["+0.82\n0.60 to 0.93", "-0.15\n-0.60 to 0.35", "+0.40\n-0.10 to 0.70"])
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "alone",
        "Shapley value",
        "lost without,\nretrained",
    ]
    low, high = axes.images[0].get_clim()
    assert (low, high) == (-1, 1)


def test_the_note_says_sample_size_and_level(axes: Axes) -> None:
    assert findings_note(MADE) == (
        "cosine-mlp, pooling mean; intervals: 95 % for all layers together, drawn from 1,379 rows of test; shaded: the "
        "layers statistically tied with the best"
    )
    assert len(shade_set(axes, [True] * len(LAYERS)).patches) == 1


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_can_be_drawn_in_the_style_of_the_house(view: str) -> None:
    curve = make_findings().curves[0]
    findings = make_findings(curves=(type(curve)(view, "accuracy", LAYERS, SCORES),))
    figure = make_figure(lambda figure: draw_view(panel(figure), pd.DataFrame(findings.rows()), view), title="t")
    assert figure.axes[0].get_ylabel()


def test_baselines_are_levels_beside_the_layers(axes: Axes) -> None:
    draw_alone(axes, FRAME)
    levels = {line.get_label(): np.asarray(line.get_ydata(), float)[0] for line in axes.get_lines()}
    assert levels["bag-of-words"] == pytest.approx(35)
    assert levels["<majority>"] == pytest.approx(20)


DOCUMENT = Document("a run", "Why?", "The head is good.", [Table(("head",), [("a",)])])


def test_a_page_folds_the_numbers_of_its_layers(tmp_path: Path) -> None:
    findings, pictures = make_findings(), Pictures()
    write_findings(tmp_path, findings)
    page = run_page(tmp_path, DOCUMENT, pictures, {})
    assert page.answers == (DOCUMENT.answer,)
    assert page.warnings == findings.warnings
    results, full, numbers = page.parts
    assert [part.is_folded for part in page.parts] == [False, False, True]
    assert (results.title, full.title) == ("Results", "In full")
    assert full.blocks == (Item(f"`cosine-mlp`: {findings.answer}"),)
    assert numbers.title == "Every layer of `cosine-mlp` in numbers"
    assert "5 of 14 layers are statistically tied with the best at 95 %" in str(numbers.blocks[0])
    assert all(f"`{layer}`" in str(numbers.blocks[0]) for layer in BEST)
    [agreement] = numbers.pictures
    assert agreement.title == "cosine-mlp: do the views rank the layers alike?"
    table = next(block for block in numbers.blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == list(LAYERS)
    assert {row[0] for row in table.rows if row[1] == "yes"} == set(BEST)
    require_whole(page_text(page, pictures.classes))


def test_the_tables_hold_every_number() -> None:
    whole, baselines, groups, order = (block for block in findings_blocks(make_findings()) if isinstance(block, Table))
    row = dict(zip(whole.columns, whole.rows[7], strict=True))
    assert row["layer"] == "block_07"
    assert row["alone"] == "70.0 (67.0 to 73.0)"
    assert row["control (word types)"] == "35.0"
    assert row["new information, bits"] == "0.040 (0.020 to 0.060)"
    assert row["weight in the mix, weight"] == "0.071"
    assert list(baselines.rows[0]) == ["bag-of-words", "35.0 (34.0 to 36.0)"]
    assert baselines.columns[0] == "baseline"
    assert list(groups.rows[1]) == ["lower half", "20.0 (17.0 to 23.0)"]
    assert [row[0] for row in order.rows][:2] == ["block_07", "block_02"]


def test_a_run_without_findings_has_none(tmp_path: Path) -> None:
    assert load_findings(tmp_path) == []
    assert [part.title for part in run_page(tmp_path, DOCUMENT, Pictures(), {}).parts] == ["Results"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda values: values.update(schema=2), "schema 2, this version reads 1"),
        (lambda values: values.pop("heads"), "'heads'"),
        (lambda values: values["heads"][0].update(best="block_99"), "are not among its layers"),
        (lambda values: values["heads"][0]["curves"][0].update(view="magic"), "its view 'magic'"),
        (lambda values: values["heads"][0]["curves"][0]["low"].pop(), "one value per layer"),
        (lambda values: values["heads"][0]["curves"][0]["values"].__setitem__(0, "x"), "Type"),
        (lambda values: values["heads"][0]["curves"][0]["layers"].reverse(), "not of every layer"),
        (lambda values: values["heads"][0].pop("unit"), "unit"),
        (lambda values: values["heads"].append(3), "Type"),
    ],
)
def test_findings_that_cannot_be_read_are_one_warning(change: Any, reason: str, tmp_path: Path) -> None:
    write_findings(tmp_path, make_findings())
    values = json.loads((tmp_path / FINDINGS).read_text(encoding="utf-8"))
    change(values)
    (tmp_path / FINDINGS).write_text(json.dumps(values), encoding="utf-8")
    page = run_page(tmp_path, DOCUMENT, Pictures(), {})
    [warning] = page.warnings
    assert warning.startswith(f"{FINDINGS} of run {tmp_path.name!r} cannot be read (")
    assert reason in warning
    assert page.answers == (DOCUMENT.answer,)


def test_findings_with_missing_numbers_are_drawn(axes: Axes) -> None:
    holes = tuple(math.nan if k % 3 else 0.5 for k in range(14))
    findings = make_findings(curves=(make_curve("alone", holes), make_curve("shapley", holes, 0.0)), agreement=())
    assert draw_alone(axes, findings).get_lines()
    assert draw_view(panel(Figure()), findings, "shapley").containers


def test_views_that_rank_no_layers_have_no_agreement(tmp_path: Path) -> None:
    """Layers of one score, as those of a head that predicts one tag, have no rank, so the correlation is no number."""
    write_findings(tmp_path, make_findings())
    values = json.loads((tmp_path / FINDINGS).read_text(encoding="utf-8"))
    for pair in values["heads"][0]["agreement"]:
        pair.update(value=None, low=None, high=None)
    (tmp_path / FINDINGS).write_text(json.dumps(values), encoding="utf-8")
    page = run_page(tmp_path, DOCUMENT, Pictures(), {})
    assert page.parts[2].pictures[-1].table is not None
    frame = pd.DataFrame([asdict(Agreement("alone", "shapley", math.nan, math.nan, math.nan))])
    assert [text.get_text() for text in draw_agreement(panel(Figure()), frame).texts] == ["-", "-"]


def test_the_curve_for_a_paper_is_8_cm_wide_and_legible_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = ("embedding", *(f"block_{k:02d}" for k in range(1, 33)), "final_norm")
    scores = tuple(0.4 + 0.3 * math.sin(k / 11) for k in range(34))
    curves = (
        make_curve("alone", scores, layers=layers),
        make_curve("baseline", (0.35,), 0.01, layers=("bag-of-words",)),
    )
    findings = make_findings(layers=layers, best="block_16", best_set=layers[14:20], curves=curves)
    figures: list[Figure] = []
    save = style.save_figure

    def keep(figure: Figure, path: Path, *, file_format: str) -> None:
        figures.append(figure)
        save(figure, path, file_format=file_format)

    monkeypatch.setattr(style, "save_figure", keep)
    png, svg, pdf = write_curve(findings, tmp_path / "figures", ("png", "svg", "pdf"))
    assert int.from_bytes(png.read_bytes()[16:20], "big") == int(8 / 2.54 * 300)
    assert f'width="{8 * 72 / 2.54:.6f}pt"' in svg.read_text(encoding="utf-8")[:1000]
    [width] = re.findall(rb"/MediaBox \[\s*0 0 ([\d.]+) ", pdf.read_bytes())
    assert float(width) == pytest.approx(8 * 72 / 2.54, abs=0.01)
    figures[0].draw_without_rendering()  # at its own resolution, after the PDF
    texts = list(shown_texts(figures[0]))
    assert {"alone", "bag-of-words", "emb", "10", "20", "norm"} <= {text.get_text().strip() for text in texts}
    assert min(float(text.get_fontsize()) for text in texts) >= 7  # points, at the size of print
    boxes = [text.get_window_extent() for text in texts]
    edges = figures[0].bbox
    for box in boxes:
        assert edges.x0 <= box.x0 <= box.x1 <= edges.x1
        assert edges.y0 <= box.y0 <= box.y1 <= edges.y1
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    [axes] = figures[0].axes
    assert axes.get_window_extent().width > edges.width / 2
    assert len([patch for patch in axes.patches if isinstance(patch, Rectangle)]) == 1  # the set
    assert curve_caption(findings).endswith("tied with the best; emb: embedding; norm: final norm.")
