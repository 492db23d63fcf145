"""Ridge probes against scikit-learn, and how layer and alpha are chosen."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold, KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from extract import registry
from extract.errors import HeadError, TaskError
from probes.fitting.fit_options import ignore_epoch
from probes.heads.head_table import HEADS, PlannedRun, layer_head, register_head, resolve_head
from probes.heads.layer_head import ablate, load_head
from probes.heads.linear_probes import RidgeHead, RidgeOptions, RidgeProbe, fit_ridge
from probes.metrics.bootstrap import Resampling, summarise_seeds
from tests.probes.data.planted_numbers import make_number_task, plant_numbers
from tests.probes.heads.evaluating import evaluate, make_setting
from tests.probes.planted_latents import LAYERS, PLANTED, WIDTH, write_latents

ALPHAS, FEW = (0.1, 10.0, 1000.0), Resampling(100)


@pytest.mark.parametrize("shape", [(60, 12), (20, 50)])
def test_coefficients_are_those_of_scikit_learn(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=shape) * rng.uniform(0.01, 9, shape[1]) + 5).astype(np.float32)
    x[:, 3] = 0.1  # a constant feature
    y = rng.normal(size=shape[0]) * 3 + 7
    fit = fit_ridge(torch.from_numpy(x), torch.from_numpy(y), ALPHAS)
    scaled = StandardScaler().fit_transform(x.astype(np.float64))
    for place, alpha in enumerate(ALPHAS):
        oracle = Ridge(alpha=alpha, solver="svd").fit(scaled, y)
        assert [*fit.weight[place], fit.bias] == pytest.approx([*oracle.coef_, oracle.intercept_], abs=1e-8, rel=0)
        for found in (fit.probe(place).predict(torch.from_numpy(x)), fit.predict(torch.from_numpy(x))[place].numpy()):
            np.testing.assert_allclose(found, oracle.predict(scaled), atol=1e-8, rtol=0)


def test_the_planted_layer_is_chosen_and_errors_are_below_those_of_the_mean(tmp_path: Path) -> None:
    task = make_number_task()
    setting = make_setting(plant_numbers(tmp_path / "c.h5", task), task, tmp_path / "heads")
    result = evaluate("ridge-probe", {"pooling": "mean", "alphas": list(ALPHAS)}, setting)
    assert result.chosen["layer"] == PLANTED
    assert [curve.name for curve in result.curves] == ["alpha 0.1", "alpha 10", "alpha 1000"]
    assert result.chosen["score"] == result.selection_score == max(max(curve.values) for curve in result.curves)
    for split in task.splits:
        gold, found = task.numbers(split), result.extras["rmse"][split]
        error, away = result.predictions[split] - gold, gold - task.numbers("train").mean()
        assert found == pytest.approx({"probe": np.sqrt((error**2).mean()), "mean_of_train": np.sqrt((away**2).mean())})
        assert found["probe"] < 0.6 * found["mean_of_train"]
        np.testing.assert_array_equal(result.row_scores[split], -np.abs(error))


@pytest.mark.parametrize(("groups", "how"), [(0, KFold(5, shuffle=True, random_state=0)), (10, GroupKFold(5))])
def test_without_validation_folds_of_train_choose(groups: int, how: Any, tmp_path: Path) -> None:
    task = make_number_task(sizes={"train": 60, "test": 60}, groups=groups)
    cache = plant_numbers(tmp_path / "c.h5", task)
    result = evaluate("ridge-probe", {"alphas": [1.0], "pooling": "mean"}, make_setting(cache, task, tmp_path / "h"))
    assert (result.selection, result.chosen["layer"]) == ("5-fold cross-validation on train", PLANTED)
    assert not result.is_optimistic
    x = cache.gather(cache.rows_of(list(task.rows("train")["text"])), "mean", layers=(PLANTED,))[0].double().numpy()
    y, model = task.numbers("train"), make_pipeline(StandardScaler(), Ridge(1.0))
    expected = np.corrcoef(cross_val_predict(model, x, y, cv=how, groups=task.groups("train")), y)[0, 1]
    assert result.curves[0].values[LAYERS.index(PLANTED)] == pytest.approx(expected, abs=1e-8)
    alone = summarise_seeds(result.predictions["test"][None], task.numbers("test"), metric="pearson", resampling=FEW)
    assert (result.summary["test"]["pearson"] == alone) is (groups == 0)  # the interval is over whole groups


class Rounded(RidgeHead):
    """A user's head of one layer: the ridge probe, in whole numbers."""

    def predict(self, module: Any, layer: int, split: str) -> Any:
        return {metric: rows.round() for metric, rows in super().predict(module, layer, split).items()}


def test_a_user_makes_a_head_of_one_layer_from_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = layer_head("rounded", "numbers", "whole numbers", head=Rounded, build=RidgeProbe, options=RidgeOptions)
    monkeypatch.setattr(registry, "ADDED", {**registry.ADDED})
    monkeypatch.setitem(HEADS, "rounded", entry)
    register_head(entry)
    task = make_number_task()
    setting = make_setting(plant_numbers(tmp_path / "c.h5", task), task, tmp_path / "heads")
    result = evaluate("rounded", {}, setting)
    assert result.name == "rounded"
    plain = evaluate("ridge-probe", {}, setting)
    np.testing.assert_array_equal(result.predictions["test"], plain.predictions["test"].round())
    saved = load_head(tmp_path / "heads" / "rounded")
    assert isinstance(saved.head, RidgeProbe)
    resolved = resolve_head("rounded", {})
    parts = ablate(resolved, setting, result, "validation", lambda _: ignore_epoch)
    assert parts.alone.shape == (1, len(LAYERS), len(task.rows("validation")))


def test_what_cannot_be_fitted_is_refused(tmp_path: Path) -> None:
    resolved, few = resolve_head("ridge-probe", {}), make_number_task(sizes={"train": 60, "test": 60}, groups=15)
    with pytest.raises(TaskError, match="has only train; add train, and validation or test rows"):
        RidgeHead.check(make_number_task(sizes={"train": 20}), resolved, PlannedRun())
    with pytest.raises(HeadError, match="train has 4 rows or groups for 5 folds"):
        RidgeHead.check(few, resolved, PlannedRun())
    with pytest.raises(HeadError, match="a latent is NaN or infinite"):
        fit_ridge(torch.full((8, 2), torch.nan), torch.arange(8.0), (1.0,))
    same = write_latents(tmp_path / "c.h5", few.texts(), {"mean": np.ones((len(LAYERS), 120, WIDTH), np.float32)})
    with pytest.raises(HeadError, match="every ridge probe predicts the same number"):
        evaluate("ridge-probe", {"folds": 4}, make_setting(same, few, tmp_path / "heads"))
    for key, value in (("alphas", []), ("alphas", [0.0]), ("alphas", [1.0, float("inf")]), ("folds", 1)):
        with pytest.raises(HeadError, match="allowed:"):
            resolve_head("ridge-probe", {key: value})
