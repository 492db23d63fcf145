"""Logistic probes of a classification task: every layer and C at once, the best on validation, test read once."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from extract.decoders.layers import EMBEDDING, FINAL_NORM, GROUPS, select_from
from extract.digest import digest_json
from extract.errors import ConfigError
from probes.fitting.saved import fit_or_load
from probes.heads.classes.options import NO_OVERSAMPLING, ProbeOptions
from probes.heads.classes.picking import pick_probe, predict_split, score_splits
from probes.heads.classes.results import class_result, require_rows, training_names
from probes.heads.classes.solving import ChunkSolver, Part, training_codes
from probes.heads.entries import Purpose
from probes.heads.options import HeadOptions
from probes.heads.result import Curve, HeadResult
from probes.heads.setting import Setting, Watch
from probes.latents.channels import channels_of
from probes.latents.class_features import ClassFeatures
from probes.logistic.checks import check_codes
from probes.logistic.labels import check_folds, stratified_folds
from probes.logistic.oversampling import describe_oversampling
from probes.logistic.probe import LinearProbe
from probes.tasks.classes.task import ClassTask

NAME = "logistic-probe"


def evaluate_probe(resolved: HeadOptions, setting: Setting, watch: Watch) -> HeadResult:
    """Fit a probe for every layer and C on train, choose on validation, and read test once.

    Without a validation split, layer and C are chosen by cross-validation on train.

    Args:
        resolved: Its options.
        setting: What all heads of the run share.
        watch: Not used: the solver has no epochs.

    Returns:
        The result: a curve over layers for each C, the chosen layer and C, and the chosen probe's classes. Extras:
        `Cs`, `default` (the highest layer and the C nearest 1, with its scores), `convergence`, and `oversampled`.

    Raises:
        HeadError: Rows that no probe can be fitted on, or classes too small for the folds.
        UnknownNameError: A pooling or layer that the cache does not have.
    """
    del watch
    task, cache, options = setting.task, setting.cache, _options(resolved)
    features = ClassFeatures(cache, task, channels_of(cache, resolved.pooling_of(cache.poolings), resolved.layers))
    names = features.channels.names
    selection = selection_of(task, options, has_choice=len(names) * len(options.Cs) > 1)
    fit = _ProbeFit(features, options, selection, setting.device)
    folder = setting.folder / resolved.name
    kept = fit_or_load(folder, fit.identify(), fit.run, lambda record: LinearProbe(**record["arguments"]))
    layer, c = kept.record["place"]
    surface = np.array(kept.record["surface"], dtype=np.float64)  # null is NaN
    default = fit.default
    default_scores = score_splits(features, kept.head.default, layer=default[0])
    return class_result(
        resolved, setting,
        {split: predict_split(features, kept.head, layer=layer, split=split) for split in task.splits},
        pooling=features.channels.pooling,
        layers=names,
        options=asdict(options),
        selection=selection,
        chosen={"layer": names[layer], "C": options.Cs[c], "score": float(surface[layer, c])},
        curves=tuple(
            Curve(f"C {C:g}", selection, task.metric, tuple(column))
            for C, column in zip(options.Cs, surface.T.tolist(), strict=True)
        ),
        extras={
            "Cs": list(options.Cs),
            "default": {"layer": names[default[0]], "C": options.Cs[default[1]], "scores": default_scores},
            **_describe_growth(task, options),
            "convergence": kept.record["convergence"],
        },
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _ProbeFit:
    """Everything that decides which probes are fitted.

    Attributes:
        features: Features of every layer.
        options: Options of the probes.
        selection: Where layer and C are chosen.
        device: Where to compute.
    """

    features: ClassFeatures
    options: ProbeOptions
    selection: str
    device: str

    @property
    def default(self) -> tuple[int, int]:
        """Place of the highest layer and the C nearest 1."""
        return len(self.features.channels.names) - 1, int(np.argmin(np.abs(np.log(self.options.Cs))))

    def identify(self) -> str:
        """Digest everything that the probes depend on."""
        cache, channels = self.features.cache, self.features.channels
        return digest_json(
            [
                NAME, asdict(self.options), channels.pooling, list(channels.names), cache.manifest.id,
                self.features.task.without_test().digest(), cache.identity["versions"], self.device,
            ],
        )  # fmt: skip

    def run(self) -> tuple[LinearProbe, dict[str, Any]]:
        """Fit every layer and C; keep the chosen probe and the default one."""
        task, channels = self.features.task, self.features.channels
        parts = _fit_all(self.features, task, self.options, selection=self.selection, device=self.device)
        surface, fits = np.concatenate([part.surface for part in parts]), [part.fit for part in parts]
        place = _best(surface, self.options.Cs)
        chosen, converged = pick_probe(fits, place)
        default, _ = pick_probe(fits, self.default)
        return LinearProbe.of(chosen, training_names(task), default=default), {
            "name": NAME,
            "pooling": channels.pooling,
            "layers": [channels.names[place[0]]],
            "C": chosen.Cs[0],
            "is_pairs": task.is_pairs,
            "task": {"name": task.name, "digest": task.digest()},
            "place": list(place),
            "surface": [[None if np.isnan(score) else score for score in row] for row in surface.tolist()],
            "convergence": converged,
        }


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
    return layers if set(extracted) & set(GROUPS) else select_from(layers, sorted(extracted))


def names_one_layer(layers: tuple[str, ...]) -> bool:
    """Return whether a selection names one layer, for which no cache need be asked."""
    return len(layers) == 1 and (layers[0].startswith("block_") or layers[0] in (EMBEDDING, FINAL_NORM))


def selection_of(task: ClassTask, options: ProbeOptions, *, has_choice: bool) -> str:
    """Say where layer and C are chosen, and refuse what cannot be fitted there; needs no latents.

    Args:
        task: The task.
        options: Options of the probes.
        has_choice: Whether there is more than one layer or C.

    Returns:
        `validation`, a cross-validation on train, or that there is nothing to choose.

    Raises:
        HeadError: Fewer training rows than classes, or classes or groups too small for the folds.
    """
    codes, names = training_codes(task), training_names(task)
    check_codes(codes, n_classes=len(names), folds=(codes >= 0)[None])
    if not has_choice:
        return "nothing to choose"
    if "validation" in task.splits:
        return "validation"
    check_folds(codes, n_folds=options.folds, groups=task.groups("train"), class_names=names)
    return f"{options.folds}-fold cross-validation on train"


def _fit_all(
    features: ClassFeatures, task: ClassTask, options: ProbeOptions, *, selection: str, device: str
) -> list[Part]:
    """Fit and score every layer and C, chunk of layers by chunk of layers."""
    folds = None
    if "cross-validation" in selection:
        folds = stratified_folds(
            training_codes(task), n_folds=options.folds, seed=options.seed, groups=task.groups("train")
        )
    solver = ChunkSolver(task, options, folds, device)
    parts: list[Part] = []
    for chunk in features.chunks([split for split in ("train", "validation") if split in task.splits]):
        parts.append(solver.solve(chunk, first_layer=sum(len(part.surface) for part in parts)))
    return parts


def _describe_growth(task: ClassTask, options: ProbeOptions) -> dict[str, Any]:
    if options.oversampling == NO_OVERSAMPLING:
        return {}
    names = training_names(task)
    return {"oversampled": describe_oversampling(training_codes(task), mode=options.oversampling, class_names=names)}


def _best(surface: Float[np.ndarray, "L C"], Cs: tuple[float, ...]) -> tuple[int, int]:
    """Choose the highest score; of equals the lowest layer, then the strongest penalty, which is the smallest C."""
    rising = np.argsort(Cs, kind="stable")
    layer, c = np.unravel_index(int(np.argmax(surface[:, rising])), surface.shape)
    return int(layer), int(rising[c])
