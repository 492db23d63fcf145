"""Probes over layers and C: the planted layer is found, nothing is chosen on test, chance is chance."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from extract.errors import HeadError, UnknownNameError
from extract.store.cache import LatentCache
from probes.data.class_task import ClassTask, NumberTask, assemble_task, load_class_sample
from probes.data.table_files import FileRows
from probes.fitting.saved_fits import SavedHead
from probes.heads.layer_head import Choice, load_head
from probes.heads.linear_probes import LinearProbe, ProbeOptions, fit_probes, fold_inputs
from probes.heads.result import HeadResult
from probes.latents.text_latents import Channels, ClassFeatures, channels_of, join_pair
from probes.layers.views import LAYER_ROWS
from probes.logistic.problem import LogisticFit
from probes.logistic.solver import fit_logistic
from tests.probes.data.planted_classes import make_class_task, plant_classes, row_of, with_new_class
from tests.probes.heads.evaluating import as_text, evaluate, make_setting
from tests.probes.planted_latents import LAYERS, PLANTED, WIDTH, write_latents

CS = (0.1, 10.0)


@dataclass(frozen=True)
class Probed:
    """A result, and the probe that was kept with it."""

    result: HeadResult
    saved: SavedHead[LinearProbe]

    @property
    def surface(self) -> NDArray[np.float64]:
        """Scores of every layer and C."""
        return np.array([curve.values for curve in self.result.curves]).T

    def accuracy(self, split: str = "test") -> float:
        return self.result.summary[split]["accuracy"].mean


def probe(cache: LatentCache, task: ClassTask, folder: Path, **options: Any) -> Probed:
    """Fit probes on the pooling that is planted, and read the chosen one back."""
    result = evaluate("logistic-probe", {"pooling": "mean", "Cs": CS, **options}, make_setting(cache, task, folder))
    saved = load_head(folder / "logistic-probe")
    assert isinstance(saved.head, LinearProbe)
    return Probed(result, SavedHead(saved.head, saved.record))


@pytest.fixture(scope="module")
def task() -> ClassTask:
    return make_class_task()


@pytest.fixture(scope="module")
def cache(task: ClassTask, tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    return plant_classes(tmp_path_factory.mktemp("classes") / "c.h5", task)


@pytest.fixture(scope="module")
def probed(cache: LatentCache, task: ClassTask, tmp_path_factory: pytest.TempPathFactory) -> Probed:
    return probe(cache, task, tmp_path_factory.mktemp("probes"))


def test_the_planted_layer_is_chosen_on_validation(probed: Probed, task: ClassTask) -> None:
    found = probed.result
    assert found.chosen["layer"] == PLANTED
    assert found.selection == "validation"
    assert probed.surface.shape == (len(LAYERS), 2)
    assert probed.surface.max() == found.chosen["score"] == found.selection_score == probed.accuracy("validation")
    test = found.summary["test"]["accuracy"]
    assert test.mean > 0.8
    assert test.low < test.mean <= test.high
    assert set(found.summary) == set(task.splits)
    assert found.baselines["majority"]["test"] == pytest.approx(1 / 3, abs=0.01)


def test_predictions_are_those_of_the_chosen_probe(probed: Probed, cache: LatentCache, task: ClassTask) -> None:
    features = ClassFeatures(cache, task, Channels(("mean",), (PLANTED,)))
    (chunk,) = features.chunks(["train", "test"])
    alone = fit_logistic(chunk["train"], torch.from_numpy(task.labels("train")), Cs=[probed.result.chosen["C"]])
    expected = alone.logits(chunk["test"])[0, 0].argmax(-1).numpy()
    np.testing.assert_array_equal(probed.result.predictions["test"], expected)
    assert tuple(probed.saved.head.weight.shape) == (3, WIDTH)


def test_the_default_is_the_highest_layer_and_the_c_nearest_1(
    probed: Probed, cache: LatentCache, task: ClassTask, tmp_path: Path
) -> None:
    default = probed.result.extras["default"]
    assert (default["layer"], default["C"]) == (LAYERS[-1], 0.1)
    alone = probe(cache, task, tmp_path, Cs=[0.1], layers=LAYERS[-1])
    assert set(default["scores"]) == set(task.splits)
    for split, score in default["scores"].items():
        assert score == alone.accuracy(split)


def test_a_saved_probe_predicts_the_same(cache: LatentCache, task: ClassTask, tmp_path: Path) -> None:
    probed = probe(cache, task, tmp_path)
    folder = tmp_path / "logistic-probe"
    assert sorted(path.name for path in folder.iterdir()) == ["head.json", "model.safetensors"]
    assert (probed.saved.record.layers, probed.saved.record.pooling) == ((PLANTED,), "mean")
    latents = cache.gather(cache.rows_of(list(task.splits["test"]["text"])), "mean", layers=PLANTED)[0]
    names = [task.class_names[code] for code in probed.result.predictions["test"]]
    assert probed.saved.head.predict(latents) == names


def test_nothing_is_chosen_on_test(cache: LatentCache, probed: Probed, tmp_path: Path) -> None:
    poisoned = probe(cache, make_class_task(shuffled=["test"]), tmp_path)
    np.testing.assert_array_equal(poisoned.surface, probed.surface)
    assert poisoned.result.chosen == probed.result.chosen
    assert poisoned.result.extras["convergence"] == probed.result.extras["convergence"]
    for split in ("train", "validation"):
        assert poisoned.result.summary[split] == probed.result.summary[split]
    np.testing.assert_array_equal(poisoned.result.predictions["test"], probed.result.predictions["test"])
    assert poisoned.accuracy() < 0.6


@pytest.mark.long
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("has_validation", [True, False])
def test_a_class_of_test_alone_changes_nothing_but_scores(n_classes: int, has_validation: bool, tmp_path: Path) -> None:
    """A third class in test would turn the sigmoid of two into a softmax, for which the same C is another penalty."""
    sizes = {"train": 30, "validation": 30, "test": 30} if has_validation else {"train": 30, "test": 30}
    task = make_class_task(n_classes=n_classes, sizes=sizes)
    cache = plant_classes(tmp_path / "c.h5", task)
    options = {"Cs": (0.01, 0.1, 1.0), "oversampling": "balance"}
    plain = probe(cache, task, tmp_path / "plain", **options)
    found = probe(cache, with_new_class(task), tmp_path / "more", **options)
    np.testing.assert_array_equal(found.surface, plain.surface)
    assert found.result.chosen == plain.result.chosen
    for key in ("convergence", "oversampled"):
        assert found.result.extras[key] == plain.result.extras[key]
    for key, value in plain.saved.head.state_dict().items():
        assert torch.equal(found.saved.head.state_dict()[key], value)
    np.testing.assert_array_equal(found.result.predictions["test"], 1 + plain.result.predictions["test"])
    assert found.accuracy() < plain.accuracy()
    assert found.saved.record.arguments["class_names"] == list(task.class_names)


def test_many_classes_of_test_alone_are_no_reason_to_refuse(tmp_path: Path) -> None:
    """Ten training rows of two classes: twenty more classes in half of test do not make them too few."""
    rows = [
        row_of(f"{split} {i}", f"new {i}" if split == "test" and i < 20 else "yes" if i % 2 else "no", split)
        for split, n in (("train", 10), ("validation", 10), ("test", 40))
        for i in range(n)
    ]
    task = assemble_task(FileRows(rows, "made up"), name="thin", metrics=("accuracy",))
    found = probe(cache_of(tmp_path, task), task, tmp_path, Cs=[1.0])
    predicted = {task.class_names[k] for k in found.result.predictions["test"]}
    assert predicted <= {"yes", "no"}
    assert found.accuracy() <= 50.0


def test_a_class_of_test_alone_draws_the_same_validation() -> None:
    def drawn(new: str) -> list[str]:
        rows = [row_of(f"{i}", "yes" if i % 2 else "no", "train") for i in range(60)]
        rows += [row_of(f"test {i}", new if i % 2 else "yes", "test") for i in range(6)]
        return list(assemble_task(FileRows(rows, "made up"), name="drawn").splits["validation"]["text"])

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
        probe(cache, task, tmp_path, Cs=[1.0])


def test_of_equal_scores_the_strongest_penalty_is_taken() -> None:
    surface = np.array([[0.5, 0.7, 0.7], [0.7, 0.7, 0.2]])
    for penalties, best in (((1.0, 0.01, 10.0), (0, 2)), ((10.0, 1.0, 0.01), (0, 1))):
        choice = Choice.best(surface, penalties)
        assert (choice.layer, choice.column) == best
    surface[0] = np.nan
    choice = Choice.best(surface)
    assert (choice.layer, choice.column, choice.score) == (1, 0, 0.7)
    assert choice.to_dict() == {"place": [1, 0], "surface": [[None] * 3, [0.7, 0.7, 0.2]]}
    np.testing.assert_equal(Choice.read(choice.to_dict()).surface, surface)


def test_float64_reaches_tolerances_that_float32_does_not(
    cache: LatentCache, task: ClassTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[LogisticFit] = []

    def spy(fit: LogisticFit, names: Sequence[str], **more: Any) -> LinearProbe:
        fits.append(fit)
        return real(fit, names, **more)

    real = LinearProbe.of
    monkeypatch.setattr(LinearProbe, "of", spy)
    found = probe(cache, task, tmp_path, Cs=[1.0], tol=1e-10, precision="float64", layers=PLANTED)
    assert found.result.extras["convergence"]["largest_gradient_norm"] < 1e-10
    fit, *_ = fits
    assert fit.weight.dtype is torch.float64
    assert torch.equal(found.saved.head.state_dict()["weight"], fit.weight[0, 0, 0])
    with pytest.raises(UnknownNameError, match="unknown precision 'float16': did you mean"):
        ProbeOptions(precision="float16")


def test_what_oversampling_did_is_counted_by_name(tmp_path: Path) -> None:
    rows = [row_of(f"{i}", name, "train") for i, name in enumerate(["a"] * 9 + ["b"] * 3 + ["c"])]
    rows += [row_of(f"test {i}", "a", "test") for i in range(4)]
    rows += [row_of(f"dev {i}", "a", "validation") for i in range(4)]
    task = assemble_task(FileRows(rows, "made up"), name="few", metrics=("accuracy",))
    found = probe(cache_of(tmp_path, task), task, tmp_path, Cs=[1.0], oversampling="balance")
    assert found.result.extras["oversampled"] == {
        "mode": "balance",
        "n_rows": 13,
        "n_synthetic": 6 + 8,
        "clipped": {"b": 2},
        "duplicated": ["c"],
    }


def test_without_scaling_a_column_in_other_units_changes_predictions(tmp_path: Path) -> None:
    """Scaled features do not notice the unit of a column; unscaled ones do, with SMOTE as without."""
    task = make_class_task(sizes={"train": 60, "validation": 15, "test": 60})
    cache = plant_classes(tmp_path / "c.h5", task)
    latents = cache.gather(cache.rows_of(list(task.splits["train"]["text"])), "mean", layers=PLANTED)
    codes = torch.from_numpy(task.labels("train"))
    for mode in ("none", "balance"):
        for is_standardised in (True, False):
            options = ProbeOptions(Cs=(0.01,), oversampling=mode, is_standardised=is_standardised)
            fit = partial(fit_probes, codes=codes, options=options, n_classes=task.n_classes, device="cpu")
            units = torch.ones(WIDTH)
            units[0] = 1000.0
            plain, other = fit(latents).logits(latents), fit(latents * units)
            is_same = torch.allclose(plain, other.logits(latents * units), atol=1e-2)
            assert is_same is is_standardised


def test_shuffled_training_labels_score_at_chance(cache: LatentCache, tmp_path: Path) -> None:
    found = probe(cache, make_class_task(shuffled=["train"]), tmp_path)
    assert found.accuracy() == pytest.approx(1 / 3, abs=0.2)


@pytest.mark.parametrize("groups", [0, 5])
def test_without_validation_folds_of_train_decide(groups: int, tmp_path: Path) -> None:
    task = make_class_task(sizes={"train": 150, "test": 60}, groups=groups)
    found = probe(plant_classes(tmp_path / "c.h5", task), task, tmp_path)
    assert found.result.selection == "5-fold cross-validation on train"
    assert found.result.chosen["layer"] == PLANTED
    assert 0.7 < found.result.chosen["score"] <= 1.0
    assert found.accuracy() > 0.8


@pytest.mark.parametrize("head", ["logistic-probe", "ridge-probe"])
def test_folds_keep_copies_of_a_text_together(head: str, tmp_path: Path) -> None:
    rng, texts, is_class = np.random.default_rng(0), [f"text {k}" for k in range(60)], head == "logistic-probe"
    gold: dict[str, list[Any]] = {"number": rng.normal(size=60).tolist()}
    if is_class:
        gold = {"label": rng.integers(0, 2, 60).tolist(), "row": list(range(60))}
    test = {"text": [f"test {k}" for k in range(60)], **gold}
    once, thrice = (
        {"train": {name: column * n for name, column in {"text": texts, **gold}.items()}, "test": test} for n in (1, 3)
    )

    def task_of(columns: dict[str, Any]) -> ClassTask | NumberTask:
        if is_class:
            return ClassTask("copied", ClassTask.hold(columns), ("no", "yes"), ("accuracy",), "made up")
        return NumberTask("copied", NumberTask.hold(columns), "made up")

    task = task_of(thrice)
    latents = np.random.default_rng(3).normal(size=(3, 120, 40)).astype(np.float32)  # which say nothing of the gold
    cache = write_latents(tmp_path / "c.h5", list(task.texts()), {"mean": latents})
    result = evaluate(head, {}, make_setting(cache, task, tmp_path / "heads"))
    assert "cross-validation" in result.selection
    assert result.selection_score < 0.65
    assert fold_inputs(task, result.selection) == ["folds of units"]
    assert fold_inputs(task, "validation") == fold_inputs(task_of(once), result.selection) == []
    rows = LAYER_ROWS[task.kind](cache, task, channels_of(cache, "mean"), "test", task.metrics[0], 1000)
    assert np.array_equal(rows.train.units, np.tile(np.arange(60), 3))


def test_one_layer_and_one_strength_leave_nothing_to_choose(tmp_path: Path) -> None:
    task = make_class_task(sizes={"train": 150, "test": 60})
    found = probe(plant_classes(tmp_path / "c.h5", task), task, tmp_path, Cs=[1.0], layers=PLANTED)
    assert found.result.selection == "nothing to choose"
    assert np.isnan(found.result.selection_score)
    assert found.accuracy() > 0.8


@pytest.mark.parametrize("mode", ["balance", "times-5"])
def test_oversampling_stays_inside_train(mode: str, tmp_path: Path) -> None:
    """Other validation and test rows change nothing about the probes fitted on oversampled training rows."""
    task = make_class_task()
    cache = plant_classes(tmp_path / "c.h5", task)
    whole = probe(cache, task, tmp_path / "whole", Cs=[1.0], oversampling=mode)
    fewer = make_class_task(sizes={"train": 150, "validation": 30, "test": 30})
    less = probe(cache, fewer, tmp_path / "less", Cs=[1.0], oversampling=mode)
    assert whole.result.chosen["layer"] == PLANTED
    torch.testing.assert_close(whole.saved.head.weight, less.saved.head.weight)


@pytest.mark.parametrize("head", ["logistic-probe", "nearest-centroid", "few-shot-probe", "cosine-threshold"])
def test_a_choice_by_another_metric_is_a_fit_of_its_own(head: str, tmp_path: Path) -> None:
    is_pairs = head == "cosine-threshold"
    task = make_class_task(n_classes=2 if is_pairs else 3, is_pairs=is_pairs, shuffled=["validation"])
    cache, by_f1 = plant_classes(tmp_path / "c.h5", task), replace(task, metrics=("f1-macro",))
    accuracy = evaluate(head, {}, make_setting(cache, task, tmp_path / "run"))
    beside, alone = (evaluate(head, {}, make_setting(cache, by_f1, tmp_path / name)) for name in ("run", "alone"))
    assert as_text(beside) == as_text(alone)
    assert beside.selection_score != accuracy.selection_score


def test_a_sample_has_its_own_usual_metric() -> None:
    assert load_class_sample().usual_metric == load_class_sample().metric == "f1-macro"


def test_two_poolings_double_the_channels(cache: LatentCache, task: ClassTask, tmp_path: Path) -> None:
    found = probe(cache, task, tmp_path, pooling="last+mean")
    assert found.result.chosen["layer"] == f"mean/{PLANTED}"
    assert np.shape(found.surface) == (2 * len(LAYERS), 2)
    assert found.accuracy() > 0.8


def test_pairs_are_joined_without_an_order() -> None:
    a, b = torch.randn(2, 3, 4, 5).unbind(0)
    torch.testing.assert_close(join_pair(a, b), join_pair(b, a))
    assert join_pair(a, b).shape == (3, 4, 10)
    assert join_pair(a) is a


def test_pair_rows_are_classified(tmp_path: Path) -> None:
    task = make_class_task(n_classes=2, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task)
    found = probe(cache, task, tmp_path)
    assert found.result.chosen["layer"] == PLANTED
    assert found.accuracy() > 0.75


def test_a_chunk_holds_a_few_layers_when_rows_are_many(
    cache: LatentCache, task: ClassTask, monkeypatch: pytest.MonkeyPatch, probed: Probed, tmp_path: Path
) -> None:
    monkeypatch.setattr("probes.latents.text_latents.CHUNK_NUMBERS", 210 * WIDTH * 2)
    features = ClassFeatures(cache, task, Channels(("mean",), LAYERS))
    assert [len(chunk["train"]) for chunk in features.chunks(["train", "validation"])] == [2, 2, 1]
    np.testing.assert_allclose(probe(cache, task, tmp_path).surface, probed.surface, atol=0.02)


def test_a_class_smaller_than_the_folds_is_refused(tmp_path: Path) -> None:
    task = make_class_task(sizes={"train": 9, "test": 6})
    cache = plant_classes(tmp_path / "c.h5", task)
    with pytest.raises(HeadError, match=r"class 'class 0' has 3 rows for 5 folds; .* use fewer folds"):
        probe(cache, task, tmp_path)


def test_bad_options_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown oversampling 'times5': did you mean 'times-5'"):
        ProbeOptions(oversampling="times5")
    with pytest.raises(HeadError, match=r"C is -1\.0; allowed"):
        ProbeOptions(Cs=(-1.0,))
    with pytest.raises(HeadError, match="folds is 1; allowed"):
        ProbeOptions(folds=1)
    with pytest.raises(HeadError, match="max_iterations is 0; allowed"):
        ProbeOptions(max_iterations=0)
