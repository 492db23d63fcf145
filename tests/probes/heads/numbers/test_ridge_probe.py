"""Ridge probes against scikit-learn, and how layer and alpha are chosen."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from extract.errors import HeadError, TaskError
from probes.heads.entries import Purpose
from probes.heads.numbers.ridge import fit_ridge
from probes.heads.numbers.ridge_probe import best_place, check_ridge
from probes.heads.registry import resolve_head
from probes.metrics.bootstrap import Resampling
from probes.metrics.intervals import summarise_seeds
from tests.probes.heads.evaluating import evaluate, make_setting
from tests.probes.planted_latents import LAYERS, PLANTED
from tests.probes.tasks.numbers.planted_numbers import make_number_task, plant_numbers

ALPHAS = (0.1, 10.0, 1000.0)


@pytest.mark.parametrize("shape", [(60, 12), (20, 50)])
def test_coefficients_are_those_of_scikit_learn(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=shape) * rng.uniform(0.01, 9, shape[1]) + 5).astype(np.float32)
    x[:, 3] = 0.1  # a constant feature
    y = rng.normal(size=shape[0]) * 3 + 7
    fit = fit_ridge(torch.from_numpy(x), torch.from_numpy(y), ALPHAS)
    wide = x.astype(np.float64)
    scaled = StandardScaler().fit_transform(wide)
    for place, alpha in enumerate(ALPHAS):
        oracle = Ridge(alpha=alpha, solver="svd").fit(scaled, y)
        np.testing.assert_allclose(fit.weight[place].numpy(), oracle.coef_, atol=1e-8, rtol=0)
        assert fit.bias.item() == pytest.approx(oracle.intercept_, abs=1e-8)
        found = fit.probe(place)(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(found, oracle.predict(scaled), atol=1e-8, rtol=0)
        np.testing.assert_allclose(fit.predict(torch.from_numpy(x))[place].numpy(), found, atol=1e-10, rtol=0)


def test_the_planted_layer_is_chosen_and_errors_are_below_those_of_the_mean(tmp_path: Path) -> None:
    task = make_number_task()
    setting = make_setting(plant_numbers(tmp_path / "c.h5", task), task, tmp_path / "heads")
    result = evaluate("ridge-probe", {"pooling": "mean", "alphas": list(ALPHAS)}, setting)
    assert result.chosen["layer"] == PLANTED
    assert [curve.name for curve in result.curves] == ["alpha 0.1", "alpha 10", "alpha 1000"]
    best = max(max(curve.values) for curve in result.curves)
    assert result.chosen["score"] == result.selection_score == best
    for split in task.splits:
        error = result.predictions[split] - task.numbers(split)
        found = result.extras["rmse"][split]
        assert found["probe"] == pytest.approx(np.sqrt((error**2).mean()))
        away = task.numbers(split) - task.numbers("train").mean()
        assert found["mean_of_train"] == pytest.approx(np.sqrt((away**2).mean()))
        assert found["probe"] < 0.6 * found["mean_of_train"]
        np.testing.assert_array_equal(result.row_scores[split], -np.abs(error))


def test_without_validation_folds_of_train_choose(tmp_path: Path) -> None:
    task = make_number_task(sizes={"train": 60, "test": 30})
    cache = plant_numbers(tmp_path / "c.h5", task)
    setting = make_setting(cache, task, tmp_path / "heads")
    result = evaluate("ridge-probe", {"alphas": [1.0], "pooling": "mean"}, setting)
    assert result.selection == "5-fold cross-validation on train"
    assert result.chosen["layer"] == PLANTED
    x = cache.gather(cache.rows_of(list(task.rows("train")["text"])), "mean", layers=(PLANTED,))[0].double().numpy()
    folds = KFold(5, shuffle=True, random_state=0)
    oracle = cross_val_predict(make_pipeline(StandardScaler(), Ridge(1.0)), x, task.numbers("train"), cv=folds)
    expected = np.corrcoef(oracle, task.numbers("train"))[0, 1]
    assert result.curves[0].values[LAYERS.index(PLANTED)] == pytest.approx(expected, abs=1e-8)


def test_groups_are_drawn_whole_and_torn_ones_make_a_score_optimistic(tmp_path: Path) -> None:
    task = make_number_task(sizes={"train": 60, "test": 60}, groups=15)
    cache = plant_numbers(tmp_path / "c.h5", task)
    options: dict[str, Any] = {"pooling": "mean", "folds": 4}
    grouped = evaluate("ridge-probe", options, make_setting(cache, task, tmp_path / "heads"))
    predicted, gold = grouped.predictions["test"], task.numbers("test")
    rows = summarise_seeds(predicted[None], gold, metric="pearson", resampling=Resampling(100))
    by_group = grouped.summary["test"]["pearson"]
    assert by_group.mean == rows.mean
    assert (by_group.low, by_group.high) != (rows.low, rows.high)
    alone = [f"row {i}" for i in range(len(gold))]  # groups of one row are rows
    assert summarise_seeds(predicted[None], gold, metric="pearson", groups=alone, resampling=Resampling(100)) == rows
    assert not grouped.is_optimistic
    with pytest.raises(HeadError, match="train has 4 rows or groups for 5 folds"):
        check_ridge(task, resolve_head("ridge-probe", {}), Purpose())


def test_of_equal_scores_the_lowest_layer_and_the_strongest_penalty_win() -> None:
    nan = float("nan")
    assert best_place(np.array([[nan, 0.5, 0.4], [0.9, 0.2, 0.9]]), ALPHAS) == (1, 2)
    assert best_place(np.array([[0.9, 0.1, 0.1], [0.9, 0.2, 0.9]]), ALPHAS) == (0, 0)
    with pytest.raises(HeadError, match="every ridge probe predicts the same number"):
        best_place(np.full((2, 3), nan), ALPHAS)


@pytest.mark.parametrize("options", [{"alphas": []}, {"alphas": [0.0]}, {"alphas": [1.0, float("inf")]}, {"folds": 1}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(HeadError, match="allowed:"):
        resolve_head("ridge-probe", options)


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(TaskError, match="has only train; add train, and validation or test rows"):
        check_ridge(make_number_task(sizes={"train": 20}), resolve_head("ridge-probe", {}), Purpose())
    with pytest.raises(HeadError, match="a latent is NaN or infinite"):
        fit_ridge(torch.full((8, 2), torch.nan), torch.arange(8.0), (1.0,))
