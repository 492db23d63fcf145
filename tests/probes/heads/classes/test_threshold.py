"""A threshold on a cosine: exhaustive, either way up, chosen where it says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from extract.errors import HeadError
from extract.store.cache import LatentCache
from probes.data.class_task import ClassTask
from probes.heads.class_heads import fit_threshold
from probes.heads.result import HeadResult
from probes.metrics.prediction_metrics import CLASS_METRICS, score_classes
from tests.probes.data.planted_classes import make_class_task, plant_classes, with_new_class
from tests.probes.heads.evaluating import evaluate, make_setting
from tests.probes.planted_latents import PLANTED


def choose(cache: LatentCache, task: ClassTask, folder: Path, **options: str) -> HeadResult:
    """Evaluate the head on the pooling that is planted."""
    return evaluate("cosine-threshold", {"pooling": "mean", **options}, make_setting(cache, task, folder))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_best_of_all_thresholds_is_found(sign: int) -> None:
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 2, 40)
    values = sign * (gold + rng.normal(size=40))
    score, threshold, above = fit_threshold(values, gold, metric="accuracy", classes=np.arange(2))
    assert above == (1 if sign > 0 else 0)
    predicted = np.where(values > threshold, above, 1 - above)
    assert score == score_classes(predicted, gold, metric="accuracy")
    tried = [
        float(score_classes((values > cut).astype(int) ^ flip, gold, metric="accuracy"))
        for cut in np.linspace(values.min() - 1, values.max() + 1, 3001)
        for flip in (0, 1)
    ]
    assert score >= max(tried)


def test_the_planted_layer_is_chosen_on_validation_and_test_is_read_once(tmp_path: Path) -> None:
    task = make_class_task(n_classes=2, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task)
    found = choose(cache, task, tmp_path)
    assert found.chosen["layer"] == PLANTED
    assert not found.is_optimistic
    assert found.summary["test"]["accuracy"].mean > 0.75
    poisoned = make_class_task(n_classes=2, is_pairs=True, shuffled=["test"])
    again = choose(cache, poisoned, tmp_path)
    assert again.chosen == found.chosen
    np.testing.assert_array_equal(again.predictions["test"], found.predictions["test"])


def test_choosing_on_test_is_marked(tmp_path: Path) -> None:
    task = make_class_task(n_classes=2, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task)
    found = choose(cache, task, tmp_path, choose_on="test")
    assert found.is_optimistic
    assert found.summary["test"]["accuracy"].mean == found.chosen["score"]


def test_the_released_threshold_is_one_of_a_hundred_on_raw_cosines_of_all_rows(tmp_path: Path) -> None:
    task = make_class_task(n_classes=2, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task)
    found = evaluate(
        "cosine-threshold", {"pooling": "mean"}, make_setting(cache, task, tmp_path, protocol="look-both-ways")
    )
    assert (found.chosen["kind"], found.chosen["layer"]) == ("raw", "final_norm")
    assert found.optimistic_because == "layer, kind and threshold are chosen on all rows, test among them"
    assert found.selection.startswith("all rows")
    gold = np.concatenate([task.labels(split) for split in task.splits])
    predicted = np.concatenate([found.predictions[split] for split in task.splits])
    assert found.chosen["score"] == pytest.approx((predicted == gold).mean())
    assert np.isclose(np.linspace(0, 1, 100), found.chosen["threshold"], atol=1e-6).any()


def test_a_cosine_that_equals_a_threshold_is_above_it() -> None:
    grid = np.linspace(0, 1, 100).astype(np.float32)
    values = np.array([grid[40], grid[40], np.nextafter(grid[40], np.float32(0)), grid[39]])
    gold = np.array([1, 1, 0, 0])
    how: dict[str, Any] = {"metric": "accuracy", "classes": np.arange(2), "thresholds": "hundred"}
    score, threshold, above = fit_threshold(values, gold, **how)
    assert (score, above) == (1.0, 1)
    assert (torch.from_numpy(values) > threshold).tolist() == [True, True, False, False]


def test_more_classes_or_an_unknown_split_are_refused(tmp_path: Path) -> None:
    task = make_class_task(n_classes=3, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task)
    with pytest.raises(HeadError, match="got task 'planted' with 3 classes in train; allowed: 2"):
        choose(cache, task, tmp_path)
    two = make_class_task(n_classes=2, is_pairs=True)
    with pytest.raises(HeadError, match="choose_on is 'dev'; allowed: a split of task 'planted'"):
        choose(plant_classes(tmp_path / "d.h5", two), two, tmp_path, choose_on="dev")


def test_a_class_of_test_alone_changes_nothing_that_is_chosen(tmp_path: Path) -> None:
    task = make_class_task(n_classes=2, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task)
    plain = choose(cache, task, tmp_path)
    found = choose(cache, with_new_class(task), tmp_path)
    assert found.chosen == plain.chosen
    np.testing.assert_array_equal(found.predictions["test"], 1 + plain.predictions["test"])


def test_rows_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    task = make_class_task(n_classes=2, is_pairs=True)
    cache = plant_classes(tmp_path / "c.h5", task, broken="test 7 right")
    with pytest.raises(HeadError, match="test: layer 0, row 7 holds nan in dimension 0"):
        choose(cache, task, tmp_path)


@pytest.mark.parametrize("metric", CLASS_METRICS)
@pytest.mark.parametrize("thresholds", ["gaps", "hundred"])
def test_cuts_are_scored_as_their_predictions(metric: str, thresholds: str) -> None:
    rng = np.random.default_rng(1)
    classes, gold = np.array([2, 0]), rng.integers(0, 3, 60)  # with a class that no cut predicts
    values = np.round(rng.uniform(size=60), 1).astype(np.float32)  # with ties
    score, threshold, above = fit_threshold(values, gold, metric=metric, classes=classes, thresholds=thresholds)
    assert score == score_classes(classes[np.where(values > threshold, above, 1 - above)], gold, metric=metric)
    cuts = np.unique([-1.0, *(np.linspace(0, 1, 11) + 0.05)])
    codes = (values > cuts[:, None]).astype(int)
    assert score == max(score_classes(classes[side], gold, metric=metric).max() for side in (codes, 1 - codes))
