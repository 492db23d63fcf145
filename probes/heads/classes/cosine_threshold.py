"""Two classes of text pairs by a threshold on a cosine: no training but the choice of layer, kind and threshold."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from extract.errors import ConfigError, HeadError, unknown_name
from probes.fitting.saved import fit_or_load
from probes.heads.classes.class_head import ClassHead, check_features
from probes.heads.classes.results import class_result, require_rows, training_names
from probes.heads.entries import Purpose
from probes.heads.layerwise import channels_read, describe_choice, record_layer
from probes.heads.options import HeadOptions
from probes.heads.result import HeadResult
from probes.heads.setting import Setting, Watch
from probes.latents.class_features import ClassFeatures
from probes.latents.standardise import Standardiser, fit_standardiser
from probes.metrics.class_metrics import score_classes
from probes.networks.pair_head import cosine
from probes.tasks.classes.task import ClassTask

KINDS = ("raw", "standardised")
EVERYWHERE = "all"
"""Choosing on the rows of every split together."""
THRESHOLDS = {
    "gaps": "the middle of every gap between neighbouring cosines",
    "hundred": "100 from 0 to 1, each with the cosines that equal it above (Look Both Ways' released code)",
}


@dataclass(frozen=True)
class ThresholdOptions:
    """Options of the head `cosine-threshold`."""

    choose_on: str = "validation"
    """The split that decides layer, kind and threshold, or `all` for every row there is, as LBW's released code does;
    `all` and `test` are optimistic."""
    kind: str = "both"
    """Cosines to choose from: `raw`, `standardised` or `both`."""
    thresholds: str = "gaps"
    """Thresholds to choose from: `gaps` (every one that makes a difference) or `hundred` (from 0 to 1)."""

    def __post_init__(self) -> None:
        """Refuse values outside the tables."""
        if self.kind not in ("both", *KINDS):
            raise unknown_name("kind of cosine", self.kind, ("both", *KINDS))
        if self.thresholds not in THRESHOLDS:
            raise unknown_name("thresholds", self.thresholds, THRESHOLDS)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of cosines to choose from."""
        return KINDS if self.kind == "both" else (self.kind,)


class CosineThreshold(ClassHead):
    """Two classes of text pairs by a threshold on the cosine of one layer.

    Args:
        width: Dimension `D` of a latent.
        class_names: Names of the two classes.
        kind: A name from `KINDS`: whether latents are standardised first.
        above: Position in `class_names` of the class of the higher cosines.
        threshold: The highest cosine of the other class.
    """

    compares_texts: ClassVar[bool] = True

    def __init__(self, width: int, class_names: Sequence[str], *, kind: str, above: int, threshold: float) -> None:
        super().__init__(width, class_names)
        self.kind, self.above, self.threshold = kind, above, threshold

    def forward(self, a: Float[Tensor, "N D"], b: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """Compare raw latents."""
        if self.kind == "standardised":
            a, b = self.standardise(a), self.standardise(b)
        return cosine(a[None], b[None])[0]

    def decide(self, outputs: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
        """Give the class of the higher cosines to those above the threshold."""
        return torch.where(outputs > self.threshold, self.above, 1 - self.above)

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {**super().arguments(), "kind": self.kind, "above": self.above, "threshold": self.threshold}


def evaluate_threshold(resolved: HeadOptions, setting: Setting, watch: Watch) -> HeadResult:
    """Choose layer, kind (raw or standardised cosine) and threshold on one split, and score every split.

    The class above the threshold is whichever of the two has the higher cosines on the choosing split.
    """
    del watch  # nothing is trained
    task, cache, options = setting.task, setting.cache, resolved.own[0]
    choose_on = options.choose_on
    check_threshold(task, resolved, Purpose(setting.protocol))
    channels, reads_test = channels_read(resolved, setting), choose_on in ("test", EVERYWHERE)
    features = ClassFeatures(cache, task, channels)
    standardiser = fit_standardiser(cache, torch.cat(features.rows("train")), channels=channels)
    kinds = [KINDS.index(kind) for kind in options.kinds]
    cosines = {split: _cosines(features, split, standardiser)[kinds] for split in task.splits}
    kept = fit_or_load(
        setting.folder / resolved.name,
        setting.identify(resolved.name, asdict(options), channels.pooling, list(channels.names), reads_test=reads_test),
        lambda: _choose(features, cosines, options, standardiser, resolved.name),
        lambda record: CosineThreshold(**record["arguments"]),
        cache=cache,
    )
    head, (kind, layer) = kept.head, kept.record["place"]
    predictions = {
        split: task.training_classes[np.where(rows[kind, layer] > head.threshold, head.above, 1 - head.above)]
        for split, rows in cosines.items()
    }
    choice = describe_choice(
        channels,
        list(zip(*kept.record["curve"], strict=True)),
        (layer, kind),
        metric=task.metric,
        selection="all rows" if choose_on == EVERYWHERE else choose_on,
        option="kind",
        values=options.kinds,
        threshold=head.threshold,
    )
    where = "all rows, test among them" if choose_on == EVERYWHERE else "test"
    reason = f"layer, kind and threshold are chosen on {where}" if reads_test else ""
    return class_result(resolved, setting, predictions, reason=reason, **choice)


def _choose(
    features: ClassFeatures,
    cosines: dict[str, Float[np.ndarray, "Y L N"]],
    options: ThresholdOptions,
    standardiser: Standardiser,
    name: str,
) -> tuple[CosineThreshold, dict[str, Any]]:
    """Choose layer, kind and threshold on a split, or on all rows; gives the head and its record."""
    task, classes = features.task, features.task.training_classes
    splits = list(task.splits) if options.choose_on == EVERYWHERE else [options.choose_on]
    gold = np.concatenate([task.labels(split) for split in splits])
    pooled = np.concatenate([cosines[split] for split in splits], axis=-1)
    how: dict[str, Any] = {"metric": task.metric, "classes": classes, "thresholds": options.thresholds}
    found = [[_best_threshold(row, gold, **how) for row in rows] for rows in pooled]
    curve = np.array([[best[0] for best in rows] for rows in found])
    kind, layer = (int(k) for k in np.unravel_index(int(np.argmax(curve)), curve.shape))
    _, threshold, above = found[kind][layer]
    head = CosineThreshold(
        features.cache.width, training_names(task), kind=options.kinds[kind], above=above, threshold=threshold
    )
    head.mean.copy_(standardiser.mean[layer])
    head.scale.copy_(standardiser.scale[layer])
    return head, record_layer(
        name, features.channels, task, layer=layer, is_pairs=True, place=[kind, layer], curve=curve.tolist()
    )


def check_threshold(task: ClassTask, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse a task without two classes of pairs to separate, or a split to choose on that it lacks or must not be.

    Raises:
        TaskError: The task has neither a validation nor a test split.
        ConfigError: One text per row, or a split on which no plan can be chosen.
        HeadError: Another number of classes, or no such split.
    """
    require_rows(task)
    choose_on = resolved.own[0].choose_on
    if purpose.chooses_plan and (choose_on == "test" or choose_on not in task.splits):  # `all` is no split
        raise ConfigError(
            f"head {resolved.name!r} has choose_on {choose_on!r} (protocol {purpose.protocol}), on which no plan can "
            f"be chosen; allowed: a split of task {task.name!r} but test ({', '.join(task.splits)}). Set choose_on: "
            "validation, or run each plan by itself."
        )
    if not task.is_pairs:
        raise ConfigError(
            f"head {resolved.name!r} compares two texts, but a row of task {task.name!r} holds one; use logistic-probe."
        )
    if len(task.training_classes) != 2:
        raise HeadError(
            f"cosine-threshold got task {task.name!r} with {len(task.training_classes)} classes in train; allowed: 2. "
            "Use logistic-probe."
        )
    if choose_on not in (*task.splits, EVERYWHERE):
        raise HeadError(
            f"choose_on is {choose_on!r}; allowed: a split of task {task.name!r}, which are {', '.join(task.splits)}, "
            f"or {EVERYWHERE}."
        )


def _cosines(features: ClassFeatures, split: str, standardiser: Standardiser) -> Float[np.ndarray, "2 L N"]:
    """Compute raw and standardised cosines of every layer."""
    mean, scale = standardiser.mean.unsqueeze(1), standardiser.scale.unsqueeze(1)
    a, b = (features.channels.gather(features.cache, rows) for rows in features.rows(split))
    for side in (a, b):
        check_features(side, split=split)
    return torch.stack([cosine(a, b), cosine((a - mean) / scale, (b - mean) / scale)]).numpy()


def _best_threshold(
    values: Float[np.ndarray, " N"],
    gold: Int[np.ndarray, " N"],
    *,
    metric: str,
    classes: Int[np.ndarray, " 2"],
    thresholds: str = "gaps",
) -> tuple[float, float, int]:
    """Try the thresholds of `THRESHOLDS`, with either class above them; the first of the best is kept.

    Returns:
        Score, threshold, and which of the two classes is above the threshold.
    """
    if thresholds == "hundred":  # the highest value below a threshold: what equals the threshold is above
        cuts = np.nextafter(np.linspace(0, 1, 100).astype(values.dtype), values.dtype.type(-np.inf))
    else:
        ordered = np.unique(values)
        cuts = np.concatenate([[ordered[0] - 1.0], (ordered[1:] + ordered[:-1]) / 2])
    above = (values[None, :] > cuts[:, None]).astype(np.int64)
    scores = np.stack([score_classes(classes[side], gold, metric=metric) for side in (1 - above, above)])
    side, place = np.unravel_index(int(np.argmax(scores)), scores.shape)
    return float(scores[side, place]), float(cuts[place]), int(side)
