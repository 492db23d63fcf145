"""Logistic probes of a classification task: every layer and C at once, the best on validation, test read once."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from extract.decoders.layers import GROUPS, is_number, select_from
from extract.errors import ConfigError
from probes.fitting.saved import fit_or_load
from probes.heads.classes.class_head import ClassHead, predict_split
from probes.heads.classes.results import class_result, require_rows, training_codes, training_names
from probes.heads.classes.solving import (
    NO_OVERSAMPLING,
    ChunkSolver,
    Part,
    ProbeOptions,
    describe_convergence,
    pick_probe,
)
from probes.heads.entries import Purpose
from probes.heads.layerwise import best_place, channels_read, describe_choice, record_layer, record_surface
from probes.heads.options import HeadOptions
from probes.heads.result import HeadResult
from probes.heads.setting import Setting, Watch
from probes.latents.class_features import ClassFeatures
from probes.logistic.checks import check_codes
from probes.logistic.folds import check_folds, stratified_folds
from probes.logistic.options import SolverOptions
from probes.logistic.oversampling import describe_oversampling
from probes.logistic.result import LogisticFit
from probes.metrics.class_metrics import score_classes
from probes.tasks.classes.task import ClassTask

NAME = "logistic-probe"


class LinearProbe(ClassHead):
    """A linear classifier of the latents of one layer: the logistic probe of one C, as it is saved and applied.

    Args:
        width: Dimension `D` of a latent.
        class_names: Names of the `K` classes, in the order of the outputs.
        precision: Precision of the weights, see `SolverOptions`.
        has_default: Whether the probe of the default layer and C, which need not be the chosen one, is kept with it.
    """

    weight: Tensor
    bias: Tensor
    default: "LinearProbe"

    def __init__(
        self, width: int, class_names: Sequence[str], *, precision: str = "float32", has_default: bool = False
    ) -> None:
        super().__init__(width, class_names, dtype=torch.float64)
        self.precision = precision
        dtype = SolverOptions(precision=precision).dtype
        self.register_buffer("weight", torch.zeros(len(class_names), width, dtype=dtype))
        self.register_buffer("bias", torch.zeros(len(class_names), dtype=dtype))
        if has_default:
            self.default = LinearProbe(width, class_names, precision=precision)

    @classmethod
    def of(cls, fit: LogisticFit, class_names: Sequence[str], *, default: LogisticFit | None = None) -> "LinearProbe":
        """Take the one probe of a fit of one layer, one C and one fold, and that of the default layer and C."""
        precision = "float64" if fit.weight.dtype == torch.float64 else "float32"
        probe = cls(fit.weight.shape[-1], class_names, precision=precision, has_default=default is not None)
        if default is not None:
            probe.default = cls.of(default, class_names)
        for name in ("weight", "bias", "mean", "scale"):
            own = getattr(probe, name)
            own.copy_(getattr(fit, name).reshape(own.shape))
        return probe.eval()

    def forward(self, latents: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Score raw latents."""
        return self.standardise(latents).to(self.weight.dtype) @ self.weight.T + self.bias

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {**super().arguments(), "precision": self.precision, "has_default": "default" in self._modules}


def evaluate_probe(resolved: HeadOptions, setting: Setting, watch: Watch) -> HeadResult:
    """Fit a probe for every layer and C on train, choose on validation (without one by folds of train), read test once.

    Extras: `Cs`, `default` (the highest layer and the C nearest 1, with its scores), `convergence`, and `oversampled`.
    """
    del watch  # the solver has no epochs
    task, options = setting.task, _options(resolved)
    features = ClassFeatures(setting.cache, task, channels_read(resolved, setting))
    channels = features.channels
    selection = selection_of(task, options, has_choice=len(channels.names) * len(options.Cs) > 1)
    fit = _ProbeFit(features, options, selection, setting.device)
    kept = fit_or_load(
        setting.folder / NAME,
        setting.identify(NAME, asdict(options), channels.pooling, list(channels.names), more=[setting.device]),
        fit.run,
        lambda record: LinearProbe(**record["arguments"]),
        cache=setting.cache,
    )
    record, default = kept.record, fit.default
    extras = {
        "Cs": list(options.Cs),
        "default": {
            "layer": channels.names[default[0]],
            "C": options.Cs[default[1]],
            "scores": _score_splits(features, kept.head.default, layer=default[0]),
        },
        **_describe_growth(task, options),
        "convergence": record["convergence"],
    }
    choice = describe_choice(
        channels,
        record["surface"],
        record["place"],
        metric=task.metric,
        selection=selection,
        option="C",
        values=options.Cs,
    )
    layer = record["place"][0]
    predictions = {split: predict_split(features, kept.head, layer=layer, split=split) for split in task.splits}
    return class_result(resolved, setting, predictions, extras=extras, **choice)


@dataclass(frozen=True, eq=False)
class _ProbeFit:
    """Everything that decides which probes are fitted."""

    features: ClassFeatures
    options: ProbeOptions
    selection: str
    device: str

    @property
    def default(self) -> tuple[int, int]:
        """Place of the highest layer and the C nearest 1."""
        return len(self.features.channels.names) - 1, int(np.argmin(np.abs(np.log(self.options.Cs))))

    def run(self) -> tuple[LinearProbe, dict[str, Any]]:
        """Fit every layer and C; keep the chosen probe and the default one."""
        task, parts = self.features.task, self.solve()
        surface, fits = np.concatenate([part.surface for part in parts]), [part.fit for part in parts]
        place = best_place(surface, [1 / C for C in self.options.Cs])
        chosen = pick_probe(fits, place)
        report = {key: value[0][0][0] for key, value in chosen.report.to_dict().items()}
        return LinearProbe.of(chosen, training_names(task), default=pick_probe(fits, self.default)), record_layer(
            NAME,
            self.features.channels,
            task,
            layer=place[0],
            C=chosen.Cs[0],
            is_pairs=task.is_pairs,
            place=list(place),
            surface=record_surface(surface),
            convergence={**describe_convergence(fits), "chosen": report},
        )

    def solve(self) -> list[Part]:
        """Fit and score every layer and C, chunk of layers by chunk of layers."""
        task, options, folds = self.features.task, self.options, None
        if "cross-validation" in self.selection:
            folds = stratified_folds(
                training_codes(task), n_folds=options.folds, seed=options.seed, groups=task.groups("train")
            )
        solver = ChunkSolver(task, options, folds, self.device)
        parts: list[Part] = []
        for chunk in self.features.chunks([split for split in ("train", "validation") if split in task.splits]):
            parts.append(solver.solve(chunk, first_layer=sum(len(part.surface) for part in parts)))
        return parts


def _options(resolved: HeadOptions) -> ProbeOptions:
    found: ProbeOptions = resolved.own[0]
    return found


def check_probe(task: ClassTask, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse a task that no probe can be fitted on, or no plan be chosen on, before anything is extracted.

    Raises:
        TaskError: The task has neither a validation nor a test split.
        ConfigError: One layer and one C where a plan is to be chosen without a validation split.
        HeadError: Too few rows, or classes or groups too small for the folds.
    """
    require_rows(task)
    options = _options(resolved)
    is_one = names_one_layer(_extracted(resolved.layers, purpose.extracted))
    if purpose.chooses_plan and len(options.Cs) == 1 and is_one and "validation" not in task.splits:
        raise ConfigError(
            f"head {resolved.name!r} has one layer and one C, and task {task.name!r} no validation split (protocol "
            f"{purpose.protocol}), so there is no score to choose a plan by; give it several Cs or layers, which "
            "train decides on by cross-validation, or use protocol icecore."
        )
    has_choice = len(options.Cs) > 1 or not names_one_layer(resolved.layers) or "+" in resolved.pooling
    selection_of(task, options, has_choice=has_choice)


def _extracted(layers: tuple[str, ...], extracted: tuple[str, ...]) -> tuple[str, ...]:
    """Resolve a selection against the extracted layers, where these are named and need no decoder to be known."""
    if set(extracted) & set(GROUPS):
        return layers
    if any(is_number(item) for item in (*layers, *extracted)):
        return extracted if len(extracted) == 1 else layers
    return select_from(layers, sorted(extracted))


def names_one_layer(layers: tuple[str, ...]) -> bool:
    """Return whether a selection names one layer, for which no cache need be asked."""
    return len(layers) == 1 and layers[0] not in GROUPS


def selection_of(task: ClassTask, options: ProbeOptions, *, has_choice: bool) -> str:
    """Say where layer and C are chosen, if there is more than one; HeadError for rows that cannot be fitted there."""
    codes, names = training_codes(task), training_names(task)
    check_codes(codes, n_classes=len(names), folds=(codes >= 0)[None])
    if not has_choice:
        return "nothing to choose"
    if "validation" in task.splits:
        return "validation"
    check_folds(codes, n_folds=options.folds, groups=task.groups("train"), class_names=names)
    return f"{options.folds}-fold cross-validation on train"


def _score_splits(features: ClassFeatures, probe: LinearProbe, *, layer: int) -> dict[str, float]:
    """Score one probe on every split by the metric to choose by."""
    task = features.task
    found = {split: predict_split(features, probe, layer=layer, split=split) for split in task.splits}
    return {
        split: float(score_classes(codes, task.labels(split), metric=task.metric)) for split, codes in found.items()
    }


def _describe_growth(task: ClassTask, options: ProbeOptions) -> dict[str, Any]:
    if options.oversampling == NO_OVERSAMPLING:
        return {}
    names = training_names(task)
    return {"oversampled": describe_oversampling(training_codes(task), mode=options.oversampling, class_names=names)}
