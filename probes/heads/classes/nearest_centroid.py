"""Classes by the nearest class mean: no training but the means, and the choice of layer and distance."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extract.digest import digest_json
from extract.errors import TaskError
from probes.fitting.saved import fit_or_load
from probes.heads.classes.picking import predict_split
from probes.heads.classes.results import class_result, training_names
from probes.heads.classes.solving import check_features, training_codes
from probes.heads.entries import Purpose
from probes.heads.options import HeadOptions
from probes.heads.result import Curve, HeadResult
from probes.heads.setting import Setting, Watch
from probes.latents.channels import channels_of
from probes.latents.class_features import ClassFeatures
from probes.latents.standardise import standardise_chunks
from probes.metrics.class_metrics import score_classes
from probes.tasks.classes.task import ClassTask

NAME = "nearest-centroid"
KINDS = ("cosine", "euclidean")


class NearestCentroid(nn.Module):
    """The class whose mean is nearest, on standardised features of one layer.

    Args:
        width: Dimension `D` of a feature.
        class_names: Names of the `K` classes, in the order of the outputs.
        kind: A name from `KINDS`: how near is measured.
    """

    compares_texts: ClassVar[bool] = False
    mean: Tensor
    scale: Tensor
    centroids: Tensor

    def __init__(self, width: int, class_names: Sequence[str], *, kind: str) -> None:
        super().__init__()
        self.width, self.class_names, self.kind = width, tuple(class_names), kind
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("centroids", torch.zeros(len(class_names), width))

    def fit(self, features: Float[Tensor, "N D"], codes: Int[Tensor, " N"]) -> "NearestCentroid":
        """Take mean and scale of training rows, and the mean of each class, of which each has a row."""
        found = standardise_chunks([features[None]])
        self.mean.copy_(found.mean[0])
        self.scale.copy_(found.scale[0])
        standardised = self._standardised(features)
        self.centroids.copy_(torch.stack([standardised[codes == k].mean(0) for k in range(len(self.class_names))]))
        return self

    def _standardised(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        return (features - self.mean) / self.scale

    def forward(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Measure how near every class mean is: its cosine, or its Euclidean distance with a minus."""
        rows = self._standardised(features)
        if self.kind == "euclidean":
            return -torch.cdist(rows, self.centroids, compute_mode="donot_use_mm_for_euclid_dist")
        return nn.functional.normalize(rows, dim=1) @ nn.functional.normalize(self.centroids, dim=1).T

    def predict(self, features: Float[Tensor, "N D"]) -> list[str]:
        """Classify raw features of the head's layer and pooling; pairs as `join_pair` joins them.

        Args:
            features: `(N, D)` features.

        Returns:
            `N` class names.

        Raises:
            HeadError: A feature that is NaN or infinite.
        """
        check_features(features[None], split="to predict", first_layer=0)
        return [self.class_names[code] for code in self(features).argmax(-1).tolist()]

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {"width": self.width, "class_names": list(self.class_names), "kind": self.kind}


def evaluate_centroids(resolved: HeadOptions, setting: Setting, watch: Watch) -> HeadResult:
    """Take the class means of every layer on train, choose layer and distance on validation, and read test once.

    Args:
        resolved: Its options.
        setting: What all heads of the run share.
        watch: Not used: nothing has epochs.

    Returns:
        The result, with a curve over layers for each distance.

    Raises:
        TaskError: The task has no validation split.
        HeadError: A feature that is NaN or infinite.
    """
    del watch
    task, cache = setting.task, setting.cache
    check_centroids(task, resolved, Purpose(setting.protocol))
    features = ClassFeatures(cache, task, channels_of(cache, resolved.pooling_of(cache.poolings), resolved.layers))
    pooling, names = features.channels.pooling, features.channels.names
    fit_id = digest_json(
        [NAME, pooling, list(names), cache.manifest.id, task.without_test().digest(), cache.identity["versions"]]
    )
    kept = fit_or_load(
        setting.folder / NAME, fit_id, lambda: _fit(features), lambda record: NearestCentroid(**record["arguments"])
    )
    layer, kind = kept.record["place"]
    surface = kept.record["surface"]
    return class_result(
        resolved, setting,
        {split: predict_split(features, kept.head, layer=layer, split=split) for split in task.splits},
        pooling=pooling,
        layers=names,
        options={},
        selection="validation",
        chosen={"layer": names[layer], "kind": KINDS[kind], "score": surface[layer][kind]},
        curves=tuple(
            Curve(name, "validation", task.metric, column)
            for name, column in zip(KINDS, zip(*surface, strict=True), strict=True)
        ),
    )  # fmt: skip


def check_centroids(task: ClassTask, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse a task without the splits that class means are taken of, and layer and distance chosen on.

    Raises:
        TaskError: It has no train or no validation split.
    """
    del purpose
    for split, instead in (("train", ""), ("validation", ", or use logistic-probe")):
        if split not in task.splits:
            raise TaskError(
                f"task {task.name!r} has no split {split!r}, which head {resolved.name!r} needs; add rows "
                f"to it{instead}."
            )


def _fit(features: ClassFeatures) -> tuple[NearestCentroid, dict[str, Any]]:
    """Fit every layer and distance; keep the best, of equals the lowest layer."""
    task, codes = features.task, training_codes(features.task)
    names, gold = training_names(task), task.labels("validation")
    heads: list[NearestCentroid] = []
    surface: list[list[float]] = []
    for chunk in features.chunks(["train", "validation"]):
        for split, rows in chunk.items():
            check_features(rows, split=split, first_layer=len(surface))
        for train, validation in zip(chunk["train"], chunk["validation"], strict=True):
            tried = [NearestCentroid(features.width, names, kind=kind).fit(train, codes) for kind in KINDS]
            found = np.stack([task.training_classes[head(validation).argmax(-1).numpy()] for head in tried])
            surface.append(np.asarray(score_classes(found, gold, metric=task.metric)).tolist())
            heads += tried
    layer, kind = divmod(int(np.argmax(surface)), len(KINDS))
    return heads[layer * len(KINDS) + kind], {
        "name": NAME,
        "pooling": features.channels.pooling,
        "layers": [features.channels.names[layer]],
        "is_pairs": task.is_pairs,
        "task": {"name": task.name, "digest": task.digest()},
        "place": [layer, kind],
        "surface": surface,
    }
