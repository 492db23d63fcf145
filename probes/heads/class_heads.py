"""Heads of classes: what all of them share, the nearest class mean, and a threshold on the cosine of two texts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from extract.errors import ConfigError, HeadError, TaskError, require_name
from extract.records import Values
from probes.data.class_task import ClassTask
from probes.fitting.saved_fits import M
from probes.heads.head_table import HeadOptions, PlannedRun
from probes.heads.layer_head import Choice, FitContext, Fitted, LayerHead, only_channel
from probes.heads.result import NO_CHOICE, Rows
from probes.latents.text_latents import (
    ClassFeatures,
    Standardiser,
    Transform,
    fit_standardiser,
    no_transform,
    standardise_chunks,
)
from probes.logistic.problem import check_finite
from probes.metrics.prediction_metrics import ClassCounts, class_metric, score_classes
from probes.networks.pair_networks import cosine


class Classifier(nn.Module):
    """A classifier of raw features of one layer, with the standardisation it was fitted under.

    Args:
        width: Dimension `D` of a feature.
        class_names: Names of the `K` classes, in the order of the outputs.
        dtype: Precision of mean and scale.
    """

    compares_texts: ClassVar[bool] = False
    """Whether it is called with the latents of both texts of a pair; otherwise with their joined features."""
    further: ClassVar[tuple[str, ...]] = ()
    """Arguments of a subclass beside those of all, which are attributes too."""

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int, class_names: Sequence[str], *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.width, self.class_names = width, tuple(class_names)
        self.register_buffer("mean", torch.zeros(width, dtype=dtype))
        self.register_buffer("scale", torch.ones(width, dtype=dtype))

    def standardise(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Subtract the mean, and divide by the scale."""
        return (features - self.mean) / self.scale

    def decide(self, outputs: Tensor) -> Int[Tensor, " N"]:
        """Turn outputs into positions in `class_names`."""
        return outputs.argmax(-1)

    def predict(self, *features: Float[Tensor, "N D"]) -> list[str]:
        """Name the class of each row, from features of the head's layer and pooling."""
        for rows in features:
            check_features(rows[None], split="to predict")
        return [self.class_names[code] for code in self.decide(self(*features)).tolist()]

    def arguments(self) -> dict[str, object]:
        """Return the constructor's arguments as plain values."""
        more = {name: getattr(self, name) for name in self.further}
        return {"width": self.width, "class_names": list(self.class_names), **more}


class ClassLayerHead(LayerHead[M]):
    """A head of one layer for a task of classes, fitted on the classes that train has rows of."""

    task: ClassTask

    def __init__(self, resolved: HeadOptions, context: FitContext) -> None:
        super().__init__(resolved, context)
        self.features = ClassFeatures(context.cache, self.task, self.channels)

    @property
    def fit_inputs(self) -> list[object]:
        """Add the metric that decides, where it is not the usual one, whose fits have no metric in their ids."""
        is_other = self.metric != self.task.usual_metric and self.selection != NO_CHOICE
        return [*super().fit_inputs, *([self.metric] if is_other else [])]

    def chunks(self) -> Iterator[dict[str, Float[Tensor, "l N W"]]]:
        """Read the features of train and validation, a few layers at a time."""
        n_read = 0
        for chunk in self.features.chunks([split for split in ("train", "validation") if split in self.task.splits]):
            for split, rows in chunk.items():
                check_features(rows, split=split, first_layer=n_read)
            n_read += len(chunk["train"])
            yield chunk

    def classify(self, score: Callable[[Tensor], Tensor], layer: int, split: str) -> Int[np.ndarray, "*S N"]:
        """Classify the rows of a split, as the task numbers classes, from their scores `(*S, N, K)` at a layer."""
        [chunk] = ClassFeatures(self.context.cache, self.task, only_channel(self.channels, layer)).chunks([split])
        check_features(chunk[split], split=split, first_layer=layer)
        return np.asarray(self.task.training_classes[score(chunk[split][0]).argmax(-1).numpy()])

    def predict(self, module: M, layer: int, split: str) -> Mapping[str, Rows]:
        """Predict the classes of a split."""
        return dict.fromkeys(self.task.metrics, self.classify(module, layer, split)[None])

    def row_scores(self, split: str, predicted: Rows) -> NDArray[np.float64]:
        """Score 1 for the right class."""
        return np.asarray(predicted == self.task.labels(split), np.float64)

    def names(self, split: str, predicted: Rows) -> tuple[str, ...]:
        """Name the classes."""
        del split, predicted
        return self.task.class_names

    def baselines(self) -> dict[str, dict[str, float]]:
        """Score the most frequent training class."""
        return {"majority": majority_scores(self.task)}


def check_features(latents: Float[Tensor, "l N W"], *, split: str, first_layer: int = 0) -> None:
    """Refuse NaN and infinite features of a split: their class would silently be the first one."""
    rows = torch.ones(latents.shape[1], dtype=torch.bool)
    check_finite(latents, rows=rows, first_layer=first_layer, where=f"{split}: ")


def majority_scores(task: ClassTask) -> dict[str, float]:
    """Score the most frequent training class on every split: what a probe must beat."""
    most = int(np.bincount(task.labels("train")).argmax())
    return {
        split: float(score_classes(np.full(len(rows), most), task.labels(split), metric=task.metric))
        for split, rows in task.splits.items()
    }


def training_codes(task: ClassTask) -> Int[Tensor, " N"]:
    """Number the training rows by their positions in `task.training_classes`.

    Another class would only add an output, and with a softmax for a sigmoid the same C is another penalty.
    """
    return torch.from_numpy(np.searchsorted(task.training_classes, task.labels("train")))


def training_names(task: ClassTask) -> list[str]:
    """Name the classes that train has rows of, in the order of a probe's outputs."""
    return [task.class_names[number] for number in task.training_classes]


def fewest_rows(task: ClassTask, folds: int) -> int:
    """Count the rows per split at which every class has one, or one for every fold where there is no validation."""
    counts = [np.unique(task.labels(split), return_counts=True)[1] for split in task.splits]
    if "validation" in task.splits:
        return max(map(len, counts))
    (train,) = counts
    return len(train) + int(np.ceil(folds * train.sum() / train.min()))


# The nearest class mean: no training but the means, and the choice of layer and distance.


class NearestCentroid(Classifier):
    """The class whose mean is nearest, by a kind of `KINDS`, on standardised features of one layer."""

    further = ("kind",)
    centroids: Tensor

    def __init__(self, width: int, class_names: Sequence[str], *, kind: str) -> None:
        super().__init__(width, class_names)
        self.kind = kind
        self.register_buffer("centroids", torch.zeros(len(class_names), width))

    def fit(self, features: Float[Tensor, "N D"], codes: Int[Tensor, " N"]) -> "NearestCentroid":
        """Fit mean and scale of training rows, and the mean of each class, of which each has a row."""
        standardiser = standardise_chunks([features[None]])
        self.mean.copy_(standardiser.mean[0])
        self.scale.copy_(standardiser.scale[0])
        rows = self.standardise(features)
        self.centroids.copy_(torch.stack([rows[codes == k].mean(0) for k in range(len(self.class_names))]))
        return self

    def forward(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Measure how near every class mean is: its cosine, or its Euclidean distance with a minus."""
        rows = self.standardise(features)
        if self.kind == "euclidean":
            return -torch.cdist(rows, self.centroids, compute_mode="donot_use_mm_for_euclid_dist")
        return nn.functional.normalize(rows, dim=1) @ nn.functional.normalize(self.centroids, dim=1).T


KINDS = ("cosine", "euclidean")


class CentroidHead(ClassLayerHead[NearestCentroid]):
    """The head `nearest-centroid`: the class means of every layer; validation chooses layer and distance."""

    module = NearestCentroid
    values = KINDS

    @staticmethod
    def check(task: ClassTask, resolved: HeadOptions, planned: PlannedRun) -> None:
        """Refuse with a TaskError a task without a train split, or a validation split to choose on."""
        del planned
        for split, instead in (("train", ""), ("validation", ", or use logistic-probe")):
            if split not in task.splits:
                raise TaskError(
                    f"task {task.name!r} has no split {split!r}, which head {resolved.name!r} needs; add rows "
                    f"to it{instead}."
                )

    def fit(self) -> Fitted[NearestCentroid]:
        """Fit every layer and distance, and keep the best."""
        task, codes = self.task, training_codes(self.task)
        names, gold = training_names(task), task.labels("validation")
        modules: list[list[NearestCentroid]] = []
        scores: list[Float[np.ndarray, " 2"]] = []
        for chunk in self.chunks():
            for train, validation in zip(chunk["train"], chunk["validation"], strict=True):
                modules.append(
                    [NearestCentroid(self.features.width, names, kind=kind).fit(train, codes) for kind in KINDS]
                )
                predicted = [task.training_classes[module(validation).argmax(-1).numpy()] for module in modules[-1]]
                scores.append(np.asarray(score_classes(np.stack(predicted), gold, metric=task.metric)))
        choice = Choice.best(np.stack(scores))
        return modules[choice.layer][choice.column], choice, {"is_pairs": task.is_pairs}


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
        require_name("kind of cosine", self.kind, ("both", *THRESHOLD_KINDS))
        require_name("thresholds", self.thresholds, THRESHOLDS)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of cosines to choose from."""
        return THRESHOLD_KINDS if self.kind == "both" else (self.kind,)


class CosineThreshold(Classifier):
    """Two classes of text pairs by a threshold on the cosine, of a kind of `THRESHOLD_KINDS`, of one layer.

    `above` is the position of the class of the higher cosines, and `threshold` the highest cosine of the other class.
    """

    compares_texts: ClassVar[bool] = True
    further = ("kind", "above", "threshold")

    def __init__(self, width: int, class_names: Sequence[str], *, kind: str, above: int, threshold: float) -> None:
        super().__init__(width, class_names)
        self.kind, self.above, self.threshold = kind, above, threshold

    def forward(self, a: Float[Tensor, "N D"], b: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """Compare raw latents."""
        if self.kind == "standardised":
            a, b = self.standardise(a), self.standardise(b)
        return cosine(a[None], b[None])[0]

    def read_out(self) -> Transform:
        """Return the transform whose latents the cosine is of."""
        width = self.mean.shape[-1]
        if self.kind != "standardised":
            return no_transform(1, width)
        return Transform("standardise", self.mean.reshape(1, -1), self.scale.reshape(1, -1), torch.zeros(1, width, 0))

    def decide(self, outputs: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
        """Give the class of the higher cosines to those above the threshold."""
        return torch.where(outputs > self.threshold, self.above, 1 - self.above)


class ThresholdHead(ClassLayerHead[CosineThreshold]):
    """The head `cosine-threshold`: one split chooses layer, kind of cosine, threshold, and the class above it."""

    module = CosineThreshold
    options: ThresholdOptions

    @staticmethod
    def check(task: ClassTask, resolved: HeadOptions, planned: PlannedRun) -> None:
        """Refuse a task without two classes of pairs to separate, or without a split that may be chosen on."""
        choose_on = resolved.options.choose_on
        if planned.chooses_plan and (choose_on == "test" or choose_on not in task.splits):  # `all` is no split
            raise ConfigError(
                f"head {resolved.name!r} has choose_on {choose_on!r} (protocol {planned.protocol}), on which no plan "
                f"can be chosen; allowed: a split of task {task.name!r} but test ({', '.join(task.splits)}). Set "
                "choose_on: validation, or run each plan by itself."
            )
        if not task.is_pairs:
            raise ConfigError(
                f"head {resolved.name!r} compares two texts, but a row of task {task.name!r} holds one; use "
                "logistic-probe."
            )
        if len(task.training_classes) != 2:
            raise HeadError(
                f"{resolved.name} got task {task.name!r} with {len(task.training_classes)} classes in train; allowed: "
                "2. Use logistic-probe."
            )
        if choose_on not in (*task.splits, EVERYWHERE):
            raise HeadError(
                f"choose_on is {choose_on!r}; allowed: a split of task {task.name!r}, which are "
                f"{', '.join(task.splits)}, or {EVERYWHERE}."
            )

    @property
    def values(self) -> tuple[str, ...]:
        """The kinds of cosines to choose from."""
        return self.options.kinds

    @property
    def selection(self) -> str:
        """The split that decides, or all rows."""
        return "all rows" if self.options.choose_on == EVERYWHERE else self.options.choose_on

    @property
    def reads_test(self) -> bool:  # type: ignore[override]
        """Whether test rows decide."""
        return self.options.choose_on in ("test", EVERYWHERE)

    @cached_property
    def standardiser(self) -> Standardiser:
        """Mean and scale of every layer over the training texts."""
        rows = torch.cat(self.features.rows("train"))
        return fit_standardiser(self.context.cache, rows, channels=self.channels)

    @cached_property
    def cosines(self) -> dict[str, Float[np.ndarray, "Y L N"]]:
        """Cosines of every split, of every kind to choose from, at every layer."""
        mean, scale = self.standardiser.mean.unsqueeze(1), self.standardiser.scale.unsqueeze(1)
        kinds = [THRESHOLD_KINDS.index(kind) for kind in self.options.kinds]
        cosines = {}
        for split in self.task.splits:
            a, b = (self.channels.gather(self.context.cache, rows) for rows in self.features.rows(split))
            check_features(a, split=split)
            check_features(b, split=split)
            both = torch.stack([cosine(a, b), cosine((a - mean) / scale, (b - mean) / scale)])
            cosines[split] = both.numpy()[kinds]
        return cosines

    def fit(self) -> Fitted[CosineThreshold]:
        """Choose layer, kind and threshold."""
        task, options = self.task, self.options
        splits = list(task.splits) if options.choose_on == EVERYWHERE else [options.choose_on]
        gold = np.concatenate([task.labels(split) for split in splits])
        rows = np.concatenate([self.cosines[split] for split in splits], axis=-1)
        best = [
            [
                fit_threshold(
                    cosines, gold, metric=task.metric, classes=task.training_classes, thresholds=options.thresholds
                )
                for cosines in of_kind
            ]
            for of_kind in rows
        ]
        curve = np.array([[score for score, _, _ in of_kind] for of_kind in best])
        kind, layer = (int(k) for k in np.unravel_index(int(np.argmax(curve)), curve.shape))  # of equals the first kind
        _, threshold, above = best[kind][layer]
        module = CosineThreshold(
            self.context.cache.width_of(self.channels.layers),
            training_names(task),
            kind=options.kinds[kind],
            above=above,
            threshold=threshold,
        )
        module.mean.copy_(self.standardiser.mean[layer])
        module.scale.copy_(self.standardiser.scale[layer])
        return module, Choice(curve.T, layer, kind), {"is_pairs": True}

    def describe_choice(self, choice: Choice) -> dict[str, object]:
        """Record the choice with the kind first."""
        return {"place": [choice.column, choice.layer], "curve": choice.surface.T.tolist()}

    def read_choice(self, details: Values) -> Choice:
        """Read what `describe_choice` wrote."""
        kind, layer = details["place"]
        return Choice(np.array(details["curve"], dtype=np.float64).T, layer, kind)

    def predict(self, module: CosineThreshold, layer: int, split: str) -> Mapping[str, Rows]:
        """Compare the cosines of a split with the threshold."""
        cosines = self.cosines[split][self.options.kinds.index(module.kind), layer]
        codes = np.where(cosines > module.threshold, module.above, 1 - module.above)
        return dict.fromkeys(self.task.metrics, self.task.training_classes[codes][None])

    def chosen_too(self, module: CosineThreshold) -> dict[str, object]:
        """Name the threshold."""
        return {"threshold": module.threshold}

    def optimistic_because(self) -> str:
        """Say where the choice was made, if test decides."""
        where = "all rows, test among them" if self.options.choose_on == EVERYWHERE else "test"
        reason = f"layer, kind and threshold are chosen on {where}" if self.reads_test else ""
        return "; ".join(filter(None, (reason, super().optimistic_because())))


def fit_threshold(
    values: Float[np.ndarray, " N"],
    gold: Int[np.ndarray, " N"],
    *,
    metric: str,
    classes: Int[np.ndarray, " 2"],
    thresholds: str = "gaps",
) -> tuple[float, float, int]:
    """Try the thresholds of `THRESHOLDS`, with either class above them; of equals the first wins."""
    if thresholds == "hundred":  # the highest value below a threshold: what equals the threshold is above
        cuts = np.nextafter(np.linspace(0, 1, 100).astype(values.dtype), values.dtype.type(-np.inf))
    else:
        ordered = np.unique(values)
        cuts = np.concatenate([[ordered[0] - 1.0], (ordered[1:] + ordered[:-1]) / 2])
    # rows of each class up to a cut, and above it; a table of rows by cuts would be quadratic
    n_classes = 1 + int(max(classes.max(), gold.max(initial=0)))
    up_to = np.zeros((len(values) + 1, n_classes))
    (gold[np.argsort(values), None] == np.arange(n_classes)).cumsum(0, out=up_to[1:])
    n_gold = np.broadcast_to(up_to[-1], (len(cuts), n_classes))
    below = up_to[np.searchsorted(np.sort(values), cuts, side="right")]
    above = n_gold - below
    scores = np.zeros((2, len(cuts)))
    for upper in range(2):  # the class above the threshold
        hits, n_predicted = np.zeros_like(below), np.zeros_like(below)
        for code, rows in ((classes[upper], above), (classes[1 - upper], below)):
            hits[:, code], n_predicted[:, code] = rows[:, code], rows.sum(1)
        scores[upper] = class_metric(metric)(ClassCounts(hits, n_predicted, n_gold))
    side, cut = np.unravel_index(int(np.argmax(scores)), scores.shape)
    return float(scores[side, cut]), float(cuts[cut]), int(side)
