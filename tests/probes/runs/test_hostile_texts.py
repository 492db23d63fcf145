"""Runs on texts and names of classes that a spreadsheet or a reader of Markdown would run."""

import csv
import shutil
from pathlib import Path

import pytest

from probes.cli.main import main
from probes.report.predictions import read_predictions
from probes.runs.compare import compare
from tests.extract.tiny_decoders import save_decoder
from tests.probes.scored_runs import run_class_rows
from tests.probes.worded_classes import write_worded_classes

STARTS = ("=", "+", "-", "@", "\t", "\r")
LINK = '=HYPERLINK("http://example.org")'


def rename(name: str) -> str:
    return {"cold": "=cold()", "warm": "'=warm <b>"}[name]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[dict[str, str]]]:
    """Two finished runs of one content, and the rows of their file."""
    base = tmp_path_factory.mktemp("hostile")
    with write_worded_classes(base / "plain.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        begin = (LINK, "'=", "''@", *STARTS, "")[number % 10]
        row |= {"text": f"{begin}{row['text']}", "label": rename(row["label"])}
    with (base / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    folder = run_class_rows(base, save_decoder(base / "tiny", max_position_embeddings=256), base / "rows.csv")
    return folder, Path(shutil.copytree(folder, folder.with_name("=other <img>"))), rows


def cells(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return [cell for row in csv.reader(file) for cell in row]


def is_safe(cell: str) -> bool:
    try:
        return not cell.startswith(STARTS) or bool(float(cell) or True)
    except ValueError:
        return False


def test_no_cell_of_a_run_starts_a_formula_and_texts_are_read_back(
    hostile: tuple[Path, Path, list[dict[str, str]]], tmp_path: Path
) -> None:
    folder, other, rows = hostile
    out = tmp_path / "compared"
    assert main(["compare", str(folder), str(other), "--out", str(out)]) == 0
    assert main(["layers", str(folder), "--views", "alone", "--out", str(tmp_path / "layers.csv")]) == 0
    for form in ("csv", "tidy"):
        assert main(["table", str(folder), str(other), "--format", form, "--out", str(tmp_path / f"{form}.csv")]) == 0
    paths = [path for base in (folder, tmp_path) for path in base.rglob("*.csv")]
    assert {"predictions.csv", "curves.csv", "csv.csv", "tidy.csv", "layers.csv"} <= {path.name for path in paths}
    for path in paths:
        assert [cell for cell in cells(path) if not is_safe(cell)] == [], path
    table = read_predictions(folder)
    for split, columns in table.items():
        source = [row for row in rows if row["split"] == split]
        assert columns["text"] == [row["text"] for row in source]
        assert columns["gold"] == [row["label"] for row in source]
        assert set(columns["logistic-probe"]) <= {"=cold()", "'=warm <b>"}


def test_a_comparison_holds_no_html(hostile: tuple[Path, Path, list[dict[str, str]]]) -> None:
    folder, other, _ = hostile
    text = compare([folder, other], n_resamples=20).to_markdown()
    assert "<" not in text
    assert "&lt;img>" in text
