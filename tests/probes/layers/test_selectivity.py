"""Selectivity: what a planted layer tells beyond labels that mean nothing, and nothing for random features."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import UnknownNameError
from extract.store.cache import LatentCache
from probes.data.class_task import ClassTask
from probes.fitting.fit_options import ignore_epoch
from probes.heads.head_table import HEADS, resolve_head
from probes.layers.findings import ViewCurve
from probes.layers.study import CONTROLS, HeadStudy, StudyOptions
from probes.runs.task_kinds import KINDS
from tests.probes.data.planted_classes import make_class_task, plant_classes
from tests.probes.heads.evaluating import make_setting
from tests.probes.planted_latents import LAYERS, PLANTED, WIDTH, write_latents

pytestmark = pytest.mark.long


def measure(cache: LatentCache, task: ClassTask, folder: Path, **more: Any) -> tuple[ViewCurve, ViewCurve]:
    setting = make_setting(cache, task, folder)
    resolved = resolve_head("logistic-probe", {"pooling": "mean", "Cs": (1.0,)})
    result = HEADS["logistic-probe"].evaluate(resolved, setting, lambda _: ignore_epoch)
    options = StudyOptions(split="test", n_resamples=200)
    study = HeadStudy(resolved, setting, result, options, KINDS[task.kind], lambda _: ignore_epoch)
    return study.selectivity(**more)


def test_the_planted_layer_alone_is_selective(tmp_path: Path) -> None:
    task = make_class_task()
    control, gain = measure(plant_classes(tmp_path / "c.h5", task), task, tmp_path, control="text")
    assert (control.view, gain.view, control.name) == ("control", "selectivity", "text")
    place = LAYERS.index(PLANTED)
    assert int(np.argmax(gain.values)) == place
    assert gain.low[place] > 0.2
    others = [k for k in range(len(LAYERS)) if k != place]
    assert all(gain.low[k] <= 0 for k in others)
    assert all(control.values[k] < 0.6 for k in range(len(LAYERS)))
    assert control.note == CONTROLS["text"]


def test_random_features_are_not_selective(tmp_path: Path) -> None:
    task = make_class_task()
    texts = task.texts()
    latents = np.random.default_rng(0).normal(size=(len(LAYERS), len(texts), WIDTH)).astype(np.float32)
    _, gain = measure(write_latents(tmp_path / "r.h5", texts, {"mean": latents}), task, tmp_path, control="shuffled")
    assert all(low <= 0 <= high for low, high in zip(gain.low, gain.high, strict=True))
    assert abs(np.mean(gain.values)) < 0.1
    assert gain.spread == ()


def test_an_unknown_control_is_refused(tmp_path: Path) -> None:
    task = make_class_task()
    with pytest.raises(UnknownNameError, match="unknown control 'words'"):
        measure(plant_classes(tmp_path / "c.h5", task), task, tmp_path, control="words")
