"""A whole run with a tiny random decoder: what it writes, and what its scores say of themselves."""

import csv
import json
import os
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import probes.runs.run
from extract.errors import TaskError
from extract.store.cache import LatentCache
from probes.cli.main import main
from probes.data.pair_task import SUBSETS
from probes.runs.run import run
from probes.runs.run_config import RunConfig, TaskSpec
from tests.probes.finished_run import SIZES, Finished, forbid, require_opening


def test_a_run_writes_everything(finished: Finished, listing: Callable[[Path], list[str]]) -> None:
    heads = [
        f"heads/{name}/seed_{seed}/{file}"
        for name, seeds in (("cosine-mlp", (0, 3)), ("layer-cosine", (0,)), ("siamese-cosine", (0, 3)))
        for seed in seeds
        for file in ("head.json", "model.safetensors")
    ]
    figures = [
        "figures/cosine_mlp_history.png",
        "figures/cosine_mlp_layers.png",
        "figures/layer_cosine_curve.png",
        "figures/siamese_cosine_history.png",
        "figures/siamese_cosine_layers.png",
        *(
            f"figures/{name}_{what}.png"
            for name in ("cosine_mlp", "layer_cosine", "siamese_cosine")
            for what in ("residuals", "rows")
        ),
    ]
    manifest = f"manifests/{finished.cache.stem}.json"
    files = [
        "config.yaml",
        "predictions.csv",
        "predictions_scored.csv",
        "report.drawn.json",
        "report.html",
        "scores.json",
        "stamp.json",
        "summary.md",
    ]
    assert listing(finished.folder) == sorted([*files, manifest, *heads, *figures])


@pytest.mark.long
@pytest.mark.usefixtures("rendered_figures")
def test_figures_show_something(finished: Finished, tmp_path: Path) -> None:
    assert main(["run", str(finished.config), "--runs", str(tmp_path)]) == 0
    figures = list(tmp_path.glob("tiny/figures/*.png"))
    assert len(figures) == len(list((finished.folder / "figures").iterdir()))
    for path in figures:
        with Image.open(path) as image:
            assert min(image.size) > 300
            assert np.ptp(np.asarray(image.convert("L"))) > 100


def test_scores_say_where_they_come_from(finished: Finished) -> None:
    scores = finished.scores
    assert scores["command"] == f"icecore run {os.path.relpath(finished.config)}"
    assert scores["versions"]["icecore"] == version("icecore")
    assert {"torch", "transformers", "lightning", "scipy", "numpy"} <= set(scores["versions"])
    assert scores["device"] == "cpu"
    assert isinstance(scores["commit"], str)
    assert (scores["name"], scores["protocol"], scores["n_resamples"]) == ("tiny", "icecore", 100)
    assert scores["decoder"]["name"] == "tiny-llama"
    assert len(scores["decoder"]["weight_digest"]) == 64
    assert scores["cache"]["file"] == finished.cache.name
    assert scores["cache"]["certificate"]["influence"]
    assert scores["task"]["n_pairs"] == SIZES
    assert scores["task"]["name"] == "tiny-pairs"
    assert set(scores["seconds"]) == {"extraction", "heads", "baselines"}
    assert [entry["seed"] for entry in scores["heads"]["cosine-mlp"]["seeds"]] == [0, 3]


def test_every_head_reads_its_own_pooling_and_layers(finished: Finished) -> None:
    heads = finished.scores["heads"]
    assert [heads[name]["pooling"] for name in ("layer-cosine", "cosine-mlp", "siamese-cosine")] == [
        "last",
        "mean",
        "mean",
    ]
    assert heads["siamese-cosine"]["layers"] == ["block_01", "block_02", "block_03"]
    assert heads["cosine-mlp"]["layers"] == ["embedding", "block_01", "block_02", "block_03", "final_norm"]
    record = json.loads(
        (finished.folder / "heads" / "layer-cosine" / "seed_0" / "head.json").read_text(encoding="utf-8")
    )
    assert record["pooling"] == "last"


def test_predictions_and_residuals_are_those_of_the_scores(finished: Finished) -> None:
    with (finished.folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert Counter(row["split"] for row in rows) == SIZES
    for name, result in finished.scores["heads"].items():
        assert set(result["extras"]["residuals"]) == {"validation", "test"}
        for split, found in result["extras"]["residuals"].items():
            part = [row for row in rows if row["split"] == split]
            predicted, gold = (np.array([float(row[column]) for row in part]) for column in (name, "gold"))
            assert found["n"] == len(part)
            assert found["bias"] == pytest.approx(float((predicted - gold).mean()), abs=1e-4)
            assert found["mean_absolute"] == pytest.approx(float(np.abs(predicted - gold).mean()), abs=1e-4)
            assert found["root_mean_square"] == pytest.approx(float(((predicted - gold) ** 2).mean() ** 0.5), abs=1e-4)


def test_a_line_calibrated_on_validation_has_no_bias_there(finished: Finished) -> None:
    for result in finished.scores["heads"].values():  # but for what is cut off at the ends of the range
        assert abs(result["extras"]["residuals"]["validation"]["bias"]) < 0.05


def test_subsets_name_the_rows_of_test(finished: Finished) -> None:
    for result in finished.scores["heads"].values():
        counts = {name: found["n"] for name, found in result["extras"]["subsets"].items()}
        assert counts["full"] == SIZES["test"]
        assert counts["clean"] + counts["leaked"] == SIZES["test"]
        assert set(counts) == set(SUBSETS)
        assert result["is_optimistic"] is False


def test_a_run_without_autoencoders_has_none(finished: Finished) -> None:
    assert finished.scores["pretraining"] == {"corpus": {}, "cache": {}, "autoencoders": {}}


def test_the_manifest_is_that_of_the_cache(finished: Finished) -> None:
    cache = LatentCache(finished.cache)
    text = (finished.folder / "manifests" / f"{finished.cache.stem}.json").read_text(encoding="utf-8")
    assert text == cache.manifest.to_json() + "\n"
    assert cache.manifest.id == finished.scores["cache"]["id"]


def test_the_summary_holds_table_and_figures(finished: Finished) -> None:
    text = (finished.folder / "summary.md").read_text(encoding="utf-8")
    for name in finished.scores["heads"]:
        assert f"| {name}" in text
    figures = list((finished.folder / "figures").glob("*.png"))
    assert figures
    for path in figures:
        assert f"](figures/{path.name})" in text
    assert finished.scores["command"] in text
    require_opening(finished.folder)


def test_a_task_without_validation_is_told_before_anything_is_extracted(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (finished.base / "pairs.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "p.tsv").write_text("".join(line for line in lines if not line.startswith("val")), encoding="utf-8")
    forbid(monkeypatch, probes.runs.run, "load_decoder")
    task = TaskSpec("pair-files", {"files": str(tmp_path / "p.tsv")})
    with pytest.raises(TaskError, match="task 'pair-files' has no split 'validation', which every head needs"):
        run(RunConfig(task=task))


def test_the_python_interface_equals_the_command(finished: Finished, tmp_path: Path) -> None:
    config = RunConfig(
        name="direct",
        heads={"layer-cosine": {}},
        bootstrap=100,
        runs=str(tmp_path),
        task=TaskSpec("pair-files", {"files": str(finished.base / "pairs.tsv")}),
    )
    result = run(config, cache=LatentCache(finished.cache))
    assert result.folder == tmp_path / "direct"
    assert result.scores["command"] == ""
    assert result.scores["heads"]["layer-cosine"]["pooling"] == "mean"
