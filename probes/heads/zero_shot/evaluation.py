"""Heads without fitting: every layer, transform and measure tried on validation, one chosen, test scored once."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from extract.errors import TaskError
from probes.fitting.saved import fit_or_load
from probes.heads.entries import Purpose
from probes.heads.layerwise import (
    best_place,
    channels_read,
    describe_choice,
    only_channel,
    record_layer,
    record_surface,
)
from probes.heads.options import HeadOptions
from probes.heads.parts import HeadParts
from probes.heads.result import HeadResult
from probes.heads.setting import Setting, Watch
from probes.heads.zero_shot.judges import JUDGES, Call, Judged, best_threshold, zero_shot_scorer
from probes.heads.zero_shot.similarity import BLOCK, MEASURES, LayerReader, layer_steps, rows_of
from probes.latents.channels import Channels
from probes.latents.transform import Transform, TransformOptions, fit_transform, no_transform, split_names
from probes.metrics.bootstrap import Resampling, SeedSummary, score_counts, summarise


@dataclass(frozen=True)
class ZeroShotOptions(TransformOptions):
    """Options of heads without fitting."""

    similarity: str = "cosine"
    """A name from `MEASURES`, or several joined by `+`, of which validation chooses one."""

    def __post_init__(self) -> None:
        """Refuse unknown names and values out of their ranges."""
        super().__post_init__()
        split_names("similarity", self.similarity, MEASURES)

    @property
    def variants(self) -> tuple[tuple[str, str], ...]:
        """Every transform with every measure."""
        return tuple(product(self.transforms, self.similarity.split("+")))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variants in curves: the measure, and the transform before it if there is one."""
        return tuple(measure if name == "none" else f"{name} {measure}" for name, measure in self.variants)


@dataclass(frozen=True)
class ClusterOptions(ZeroShotOptions):
    """Options of the head `layer-clusters`."""

    similarity: str = "euclidean"
    """As mteb: `euclidean` clusters latents as they are, `cosine` scales them to length 1 first."""


@dataclass(frozen=True)
class OddOptions(ZeroShotOptions):
    """Options of the head `layer-odd`."""

    similarity: str = "euclidean+cosine"
    """Both distances of ReBA's appendix A.4; validation chooses."""


class ZeroShotHead(nn.Module):
    """What was chosen: the transform of one layer, a measure, and for pairs a threshold.

    Args:
        width: Dimension `D` of a latent.
        transform: Name of the transform.
        measure: Name of the measure.
        n_basis: Columns of the transform's basis.
        threshold: The similarity above which a pair is alike; NaN where nothing is decided by one.
    """

    compares_texts = True
    mean: Tensor
    scale: Tensor
    basis: Tensor

    def __init__(self, width: int, *, transform: str, measure: str, n_basis: int = 0, threshold: float = 0.0) -> None:
        super().__init__()
        self.width, self.name, self.measure, self.threshold = width, transform, measure, threshold
        self.register_buffer("mean", torch.zeros(1, width))
        self.register_buffer("scale", torch.ones(1, width))
        self.register_buffer("basis", torch.zeros(1, width, n_basis))

    @classmethod
    def of(cls, transform: Transform, measure: str, threshold: float) -> "ZeroShotHead":
        """Keep the transform of one layer."""
        basis = transform.basis
        head = cls(
            basis.shape[1], transform=transform.name, measure=measure, n_basis=basis.shape[2], threshold=threshold
        )
        for name in ("mean", "scale", "basis"):
            getattr(head, name).copy_(getattr(transform, name))
        return head.eval()

    @property
    def transform(self) -> Transform:
        """The transform."""
        return Transform(self.name, self.mean, self.scale, self.basis)

    def forward(self, a: Float[Tensor, "N D"], b: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """Compare raw latents one by one: how far their similarity is above the threshold."""
        a, b = (self.transform(side[None])[0] for side in (a, b))
        if self.measure == "cosine":
            a, b = (nn.functional.normalize(side, dim=-1) for side in (a, b))
        return (-(a - b).norm(dim=-1) if self.measure == "euclidean" else (a * b).sum(-1)) - self.threshold

    def predict(self, a: Float[Tensor, "N D"], b: Float[Tensor, "N D"]) -> NDArray[np.float32]:
        """Compare as `forward` does, outside torch; above 0 is alike."""
        return np.asarray(self(a, b).numpy())

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {
            "width": self.width,
            "transform": self.name,
            "measure": self.measure,
            "n_basis": self.basis.shape[2],
            "threshold": self.threshold,
        }


def check_zero_shot(task: Any, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse a task without validation, on which a layer is chosen, or without texts for a transform."""
    del purpose
    if "validation" not in task.splits:
        raise TaskError(
            f"task {task.name!r} has only {' and '.join(task.splits)}; add validation rows, on which head "
            f"{resolved.name!r} chooses a layer."
        )
    if resolved.own[0].transforms != ("none",):
        task.fit_texts()


def evaluate_zero_shot(resolved: HeadOptions, setting: Setting, watch: Watch) -> HeadResult:
    """Try every layer, transform and measure on validation, and score the chosen one on every split.

    Clusters are found with every seed, and their scores averaged. Where a row's score is the metric, it is what is
    predicted of the row.
    """
    del watch  # nothing has epochs
    task, options = setting.task, resolved.own[0]
    check_zero_shot(task, resolved, Purpose(setting.protocol))
    trial = _Trial(setting, channels_read(resolved, setting), options)
    channels = trial.channels
    judge = JUDGES[task.kind]
    seeds = [list(setting.seeds)] if judge.has_seeds else []
    kept = fit_or_load(
        setting.folder / resolved.name,
        setting.identify(resolved.name, asdict(options), channels.pooling, list(channels.names), more=seeds),
        lambda: trial.choose(resolved.name),
        lambda record: ZeroShotHead(**record["arguments"]),
        cache=setting.cache,
    )
    head, place = kept.head, kept.record["place"]
    found = {split: trial.judge_chosen(head, split, place[0]) for split in task.splits}
    metric, how = task.metrics[0], Resampling(setting.n_resamples)
    predictions = {split: judged[metric][0] for split, judged in found.items()}
    extra = {"threshold": head.threshold} if judge.has_threshold else {}
    return HeadResult(
        name=resolved.name,
        options=asdict(options),
        metric=metric,
        summary={
            split: {name: _summarise(setting.task, split, name, rows, how) for name, rows in judged.items()}
            for split, judged in found.items()
        },
        baselines=judge.baselines(task),
        predictions=predictions,
        names={split: judge.names(task, split, rows) for split, rows in predictions.items()} if judge.names else {},
        row_scores={split: judge.row_scores(task, split, rows) for split, rows in predictions.items()},
        selection_score=float(kept.record["score"]),
        **describe_choice(
            channels,
            kept.record["surface"],
            place,
            metric=metric,
            selection="validation",
            option="kind",
            values=options.names,
            **extra,
        ),
    )


def _summarise(task: Any, split: str, metric: str, rows: NDArray[Any], how: Resampling) -> SeedSummary:
    scorer = zero_shot_scorer(task, split, metric)
    score = score_counts(scorer.count(rows), scorer.of_sums)
    return summarise(scorer.score(rows), score, n_units=scorer.n_units, resampling=how, is_centred=scorer.is_lifted)


@dataclass(frozen=True, eq=False)
class _Trial:
    """Everything that decides what is chosen."""

    setting: Setting
    channels: Channels
    options: ZeroShotOptions

    def parts(self, split: str) -> Iterator[Channels]:
        """Cut the channels into stretches that fit in memory, bottom up."""
        task, width = self.setting.task, self.setting.cache.width_of(self.channels.layers)
        n_rows = task.n_compared(split)
        n_others = min(max(n_rows, len(getattr(task, "corpus", ()))), BLOCK)
        for pooling in self.channels.poolings:
            for part in layer_steps(len(self.channels.layers), 2 * (n_rows + n_others) * width + n_rows * n_others):
                yield Channels((pooling,), self.channels.layers[part])

    def transform(self, name: str, channels: Channels) -> Transform:
        """Fit a transform on the texts that the task has for it."""
        cache = self.setting.documents or self.setting.cache
        if name == "none":
            return no_transform(len(channels.names), cache.width_of(channels.layers))
        rows = rows_of(cache, self.setting.task.fit_texts())
        return fit_transform(name, cache, rows, channels=channels, options=self.options)

    def judge(
        self, split: str, channels: Channels, transform: Transform, measure: str, *, threshold: float = 0.0
    ) -> Judged:
        """Judge a split at some layers: metric to `(S, l, N)`, for the seeds of clusters or one."""
        setting, task, judge = self.setting, self.setting.task, JUDGES[self.setting.task.kind]
        reader = LayerReader(setting.cache, channels, transform, measure, setting.documents)
        seeds = setting.seeds if judge.has_seeds else (0,)
        call = Call(task, split, reader, threshold=threshold)
        found = [judge.judge(replace(call, seed=seed)) for seed in seeds]
        return {metric: np.stack([each[metric] for each in found]) for metric in task.metrics}

    def judge_chosen(self, head: ZeroShotHead, split: str, layer: int) -> Judged:
        """Judge a split by the chosen head: metric to `(S, N)`."""
        judged = self.judge(
            split, only_channel(self.channels, layer), head.transform, head.measure, threshold=head.threshold
        )
        return {metric: rows[:, 0] for metric, rows in judged.items()}

    def curve(self, split: str, variant: tuple[str, str]) -> NDArray[Any]:
        """Judge a split at every layer by the first metric: `(S, L, N)`."""
        metric = self.setting.task.metrics[0]
        return np.concatenate(
            [
                self.judge(split, part, self.transform(variant[0], part), variant[1])[metric]
                for part in self.parts(split)
            ],
            axis=1,
        )

    def choose(self, name: str) -> tuple[ZeroShotHead, dict[str, Any]]:
        """Score every layer and variant on validation, and keep the best."""
        task, metric = self.setting.task, self.setting.task.metrics[0]
        scorer = zero_shot_scorer(task, "validation", metric)
        columns = [
            np.mean([scorer.score(rows) for rows in self.curve("validation", variant)], axis=0)
            for variant in self.options.variants
        ]
        surface = np.stack(columns, axis=1)
        layer, column = best_place(surface)
        one, (kind, measure) = only_channel(self.channels, layer), self.options.variants[column]
        transform, threshold = self.transform(kind, one), 0.0
        if JUDGES[task.kind].has_threshold:
            [[similarities]] = self.judge("validation", one, transform, measure)[metric]
            threshold = best_threshold(similarities, task.alike("validation") == 1)
        return ZeroShotHead.of(transform, measure, threshold), record_layer(
            name,
            self.channels,
            task,
            layer=layer,
            is_pairs=JUDGES[task.kind].has_threshold,
            place=[layer, column],
            surface=record_surface(surface),
            score=float(surface[layer, column]),
        )


def zero_shot_parts(resolved: HeadOptions, setting: Setting, result: HeadResult, split: str, watch: Watch) -> HeadParts:
    """Judge a split at every layer, by the transform and measure that the run chose."""
    del watch
    trial = _Trial(setting, channels_read(resolved, setting), resolved.own[0])
    variant = trial.options.variants[trial.options.names.index(str(result.chosen["kind"]))]
    return HeadParts(
        trial.channels.pooling,
        trial.channels.names,
        zero_shot_scorer(setting.task, split, result.metric),
        trial.curve(split, variant),
        None,
        "the layer's latents compared as in the run",
    )
