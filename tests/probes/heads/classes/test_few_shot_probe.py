"""Logistic probes of few rows: the draws of mteb, scikit-learn's fits, and the mean over draws."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from extract.errors import HeadError, TaskError
from probes.heads.classes.few_shot_probe import FewShotOptions, check_few_shot, draw_rows
from probes.heads.entries import Purpose
from probes.heads.registry import resolve_head
from probes.heads.saved import load_head
from probes.latents.channels import channels_of
from probes.latents.class_features import ClassFeatures
from tests.probes.heads.evaluating import evaluate, make_setting
from tests.probes.planted_latents import PLANTED
from tests.probes.tasks.classes.planted_classes import make_class_task, plant_classes

FEW = {"draws": 3, "rows": 6, "pooling": "mean"}


def test_every_draw_has_the_same_rows_of_each_class_and_is_another() -> None:
    codes = np.array([0] * 50 + [1] * 20 + [2] * 5)
    draws = draw_rows(codes, FewShotOptions())
    assert len(draws) == 10
    for rows in draws:
        assert np.bincount(codes[rows]).tolist() == [8, 8, 5]
        assert len(set(rows.tolist())) == len(rows)
    assert len({tuple(sorted(rows.tolist())) for rows in draws}) == 10
    assert all(np.array_equal(a, b) for a, b in zip(draws, draw_rows(codes, FewShotOptions()), strict=True))
    assert not np.array_equal(draws[0], draw_rows(codes, FewShotOptions(seed=1))[0])


def test_scores_are_the_mean_over_draws_of_what_scikit_learn_fits(tmp_path: Path) -> None:
    task = make_class_task()
    cache = plant_classes(tmp_path / "c.h5", task)
    found = evaluate("few-shot-probe", FEW, make_setting(cache, task, tmp_path / "heads"))
    assert found.chosen["layer"] == PLANTED
    assert found.mean("validation") == pytest.approx(found.chosen["score"])
    features = ClassFeatures(cache, task, channels_of(cache, "mean", (PLANTED,)))
    (chunk,) = features.chunks(["train", "test"])
    train, test, gold = chunk["train"][0].numpy(), chunk["test"][0].numpy(), task.labels("train")
    options = FewShotOptions(draws=3, rows=6)
    fits = [LogisticRegression(max_iter=1000).fit(train[rows], gold[rows]) for rows in draw_rows(gold, options)]
    wanted = [float((fit.predict(test) == task.labels("test")).mean()) for fit in fits]
    assert found.summary["test"][task.metric].values == pytest.approx(wanted, abs=0.02)
    np.testing.assert_array_equal(found.predictions["test"], fits[0].predict(test))
    head: Any = load_head(tmp_path / "heads" / "few-shot-probe").head
    assert len(head.predict(chunk["test"][0])) == len(test)


def test_what_cannot_be_chosen_or_fitted_is_refused(tmp_path: Path) -> None:
    task = make_class_task(sizes={"train": 60, "test": 30})
    cache = plant_classes(tmp_path / "c.h5", task)
    where = make_setting(cache, task, tmp_path / "heads")
    with pytest.raises(TaskError, match="no split 'validation' to choose among"):
        evaluate("few-shot-probe", FEW, where)
    one = evaluate("few-shot-probe", {**FEW, "layers": PLANTED}, where)
    assert (one.selection, one.chosen["layer"]) == ("nothing to choose", PLANTED)
    with pytest.raises(TaskError, match="'validation', on which head 'few-shot-probe' chooses its plan"):
        check_few_shot(task, resolve_head("few-shot-probe", {}), Purpose(chooses_plan=True))
    with pytest.raises(HeadError, match="draws is 0; allowed: a whole number of at least 1"):
        replace(FewShotOptions(), draws=0)
