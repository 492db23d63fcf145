"""Pages of finished runs, made again from their folders."""

import json
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import icecore
from extract.errors import HeadError
from probes.cli.main import main
from probes.report import run_figures as heads
from probes.report.page import PAGE, Pictures
from probes.report.scores import read_plans, without_nan
from probes.report.write import write_plans
from probes.runs import compare as compared
from probes.runs.compare import page_of, write_report
from probes.runs.folder import RunFolder
from probes.runs.task_kinds import KINDS
from tests.probes.finished_run import Finished, edit_scores, stamps
from tests.probes.report.made_findings import make_findings, write_findings
from tests.probes.report.made_plans import OVER_K, make_plans, make_search
from tests.probes.report.reading import require_whole


def scores_of(folder: Path) -> Any:
    """Read the scores of a run folder, which other tests of the session may have run again."""
    return json.loads((folder / "scores.json").read_text(encoding="utf-8"))


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw one figure of each head alone, which is quick."""
    monkeypatch.setattr(heads, "FIGURES", heads.FIGURES[1:2])


@pytest.fixture
def copied(finished: Finished, tmp_path: Path) -> Path:
    """A copy of the finished run, to be changed."""
    return Path(shutil.copytree(finished.folder, tmp_path / "copied"))


@pytest.mark.usefixtures("one_figure")
def test_a_page_is_made_again_as_the_run_wrote_it(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stamps(finished.folder)
    out = tmp_path / "again.html"
    assert main(["report", str(finished.folder), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"written: {out}\n"
    assert stamps(finished.folder) == before
    written, again = (require_whole(path.read_text(encoding="utf-8")) for path in (finished.folder / PAGE, out))
    assert again.texts["title"][0] == written.texts["title"][0]
    assert set(again.texts["title"]) <= set(written.texts["title"])
    assert written.data == again.data
    heads = [source["head"] for source in written.data["exploration"]["sources"]]
    assert sorted(heads) == sorted(scores_of(finished.folder)["heads"])
    for tag in ("h1", "h2", "li"):
        assert written.texts[tag] == again.texts[tag]
    assert written.texts["p"][:4] == again.texts["p"][:4]
    assert written.tags.count("figure") == len(list((finished.folder / "figures").iterdir()))
    assert again.tags.count("figure") == 1


@pytest.mark.usefixtures("one_figure")
def test_runs_of_the_same_rows_are_compared_on_one_page(finished: Finished, copied: Path, tmp_path: Path) -> None:
    write_findings(copied, make_findings(curves=make_findings().curves[:1], agreement=()))
    out = icecore.write_report([finished.folder, copied], tmp_path / "both.html")
    page = require_whole(out.read_text(encoding="utf-8"))
    assert page.texts["h1"] == ["2 runs side by side"]
    assert "copied cannot be compared with tiny: one of them has no Pearson" in page.text
    assert [" ".join(each.split()) for each in page.texts["h2"]] == [
        "Before you trust it",
        "Rows",
        "Side by side",
        "tiny",
        "copied",
    ]
    labels = [source["label"].partition(",")[0] for source in page.data["exploration"]["sources"]]
    assert set(labels) == {"tiny", "copied"}
    assert len(page.data["exploration"]["tables"]) == 1  # both have the same rows
    assert "cosine-mlp: Blocks 5 to 8 and the final norm are statistically tied with the best." in page.text
    assert page.texts["title"][1].startswith("Score of each layer")


@pytest.mark.usefixtures("one_figure")
def test_runs_of_other_rows_stand_side_by_side_uncompared(finished: Finished, copied: Path, tmp_path: Path) -> None:
    edit_scores(copied, lambda values: values["heads"]["cosine-mlp"].update(metric="spearman", selection_score=1.0))
    out = write_report([finished.folder, copied], tmp_path / "both.html")
    page = require_whole(out.read_text(encoding="utf-8"))
    assert "Not compared: the runs are scored by pearson, spearman; compare runs of one kind of task" in page.text
    assert "Side by side" not in [each.strip() for each in page.texts["h2"]]


@pytest.mark.parametrize("is_same", [True, False])
def test_layers_of_two_runs_are_compared_on_the_same_texts_alone(
    is_same: bool, finished: Finished, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of a translated set have the same gold and other rows."""
    path = copied / "predictions.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("test,"))
    split, row, text, rest = lines[place].split(",", 3)
    lines[place] = ",".join([split, row, text if is_same else "Another text.", rest])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.setattr(compared, "load_predictions", lambda *_: SimpleNamespace(split="test"))
    monkeypatch.setattr(compared, "layer_gap", lambda *_: {"values": [0.0]})
    gaps = compared._gaps(["tiny", "copied"], [RunFolder(folder) for folder in (finished.folder, copied)])
    assert len(gaps) == len(scores_of(finished.folder)["heads"]) * is_same


@pytest.mark.parametrize("what", ["sweep", "search"])
def test_the_page_of_a_sweep_or_a_search_is_made_again(what: str, tmp_path: Path) -> None:
    found = {"search": make_search([text for text, _ in OVER_K]), "cost": None} if what == "search" else {}
    scores = make_plans(OVER_K, **found)
    write_plans(tmp_path, scores, KINDS["classes"].report)
    written = (tmp_path / PAGE).read_bytes()
    (tmp_path / PAGE).unlink()
    assert write_report(tmp_path) == tmp_path / PAGE
    assert (tmp_path / PAGE).read_bytes() == written
    values = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert without_nan(read_plans(values).to_dict()) == {key: values[key] for key in values if key != "sha256"}
    page = require_whole(written.decode())
    assert "mask plans is planted the best encoder for toy?" in page.texts["p"][0]


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda folder: (folder / "predictions.csv").unlink(), "predictions.csv' cannot be read (FileNotFoundError"),
        (lambda folder: (folder / "predictions.csv").write_text("split,row\n"), "no page can be made of the scores"),
        (lambda folder: (folder / "scores.json").write_text("{}"), "holds no finished run"),
        (lambda folder: edit_scores(folder, lambda values: values.pop("cache")), "(KeyError: 'cache')"),
        (lambda folder: edit_scores(folder, lambda values: values.update(kind="songs")), "(KeyError: 'songs')"),
    ],
)
def test_a_folder_that_no_page_can_be_made_of_is_refused(
    break_it: Callable[[Path], Any], reason: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_it(copied)
    (copied / PAGE).unlink()
    assert main(["report", str(copied)]) == 1
    assert reason in capsys.readouterr().err
    assert not (copied / PAGE).exists()


def test_a_report_takes_a_run() -> None:
    with pytest.raises(HeadError, match="a report takes a run folder, as runs/demo, or several"):
        write_report([])


def test_a_sweep_that_names_code_it_did_not_record_imports_nothing(tmp_path: Path) -> None:
    write_plans(tmp_path, make_plans(OVER_K), KINDS["classes"].report)
    shown = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    shown["plans"][1]["plan"] = "stranger.module:mask:2"
    (tmp_path / "config.yaml").write_text("{}", encoding="utf-8")
    edit_scores(tmp_path, lambda values: values.update(plans=shown["plans"]))
    with pytest.raises(HeadError, match=r"'stranger[.]module:mask', which is not among the code that it recorded"):
        page_of(RunFolder(tmp_path), Pictures())


@pytest.mark.usefixtures("one_figure")
def test_a_notebook_shows_the_page_in_a_frame_of_its_own(finished: Finished) -> None:
    shown = icecore.load_run(finished.folder).show(height=700)
    [(attributes, inner)] = re.findall(r'<iframe ([^>]*) srcdoc="([^"]*)"></iframe>', shown._repr_html_())
    assert attributes == 'sandbox="allow-scripts" style="width:100%;height:700px;border:0"'
    assert unescape(inner) == (finished.folder / PAGE).read_text(encoding="utf-8")
    assert len(repr(shown)) < 100
