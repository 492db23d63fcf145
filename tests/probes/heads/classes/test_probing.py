"""Probes over layers and C: the planted layer is found, nothing is chosen on test, chance is chance."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from probes.heads.classes.registry import evaluate_class_head, resolve_class_options
from probes.tasks.held_back import without_test

import probes.heads.classes.logistic_probe
from extract.errors import HeadError, UnknownNameError
from extract.store.cache import LatentCache
from probes.heads.classes.logistic_probe import ProbeResult, _best, evaluate_probe
from probes.heads.classes.options import ProbeOptions
from probes.heads.classes.solving import ChunkSolver
from probes.heads.saved import load_head
from probes.latents.channels import Channels
from probes.latents.class_features import ClassFeatures, join_pair
from probes.logistic.probe import LinearProbe
from probes.logistic.solver import fit_logistic
from probes.tasks.classes.assemble import TaskCard, assemble_task
from probes.tasks.classes.examples import Example
from probes.tasks.classes.task import ClassTask
from tests.probes.finished_run import forbid
from tests.probes.planted_latents import LAYERS, PLANTED, WIDTH, write_latents
from tests.probes.tasks.classes.planted_classes import make_class_task, plant_classes, with_new_class

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
    assert result.head is not None
    assert tuple(result.head.weight.shape) == (3, WIDTH)


def test_the_default_is_the_highest_layer_and_the_c_nearest_1(
    result: ProbeResult, cache: LatentCache, task: ClassTask
) -> None:
    default = result.scores["default"]
    assert (default["layer"], default["C"]) == (LAYERS[-1], 0.1)
    alone = evaluate_probe(cache, task, ProbeOptions(Cs=(0.1,)), pooling="mean", layers=(LAYERS[-1],), n_resamples=200)
    for split, score in default["scores"].items():
        assert score == alone.scores["summary"][split]["accuracy"]["mean"]


def test_a_kept_probe_is_found_again_and_predicts_the_same(
    result: ProbeResult, cache: LatentCache, task: ClassTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_probe(cache, without_test(task), OPTIONS, pooling="mean", n_resamples=200, folder=tmp_path / "probe")
    forbid(monkeypatch, probes.heads.classes.logistic_probe, "_fit_all")
    again = evaluate_probe(cache, task, OPTIONS, pooling="mean", n_resamples=200, folder=tmp_path / "probe")
    assert again.scores == result.scores
    with pytest.raises(AssertionError):  # other options are another probe
        evaluate_probe(cache, task, replace(OPTIONS, tol=1e-3), pooling="mean", folder=tmp_path / "probe")
    assert sorted(path.name for path in (tmp_path / "probe").iterdir()) == ["head.json", "model.safetensors"]
    probe = load_head(tmp_path / "probe")
    assert (probe.record["layers"], probe.record["pooling"]) == ([PLANTED], "mean")
    assert isinstance(probe.head, LinearProbe)
    latents = cache.gather(cache.rows_of(list(task.splits["test"]["text"])), "mean", layers=PLANTED)[0]
    names = [task.class_names[code] for code in result.predictions["test"]]
    assert probe.head.predict(latents) == names


def test_nothing_is_chosen_on_test(cache: LatentCache, result: ProbeResult) -> None:
    poisoned = evaluate_probe(cache, make_class_task(shuffled=["test"]), OPTIONS, pooling="mean", n_resamples=200)
    for key in ("surface", "chosen", "convergence"):
        assert poisoned.scores[key] == result.scores[key]
    for split in ("train", "validation"):
        assert poisoned.scores["summary"][split] == result.scores["summary"][split]
    np.testing.assert_array_equal(poisoned.predictions["test"], result.predictions["test"])
    assert poisoned.scores["summary"]["test"]["accuracy"]["mean"] < 0.6


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("has_validation", [True, False])
def test_a_class_of_test_alone_changes_nothing_but_scores(n_classes: int, has_validation: bool, tmp_path: Path) -> None:
    """A third class in test would turn the sigmoid of two into a softmax, for which the same C is another penalty."""
    sizes = {"train": 30, "validation": 30, "test": 30} if has_validation else {"train": 30, "test": 30}
    task = make_class_task(n_classes=n_classes, sizes=sizes)
    cache = plant_classes(tmp_path / "c.h5", task)
    options = ProbeOptions(Cs=(0.01, 0.1, 1.0), oversampling="balance")
    plain = evaluate_probe(cache, task, options, pooling="mean", n_resamples=200)
    found = evaluate_probe(cache, with_new_class(task), options, pooling="mean", n_resamples=200)
    for key in ("surface", "chosen", "convergence", "oversampled"):
        assert found.scores[key] == plain.scores[key]
    assert plain.head is not None
    assert found.head is not None
    assert torch.equal(found.head.weight, plain.head.weight)
    assert torch.equal(found.head.bias, plain.head.bias)
    np.testing.assert_array_equal(found.predictions["test"], 1 + plain.predictions["test"])
    assert found.scores["summary"]["test"]["accuracy"]["mean"] < plain.scores["summary"]["test"]["accuracy"]["mean"]
    assert found.head.class_names == task.class_names


def test_many_classes_of_test_alone_are_no_reason_to_refuse(tmp_path: Path) -> None:
    """Ten training rows of two classes: twenty more classes in test do not make them too few."""
    rows: list[Example] = [
        Example((f"{split} {i}",), f"new {i}" if split == "test" else "yes" if i % 2 else "no", split)
        for split, n in (("train", 10), ("validation", 10), ("test", 20)) for i in range(n)
    ]  # fmt: skip
    task = assemble_task(rows, TaskCard("thin", "made up", ("accuracy",)))
    found = evaluate_probe(cache_of(tmp_path, task), task, ProbeOptions(Cs=(1.0,)), pooling="mean", n_resamples=100)
    assert found.scores["summary"]["test"]["accuracy"]["mean"] == 0.0
    assert {task.class_names[k] for k in found.predictions["test"]} <= {"yes", "no"}


def test_a_class_of_test_alone_draws_the_same_validation() -> None:
    def drawn(new: str) -> list[str]:
        rows = [Example((f"{i}",), "yes" if i % 2 else "no", "train") for i in range(60)]
        rows += [Example((f"test {i}",), new if i else "yes", "test") for i in range(6)]
        return list(assemble_task(rows, TaskCard("drawn", "made up")).splits["validation"]["text"])

    assert drawn("no") == drawn("a new class")


def cache_of(folder: Path, task: ClassTask) -> LatentCache:
    rng = np.random.default_rng(0)
    mean = rng.normal(size=(len(LAYERS), len(task.texts()), WIDTH)).astype(np.float32)
    return write_latents(folder / "noise.h5", task.texts(), {"mean": mean, "last": mean})


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_rows_that_are_not_finite_are_refused_in_every_split(split: str, tmp_path: Path) -> None:
    task = make_class_task(sizes={"train": 30, "validation": 15, "test": 15})
    cache = plant_classes(tmp_path / "c.h5", task, broken=f"{split} 7")
    with pytest.raises(HeadError, match=rf"{split}: layer \d, row 7 holds nan in dimension 0; allowed: finite"):
        evaluate_probe(cache, task, ProbeOptions(Cs=(1.0,)), pooling="mean")


def test_of_equal_scores_the_strongest_penalty_is_taken() -> None:
    surface = np.array([[0.5, 0.7, 0.7], [0.7, 0.7, 0.2]])
    assert _best(surface, (1.0, 100.0, 0.1)) == (0, 2)
    assert _best(surface, (0.1, 1.0, 100.0)) == (0, 1)


def test_float64_reaches_tolerances_that_float32_does_not(cache: LatentCache, task: ClassTask, tmp_path: Path) -> None:
    resolved = resolve_class_options(
        "logistic-probe", {"Cs": [1.0], "tol": 1e-10, "precision": "float64", "layers": PLANTED}
    )
    found = evaluate_class_head("logistic-probe", resolved, cache, task, device="cpu", n_resamples=100, folder=tmp_path)
    assert found.scores["convergence"]["largest_gradient_norm"] < 1e-10
    assert found.head is not None
    assert found.head.weight.dtype is torch.float64
    assert torch.equal(load_head(tmp_path).head.state_dict()["weight"], found.head.weight)
    with pytest.raises(UnknownNameError, match="unknown precision 'float16': did you mean"):
        ProbeOptions(precision="float16")


def test_what_oversampling_did_is_counted_by_name(tmp_path: Path) -> None:
    rows = [Example((f"{i}",), name, "train") for i, name in enumerate(["a"] * 9 + ["b"] * 3 + ["c"])]
    rows += [Example((f"test {i}",), "a", "test") for i in range(4)]
    rows += [Example((f"dev {i}",), "a", "validation") for i in range(4)]
    task = assemble_task(rows, TaskCard("few", "made up", ("accuracy",)))
    options = ProbeOptions(Cs=(1.0,), oversampling="balance")
    found = evaluate_probe(cache_of(tmp_path, task), task, options, pooling="mean", n_resamples=100).scores
    assert found["oversampled"] == {
        "mode": "balance", "n_rows": 13, "n_synthetic": 6 + 8, "clipped": {"b": 2}, "duplicated": ["c"],
    }  # fmt: skip


def test_without_scaling_a_column_in_other_units_changes_predictions(tmp_path: Path) -> None:
    """Scaled features do not notice the unit of a column; unscaled ones do, with SMOTE as without."""
    task = make_class_task(sizes={"train": 60, "validation": 15, "test": 60})
    cache = plant_classes(tmp_path / "c.h5", task)
    latents = cache.gather(cache.rows_of(list(task.splits["train"]["text"])), "mean", layers=PLANTED)
    codes = torch.from_numpy(task.labels("train"))
    for mode in ("none", "balance"):
        for is_standardised in (True, False):
            options = ProbeOptions(Cs=(0.01,), oversampling=mode, is_standardised=is_standardised)
            solver = ChunkSolver(task, options, None, "cpu")
            units = torch.ones(WIDTH)
            units[0] = 1000.0
            plain, other = solver.fit(latents, codes).logits(latents), solver.fit(latents * units, codes)
            is_same = torch.allclose(plain, other.logits(latents * units), atol=1e-2)
            assert is_same is is_standardised


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
    assert whole.head is not None
    assert less.head is not None
    torch.testing.assert_close(whole.head.weight, less.head.weight)


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
    monkeypatch.setattr("probes.latents.class_features.CHUNK_NUMBERS", 210 * WIDTH * 2)
    features = ClassFeatures(cache, task, Channels(("mean",), LAYERS))
    assert [len(chunk["train"]) for chunk in features.chunks(["train", "validation"])] == [2, 2, 1]
    again = evaluate_probe(cache, task, OPTIONS, pooling="mean", n_resamples=200)
    np.testing.assert_allclose(again.scores["surface"], result.scores["surface"], atol=0.02)


def test_a_class_smaller_than_the_folds_is_refused(tmp_path: Path) -> None:
    task = make_class_task(sizes={"train": 9, "test": 6})
    cache = plant_classes(tmp_path / "c.h5", task)
    with pytest.raises(HeadError, match=r"class 'class 0' has 3 rows for 5 folds; .* use fewer folds"):
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
