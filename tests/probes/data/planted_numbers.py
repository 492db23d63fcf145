"""Numbers planted in one layer of synthetic latents: no decoder, no text that means anything."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from extract.store.cache import LatentCache
from probes.data.class_task import NumberTask
from tests.probes.planted_latents import LAYERS, PLANTED, WIDTH, write_latents

SIZES = {"train": 90, "validation": 60, "test": 60}


def number_task(columns: Mapping[str, Mapping[str, Any]]) -> NumberTask:
    return NumberTask("planted", NumberTask.hold(columns), "made up")


def make_number_task(*, sizes: Mapping[str, int] = SIZES, shuffled: Sequence[str] = (), groups: int = 0) -> NumberTask:
    """Make texts with numbers from 1 to 5; those of the `shuffled` splits say nothing."""
    columns: dict[str, dict[str, Any]] = {}
    for split, n in sizes.items():
        numbers = 1 + np.arange(n) % 5 + 0.25 * (np.arange(n) % 3)
        if split in shuffled:
            numbers = np.random.default_rng(7).permutation(numbers)
        columns[split] = {"text": [f"{split} {i}" for i in range(n)], "number": numbers.tolist()}
        if groups:
            columns[split]["group"] = [f"{split} group {i // groups}" for i in range(n)]
    return number_task(columns)


def plant_numbers(path: Path, task: NumberTask) -> LatentCache:
    """Write latents whose first feature follows the unshuffled number at one layer, and noise elsewhere."""
    rng, texts = np.random.default_rng(3), task.texts()
    latents = rng.normal(size=(2, len(LAYERS), len(texts), WIDTH))
    numbers = np.array([int(text.split()[1]) for text in texts]) % 5
    latents[0, LAYERS.index(PLANTED), :, 0] = 0.5 * latents[0, 0, :, 0] + numbers
    return write_latents(path, texts, dict(zip(("mean", "last"), latents.astype(np.float32), strict=True)))
