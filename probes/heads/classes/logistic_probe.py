"""Logistic probes of a classification task: every layer and C at once, the best on validation, test read once."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from extract.store.cache import LatentCache
from probes.heads.classes.options import NO_OVERSAMPLING, ProbeOptions
from probes.heads.classes.picking import pick_probe, predict_split, score_splits
from probes.heads.classes.solving import ChunkSolver, Part, training_codes
from probes.latents.channels import channels_of
from probes.latents.class_features import ClassFeatures
from probes.logistic.checks import check_codes
from probes.logistic.labels import check_folds, stratified_folds
from probes.logistic.oversampling import describe_oversampling
from probes.logistic.result import LogisticFit
from probes.metrics.class_intervals import Resampling, summarise_class_seeds
from probes.metrics.class_metrics import score_classes
from probes.tasks.classes.audit import why_optimistic
from probes.tasks.classes.task import ClassTask


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """Probes of every layer and C, and the chosen one.

    Attributes:
        scores: Plain values, as they stand in scores.json.
        predictions: Split to the chosen probe's classes `(N,)`.
        fit: The chosen probe alone: one layer, one C, one fold; None for a head without weights.
    """

    scores: dict[str, Any]
    predictions: dict[str, Int[np.ndarray, " N"]]
    fit: LogisticFit | None


def evaluate_probe(
    cache: LatentCache, task: ClassTask, options: ProbeOptions, *, pooling: str, layers: tuple[str, ...] = ("all",),
    device: str = "cpu", n_resamples: int = 1000,
) -> ProbeResult:  # fmt: skip
    """Fit a probe for every layer and C on train, choose on validation, and read test once.

    Args:
        cache: Latents of every text of the task.
        task: The task; without a validation split layer and C are chosen by cross-validation on train.
        options: Options of the probes.
        pooling: Which pooling, or several joined by `+`.
        layers: A selection of the cache's layers.
        device: Where to compute.
        n_resamples: Bootstrap resamples behind every interval.

    Returns:
        Scores (the surface over layers and C on the selecting split, the chosen point, every metric of the task on
        every split with intervals, what the default point scores, which is the highest layer and the C nearest 1,
        and convergence), the chosen probe and its predictions.

    Raises:
        HeadError: Rows that no probe can be fitted on, or classes too small for the folds.
        UnknownNameError: A pooling or layer that the cache does not have.
    """
    features = ClassFeatures(cache, task, channels_of(cache, pooling, layers))
    names = features.channels.names
    selection = selection_of(task, options, has_choice=len(names) * len(options.Cs) > 1)
    parts = _fit_all(features, task, options, selection=selection, device=device)
    surface = np.concatenate([part.surface for part in parts])
    fits = [part.fit for part in parts]
    place = _best(surface, options.Cs)
    fit, converged = pick_probe(fits, place)
    predictions = {split: predict_split(features, fit, layer=place[0], split=split) for split in task.splits}
    default = (len(names) - 1, int(np.argmin(np.abs(np.log(options.Cs)))))
    scores = {
        "pooling": pooling,
        "layers": list(names),
        "options": asdict(options),
        "selection": selection,
        "Cs": list(options.Cs),
        "surface": surface.tolist(),
        "chosen": {"layer": names[place[0]], "C": options.Cs[place[1]], "score": float(surface[place])},
        "default": {
            "layer": names[default[0]], "C": options.Cs[default[1]],
            "scores": score_splits(features, pick_probe(fits, default)[0], layer=default[0]),
        },
        **describe_optimism(why_optimistic(task)),
        **summarise_predictions(task, predictions, n_resamples=n_resamples),
        **_describe_growth(task, options),
        "convergence": converged,
    }  # fmt: skip
    return ProbeResult(scores, predictions, fit)


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


def training_names(task: ClassTask) -> list[str]:
    """Name the classes that train has rows of, in the order of a probe's outputs."""
    return [task.class_names[number] for number in task.training_classes]


def describe_optimism(reason: str) -> dict[str, Any]:
    """Give what scores.json says of it: whether the reported number is optimistic, and why."""
    return {"is_optimistic": bool(reason), "optimistic_because": reason}


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


def summarise_predictions(
    task: ClassTask, predictions: dict[str, Int[np.ndarray, " N"]], *, n_resamples: int
) -> dict[str, Any]:
    """Score predictions of every split by every metric of the task.

    Args:
        task: The task.
        predictions: Split to classes `(N,)`.
        n_resamples: Bootstrap resamples behind every interval.

    Returns:
        `summary` (split to metric to mean and interval) and `majority` (what the most frequent training class scores).
    """
    return {
        "majority": _majority(task),
        "summary": {
            split: {
                metric: summarise_class_seeds(
                    found[None], task.labels(split), metric=metric, groups=task.groups(split),
                    resampling=Resampling(n_resamples),
                ).to_dict()
                for metric in task.metrics
            }
            for split, found in predictions.items()
        },
    }  # fmt: skip


def _best(surface: Float[np.ndarray, "L C"], Cs: tuple[float, ...]) -> tuple[int, int]:
    """Choose the highest score; of equals the lowest layer, then the strongest penalty, which is the smallest C."""
    rising = np.argsort(Cs, kind="stable")
    layer, c = np.unravel_index(int(np.argmax(surface[:, rising])), surface.shape)
    return int(layer), int(rising[c])


def _majority(task: ClassTask) -> dict[str, float]:
    """Score the most frequent training class on every split: what a probe must beat."""
    most = int(np.bincount(task.labels("train")).argmax())
    return {
        split: float(score_classes(np.full(len(rows), most), task.labels(split), metric=task.metric))
        for split, rows in task.splits.items()
    }
