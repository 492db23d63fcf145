"""Probes over layers and C: the planted layer is found, nothing is chosen on test, chance is chance."""

from pathlib import Path

import numpy as np
import pytest
import torch

from extract.cache import LatentCache
from extract.errors import HeadError, UnknownNameError
from probes.channels import Channels
from probes.classes.features import ClassFeatures, join_pair
from probes.classes.probing import ProbeOptions, ProbeResult, evaluate_probe
from probes.classes.saved import load_probe, save_probe
from probes.classes.task import ClassTask
from probes.logistic.solver import fit_logistic
from tests.probes.classes.planted_classes import make_class_task, plant_classes
from tests.probes.planted_latents import LAYERS, PLANTED, WIDTH

OPTIONS = ProbeOptions(Cs=(0.1, 10.0))


@pytest.fixture(scope="module")
def task() -> ClassTask:
    return make_class_task()


@pytest.fixture(scope="module")
def cache(task: ClassTask, tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    return plant_classes(tmp_path_factory.mktemp("classes") / "c.h5", task)


@pytest.fixture(scope="module")
def result(cache: LatentCache, task: ClassTask) -> ProbeResult:
    return evaluate_probe(cache, task, OPTIONS, pooling="mean", n_resamples=200)


def test_the_planted_layer_is_chosen_on_validation(result: ProbeResult, task: ClassTask) -> None:
    scores = result.scores
    assert scores["chosen"]["layer"] == PLANTED
    assert scores["selection"] == "validation"
    surface = np.array(scores["surface"])
    assert surface.shape == (len(LAYERS), 2)
    assert surface.max() == scores["chosen"]["score"] == scores["summary"]["validation"]["accuracy"]["mean"]
    test = scores["summary"]["test"]["accuracy"]
    assert test["mean"] > 0.8
    assert test["low"] < test["mean"] <= test["high"]
    assert set(scores["summary"]) == set(task.splits)
    assert scores["majority"]["test"] == pytest.approx(1 / 3, abs=0.01)


def test_predictions_are_those_of_the_chosen_probe(result: ProbeResult, cache: LatentCache, task: ClassTask) -> None:
    features = ClassFeatures(cache, task, Channels(("mean",), (PLANTED,)))
    (chunk,) = features.chunks(["train", "test"])
    alone = fit_logistic(chunk["train"], torch.from_numpy(task.labels("train")), Cs=[result.scores["chosen"]["C"]])
    expected = alone.logits(chunk["test"])[0, 0].argmax(-1).numpy()
    np.testing.assert_array_equal(result.predictions["test"], expected)
    assert result.fit is not None
    assert tuple(result.fit.weight.shape) == (1, 1, 1, 3, WIDTH)


def test_the_default_is_the_highest_layer_and_the_c_nearest_1(
    result: ProbeResult, cache: LatentCache, task: ClassTask
) -> None:
    default = result.scores["default"]
    assert (default["layer"], default["C"]) == (LAYERS[-1], 0.1)
    alone = evaluate_probe(cache, task, ProbeOptions(Cs=(0.1,)), pooling="mean", layers=(LAYERS[-1],), n_resamples=200)
    for split, score in default["scores"].items():
        assert score == alone.scores["summary"][split]["accuracy"]["mean"]


def test_a_saved_probe_predicts_the_same(
    result: ProbeResult, cache: LatentCache, task: ClassTask, tmp_path: Path
) -> None:
    save_probe(tmp_path / "probe", result, task)
    assert sorted(path.name for path in (tmp_path / "probe").iterdir()) == ["head.json", "model.safetensors"]
    probe = load_probe(tmp_path / "probe")
    assert (probe.record["layer"], probe.record["pooling"]) == (PLANTED, "mean")
    latents = cache.gather(cache.rows_of(list(task.splits["test"]["text"])), "mean", layers=PLANTED)[0]
    names = [task.class_names[code] for code in result.predictions["test"]]
    assert probe.predict(latents) == names


def test_a_probe_that_cannot_be_read_is_named(result: ProbeResult, task: ClassTask, tmp_path: Path) -> None:
    with pytest.raises(HeadError, match=r"nowhere' holds no readable probe \(FileNotFoundError"):
        load_probe(tmp_path / "nowhere")
    save_probe(tmp_path, result, task)
    record = (tmp_path / "head.json").read_text(encoding="utf-8")
    (tmp_path / "head.json").write_text(record.replace('"schema": 1', '"schema": 7'), encoding="utf-8")
    with pytest.raises(HeadError, match="logistic-probe of schema 7, this version reads logistic-probe of schema 1"):
        load_probe(tmp_path)
    (tmp_path / "head.json").write_text(record, encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(HeadError, match="holds no readable probe"):
        load_probe(tmp_path)


def test_nothing_is_chosen_on_test(cache: LatentCache, result: ProbeResult) -> None:
    poisoned = evaluate_probe(cache, make_class_task(shuffled=["test"]), OPTIONS, pooling="mean", n_resamples=200)
    for key in ("surface", "chosen", "convergence"):
        assert poisoned.scores[key] == result.scores[key]
    for split in ("train", "validation"):
        assert poisoned.scores["summary"][split] == result.scores["summary"][split]
    np.testing.assert_array_equal(poisoned.predictions["test"], result.predictions["test"])
    assert poisoned.scores["summary"]["test"]["accuracy"]["mean"] < 0.6


def test_shuffled_training_labels_score_at_chance(cache: LatentCache) -> None:
    found = evaluate_probe(cache, make_class_task(shuffled=["train"]), OPTIONS, pooling="mean", n_resamples=200)
    assert found.scores["summary"]["test"]["accuracy"]["mean"] == pytest.approx(1 / 3, abs=0.2)


@pytest.mark.parametrize("groups", [0, 5])
def test_without_validation_folds_of_train_decide(groups: int, tmp_path: Path) -> None:
    task = make_class_task(sizes={"train": 150, "test": 60}, groups=groups)
    cache = plant_classes(tmp_path / "c.h5", task)
    found = evaluate_probe(cache, task, OPTIONS, pooling="mean", n_resamples=200).scores
    assert found["selection"] == "5-fold cross-validation on train"
    assert found["chosen"]["layer"] == PLANTED
    assert 0.7 < found["chosen"]["score"] <= 1.0
    assert found["summary"]["test"]["accuracy"]["mean"] > 0.8


def test_one_layer_and_one_strength_leave_nothing_to_choose(tmp_path: Path) -> None:
    task = make_class_task(sizes={"train": 150, "test": 60})
    cache = plant_classes(tmp_path / "c.h5", task)
    found = evaluate_probe(cache, task, ProbeOptions(Cs=(1.0,)), pooling="mean", layers=(PLANTED,), n_resamples=200)
    assert found.scores["selection"] == "nothing to choose"
    assert found.scores["summary"]["test"]["accuracy"]["mean"] > 0.8


@pytest.mark.parametrize("mode", ["balance", "times-5"])
def test_oversampling_stays_inside_train(mode: str, tmp_path: Path) -> None:
    """Other validation and test rows change nothing about the probes fitted on oversampled training rows."""
    task = make_class_task()
    cache = plant_classes(tmp_path / "c.h5", task)
    options = ProbeOptions(Cs=(1.0,), oversampling=mode)
    whole = evaluate_probe(cache, task, options, pooling="mean", n_resamples=200)
    fewer = make_class_task(sizes={"train": 150, "validation": 30, "test": 30})
    less = evaluate_probe(cache, fewer, options, pooling="mean", n_resamples=200)
    assert whole.scores["chosen"]["layer"] == PLANTED
    assert whole.fit is not None
    assert less.fit is not None
    torch.testing.assert_close(whole.fit.weight, less.fit.weight)


def test_two_poolings_double_the_channels(cache: LatentCache, task: ClassTask) -> None:
    found = evaluate_probe(cache, task, OPTIONS, pooling="last+mean", n_resamples=200)
    assert found.scores["chosen"]["layer"] == f"mean/{PLANTED}"
    assert np.shape(found.scores["surface"]) == (2 * len(LAYERS), 2)
    assert found.scores["summary"]["test"]["accuracy"]["mean"] > 0.8


def test_pairs_are_joined_without_an_order() -> None:
    a, b = torch.randn(2, 3, 4, 5).unbind(0)
    torch.testing.assert_close(join_pair(a, b), join_pair(b, a))
    assert join_pair(a, b).shape == (3, 4, 10)
    assert join_pair(a) is a


def test_pair_rows_are_classified(tmp_path: Path) -> None:
    task = make_class_task(n_classes=2, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task)
    found = evaluate_probe(cache, task, OPTIONS, pooling="mean", n_resamples=200).scores
    assert found["chosen"]["layer"] == PLANTED
    assert found["summary"]["test"]["accuracy"]["mean"] > 0.75


def test_a_chunk_holds_a_few_layers_when_rows_are_many(
    cache: LatentCache, task: ClassTask, monkeypatch: pytest.MonkeyPatch, result: ProbeResult
) -> None:
    monkeypatch.setattr("probes.classes.features.CHUNK_NUMBERS", 210 * WIDTH * 2)
    features = ClassFeatures(cache, task, Channels(("mean",), LAYERS))
    assert [len(chunk["train"]) for chunk in features.chunks(["train", "validation"])] == [2, 2, 1]
    again = evaluate_probe(cache, task, OPTIONS, pooling="mean", n_resamples=200)
    np.testing.assert_allclose(again.scores["surface"], result.scores["surface"], atol=0.02)


def test_a_class_smaller_than_the_folds_is_refused(tmp_path: Path) -> None:
    task = make_class_task(sizes={"train": 9, "test": 6})
    cache = plant_classes(tmp_path / "c.h5", task)
    with pytest.raises(HeadError, match=r"class 0 has 3 rows for 5 folds; .* or use fewer folds"):
        evaluate_probe(cache, task, OPTIONS, pooling="mean")


def test_bad_options_are_told() -> None:
    with pytest.raises(UnknownNameError, match="unknown oversampling 'times5': did you mean 'times-5'"):
        ProbeOptions(oversampling="times5")
    with pytest.raises(HeadError, match=r"C is -1\.0; allowed"):
        ProbeOptions(Cs=(-1.0,))
    with pytest.raises(HeadError, match="folds is 1; allowed"):
        ProbeOptions(folds=1)
    with pytest.raises(HeadError, match="max_iterations is 0; allowed"):
        ProbeOptions(max_iterations=0)
