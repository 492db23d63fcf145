"""The nearest centroid: scikit-learn's, and the cosine by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import neighbors
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import StandardScaler

from extract.errors import TaskError
from probes.heads.class_heads import KINDS, CentroidHead, NearestCentroid
from probes.heads.head_table import PlannedRun, resolve_head
from tests.probes.data.planted_classes import make_class_task, plant_classes
from tests.probes.heads.evaluating import evaluate, make_setting

NAMES = ("a", "b", "c")


@pytest.mark.parametrize("kind", KINDS)
def test_it_predicts_what_scikit_learn_predicts(kind: str) -> None:
    rng = np.random.default_rng(0)
    codes = np.arange(90) % 3
    rows = rng.normal(size=(180, 6)) * [1, 5, 1, 30, 1, 1] + 4  # scales that would decide alone if they were left
    rows[:90] += rng.normal(size=(3, 6))[codes]
    train, test = rows[:90], rows[90:]
    scaler = StandardScaler().fit(train)
    z, other = scaler.transform(train), scaler.transform(test)
    wanted = neighbors.NearestCentroid().fit(z, codes).predict(other)
    if kind == "cosine":
        wanted = cosine_similarity(other, [z[codes == k].mean(0) for k in range(3)]).argmax(1)
    features = torch.from_numpy(rows).float()
    head = NearestCentroid(6, NAMES, kind=kind).fit(features[:90], torch.from_numpy(codes))
    assert head.predict(features[90:]) == [NAMES[code] for code in wanted]
    assert len(set(wanted)) == 3


def test_every_layer_and_distance_is_on_the_curves(tmp_path: Path) -> None:
    task = make_class_task()
    setting = make_setting(plant_classes(tmp_path / "c.h5", task), task, tmp_path / "heads")
    found = evaluate("nearest-centroid", {}, setting)
    assert [curve.name for curve in found.curves] == list(KINDS)
    best = max(max(curve.values) for curve in found.curves)
    assert found.chosen["score"] == best == pytest.approx(found.mean("validation"))
    [curve] = [curve for curve in found.curves if curve.name == found.chosen["kind"]]
    assert curve.values[found.layers.index(found.chosen["layer"])] == best


def test_a_task_without_validation_is_refused() -> None:
    task = make_class_task(sizes={"train": 30, "test": 30})
    with pytest.raises(
        TaskError, match=r"no split 'validation', which head 'nearest-centroid' needs; .*, or use logistic-probe\."
    ):
        CentroidHead.check(task, resolve_head("nearest-centroid", {}), PlannedRun())
