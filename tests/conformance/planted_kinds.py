"""Planted latents for each kind of task: what the suite needs to know of a kind, and of nothing smaller."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from extract.store.cache import LatentCache
from probes.data.task import Task
from probes.fitting.saved_fits import SavedHead
from probes.heads.layer_head import FitContext
from probes.heads.word_fits import tag_scorer
from probes.latents.text_latents import ClassFeatures, PairLatents, channels_of
from probes.latents.word_latents import WordLatents
from probes.metrics.prediction_metrics import read_calibration
from tests.probes import planted_latents as pairs
from tests.probes.data import planted_classes as classes
from tests.probes.data import planted_numbers as numbers
from tests.probes.heads.words import planted_words as words
from tests.probes.heads.zero_shot import planted_tasks as bare

ALL = ("train", "validation", "test")
Predict = Callable[[Sequence[SavedHead[Any]], FitContext, str, Mapping[str, Any]], NDArray[Any]]


@dataclass(frozen=True)
class PlantedKind:
    """How heads of one kind of task are tried.

    Attributes:
        tasks: Makes sample tasks, from the splits whose gold is shuffled; a head is tried on the first that it takes.
        plant: Writes latents that tell the gold of the unshuffled task.
        quick: Values of options that make a fit quick; a head gets those that it has.
        predict: Predicts a split by heads read back from disk, given what the result chose.
        chance: Bounds of the test score when gold is shuffled; what is planted must score higher.
        n_predictions: Counts what is predicted of a split.
    """

    tasks: Callable[[Sequence[str]], tuple[Task, ...]]
    plant: Callable[[Path, Any], LatentCache]
    quick: Mapping[str, Any]
    predict: Predict
    chance: tuple[float, float]
    n_predictions: Callable[[Any, str], int] = lambda task, split: len(task.splits[split])
    predicts_scores: bool = False
    """Whether what is predicted of a row is its score, which depends on gold."""


def fingerprint(cache: LatentCache) -> str:
    """Digest the latents of a cache, wherever they are."""
    if isinstance(cache, words.PlantedCache):
        return sha256(b"".join(each.numpy().tobytes() for each in cache.latents.values())).hexdigest()
    return sha256(cache.path.read_bytes()).hexdigest()


def _predict_pairs(
    saved: Sequence[SavedHead[Any]], setting: FitContext, split: str, _: Mapping[str, Any]
) -> NDArray[Any]:
    data = PairLatents(setting.cache, setting.task, pooling="mean")
    [batch] = data.loader(split)  # whole splits are read at once, as in an evaluation
    with torch.no_grad():
        found = [read_calibration(each.record["calibration"])(each.head(batch.a, batch.b).numpy()) for each in saved]
    return np.asarray(np.mean(found, axis=0))


def _predict_classes(
    saved: Sequence[SavedHead[Any]], setting: FitContext, split: str, _: Mapping[str, Any]
) -> NDArray[Any]:
    [each] = saved
    channels = channels_of(setting.cache, each.record.pooling, each.record.layers)
    features = ClassFeatures(setting.cache, setting.task, channels)
    if each.head.compares_texts:
        inputs = [channels.gather(setting.cache, rows)[0] for rows in features.rows(split)]
    else:
        inputs = [chunk[split][0] for chunk in features.chunks([split])]
    return np.array([setting.task.class_names.index(name) for name in each.head.predict(*inputs)])


def _predict_numbers(
    saved: Sequence[SavedHead[Any]], setting: FitContext, split: str, _: Mapping[str, Any]
) -> NDArray[Any]:
    [each] = saved
    channels = channels_of(setting.cache, each.record.pooling, each.record.layers)
    [latents] = channels.gather(setting.cache, setting.cache.rows_of(list(setting.task.rows(split)["text"])))
    return np.asarray(each.head(latents).numpy())


def _predict_words(
    saved: Sequence[SavedHead[Any]], setting: FitContext, split: str, chosen: Mapping[str, Any]
) -> NDArray[Any]:
    data = WordLatents(setting.cache, setting.task)
    rows = data.split(split)
    latents = setting.cache.latents["mean"][:, rows.positions[rows.has_latent]]  # type: ignore[attr-defined]
    with torch.no_grad():
        logits = saved[0].head(latents)
    probe = words.LAYERS.index(chosen["layer"]) if len(logits) > 1 else 0
    found = np.full((len(rows.has_latent), logits.shape[2]), np.nan, np.float32)
    found[rows.has_latent] = logits[probe].float().numpy()
    return tag_scorer(data, split).decode(found, chosen["decoding"])


PLANTED: dict[str, PlantedKind] = {
    "pairs": PlantedKind(
        lambda shuffled: (pairs.make_task(shuffled=shuffled),),
        lambda folder, task: pairs.plant(folder / "c.h5", task),
        {
            "max_epochs": 8,
            "learning_rate": 3e-3,
            "batch_size": 40,
            "bottleneck": 24,
            "hidden": 32,
            "dropout": 0.1,
            "pooling": "mean",
        },
        _predict_pairs,
        (-0.35, 0.35),
    ),
    "classes": PlantedKind(
        lambda shuffled: (
            classes.make_class_task(sizes={"train": 150, "validation": 60, "test": 90}, shuffled=shuffled),
            classes.make_class_task(
                sizes={"train": 150, "validation": 60, "test": 90}, shuffled=shuffled, n_classes=2, is_pairs=True
            ),
        ),
        lambda folder, task: classes.plant_classes(folder / "c.h5", task),
        {"Cs": [0.1, 10.0], "pooling": "mean"},
        _predict_classes,
        (0.15, 0.66),
    ),
    "numbers": PlantedKind(
        lambda shuffled: (numbers.make_number_task(shuffled=shuffled),),
        lambda folder, task: numbers.plant_numbers(folder / "c.h5", task),
        {"alphas": [1.0, 100.0], "pooling": "mean"},
        _predict_numbers,
        (-0.35, 0.35),
    ),
    "words": PlantedKind(
        lambda shuffled: (words.make_task(shuffled=shuffled),),
        # A few words have no latent. Most tags begin a span of one of two types, so that chance is high.
        lambda _, task: words.plant(task, noise=0.8, cut=(1, 5)),
        {
            "learning_rate": 1e-2,
            "max_epochs": 4,
            "epoch_steps": 1,
            "batch_size": 8,
            "chunk_words": 60,
            "pooling": "mean",
        },
        _predict_words,
        (0.0, 0.47),
        lambda task, split: sum(map(len, task.splits[split]["words"])),
    ),
    **{
        kind: PlantedKind(
            partial(lambda make, shuffled: (make(shuffled=shuffled),), make),
            bare.plant_task,
            {"pooling": "mean"},
            bare.predict,
            chance,
            predicts_scores=kind in ("retrieval", "reranking", "bitext"),
        )
        for kind, (make, chance) in bare.KINDS.items()
    },
}
"""Kind of task to how its heads are tried. A new kind needs a row here; a new head of a known kind needs none."""
