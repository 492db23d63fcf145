"""Logistic probes of a classification task: every layer and C at once, the best on validation, test read once."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from extract.cache import LatentCache
from extract.errors import HeadError, unknown_name
from probes.channels import channels_of
from probes.classes.features import ClassFeatures
from probes.classes.intervals import Resampling, summarise_class_seeds
from probes.classes.metrics import score_classes
from probes.classes.picking import pick_probe, predict_split, score_splits
from probes.classes.task import ClassTask
from probes.logistic.checks import check_strengths
from probes.logistic.labels import stratified_folds
from probes.logistic.options import SolverOptions
from probes.logistic.oversampling import MODES, oversample
from probes.logistic.result import LogisticFit
from probes.logistic.solver import fit_logistic

NO_OVERSAMPLING = "none"


@dataclass(frozen=True)
class ProbeOptions:
    """Options of the head `logistic-probe`."""

    Cs: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)
    """Inverse strengths of the penalty, on standardised features; one is chosen per layer."""
    oversampling: str = NO_OVERSAMPLING
    """`none`, `balance` or `times-5`: SMOTE inside the training fold, after scaling."""
    is_standardised: bool = True
    """Whether features are divided by their standard deviation over training rows."""
    max_iterations: int = SolverOptions.max_iterations
    """Most L-BFGS iterations per problem."""
    tol: float = SolverOptions.tol
    """Largest entry of the gradient of the mean objective at which a problem may stop; see `SolverOptions`."""
    folds: int = 5
    """Folds of cross-validation on train, used where the task has no validation split."""
    seed: int = 0
    """Seed of folds and oversampling."""

    def __post_init__(self) -> None:
        """Refuse what the solver refuses, before anything is extracted."""
        check_strengths(self.Cs)
        if self.oversampling not in (NO_OVERSAMPLING, *MODES):
            raise unknown_name("oversampling", self.oversampling, [NO_OVERSAMPLING, *MODES])
        if self.folds < 2:
            raise HeadError(f"folds is {self.folds}; allowed: a whole number of at least 2.")
        self.solver()

    def solver(self, *, device: str = "cpu") -> SolverOptions:
        """Give the options of the solver."""
        return SolverOptions(
            tol=self.tol, max_iterations=self.max_iterations, is_standardised=self.is_standardised, device=device
        )


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
    has_validation = "validation" in task.splits
    has_choice = len(features.channels.names) * len(options.Cs) > 1
    gold = torch.from_numpy(task.labels("train"))
    folds = None
    if has_choice and not has_validation:
        folds = stratified_folds(gold, n_folds=options.folds, seed=options.seed, groups=task.groups("train"))
    parts = [
        _solve(chunk, gold, task, options, folds=folds, device=device)
        for chunk in features.chunks([split for split in ("train", "validation") if split in task.splits])
    ]
    surface = np.concatenate([part.surface for part in parts])
    place = _best(surface)
    names = features.channels.names
    fit, converged = pick_probe([part.fit for part in parts], place)
    predictions = {split: predict_split(features, fit, layer=place[0], split=split) for split in task.splits}
    default = (len(names) - 1, int(np.argmin(np.abs(np.log(options.Cs)))))
    scores = {
        "pooling": pooling,
        "layers": list(names),
        "options": asdict(options),
        "selection": _selection(options, has_validation=has_validation, has_choice=has_choice),
        "Cs": list(options.Cs),
        "surface": surface.tolist(),
        "chosen": {"layer": names[place[0]], "C": options.Cs[place[1]], "score": float(surface[place])},
        "default": {
            "layer": names[default[0]], "C": options.Cs[default[1]],
            "scores": score_splits(features, pick_probe([part.fit for part in parts], default)[0], layer=default[0]),
        },
        "is_optimistic": False,
        **summarise_predictions(task, predictions, n_resamples=n_resamples),
        "convergence": converged,
    }  # fmt: skip
    return ProbeResult(scores, predictions, fit)


def _selection(options: ProbeOptions, *, has_validation: bool, has_choice: bool) -> str:
    if not has_choice:
        return "nothing to choose"
    return "validation" if has_validation else f"{options.folds}-fold cross-validation on train"


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


@dataclass(frozen=True, eq=False)
class _Part:
    """Probes of a chunk of layers, and their scores on the selecting rows."""

    fit: LogisticFit
    surface: Float[np.ndarray, "l C"]


def _solve(
    chunk: dict[str, Tensor], gold: Tensor, task: ClassTask, options: ProbeOptions, *, folds: Tensor | None,
    device: str,
) -> _Part:  # fmt: skip
    """Fit a chunk of layers on train, and score them on validation or on the rows each fold leaves out."""
    train = chunk["train"]
    solve = _Solver(options, task.n_classes, device)
    fit = solve(train, gold)
    if folds is None and "validation" not in chunk:  # one layer and one C
        return _Part(fit, np.full((1, 1), np.nan))
    if folds is None:
        predicted = fit.logits(chunk["validation"]).argmax(-1).numpy()
        return _Part(fit, np.asarray(score_classes(predicted, task.labels("validation"), metric=task.metric)))
    scores = []
    for inside in folds:
        out = ~inside
        predicted = solve(train[:, inside], gold[inside]).logits(train[:, out]).argmax(-1).numpy()
        scores.append(score_classes(predicted, gold[out].numpy(), metric=task.metric))
    return _Part(fit, np.asarray(np.mean(scores, axis=0)))


@dataclass(frozen=True)
class _Solver:
    """Fits rows, oversampled first where that is asked for."""

    options: ProbeOptions
    n_classes: int
    device: str

    def __call__(self, latents: Tensor, codes: Tensor) -> LogisticFit:
        """Fit every layer and C."""
        settings = self.options.solver(device=self.device)
        if self.options.oversampling == NO_OVERSAMPLING:
            return fit_logistic(latents, codes, Cs=self.options.Cs, n_classes=self.n_classes, options=settings)
        more = oversample(latents, codes, mode=self.options.oversampling, seed=self.options.seed)
        settings = replace(settings, is_standardised=False)
        fit = fit_logistic(more.latents, more.codes, Cs=self.options.Cs, n_classes=self.n_classes, options=settings)
        return fit.before(more.mean, more.scale)


def _best(surface: Float[np.ndarray, "L C"]) -> tuple[int, int]:
    """Choose the highest score; of equals the lowest layer, then the strongest penalty."""
    layer, c = np.unravel_index(int(np.argmax(surface)), surface.shape)
    return int(layer), int(c)


def _majority(task: ClassTask) -> dict[str, float]:
    """Score the most frequent training class on every split: what a probe must beat."""
    most = int(np.bincount(task.labels("train")).argmax())
    return {
        split: float(score_classes(np.full(len(rows), most), task.labels(split), metric=task.metric))
        for split, rows in task.splits.items()
    }
