"""What was found about layers, on the page of its run."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from probes.layers.findings import FINDINGS, VIEWS, load_findings
from probes.report.blocks import Document, Table
from probes.report.figures.style import Album
from probes.report.page.layers import draw_findings, findings_blocks, run_page
from probes.report.page.page import Pictures, page_text
from tests.probes.report.made_findings import BEST, LAYERS, make_curve, make_findings, write_findings
from tests.probes.report.page.reading import require_whole

DOCUMENT = Document("a run", "Why?", "The head is good.", [Table(("head",), [("a",)])])


def test_a_page_begins_with_what_its_layers_say(tmp_path: Path) -> None:
    findings, pictures = make_findings(), Pictures()
    write_findings(tmp_path, findings)
    page = run_page(tmp_path, DOCUMENT, pictures, {})
    assert page.answers == (f"`cosine-mlp`: {findings.answer}", DOCUMENT.answer)
    assert page.warnings == findings.warnings
    first, numbers, *rest = page.parts
    assert first.title == "Which layers matter to `cosine-mlp`"
    assert "5 of 14 layers cannot be told from it at 95 %" in str(first.blocks[0])
    assert all(f"`{layer}`" in str(first.blocks[0]) for layer in BEST)
    views = dict.fromkeys(curve.view for curve in findings.curves if curve.view not in ("control", "baseline"))
    assert len(first.pictures) == len(views) + 1
    for view, picture in zip(views, first.pictures, strict=False):
        assert VIEWS[view].asks in picture.title
        assert "1,379 rows of test" in picture.note
        assert picture.numbers
    assert [part.title for part in rest] == ["Results"]
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


def test_findings_with_missing_numbers_are_drawn(tmp_path: Path) -> None:
    holes = tuple(math.nan if k % 3 else 0.5 for k in range(14))
    findings = make_findings(curves=(make_curve("alone", holes), make_curve("shapley", holes, 0.0)), agreement=())
    pictures = Pictures()
    draw_findings(Album(tmp_path, (), pictures.keep), findings)
    assert len(pictures.take()) == 2
    assert not list(tmp_path.iterdir())
