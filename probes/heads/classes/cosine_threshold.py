"""Two classes of text pairs by a threshold on a cosine: no training but the choice of layer, kind and threshold."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from extract.errors import HeadError
from extract.store.cache import LatentCache
from probes.heads.classes.logistic_probe import ProbeResult, describe_optimism, summarise_predictions
from probes.heads.classes.solving import check_features
from probes.latents.channels import channels_of
from probes.latents.class_features import ClassFeatures
from probes.latents.standardise import fit_standardiser
from probes.metrics.class_metrics import score_classes
from probes.networks.pair_head import cosine
from probes.tasks.classes.audit import why_optimistic
from probes.tasks.classes.task import ClassTask

KINDS = ("raw", "standardised")


@dataclass(frozen=True)
class ThresholdOptions:
    """Options of the head `cosine-threshold`."""

    choose_on: str = "validation"
    """The split that decides layer, kind and threshold; `test` is what LBW's released code does, and optimistic."""


def evaluate_threshold(
    cache: LatentCache, task: ClassTask, options: ThresholdOptions, *, pooling: str, layers: tuple[str, ...] = ("all",),
    device: str = "cpu", n_resamples: int = 1000, folder: Path | None = None,
) -> ProbeResult:  # fmt: skip
    """Choose layer, kind (raw or standardised cosine) and threshold on one split, and score every split.

    Class 1 is that of the higher cosines, whichever of the two it is on the choosing split.

    Args:
        cache: Latents of every text of the task.
        task: A task of text pairs with two classes.
        options: Which split decides.
        pooling: Which pooling.
        layers: A selection of the cache's layers.
        device: Not used; the cosines are cheap.
        n_resamples: Bootstrap resamples behind every interval.
        folder: Not used; there are no weights to keep.

    Returns:
        Scores with the curve over layers, and the predictions; `head` is None.

    Raises:
        HeadError: More than two classes, or a split that the task does not have.
    """
    del device, folder
    check_threshold(task, options)
    features = ClassFeatures(cache, task, channels_of(cache, pooling, layers))
    cosines = {split: _cosines(features, split) for split in task.splits}
    gold = task.labels(options.choose_on)
    classes = task.training_classes
    found = [
        [_best_threshold(row, gold, metric=task.metric, classes=classes) for row in rows]
        for rows in cosines[options.choose_on]
    ]
    curve = np.array([[best[0] for best in rows] for rows in found])
    kind, layer = (int(k) for k in np.unravel_index(int(np.argmax(curve)), curve.shape))
    score, threshold, above = found[kind][layer]
    predictions = {
        split: classes[np.where(values[kind, layer] > threshold, above, 1 - above)] for split, values in cosines.items()
    }
    names = features.channels.names
    scores: dict[str, Any] = {
        "pooling": pooling,
        "layers": list(names),
        "options": asdict(options),
        "selection": options.choose_on,
        **describe_optimism("; ".join(filter(None, (_chosen_on_test(options), why_optimistic(task))))),
        "curve": {name: curve[k].tolist() for k, name in enumerate(KINDS)},
        "chosen": {"layer": names[layer], "kind": KINDS[kind], "threshold": threshold, "score": score},
        **summarise_predictions(task, predictions, n_resamples=n_resamples),
    }
    return ProbeResult(scores, predictions, None)


def check_threshold(task: ClassTask, options: ThresholdOptions) -> None:
    """Refuse a task without two classes to tell apart, or a choosing split that it lacks; needs no latents.

    Args:
        task: The task.
        options: Which split decides.

    Raises:
        HeadError: Names what was got.
    """
    if len(task.training_classes) != 2:
        raise HeadError(
            f"cosine-threshold got task {task.name!r} with {len(task.training_classes)} classes in train; allowed: 2. "
            "Use logistic-probe."
        )
    if options.choose_on not in task.splits:
        raise HeadError(
            f"choose_on is {options.choose_on!r}; allowed: a split of task {task.name!r}, which are "
            f"{', '.join(task.splits)}."
        )


def _chosen_on_test(options: ThresholdOptions) -> str:
    return "layer, kind and threshold are chosen on test" if options.choose_on == "test" else ""


def _cosines(features: ClassFeatures, split: str) -> Float[np.ndarray, "2 L N"]:
    """Compute raw and standardised cosines of every layer, standardised by the training texts."""
    training = torch.cat(features.rows("train"))
    standardiser = fit_standardiser(features.cache, training, channels=features.channels)
    mean, scale = standardiser.mean.unsqueeze(1), standardiser.scale.unsqueeze(1)
    a, b = (features.channels.gather(features.cache, rows) for rows in features.rows(split))
    for side in (a, b):
        check_features(side, split=split, first_layer=0)
    return torch.stack([cosine(a, b), cosine((a - mean) / scale, (b - mean) / scale)]).numpy()


def _best_threshold(
    values: Float[np.ndarray, " N"], gold: Int[np.ndarray, " N"], *, metric: str, classes: Int[np.ndarray, " 2"]
) -> tuple[float, float, int]:
    """Try every gap between neighbouring values, with either class above it.

    Returns:
        Score, threshold, and which of the two classes is above the threshold.
    """
    ordered = np.unique(values)
    cuts = np.concatenate([[ordered[0] - 1.0], (ordered[1:] + ordered[:-1]) / 2])
    above = (values[None, :] > cuts[:, None]).astype(np.int64)
    scores = np.stack([score_classes(classes[side], gold, metric=metric) for side in (1 - above, above)])
    side, place = np.unravel_index(int(np.argmax(scores)), scores.shape)
    return float(scores[side, place]), float(cuts[place]), int(side)
