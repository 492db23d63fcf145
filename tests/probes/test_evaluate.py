"""One head of a run: fitted once per seed, kept, found again, summarised over seeds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probes.evaluate
from extract.cache import LatentCache
from extract.errors import HeadError, TaskError, UnknownNameError
from probes.evaluate import Setting, evaluate_head
from probes.heads.saved import load_head
from probes.tasks import PairTask
from tests.probes.planted_latents import LAYERS, PLANTED, SIZES, make_task, plant

QUICK: dict[str, Any] = {"max_epochs": 4, "hidden": 8, "learning_rate": 3e-3, "batch_size": 40}


@pytest.fixture
def setting(cache: LatentCache, task: PairTask, tmp_path: Path) -> Setting:
    """Two seeds, heads kept under a temporary folder."""
    return Setting(cache, task, (0, 5), 100, "cpu", tmp_path / "heads")


def forbid_fitting(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(probes.evaluate, "fit_head", refuse)


def test_a_trained_head_is_fitted_for_every_seed(setting: Setting) -> None:
    found = evaluate_head("cosine-mlp", QUICK, setting)
    assert [entry["seed"] for entry in found["seeds"]] == [0, 5]
    assert found["layers"] == list(LAYERS)
    assert found["pooling"] == "mean"
    for split in SIZES:
        values = [entry["scores"][split]["pearson"] for entry in found["seeds"]]
        summary = found["summary"][split]["pearson"]
        assert summary["values"] == tuple(values)
        assert summary["mean"] == pytest.approx(np.mean(values))
        assert summary["low"] < summary["mean"] < summary["high"]
    assert found["seeds"][0]["scores"] != found["seeds"][1]["scores"]
    assert found["options"]["hidden"] == 8
    assert found["options"]["max_epochs"] == 4


def test_an_untrained_head_has_one_fit_and_its_curves(setting: Setting) -> None:
    found = evaluate_head("layer-cosine", {}, setting)
    assert [entry["best_epoch"] for entry in found["seeds"]] == [0]
    assert found["chosen"]["layer"] == PLANTED
    curve = found["curves"]["validation"]["pearson"][found["chosen"]["kind"]]
    k = LAYERS.index(PLANTED)
    assert curve[k] == max(curve)
    assert found["curves"]["test"]["pearson"][found["chosen"]["kind"]][k] == pytest.approx(
        found["seeds"][0]["scores"]["test"]["pearson"], abs=1e-6
    )


def test_a_kept_head_is_loaded_and_gives_the_same(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    first = evaluate_head("cosine-mlp", QUICK, setting)
    forbid_fitting(monkeypatch)
    assert evaluate_head("cosine-mlp", QUICK, setting) == first


@pytest.mark.parametrize("change", ["option", "fit", "pooling", "layers", "gold", "device"])
def test_a_head_fitted_otherwise_is_not_reused(setting: Setting, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    evaluate_head("cosine-mlp", QUICK, setting)
    forbid_fitting(monkeypatch)
    changes: dict[str, dict[str, Any]] = {
        "option": {"hidden": 9}, "fit": {"patience": 2}, "pooling": {"pooling": "last"}, "layers": {"layers": "blocks"},
    }  # fmt: skip
    if change == "gold":
        setting = replace(setting, task=make_task(shuffled=["train"]))
    if change == "device":
        setting = replace(setting, device="cuda:0")
    with pytest.raises(AssertionError, match="fitted again"):
        evaluate_head("cosine-mlp", {**QUICK, **changes.get(change, {})}, setting)


def test_a_head_cut_short_is_fitted_anew(setting: Setting) -> None:
    first = evaluate_head("cosine-mlp", QUICK, setting)
    (setting.folder / "cosine-mlp" / "seed_5" / "head.json").write_text("{", encoding="utf-8")
    again = evaluate_head("cosine-mlp", QUICK, setting)
    assert again["summary"] == first["summary"]


def test_a_kept_head_knows_its_calibration(setting: Setting) -> None:
    evaluate_head("cosine-mlp", QUICK, setting)
    record = load_head(setting.folder / "cosine-mlp" / "seed_5").record
    assert (record["seed"], record["pooling"], record["layers"]) == (5, "mean", list(LAYERS))
    assert record["calibration"]["slope"] > 0
    assert (record["calibration"]["low"], record["calibration"]["high"]) == (0.0, 5.0)


def test_pooling_and_layers_are_the_heads_own(setting: Setting) -> None:
    found = evaluate_head("layer-cosine", {"pooling": "last", "layers": ["block_01", "final_norm"]}, setting)
    assert (found["pooling"], found["layers"]) == ("last", ["block_01", "final_norm"])
    assert abs(found["summary"]["test"]["pearson"]["mean"]) < 0.5  # nothing is planted there


def test_epochs_are_reported_by_seed(setting: Setting) -> None:
    told: list[tuple[int, int]] = []
    evaluate_head(
        "cosine-mlp", {**QUICK, "max_epochs": 2}, setting,
        watch=lambda seed: lambda epoch, _: told.append((seed, epoch)),
    )  # fmt: skip
    assert told == [(0, 1), (0, 2), (5, 1), (5, 2)]


def test_a_batch_larger_than_the_split_is_cut_to_it(setting: Setting) -> None:
    assert evaluate_head("cosine-mlp", {**QUICK, "batch_size": 10_000, "max_epochs": 1}, setting)["seeds"]


def test_a_task_without_test_is_scored_on_validation(tmp_path: Path) -> None:
    task = make_task(sizes={"train": 60, "validation": 40})
    setting = Setting(plant(tmp_path / "c.h5", task), task, (0,), 100, "cpu", tmp_path)
    assert set(evaluate_head("layer-cosine", {}, setting)["summary"]) == {"train", "validation"}


@pytest.mark.parametrize("sizes", [{"test": 30}, {"train": 30, "test": 30}, {"validation": 30, "test": 30}])
def test_a_task_without_train_or_validation_is_refused(tmp_path: Path, sizes: dict[str, int]) -> None:
    task = make_task(sizes=sizes)
    setting = Setting(plant(tmp_path / "c.h5", task), task, (0,), 100, "cpu", tmp_path)
    with pytest.raises(TaskError, match=r"has no split '(train|validation)'; it has: "):
        evaluate_head("cosine-mlp", QUICK, setting)


def test_unknown_layers_are_named(setting: Setting) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown layer 'blok_01': did you mean 'block_01'\?"):
        evaluate_head("layer-cosine", {"layers": "blok_01"}, setting)


def test_training_that_breaks_leaves_no_head_behind(setting: Setting) -> None:
    with pytest.raises(HeadError, match="finite validation score"):
        evaluate_head("cosine-mlp", {**QUICK, "learning_rate": "1e30"}, setting)
    assert not (setting.folder / "cosine-mlp").exists()
