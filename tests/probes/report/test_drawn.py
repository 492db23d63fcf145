"""Pages and figures are drawn again only where their numbers, the code or they themselves have changed."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extract.registry import ADDED, Own
from probes.cli.main import main
from probes.layers import PREDICTED
from probes.report import predictions
from probes.report.page import PAGE
from probes.report.predictions import digest_source
from probes.report.write import write_plans
from probes.runs.compare import write_report
from probes.runs.task_kinds import KINDS
from tests.probes.finished_run import Finished, stamps
from tests.probes.report.made_plans import OVER_K, make_plans
from tests.sketched import sketched

SCORES = make_plans(OVER_K)


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with sketched():
        yield


def write(folder: Path, **changes: Any) -> None:
    scores = replace(SCORES, **changes) if changes else SCORES
    write_plans(folder, scores, KINDS["classes"].report)


def test_the_same_numbers_are_not_drawn_again(tmp_path: Path) -> None:
    write(tmp_path)
    before = stamps(tmp_path)
    header = replace(SCORES.header, command="icecore sweep again.yaml")
    write(tmp_path, header=header)
    assert write_report(tmp_path) == tmp_path / PAGE
    assert stamps(tmp_path) == before


CHANGES: dict[str, Callable[[Path], object]] = {
    "page": lambda folder: (folder / PAGE).write_text("mine", encoding="utf-8"),
    "no page": lambda folder: (folder / PAGE).unlink(),
    "figure": lambda folder: next(folder.rglob("*.png")).write_bytes(b"mine"),
    "no figure": lambda folder: next(folder.rglob("*.png")).unlink(),
    "summary": lambda folder: (folder / "summary.md").unlink(),
    "findings": lambda folder: (folder / "layers.json").write_text("{}", encoding="utf-8"),
    "record": lambda folder: (folder / "report.drawn.json").write_text("{", encoding="utf-8"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_was_changed_is_drawn_again(what: str, tmp_path: Path) -> None:
    write(tmp_path)
    before = stamps(tmp_path)
    CHANGES[what](tmp_path)
    write(tmp_path)
    after = stamps(tmp_path)
    drawn_files = (".png", PAGE, "summary.md")
    assert not {name for name in before if name.endswith(drawn_files) and before[name] == after[name]}


def test_other_numbers_and_code_and_formats_and_code_of_a_users_own_draw_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    write(tmp_path, test_read="every plan, as another word")
    assert "another word" in (tmp_path / "scores.json").read_text(encoding="utf-8")
    before = stamps(tmp_path)
    write(tmp_path)  # other numbers than those
    assert stamps(tmp_path)[str(tmp_path / PAGE)] != before[str(tmp_path / PAGE)]
    before = stamps(tmp_path)
    monkeypatch.setattr(predictions, "digest_code", lambda: "other")
    write(tmp_path)
    by_other_code = stamps(tmp_path)
    assert by_other_code[str(tmp_path / PAGE)] != before[str(tmp_path / PAGE)]
    write_plans(tmp_path, SCORES, KINDS["classes"].report, formats=("png", "svg"))
    assert list(tmp_path.rglob("*.svg"))
    monkeypatch.setitem(ADDED, ("pooling", "mine"), Own(len, "my_parts"))
    after = stamps(tmp_path)
    write(tmp_path)
    assert stamps(tmp_path)[str(tmp_path / PAGE)] != after[str(tmp_path / PAGE)]


def test_a_comparison_is_drawn_again_only_where_a_run_or_an_option_changed(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(finished.folder, tmp_path / "other")
    command = ["compare", str(finished.folder), str(other), "--resamples", "50", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    before = stamps(tmp_path / "out")
    capsys.readouterr()
    assert main(command) == 0
    assert "is of the same scores: nothing is drawn" in capsys.readouterr().out
    assert stamps(tmp_path / "out") == before
    (other / "layers.json").write_text("{}", encoding="utf-8")
    assert main(command) == 0
    changed = stamps(tmp_path / "out")
    assert {name for name in before if before[name] == changed[name]} == set()
    assert main([*command, "--figures", "png,svg"]) == 0
    assert (tmp_path / "out" / "layers.svg").exists()


def test_predictions_of_layers_that_are_added_change_the_source(tmp_path: Path) -> None:
    before = digest_source([tmp_path])
    (tmp_path / PREDICTED).mkdir()
    (tmp_path / PREDICTED / "h.npz").write_bytes(b"one")
    added = digest_source([tmp_path])
    (tmp_path / PREDICTED / "h.npz").write_bytes(b"two")
    assert len({before, added, digest_source([tmp_path])}) == 3
