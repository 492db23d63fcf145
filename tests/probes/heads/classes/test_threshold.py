"""A threshold on a cosine: exhaustive, either way up, chosen where it says."""

from pathlib import Path

import numpy as np
import pytest

from extract.errors import HeadError
from probes.heads.classes.cosine_threshold import ThresholdOptions, _best_threshold, evaluate_threshold
from probes.metrics.class_metrics import score_classes
from tests.probes.planted_latents import PLANTED
from tests.probes.tasks.classes.planted_classes import make_class_task, plant_classes, with_new_class


@pytest.mark.parametrize("sign", [1, -1])
def test_the_best_of_all_thresholds_is_found(sign: int) -> None:
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 2, 40)
    values = sign * (gold + rng.normal(size=40))
    score, threshold, above = _best_threshold(values, gold, metric="accuracy", classes=np.arange(2))
    assert above == (1 if sign > 0 else 0)
    predicted = np.where(values > threshold, above, 1 - above)
    assert score == score_classes(predicted, gold, metric="accuracy")
    tried = [
        float(score_classes((values > cut).astype(int) ^ flip, gold, metric="accuracy"))
        for cut in np.linspace(values.min() - 1, values.max() + 1, 3001) for flip in (0, 1)
    ]  # fmt: skip
    assert score >= max(tried)


def test_the_planted_layer_is_chosen_on_validation_and_test_is_read_once(tmp_path: Path) -> None:
    task = make_class_task(n_classes=2, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task)
    found = evaluate_threshold(cache, task, ThresholdOptions(), pooling="mean", n_resamples=200)
    assert found.scores["chosen"]["layer"] == PLANTED
    assert not found.scores["is_optimistic"]
    assert found.scores["summary"]["test"]["accuracy"]["mean"] > 0.75
    poisoned = make_class_task(n_classes=2, is_pairs=True, shuffled=["test"])
    again = evaluate_threshold(cache, poisoned, ThresholdOptions(), pooling="mean", n_resamples=200)
    assert again.scores["chosen"] == found.scores["chosen"]
    np.testing.assert_array_equal(again.predictions["test"], found.predictions["test"])


def test_choosing_on_test_is_marked(tmp_path: Path) -> None:
    task = make_class_task(n_classes=2, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task)
    found = evaluate_threshold(cache, task, ThresholdOptions(choose_on="test"), pooling="mean", n_resamples=200).scores
    assert found["is_optimistic"]
    assert found["summary"]["test"]["accuracy"]["mean"] == found["chosen"]["score"]


def test_more_classes_or_an_unknown_split_are_refused(tmp_path: Path) -> None:
    task = make_class_task(n_classes=3, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task)
    with pytest.raises(HeadError, match="got task 'planted' with 3 classes in train; allowed: 2"):
        evaluate_threshold(cache, task, ThresholdOptions(), pooling="mean")
    two = make_class_task(n_classes=2, is_pairs=True)
    with pytest.raises(HeadError, match="choose_on is 'dev'; allowed: a split of task 'planted'"):
        evaluate_threshold(plant_classes(tmp_path / "d.h5", two), two, ThresholdOptions("dev"), pooling="mean")


def test_a_class_of_test_alone_changes_nothing_that_is_chosen(tmp_path: Path) -> None:
    task = make_class_task(n_classes=2, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task)
    plain = evaluate_threshold(cache, task, ThresholdOptions(), pooling="mean", n_resamples=200)
    found = evaluate_threshold(cache, with_new_class(task), ThresholdOptions(), pooling="mean", n_resamples=200)
    assert found.scores["chosen"] == plain.scores["chosen"]
    np.testing.assert_array_equal(found.predictions["test"], 1 + plain.predictions["test"])


def test_rows_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    task = make_class_task(n_classes=2, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task, broken="test 7 right")
    with pytest.raises(HeadError, match="test: layer 0, row 7 holds nan in dimension 0"):
        evaluate_threshold(cache, task, ThresholdOptions(), pooling="mean")
