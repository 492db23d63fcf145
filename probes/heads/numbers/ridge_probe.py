"""Ridge probes of a number task: every layer and alpha, the best on validation, test read once."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.model_selection import GroupKFold, KFold
from torch import Tensor

from extract.digest import digest_json
from extract.errors import HeadError, TaskError
from extract.store.cache import LatentCache
from probes.fitting.saved import fit_or_load
from probes.heads.entries import Purpose
from probes.heads.numbers.ridge import RidgeFit, RidgeProbe, fit_ridge
from probes.heads.options import HeadOptions
from probes.heads.result import Curve, HeadResult
from probes.heads.setting import Setting, Watch
from probes.latents.channels import Channels, channels_of
from probes.metrics.bootstrap import Resampling
from probes.metrics.correlation import pearson
from probes.metrics.intervals import summarise_seeds
from probes.tasks.audit import why_optimistic
from probes.tasks.numbers.task import NumberTask

NAME = "ridge-probe"


@dataclass(frozen=True)
class RidgeOptions:
    """Options of the head `ridge-probe`."""

    alphas: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0)
    """Penalties. Features are standardised and errors are summed over rows: against `N` rows, an alpha of `N` halves
    the weight of a single feature."""
    folds: int = 5
    """Folds of cross-validation on train, used where the task has no validation split."""
    seed: int = 0
    """Seed of the folds, where rows are not grouped."""

    def __post_init__(self) -> None:
        """Refuse penalties and folds that no probe can be fitted with."""
        if not self.alphas or not all(0 < alpha < np.inf for alpha in self.alphas):
            raise HeadError(f"alphas are {list(self.alphas)}; allowed: one or more finite numbers above 0.")
        if self.folds < 2:
            raise HeadError(f"folds is {self.folds}; allowed: a whole number of at least 2.")


def check_ridge(task: NumberTask, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse a task that no probe can be fitted on, or chosen on, before anything is extracted.

    Raises:
        TaskError: The task has no train, or nothing but train.
        HeadError: Too few rows or groups for the folds.
    """
    del purpose  # there is always a score to choose a plan by
    if "train" not in task.splits or len(task.splits) == 1:
        raise TaskError(
            f"task {task.name!r} has only {' and '.join(task.splits)}; add train, and validation or test rows."
        )
    n_units = len(set(task.groups("train") or range(len(task.rows("train")))))
    folds = resolved.own[0].folds
    if "validation" not in task.splits and n_units < folds:
        raise HeadError(f"train has {n_units} rows or groups for {folds} folds; give more rows, or fewer folds.")


def evaluate_ridge(resolved: HeadOptions, setting: Setting, watch: Watch) -> HeadResult:
    """Fit a probe for every layer and alpha on train, choose by the Pearson correlation on validation, read test once.

    Without a validation split, layer and alpha are chosen by cross-validation on train.

    Args:
        resolved: Its options.
        setting: What all heads of the run share.
        watch: Not used: the solution is closed.

    Returns:
        The result: a curve over layers for each alpha, the chosen layer and alpha, and the chosen probe's numbers.
        Extras: `rmse`, of the probe and of the mean of train, which has no correlation.

    Raises:
        HeadError: A latent is not finite, or every probe predicts the same for every row.
        UnknownNameError: A pooling or layer that the cache does not have.
    """
    del watch
    task, cache = setting.task, setting.cache
    channels = channels_of(cache, resolved.pooling_of(cache.poolings), resolved.layers)
    fit = _RidgeFit(cache, task, channels, resolved.own[0])
    kept = fit_or_load(
        setting.folder / resolved.name, fit.identify(), fit.run, lambda record: RidgeProbe(**record["arguments"])
    )
    surface = np.array(kept.record["surface"], dtype=np.float64)  # null is NaN
    layer, a = kept.record["place"]
    predictions = {split: kept.head(fit.read(layer, split)).numpy() for split in task.splits}
    gold = {split: task.numbers(split) for split in task.splits}
    resampling = Resampling(setting.n_resamples)
    return HeadResult(
        name=resolved.name,
        pooling=channels.pooling,
        layers=channels.names,
        options=asdict(fit.options),
        metric=task.metrics[0],
        selection=fit.selection,
        selection_score=float(surface[layer, a]),
        chosen={"layer": channels.names[layer], "alpha": fit.options.alphas[a], "score": float(surface[layer, a])},
        summary={
            split: {
                metric: summarise_seeds(
                    found[None], gold[split], metric=metric, groups=task.groups(split), resampling=resampling
                )
                for metric in task.metrics
            }
            for split, found in predictions.items()
        },
        curves=tuple(
            Curve(f"alpha {alpha:g}", fit.selection, task.metrics[0], tuple(column))
            for alpha, column in zip(fit.options.alphas, surface.T.tolist(), strict=True)
        ),
        optimistic_because=why_optimistic(task),
        extras={
            "rmse": {
                split: {"probe": _rmse(found, gold[split]), "mean_of_train": _rmse(gold["train"].mean(), gold[split])}
                for split, found in predictions.items()
            }
        },
        predictions=predictions,
        row_scores={split: -np.abs(found - gold[split]) for split, found in predictions.items()},
    )


@dataclass(frozen=True, eq=False)
class _RidgeFit:
    """Everything that decides which probe is fitted."""

    cache: LatentCache
    task: NumberTask
    channels: Channels
    options: RidgeOptions

    @property
    def selection(self) -> str:
        """Where layer and alpha are chosen."""
        has_split = "validation" in self.task.splits
        return "validation" if has_split else f"{self.options.folds}-fold cross-validation on train"

    def identify(self) -> str:
        """Digest everything that the probe depends on."""
        return digest_json(
            [
                NAME, asdict(self.options), self.channels.pooling, list(self.channels.names), self.cache.manifest.id,
                self.task.without_test().digest(), self.cache.identity["versions"],
            ],
        )  # fmt: skip

    def read(self, place: int, split: str) -> Float[Tensor, "N D"]:
        """Read the latents of a split at one channel, by its position."""
        pooling, layer = tuple(product(self.channels.poolings, self.channels.layers))[place]
        rows = self.cache.rows_of(list(self.task.rows(split)["text"]))
        return Channels((pooling,), (layer,)).gather(self.cache, rows)[0]

    def run(self) -> tuple[RidgeProbe, dict[str, Any]]:
        """Fit every layer and alpha; keep the chosen probe."""
        surface = np.array([self.score(place) for place in range(len(self.channels.names))])
        place = best_place(surface, self.options.alphas)
        return self.fit(self.read(place[0], "train")).probe(place[1]), {
            "name": NAME,
            "pooling": self.channels.pooling,
            "layers": [self.channels.names[place[0]]],
            "alpha": self.options.alphas[place[1]],
            "task": {"name": self.task.name, "digest": self.task.digest()},
            "place": list(place),
            "surface": [[None if np.isnan(score) else score for score in row] for row in surface.tolist()],
        }

    def fit(self, latents: Float[Tensor, "N D"], rows: slice | np.ndarray = slice(None)) -> RidgeFit:
        """Fit every alpha on some rows of train, all by default."""
        return fit_ridge(latents[rows], torch.from_numpy(self.task.numbers("train")[rows]), self.options.alphas)

    def score(self, place: int) -> Float[np.ndarray, " A"]:
        """Give the correlation of every alpha at one channel, where layer and alpha are chosen."""
        latents = self.read(place, "train")
        if "validation" in self.task.splits:
            predicted = self.fit(latents).predict(self.read(place, "validation"))
            return pearson(predicted.numpy(), self.task.numbers("validation"))
        predicted = torch.empty(len(self.options.alphas), len(latents), dtype=torch.float64)
        for others, held_out in self.folds():
            predicted[:, held_out] = self.fit(latents, others).predict(latents[held_out])
        return pearson(predicted.numpy(), self.task.numbers("train"))

    def folds(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Divide train into folds; rows of one group are in one fold."""
        groups, n_rows = self.task.groups("train"), len(self.task.rows("train"))
        how = KFold(self.options.folds, shuffle=True, random_state=self.options.seed)
        split = how.split(range(n_rows)) if groups is None else GroupKFold(self.options.folds).split(
            np.zeros(n_rows), groups=list(groups)
        )  # fmt: skip
        yield from split


def best_place(surface: Float[np.ndarray, "L A"], alphas: tuple[float, ...]) -> tuple[int, int]:
    """Choose the highest score; of equals the lowest layer, then the strongest penalty.

    Args:
        surface: `(L, A)` scores; NaN where a probe predicts the same for every row.
        alphas: The `A` penalties.

    Returns:
        Position of the layer, and of the alpha.

    Raises:
        HeadError: Every score is NaN.
    """
    if np.isnan(surface).all():
        raise HeadError("every ridge probe predicts the same number for every row; check the latents and the rows.")
    falling = np.argsort(-np.array(alphas), kind="stable")
    layer, a = np.unravel_index(int(np.nanargmax(surface[:, falling])), surface.shape)
    return int(layer), int(falling[a])


def _rmse(predicted: Float[np.ndarray, " N"] | float, gold: Float[np.ndarray, " N"]) -> float:
    return float(np.sqrt(np.mean((predicted - gold) ** 2)))
