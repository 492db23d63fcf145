"""One probe out of those of every layer and C: taken by its place, and what it predicts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from extract.errors import HeadError
from probes.heads.classes.solving import check_features
from probes.latents.channels import Channels
from probes.latents.class_features import ClassFeatures
from probes.logistic.probe import LinearProbe
from probes.logistic.result import ConvergenceReport, LogisticFit
from probes.metrics.class_metrics import score_classes


def pick_probe(fits: list[LogisticFit], place: tuple[int, int]) -> tuple[LogisticFit, dict[str, Any]]:
    """Take one probe out of the chunks, and say how all of them ended.

    Args:
        fits: Probes of chunks of layers, bottom up.
        place: Layer, counted over all chunks, and C, both by their place.

    Returns:
        The probe alone (one layer, one C, one fold), and plain values: how many problems converged, and its own report.

    Raises:
        HeadError: There is no such layer.
    """
    layer, c = place
    converged = torch.cat([fit.report.is_converged for fit in fits])
    norms = torch.cat([fit.report.gradient_norm for fit in fits])
    facts = {
        "n_problems": converged.numel(),
        "n_converged": int(converged.sum()),
        "largest_gradient_norm": float(norms.max()),
        "n_iterations": int(torch.cat([fit.report.n_iterations for fit in fits]).sum()),
    }
    for fit in fits:
        if layer < len(fit.weight):
            one = (slice(layer, layer + 1), slice(c, c + 1))
            report = ConvergenceReport(
                *(getattr(fit.report, key)[one] for key in ConvergenceReport.__dataclass_fields__)
            )
            chosen = replace(
                fit, weight=fit.weight[one], bias=fit.bias[one], mean=fit.mean[one[0]], scale=fit.scale[one[0]],
                Cs=(fit.Cs[c],), report=report,
            )  # fmt: skip
            return chosen, {**facts, "chosen": {key: value[0][0][0] for key, value in report.to_dict().items()}}
        layer -= len(fit.weight)
    raise HeadError(f"layer {place[0]} is none of the fitted ones.")


def predict_split(
    features: ClassFeatures, probe: Callable[[Tensor], Tensor], *, layer: int, split: str
) -> Int[np.ndarray, " N"]:
    """Predict a split by one probe, of which only one layer is read.

    Args:
        features: Features of every layer.
        probe: Gives `(N, K)` outputs of `(N, W)` features, one for each class of train.
        layer: Place of its layer.
        split: The split.

    Returns:
        `(N,)` classes, as the task numbers them.

    Raises:
        HeadError: A row with a feature that is NaN or infinite.
    """
    channels = features.channels
    pooling, name = channels.poolings[layer // len(channels.layers)], channels.layers[layer % len(channels.layers)]
    one = ClassFeatures(features.cache, features.task, Channels((pooling,), (name,)))
    (chunk,) = one.chunks([split])
    check_features(chunk[split], split=split, first_layer=layer)
    return np.asarray(features.task.training_classes[probe(chunk[split][0]).argmax(-1).numpy()])


def score_splits(features: ClassFeatures, probe: LinearProbe, *, layer: int) -> dict[str, float]:
    """Score one probe on every split by the metric to choose by.

    Args:
        features: Features of every layer.
        probe: The probe.
        layer: Place of its layer.

    Returns:
        Split to score.
    """
    task = features.task
    return {
        split: float(
            score_classes(
                predict_split(features, probe, layer=layer, split=split), task.labels(split), metric=task.metric
            )
        )
        for split in task.splits
    }
