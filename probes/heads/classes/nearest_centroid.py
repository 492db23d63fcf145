"""Classes by the nearest class mean: no training but the means, and the choice of layer and distance."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extract.errors import TaskError
from probes.fitting.saved import fit_or_load
from probes.heads.classes.class_head import ClassHead, check_features, predict_split
from probes.heads.classes.results import class_result, training_codes, training_names
from probes.heads.entries import Purpose
from probes.heads.layerwise import best_place, channels_read, describe_choice, record_layer, record_surface
from probes.heads.options import HeadOptions
from probes.heads.result import HeadResult
from probes.heads.setting import Setting, Watch
from probes.latents.class_features import ClassFeatures
from probes.latents.standardise import standardise_chunks
from probes.metrics.class_metrics import score_classes
from probes.tasks.classes.task import ClassTask

NAME = "nearest-centroid"
KINDS = ("cosine", "euclidean")


class NearestCentroid(ClassHead):
    """The class whose mean is nearest, on standardised features of one layer.

    Args:
        width: Dimension `D` of a feature.
        class_names: Names of the `K` classes, in the order of the outputs.
        kind: A name from `KINDS`: how near is measured.
    """

    centroids: Tensor

    def __init__(self, width: int, class_names: Sequence[str], *, kind: str) -> None:
        super().__init__(width, class_names)
        self.kind = kind
        self.register_buffer("centroids", torch.zeros(len(class_names), width))

    def fit(self, features: Float[Tensor, "N D"], codes: Int[Tensor, " N"]) -> "NearestCentroid":
        """Take mean and scale of training rows, and the mean of each class, of which each has a row."""
        found = standardise_chunks([features[None]])
        self.mean.copy_(found.mean[0])
        self.scale.copy_(found.scale[0])
        rows = self.standardise(features)
        self.centroids.copy_(torch.stack([rows[codes == k].mean(0) for k in range(len(self.class_names))]))
        return self

    def forward(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Measure how near every class mean is: its cosine, or its Euclidean distance with a minus."""
        rows = self.standardise(features)
        if self.kind == "euclidean":
            return -torch.cdist(rows, self.centroids, compute_mode="donot_use_mm_for_euclid_dist")
        return nn.functional.normalize(rows, dim=1) @ nn.functional.normalize(self.centroids, dim=1).T

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {**super().arguments(), "kind": self.kind}


def evaluate_centroids(resolved: HeadOptions, setting: Setting, watch: Watch) -> HeadResult:
    """Take the class means of every layer on train, choose layer and distance on validation, and read test once."""
    del watch  # nothing has epochs
    task = setting.task
    check_centroids(task, resolved, Purpose(setting.protocol))
    channels = channels_read(resolved, setting)
    features = ClassFeatures(setting.cache, task, channels)
    kept = fit_or_load(
        setting.folder / NAME,
        setting.identify(NAME, channels.pooling, list(channels.names)),
        lambda: _fit(features),
        lambda record: NearestCentroid(**record["arguments"]),
        cache=setting.cache,
    )
    place = kept.record["place"]
    return class_result(
        resolved,
        setting,
        {split: predict_split(features, kept.head, layer=place[0], split=split) for split in task.splits},
        **describe_choice(
            channels,
            kept.record["surface"],
            place,
            metric=task.metric,
            selection="validation",
            option="kind",
            values=KINDS,
        ),
    )


def check_centroids(task: ClassTask, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse with a TaskError a task without a train split, or a validation split to choose on."""
    del purpose
    for split, instead in (("train", ""), ("validation", ", or use logistic-probe")):
        if split not in task.splits:
            raise TaskError(
                f"task {task.name!r} has no split {split!r}, which head {resolved.name!r} needs; add rows "
                f"to it{instead}."
            )


def _fit(features: ClassFeatures) -> tuple[NearestCentroid, dict[str, Any]]:
    """Fit every layer and distance, and keep the best."""
    task, codes = features.task, training_codes(features.task)
    names, gold = training_names(task), task.labels("validation")
    heads: list[list[NearestCentroid]] = []
    scores: list[Float[np.ndarray, " 2"]] = []
    for chunk in features.chunks(["train", "validation"]):
        for split, rows in chunk.items():
            check_features(rows, split=split, first_layer=len(heads))
        for train, validation in zip(chunk["train"], chunk["validation"], strict=True):
            tried = [NearestCentroid(features.width, names, kind=kind).fit(train, codes) for kind in KINDS]
            found = np.stack([task.training_classes[head(validation).argmax(-1).numpy()] for head in tried])
            scores.append(np.asarray(score_classes(found, gold, metric=task.metric)))
            heads.append(tried)
    surface = np.stack(scores)
    layer, kind = best_place(surface)
    return heads[layer][kind], record_layer(
        NAME,
        features.channels,
        task,
        layer=layer,
        is_pairs=task.is_pairs,
        place=[layer, kind],
        surface=record_surface(surface),
    )
