"""The module of every head of classes: what it holds of one layer, and how rows become classes."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extract.errors import ConfigError, HeadError, TaskError, unknown_name
from probes.data.class_task import ClassTask
from probes.fitting.saved_fits import fit_or_load
from probes.heads.context import Setting, Watch
from probes.heads.head_table import HeadOptions, Purpose
from probes.heads.layer_head import (
    KindScoring,
    best_place,
    channels_read,
    describe_choice,
    layer_result,
    only_channel,
    record_layer,
    record_surface,
    score_texts,
)
from probes.heads.result import HeadResult
from probes.latents.text_latents import ClassFeatures, Standardiser, fit_standardiser, standardise_chunks
from probes.logistic.problem import check_finite
from probes.metrics.bootstrap import summarise_class_seeds
from probes.metrics.class_metrics import score_classes
from probes.networks.pair_networks import cosine


class ClassHead(nn.Module):
    """A classifier of raw features of one layer, with the standardisation it was fitted under.

    Args:
        width: Dimension `D` of a feature.
        class_names: Names of the `K` classes, in the order of the outputs.
        dtype: Precision of mean and scale.
    """

    compares_texts: ClassVar[bool] = False
    """Whether it is called with the latents of both texts of a pair; otherwise with their joined features."""

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int, class_names: Sequence[str], *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.width, self.class_names = width, tuple(class_names)
        self.register_buffer("mean", torch.zeros(width, dtype=dtype))
        self.register_buffer("scale", torch.ones(width, dtype=dtype))

    def standardise(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Take the mean off, and divide by the scale."""
        return (features - self.mean) / self.scale

    def decide(self, outputs: Tensor) -> Int[Tensor, " N"]:
        """Turn outputs into positions in `class_names`."""
        return outputs.argmax(-1)

    def predict(self, *features: Float[Tensor, "N D"]) -> list[str]:
        """Name the class of each row, from features of the head's layer and pooling.

        Args:
            features: Of texts, or of pairs as `join_pair` joins them; two arguments for a head that compares texts.

        Raises:
            HeadError: A feature that is NaN or infinite.
        """
        for side in features:
            check_features(side[None], split="to predict")
        return [self.class_names[code] for code in self.decide(self(*features)).tolist()]

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {"width": self.width, "class_names": list(self.class_names)}


def check_features(latents: Float[Tensor, "l N W"], *, split: str, first_layer: int = 0) -> None:
    """Refuse NaN and infinite features of a split: their class would silently be the first one."""
    rows = torch.ones(latents.shape[1], dtype=torch.bool)
    check_finite(latents, rows=rows, first_layer=first_layer, where=f"{split}: ")


def predict_split(
    features: ClassFeatures, head: Callable[[Tensor], Tensor], *, layer: int, split: str
) -> Int[np.ndarray, "*S N"]:
    """Classify the rows of a split, as the task numbers classes, reading only the layer at a position.

    There are as many predictions of a row as the head gives scores of it: `S` where it gives `(S, N, K)`.
    """
    one = ClassFeatures(features.cache, features.task, only_channel(features.channels, layer))
    (chunk,) = one.chunks([split])
    check_features(chunk[split], split=split, first_layer=layer)
    return np.asarray(features.task.training_classes[head(chunk[split][0]).argmax(-1).numpy()])


# The classes that a head is fitted on, and its result, made from its predictions.


def class_result(
    resolved: HeadOptions, setting: Setting, predictions: dict[str, Int[np.ndarray, " N"]], **facts: Any
) -> HeadResult:
    """Score predicted classes of every split, as the task numbers them; `facts` are those of `layer_result`."""
    task = setting.task
    return layer_result(
        resolved,
        setting,
        predictions,
        gold=task.labels,
        summarise=summarise_class_seeds,
        compare=lambda found, gold: (found == gold).astype(np.float64),
        baselines={"majority": majority_scores(task)},
        names=dict.fromkeys(predictions, task.class_names),
        **facts,
    )


def majority_scores(task: ClassTask) -> dict[str, float]:
    """Score the most frequent training class on every split: what a probe must beat."""
    most = int(np.bincount(task.labels("train")).argmax())
    return {
        split: float(score_classes(np.full(len(rows), most), task.labels(split), metric=task.metric))
        for split, rows in task.splits.items()
    }


def training_codes(task: ClassTask) -> Int[Tensor, " N"]:
    """Number the training rows by their places in `task.training_classes`.

    A class of validation or test alone would only add an output: it turns the sigmoid of two classes into a softmax,
    under which the same C is another penalty.
    """
    return torch.from_numpy(np.searchsorted(task.training_classes, task.labels("train")))


def training_names(task: ClassTask) -> list[str]:
    """Name the classes that train has rows of, in the order of a probe's outputs."""
    return [task.class_names[number] for number in task.training_classes]


def require_rows(task: ClassTask) -> None:
    """Refuse with a TaskError a task of train alone, which leaves nothing to report."""
    if not {"validation", "test"} & set(task.splits):
        raise TaskError(f"task {task.name!r} has only the split train; add validation or test rows.")


def fewest_rows(task: ClassTask, folds: int) -> int:
    """Count the rows per split at which every class has one, or one for every fold where there is no validation."""
    counts = [np.unique(task.labels(split), return_counts=True)[1] for split in task.splits]
    if "validation" in task.splits:
        return max(len(each) for each in counts)
    (train,) = counts
    return len(train) + int(np.ceil(folds * train.sum() / train.min()))


# Classes by the nearest class mean: no training but the means, and the choice of layer and distance.

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


# Two classes of text pairs by a threshold on a cosine: no training but the choice of layer, kind and threshold.

THRESHOLD_KINDS = ("raw", "standardised")
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
        if self.kind not in ("both", *THRESHOLD_KINDS):
            raise unknown_name("kind of cosine", self.kind, ("both", *THRESHOLD_KINDS))
        if self.thresholds not in THRESHOLDS:
            raise unknown_name("thresholds", self.thresholds, THRESHOLDS)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of cosines to choose from."""
        return THRESHOLD_KINDS if self.kind == "both" else (self.kind,)


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
    kinds = [THRESHOLD_KINDS.index(kind) for kind in options.kinds]
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


# Scoring new texts, or pairs of texts, with the class heads of a run.


def _fields(row: Any, name: str) -> dict[str, Any]:
    texts = {"text": row} if isinstance(row, str) else {"text1": row[0], "text2": row[1]}
    return {"class": name, **texts}


CLASSES_SCORING = KindScoring(score_texts, _fields, n_texts=lambda record: 2 if record["is_pairs"] else 1)
