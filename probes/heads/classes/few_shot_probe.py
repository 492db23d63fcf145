"""A logistic probe of few rows of each class, drawn several times: how mteb scores its classification tasks."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from extract.errors import HeadError, TaskError
from probes.fitting.saved import fit_or_load
from probes.heads.classes.class_head import ClassHead, check_features, predict_split
from probes.heads.classes.results import class_result, require_rows, training_codes, training_names
from probes.heads.entries import Purpose
from probes.heads.layerwise import best_place, channels_read, describe_choice, record_layer, record_surface
from probes.heads.options import HeadOptions
from probes.heads.result import HeadResult
from probes.heads.setting import Setting, Watch
from probes.latents.class_features import ClassFeatures
from probes.logistic.options import SolverOptions
from probes.logistic.solver import fit_logistic
from probes.metrics.bootstrap import Resampling
from probes.metrics.class_metrics import score_classes
from probes.metrics.intervals import summarise_class_seeds
from probes.tasks.classes.task import ClassTask

NAME = "few-shot-probe"


@dataclass(frozen=True)
class FewShotOptions:
    """Options of the head `few-shot-probe`; the defaults are mteb's."""

    draws: int = 10
    """Draws of training rows; scores are the mean over them."""
    rows: int = 8
    """Rows drawn of each class; a class with fewer gives all."""
    C: float = 1.0
    """Inverse strength of the penalty, on features that are not scaled."""
    max_iterations: int = 100
    """Most L-BFGS iterations."""
    seed: int = 42
    """Seed of the draws."""

    def __post_init__(self) -> None:
        """Refuse values outside their ranges."""
        for name in ("draws", "rows", "max_iterations"):
            if getattr(self, name) < 1:
                raise HeadError(f"{name} is {getattr(self, name)}; allowed: a whole number of at least 1.")
        if not 0 < self.C < float("inf"):
            raise HeadError(f"C is {self.C}; allowed: a number above 0.")

    def solver(self, device: str) -> SolverOptions:
        """Return the options of the solver."""
        return SolverOptions(max_iterations=self.max_iterations, is_standardised=False, device=device)


class FewShotProbe(ClassHead):
    """Linear classifiers of raw features of one layer, one a draw.

    Args:
        width: Dimension `D` of a feature.
        class_names: Names of the `K` classes, in the order of the outputs.
        draws: Classifiers `S`.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, width: int, class_names: Sequence[str], *, draws: int) -> None:
        super().__init__(width, class_names)
        self.register_buffer("weight", torch.zeros(draws, len(class_names), width, dtype=torch.float64))
        self.register_buffer("bias", torch.zeros(draws, len(class_names), dtype=torch.float64))

    def each(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "S N K"]:
        """Score raw features by the classifier of every draw."""
        return features.double() @ self.weight.mT + self.bias.unsqueeze(1)

    def forward(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Score raw features by the classifier of the first draw, whose predictions a run shows."""
        return self.each(features)[0]

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {**super().arguments(), "draws": len(self.weight)}


def draw_rows(codes: Int[np.ndarray, " N"], options: FewShotOptions) -> list[NDArray[np.int64]]:
    """Draw the rows of every draw: in a new random order, the first ones of each class.

    Example:
        >>> [len(rows) for rows in draw_rows(np.array([0, 1, 1, 1]), FewShotOptions(draws=2, rows=2))]
        [3, 3]
    """
    rng = np.random.default_rng(options.seed)
    orders = [rng.permutation(len(codes)) for _ in range(options.draws)]
    return [
        np.concatenate([order[codes[order] == code][: options.rows] for code in np.unique(codes)]) for order in orders
    ]


def evaluate_few_shot(resolved: HeadOptions, setting: Setting, watch: Watch) -> HeadResult:
    """Fit every layer on every draw, choose the layer by the mean on validation, and read test once.

    Summaries are over draws, as comparisons are; the predictions shown are those of the first draw.
    """
    del watch  # the solver has no epochs
    task, options = setting.task, resolved.own[0]
    features = ClassFeatures(setting.cache, task, channels_read(resolved, setting))
    channels = features.channels
    kept = fit_or_load(
        setting.folder / NAME,
        setting.identify(NAME, asdict(options), channels.pooling, list(channels.names), more=[setting.device]),
        lambda: _fit(features, options, setting.device),
        lambda record: FewShotProbe(**record["arguments"]),
        cache=setting.cache,
    )
    place = kept.record["place"]
    by_draw = {split: predict_split(features, kept.head.each, layer=place[0], split=split) for split in task.splits}
    choice = describe_choice(
        channels,
        kept.record["surface"],
        place,
        metric=task.metric,
        option="C",
        values=[options.C],
        selection="validation" if len(channels.names) > 1 else "nothing to choose",
    )
    result = class_result(resolved, setting, {split: found[0] for split, found in by_draw.items()}, **choice)
    summary = {
        split: {
            metric: summarise_class_seeds(
                found,
                task.labels(split),
                metric=metric,
                groups=task.units(split),
                resampling=Resampling(setting.n_resamples),
            )
            for metric in task.metrics
        }
        for split, found in by_draw.items()
    }
    return replace(result, summary=summary, scored=by_draw)


def check_few_shot(task: ClassTask, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse with a TaskError a task without rows to report, or without validation where a plan is to be chosen."""
    require_rows(task)
    if purpose.chooses_plan and "validation" not in task.splits:
        raise TaskError(
            f"task {task.name!r} has no split 'validation', on which head {resolved.name!r} chooses its plan; add rows "
            "to it, or use logistic-probe."
        )


def _fit(features: ClassFeatures, options: FewShotOptions, device: str) -> tuple[FewShotProbe, dict[str, Any]]:
    """Fit every layer on every draw, choose a layer, and keep its classifiers."""
    task, names = features.task, features.channels.names
    if len(names) > 1 and "validation" not in task.splits:
        raise TaskError(
            f"task {task.name!r} has no split 'validation' to choose among {len(names)} layers on; add rows to it, or "
            "name one layer with `layers`."
        )
    codes = training_codes(task)
    draws = [torch.from_numpy(rows) for rows in draw_rows(codes.numpy(), options)]
    probes: list[list[tuple[Tensor, Tensor]]] = []  # of every layer and draw: weights and intercepts for raw features
    scores: list[NDArray[np.float64]] = []
    for chunk in features.chunks([split for split in ("train", "validation") if split in task.splits]):
        for split, rows in chunk.items():
            check_features(rows, split=split, first_layer=len(probes))
        fits = [
            fit_logistic(
                chunk["train"][:, rows],
                codes[rows],
                Cs=[options.C],
                n_classes=len(task.training_classes),
                options=options.solver(device),
            )
            for rows in draws
        ]
        probes += [[fit.raw(layer, 0) for fit in fits] for layer in range(len(chunk["train"]))]
        if "validation" in chunk:
            predicted = [task.training_classes[fit.logits(chunk["validation"]).argmax(-1).numpy()] for fit in fits]
            gold = task.labels("validation")
            scores += list(np.mean([score_classes(each, gold, metric=task.metric) for each in predicted], axis=0))
    surface = np.array(scores) if scores else np.full((1, 1), np.nan)
    layer, column = best_place(surface)
    head = FewShotProbe(features.width, training_names(task), draws=options.draws)
    head.weight.copy_(torch.stack([weight for weight, _ in probes[layer]]))
    head.bias.copy_(torch.stack([bias for _, bias in probes[layer]]))
    return head.eval(), record_layer(
        NAME,
        features.channels,
        task,
        layer=layer,
        is_pairs=task.is_pairs,
        place=[layer, column],
        surface=record_surface(surface),
    )
