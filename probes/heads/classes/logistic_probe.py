"""Logistic probes of a classification task: every layer and C at once, the best on validation, test read once."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from extract.digest import digest_json
from extract.store.cache import LatentCache
from probes.fitting.fit_or_load import fit_or_load
from probes.fitting.saved import SavedHead
from probes.heads.classes.options import NO_OVERSAMPLING, ProbeOptions
from probes.heads.classes.picking import pick_probe, predict_split, score_splits
from probes.heads.classes.solving import ChunkSolver, Part, training_codes
from probes.latents.channels import channels_of
from probes.latents.class_features import ClassFeatures
from probes.logistic.checks import check_codes
from probes.logistic.labels import check_folds, stratified_folds
from probes.logistic.oversampling import describe_oversampling
from probes.logistic.probe import LinearProbe
from probes.metrics.bootstrap import Resampling
from probes.metrics.class_metrics import score_classes
from probes.metrics.intervals import summarise_class_seeds
from probes.tasks.classes.audit import why_optimistic
from probes.tasks.classes.task import ClassTask
from probes.tasks.held_back import without_test

NAME = "logistic-probe"


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """Probes of every layer and C, and the chosen one.

    Attributes:
        scores: Plain values, as they stand in scores.json.
        predictions: Split to the chosen probe's classes `(N,)`.
        head: The chosen probe; None for a head without weights.
    """

    scores: dict[str, Any]
    predictions: dict[str, Int[np.ndarray, " N"]]
    head: LinearProbe | None


def evaluate_probe(
    cache: LatentCache, task: ClassTask, options: ProbeOptions, *, pooling: str, layers: tuple[str, ...] = ("all",),
    device: str = "cpu", n_resamples: int = 1000, folder: Path | None = None,
) -> ProbeResult:  # fmt: skip
    """Fit a probe for every layer and C on train, choose on validation, and read test once.

    Probes that were kept under the same circumstances are loaded instead of fitted again.

    Args:
        cache: Latents of every text of the task.
        task: The task; without a validation split layer and C are chosen by cross-validation on train.
        options: Options of the probes.
        pooling: Which pooling, or several joined by `+`.
        layers: A selection of the cache's layers.
        device: Where to compute.
        n_resamples: Bootstrap resamples behind every interval.
        folder: Where the chosen probe is kept and found again; None keeps nothing.

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
    setting = _Setting(features, options, selection, pooling, device)
    kept = setting.fit_or_load(folder)
    layer, c = kept.record["place"]
    surface = np.array(kept.record["surface"], dtype=np.float64)  # null is NaN
    predictions = {split: predict_split(features, kept.head, layer=layer, split=split) for split in task.splits}
    scores = {
        "pooling": pooling,
        "layers": list(names),
        "options": asdict(options),
        "selection": selection,
        "Cs": list(options.Cs),
        "surface": surface.tolist(),
        "chosen": {"layer": names[layer], "C": options.Cs[c], "score": float(surface[layer, c])},
        "default": {
            "layer": names[setting.default[0]], "C": options.Cs[setting.default[1]],
            "scores": score_splits(features, kept.head.default, layer=setting.default[0]),
        },
        **describe_optimism(why_optimistic(task)),
        **summarise_predictions(task, predictions, n_resamples=n_resamples),
        **_describe_growth(task, options),
        "convergence": kept.record["convergence"],
    }  # fmt: skip
    return ProbeResult(scores, predictions, kept.head)


@dataclass(frozen=True, eq=False)
class _Setting:
    """Everything that decides a fit."""

    features: ClassFeatures
    options: ProbeOptions
    selection: str
    pooling: str
    device: str

    @property
    def default(self) -> tuple[int, int]:
        """Place of the highest layer and the C nearest 1."""
        return len(self.features.channels.names) - 1, int(np.argmin(np.abs(np.log(self.options.Cs))))

    def fit_or_load(self, folder: Path | None) -> SavedHead[LinearProbe]:
        if folder is None:
            return SavedHead(*self.fit())
        cache, task = self.features.cache, self.features.task
        identity = [
            NAME, asdict(self.options), self.pooling, list(self.features.channels.names), cache.manifest.id,
            without_test(task).digest(), cache.identity["versions"], self.device,
        ]  # fmt: skip
        return fit_or_load(folder, digest_json(identity), self.fit, lambda record: LinearProbe(**record["arguments"]))

    def fit(self) -> tuple[LinearProbe, dict[str, Any]]:
        """Fit every layer and C; keep the chosen probe and the default one."""
        task, names, classes = self.features.task, self.features.channels.names, training_names(self.features.task)
        parts = _fit_all(self.features, task, self.options, selection=self.selection, device=self.device)
        surface, fits = np.concatenate([part.surface for part in parts]), [part.fit for part in parts]
        place = _best(surface, self.options.Cs)
        chosen, converged = pick_probe(fits, place)
        default, _ = pick_probe(fits, self.default)
        return LinearProbe.of(chosen, classes, default=default), {
            "name": NAME,
            "pooling": self.pooling,
            "layers": [names[place[0]]],
            "C": chosen.Cs[0],
            "is_pairs": task.is_pairs,
            "task": {"name": task.name, "digest": task.digest()},
            "place": list(place),
            "surface": [[None if np.isnan(score) else score for score in row] for row in surface.tolist()],
            "convergence": converged,
        }


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
