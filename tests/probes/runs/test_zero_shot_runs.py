"""Runs of tasks without fitting from the command line, on a tiny decoder: run, compare, layers, score, sweep."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from probes.cli.main import main
from probes.runs.results import results

pytestmark = pytest.mark.long
HEADS = {
    "retrieval-sample": "layer-search",
    "reranking-sample": "layer-rerank",
    "clustering-sample": "layer-clusters",
    "pair-class-sample": "layer-alike",
    "bitext-sample": "layer-translate",
    "odd-sample": "layer-odd",
}


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("zero-shot-runs")

    def write(task: str, name: str = "", **template: Any) -> Path:
        settings: dict[str, Any] = {
            "name": name or task,
            "decoder": {"name": str(decoder_folder), "device": "cpu"},
            "task": {"name": task},
            "extraction": {"template": template},
            "heads": {HEADS[task]: {}},
            "bootstrap": 100,
            "caches": str(folder / "caches"),
            "runs": str(folder / "runs"),
        }
        path = folder / f"{name or task}.yaml"
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("task", HEADS)
def test_a_run_is_reported_compared_and_studied(
    task: str, write: Callable[..., Path], read_json: Callable[[Path], Any]
) -> None:
    config = write(task)
    folder = config.parent / "runs" / task
    assert main(["run", str(config)]) == 0
    scores = read_json(folder / "scores.json")
    head = scores["heads"][HEADS[task]]
    assert head["chosen"]["layer"] in head["layers"]
    assert set(head["summary"]) == set(scores["task"]["n_rows"])
    assert (folder / "report.html").is_file()
    frame = results(folder)
    assert set(frame.query("record == 'score' and split == 'test'")["metric"]) == set(scores["task"]["metrics"])
    assert main(["run", str(write(task, f"{task}-bos", bos="none"))]) == 0
    assert main(["compare", str(folder), str(folder.with_name(f"{task}-bos"))]) == 0
    assert main(["layers", str(folder)]) == 0
    [study] = read_json(folder / "layers.json")["heads"]
    assert {curve["view"] for curve in study["curves"]} == {"alone", "baseline"}
    assert study["metric"] == scores["task"]["metrics"][0]


def test_pairs_are_scored_and_other_rows_refused_in_a_sentence(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config = write("pair-class-sample", "alike")
    assert main(["run", str(config)]) == 0
    folder = config.parent / "runs" / "alike"
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["split"] == "test")
    capsys.readouterr()
    assert main(["score", str(folder), row["text1"], row["text2"]]) == 0
    assert float(capsys.readouterr().out.split("\t")[0]) == pytest.approx(float(row["layer-alike"]), abs=2e-3)
    config = write("retrieval-sample", "search")
    assert main(["run", str(config)]) == 0
    assert main(["score", str(config.parent / "runs" / "search"), "a text"]) != 0
    assert "of a run on retrieval predicts nothing of single rows" in capsys.readouterr().err


def test_documents_are_read_under_their_own_template_and_sweeps_refuse_it(
    write: Callable[..., Path], read_json: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = write("retrieval-sample", "sides", instruction="Query: ", document_instruction="")
    assert main(["extract", str(config), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "queries of retrieval-sample:" in shown and "documents of retrieval-sample:" in shown
    assert main(["extract", str(config)]) == 0
    extracted = {Path(line) for line in capsys.readouterr().out.splitlines() if line.endswith(".h5")}
    assert len(extracted) == 2
    before = set((config.parent / "caches").glob("*.h5"))
    assert main(["run", str(config)]) == 0
    assert set((config.parent / "caches").glob("*.h5")) == before, "the run extracted again"
    manifests = [read_json(path) for path in (config.parent / "caches").glob("*.json")]
    folder = config.parent / "runs" / "sides"
    assert read_json(folder / "scores.json")["cache"]["n_rows"] == 40, manifests  # queries alone
    assert main(["layers", str(folder)]) == 0
    assert main(["sweep", str(config), "--plans", "causal; backward:1"]) != 0
    assert "template.document_instruction is set, but plans are chosen by one cache" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["odd-sample", "clustering-sample"])
def test_a_sweep_chooses_a_plan_on_validation(
    task: str, write: Callable[..., Path], read_json: Callable[[Path], Any]
) -> None:
    config = write(task)
    assert main(["sweep", str(config), "--plans", "causal; backward:1", "--name", f"swept-{task}"]) == 0
    scores = read_json(config.parent / "runs" / f"swept-{task}-sweep" / "scores.json")
    by_plan = {row["plan"]: row["heads"][HEADS[task]]["selection_score"] for row in scores["plans"]}
    assert scores["chosen"][HEADS[task]]["plan"] == max(by_plan, key=lambda plan: by_plan[plan])
