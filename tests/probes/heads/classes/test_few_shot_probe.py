"""Logistic probes of few rows: the draws of mteb, scikit-learn's fits, and the mean over draws."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from extract.errors import HeadError, TaskError
from probes.heads.head_table import PlannedRun, resolve_head
from probes.heads.layer_head import load_head
from probes.heads.linear_probes import FewShotHead, FewShotOptions, draw_rows
from probes.latents.text_latents import ClassFeatures, channels_of
from probes.metrics.bootstrap import Resampling
from probes.report.predictions import PREDICTIONS, SCORED, write_predictions, write_scored
from probes.runs.compare import ComparedRun, _side_by_side, read_rows
from probes.runs.folder import RunFolder
from probes.runs.task_kinds import KINDS
from tests.probes.data.planted_classes import make_class_task, plant_classes
from tests.probes.heads.evaluating import evaluate, make_setting
from tests.probes.planted_latents import PLANTED

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


def test_all_draws_are_compared_and_not_the_first_alone(tmp_path: Path) -> None:
    """The scores of a comparison are those of the summary, and its permutations swap the predictions of every draw."""
    task = make_class_task()
    cache = plant_classes(tmp_path / "c.h5", task)
    setting = make_setting(cache, task, tmp_path / "heads")
    names = ("few-shot-probe", "nearest-centroid")
    heads = {name: evaluate(name, FEW if name == names[0] else {"pooling": "mean"}, setting) for name in names}
    write_predictions(tmp_path / PREDICTIONS, task, heads, KINDS["classes"].report)
    write_scored(tmp_path / SCORED, heads)
    folder = RunFolder(tmp_path)
    vars(folder)["values"] = {"heads": heads}
    runs = [ComparedRun(name, folder, result) for name, result in heads.items()]
    rows = read_rows(runs)
    assert [len(fits) for fits in rows.predicted] == [3, 1]
    values, resampled = rows.scores(Resampling(50))
    assert values.tolist() == pytest.approx([result.mean("test") for result in heads.values()])
    assert resampled.shape == (2, 50)
    counts, of_sums = rows.counts()
    one, other, mean_of_sums = _side_by_side(counts[0], counts[1], of_sums)
    assert mean_of_sums(one.sum(0)) == pytest.approx(values[0])
    assert mean_of_sums(other.sum(0)) == pytest.approx(values[1])


def test_what_cannot_be_chosen_or_fitted_is_refused(tmp_path: Path) -> None:
    task = make_class_task(sizes={"train": 60, "test": 30})
    cache = plant_classes(tmp_path / "c.h5", task)
    where = make_setting(cache, task, tmp_path / "heads")
    with pytest.raises(TaskError, match="no split 'validation' to choose among"):
        evaluate("few-shot-probe", FEW, where)
    one = evaluate("few-shot-probe", {**FEW, "layers": PLANTED}, where)
    assert (one.selection, one.chosen["layer"]) == ("nothing to choose", PLANTED)
    with pytest.raises(TaskError, match="'validation', on which head 'few-shot-probe' chooses its plan"):
        FewShotHead.check(task, resolve_head("few-shot-probe", {}), PlannedRun(chooses_plan=True))
    with pytest.raises(HeadError, match="draws is 0; allowed: a whole number of at least 1"):
        replace(FewShotOptions(), draws=0)
