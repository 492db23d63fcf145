"""Runs, sweeps and scoring of tasks of numbers, from the command line, on a tiny decoder."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from probes.cli.main import main
from probes.heads.layer_head import load_head
from probes.heads.linear_probes import RidgeProbe
from probes.runs.predict import load_scorer
from tests.probes.finished_run import opening, require_opening


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("number-runs")
    settings: dict[str, Any] = {
        "name": "numbers",
        "decoder": {"name": str(decoder_folder), "device": "cpu"},
        "extraction": {"poolings": ["mean", "last"]},
        "task": {"name": "number-sample"},
        "heads": {"ridge-probe": {"pooling": "mean+last"}},
        "bootstrap": 100,
        "caches": str(folder / "caches"),
        "runs": str(folder / "runs"),
    }
    (folder / "numbers.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert main(["run", str(folder / "numbers.yaml")]) == 0
    return folder / "numbers.yaml"


def test_a_run_is_whole_and_says_what_was_chosen(
    config: Path, read_json: Callable[[Path], Any], listing: Callable[[Path], list[str]]
) -> None:
    folder = config.parent / "runs" / "numbers"
    scores = read_json(folder / "scores.json")
    [manifest] = [name for name in listing(folder) if name.startswith("manifests/")]
    files = [
        "config.yaml",
        "report.drawn.json",
        "report.html",
        "scores.json",
        "stamp.json",
        "summary.md",
        "predictions.csv",
        "figures/ridge_probe_curve.png",
        "figures/ridge_probe_rows.png",
        manifest,
    ]
    assert listing(folder) == sorted(
        [*files, *(f"heads/ridge-probe/{it}" for it in ("head.json", "model.safetensors"))]
    )
    chosen, extras = (scores["heads"]["ridge-probe"][key] for key in ("chosen", "extras"))
    summary = (folder / "summary.md").read_text(encoding="utf-8")
    assert f"| ridge-probe | {chosen['layer']}, alpha {chosen['alpha']:g} | mean+last |" in summary
    assert f"| ridge-probe | test | {extras['rmse']['test']['probe']:.3f} |" in summary
    assert "is a **sample**" in summary
    assert "bootstrap over test rows" in summary
    require_opening(folder)
    mean = extras["rmse"]["test"]["mean_of_train"]
    assert f"where always predicting the mean has {mean:.3f}. " in opening(folder)
    assert "the best baseline, `bag-of-words`" in opening(folder)


@pytest.mark.long
def test_a_sweep_chooses_a_plan_on_validation(config: Path, read_json: Callable[[Path], Any]) -> None:
    assert main(["sweep", str(config), "--plans", "causal; backward:1", "--name", "swept"]) == 0
    scores = read_json(config.parent / "runs" / "swept-sweep" / "scores.json")
    by_plan = {row["plan"]: row["heads"]["ridge-probe"]["selection_score"] for row in scores["plans"]}
    assert set(by_plan) == {"causal", "backward:1"}
    chosen = scores["chosen"]["ridge-probe"]
    assert chosen["plan"] == max(by_plan, key=lambda plan: by_plan[plan])
    assert set(chosen["summary"]["test"]) == {"pearson", "spearman"}


def test_new_texts_are_scored_as_in_the_run(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = config.parent / "runs" / "numbers"
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "test"]
    found = load_scorer(folder).score([row["text"] for row in rows])
    np.testing.assert_allclose(found, [float(row["ridge-probe"]) for row in rows], atol=1e-3, rtol=0)
    assert isinstance(load_head(folder / "heads" / "ridge-probe").head, RidgeProbe)
    capsys.readouterr()
    assert main(["score", str(folder), rows[0]["text"]]) == 0
    number, text = capsys.readouterr().out.rstrip("\n").split("\t")
    assert text == rows[0]["text"]
    assert float(number) == pytest.approx(float(rows[0]["ridge-probe"]), abs=2e-3)
