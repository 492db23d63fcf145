"""Classes planted in one layer of synthetic latents: no decoder, no text that means anything."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from extract.store.cache import LatentCache
from probes.data.class_task import ClassTask
from probes.data.table_files import CheckedRow
from tests.probes.planted_latents import LAYERS, PLANTED, WIDTH, write_latents

SIZES = {"train": 150, "validation": 60, "test": 60}


def row_of(text: str, label: str, split: str | None = None) -> CheckedRow:
    return CheckedRow({"text": text, "label": label}, split)


def make_class_task(
    *,
    sizes: Mapping[str, int] = SIZES,
    n_classes: int = 3,
    is_pairs: bool = False,
    shuffled: Sequence[str] = (),
    groups: int = 0,
) -> ClassTask:
    """Make texts of balanced classes; the labels of the `shuffled` splits say nothing."""
    columns: dict[str, dict[str, Any]] = {}
    start = 0
    for split, n in sizes.items():
        labels = np.arange(n) % n_classes
        if split in shuffled:
            labels = np.random.default_rng(7).permutation(labels)
        texts = (
            {"text1": [f"{split} {i} left" for i in range(n)], "text2": [f"{split} {i} right" for i in range(n)]}
            if is_pairs
            else {"text": [f"{split} {i}" for i in range(n)]}
        )
        columns[split] = {**texts, "label": labels.tolist(), "row": list(range(start, start + n))}
        if groups:
            columns[split]["group"] = [f"{split} group {i // groups}" for i in range(n)]
        start += n
    names = tuple(f"class {k}" for k in range(n_classes))
    return ClassTask("planted", ClassTask.hold(columns), names, ("accuracy", "f1-macro"), "made up")


def with_new_class(task: ClassTask) -> ClassTask:
    """Put a third of the test rows into a class that train lacks and that comes first: every number moves by 1."""
    columns = {split: rows.to_dict() for split, rows in task.splits.items()}
    for split, values in columns.items():
        values["label"] = [
            0 if split == "test" and i % 3 == 0 else label + 1 for i, label in enumerate(values["label"])
        ]
    return replace(task, splits=ClassTask.hold(columns), class_names=("a new class", *task.class_names))


def plant_classes(path: Path, task: ClassTask, *, strength: float = 1.2, broken: str = "") -> LatentCache:
    """Write latents that follow the class at one layer, and noise elsewhere; NaN for the text `broken`.

    For pairs, texts of class 1 are near each other at that layer, and those of class 0 are not.
    """
    rng = np.random.default_rng(3)
    texts = task.texts()
    spot = {text: i for i, text in enumerate(texts)}
    mean = rng.normal(size=(len(LAYERS), len(texts), WIDTH))
    centres = strength * rng.normal(size=(task.n_classes, WIDTH))
    k = LAYERS.index(PLANTED)
    for split, rows in task.splits.items():
        for i in range(len(rows)):
            label = int(rows["row"][i] - rows["row"][0]) % task.n_classes  # what the label was before any shuffling
            if task.is_pairs:
                left, right = (spot[f"{split} {i} {side}"] for side in ("left", "right"))
                mean[k, right] = mean[k, right] * 0.5 + label * mean[k, left]
            else:
                mean[k, spot[f"{split} {i}"]] += centres[label]
    if broken:
        mean[:, spot[broken]] = np.nan
    last = rng.normal(size=mean.shape)
    return write_latents(path, texts, {"mean": mean.astype(np.float32), "last": last.astype(np.float32)})
