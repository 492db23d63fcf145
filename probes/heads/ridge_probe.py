"""Ridge probes of a number task: every layer and alpha, the best on validation, test read once."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.model_selection import GroupKFold, KFold
from torch import Tensor, nn

from extract.errors import HeadError, TaskError
from extract.store.cache import LatentCache
from probes.data.class_task import NumberTask
from probes.fitting.saved_fits import fit_or_load
from probes.heads.context import Setting, Watch
from probes.heads.head_table import HeadOptions, Purpose
from probes.heads.layer_head import (
    best_place,
    channels_read,
    describe_choice,
    layer_result,
    only_channel,
    record_layer,
    record_surface,
)
from probes.heads.result import HeadResult
from probes.latents.text_latents import Channels
from probes.metrics.bootstrap import summarise_seeds
from probes.metrics.correlation import pearson

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


class RidgeProbe(nn.Module):
    """A linear regression of latents of dimension `width`, with the standardisation it was fitted under, in float64."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        for name in ("weight", "mean", "scale"):
            self.register_buffer(name, torch.zeros(width, dtype=torch.float64))
        self.register_buffer("bias", torch.zeros((), dtype=torch.float64))

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {"width": self.width}

    def forward(self, latents: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """Predict the number of each raw latent."""
        return ((latents.double() - self.mean) / self.scale) @ self.weight + self.bias

    def predict(self, latents: Float[Tensor, "N D"]) -> Float[np.ndarray, " N"]:
        """Predict as `forward` does, outside torch."""
        return np.asarray(self(latents).numpy())


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """Ridge regressions of one layer under `A` penalties, of features standardised by `mean` and `scale`."""

    weight: Float[Tensor, "A D"]
    bias: Float[Tensor, ""]
    mean: Float[Tensor, " D"]
    scale: Float[Tensor, " D"]

    def predict(self, latents: Float[Tensor, "N D"]) -> Float[Tensor, "A N"]:
        """Predict the number of each raw latent under every penalty."""
        return self.weight @ ((latents.double() - self.mean) / self.scale).T + self.bias

    def probe(self, place: int) -> RidgeProbe:
        """Give the probe of one penalty, by its position."""
        probe = RidgeProbe(len(self.mean))
        probe.load_state_dict({**vars(self), "weight": self.weight[place]})
        return probe.eval()


def fit_ridge(latents: Float[Tensor, "N D"], gold: Float[Tensor, " N"], alphas: Sequence[float]) -> RidgeFit:
    """Minimise the sum of squared errors plus `alpha` times the squared norm of the weights, for each alpha.

    One singular value decomposition of the standardised features solves all of them, in float64; no penalty shrinks
    the bias. Latents that are not finite raise a HeadError.
    """
    raw, target = latents.double(), gold.double()
    if not torch.isfinite(raw).all():
        raise HeadError("a latent is NaN or infinite, so no probe can be fitted; extract again, with dtype float32.")
    mean = raw.mean(0)
    is_constant = raw.amax(0) == raw.amin(0)  # rounding in the mean must not make a constant vary
    scale = torch.where(is_constant, 1.0, raw.std(0, correction=0))
    left, values, right = torch.linalg.svd((raw - mean) / scale, full_matrices=False)
    bias = target.mean()
    shrunk = values / (values**2 + torch.tensor(alphas, dtype=torch.float64)[:, None])
    return RidgeFit((shrunk * (left.T @ (target - bias))) @ right, bias, mean, scale)


def check_ridge(task: NumberTask, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse a task without splits to fit and choose on, or with fewer rows or groups than folds."""
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
    """Fit a probe for every layer and alpha on train, choose on validation (without one by folds), read test once.

    The Pearson correlation chooses. Extras: `rmse` of the probe, and of the mean of train, which has no correlation.
    """
    del watch  # the solution is closed
    task, options, channels = setting.task, resolved.own[0], channels_read(resolved, setting)
    fit = _RidgeFit(setting.cache, task, channels, options)
    kept = fit_or_load(
        setting.folder / NAME,
        setting.identify(NAME, asdict(options), channels.pooling, list(channels.names)),
        fit.run,
        lambda record: RidgeProbe(**record["arguments"]),
        cache=setting.cache,
    )
    place = kept.record["place"]
    found = {split: kept.head(fit.read(place[0], split)).numpy() for split in task.splits}
    mean = task.numbers("train").mean()
    rmse = {
        split: {"probe": _rmse(rows, task.numbers(split)), "mean_of_train": _rmse(mean, task.numbers(split))}
        for split, rows in found.items()
    }
    selection = "validation" if "validation" in task.splits else f"{options.folds}-fold cross-validation on train"
    choice = describe_choice(
        channels,
        kept.record["surface"],
        place,
        metric=task.metrics[0],
        selection=selection,
        option="alpha",
        values=options.alphas,
    )
    return layer_result(
        resolved,
        setting,
        found,
        gold=task.numbers,
        summarise=summarise_seeds,
        compare=lambda rows, gold: -np.abs(rows - gold),
        extras={"rmse": rmse},
        **choice,
    )


@dataclass(frozen=True, eq=False)
class _RidgeFit:
    """Everything that decides which probe is fitted."""

    cache: LatentCache
    task: NumberTask
    channels: Channels
    options: RidgeOptions

    def read(self, place: int, split: str) -> Float[Tensor, "N D"]:
        """Read the latents of a split at one channel, by its position."""
        rows = self.cache.rows_of(list(self.task.rows(split)["text"]))
        return only_channel(self.channels, place).gather(self.cache, rows)[0]

    def run(self) -> tuple[RidgeProbe, dict[str, Any]]:
        """Fit every layer and alpha; keep the chosen probe."""
        surface = np.array([self.score(place) for place in range(len(self.channels.names))])
        if np.isnan(surface).all():
            raise HeadError("every ridge probe predicts the same number for every row; check the latents and the rows.")
        layer, a = best_place(surface, self.options.alphas)
        return self.fit(self.read(layer, "train")).probe(a), record_layer(
            NAME,
            self.channels,
            self.task,
            layer=layer,
            alpha=self.options.alphas[a],
            place=[layer, a],
            surface=record_surface(surface),
        )

    def fit(self, latents: Float[Tensor, "N D"], rows: slice | np.ndarray = slice(None)) -> RidgeFit:
        """Fit every alpha on some rows of train, all by default."""
        return fit_ridge(latents[rows], torch.from_numpy(self.task.numbers("train")[rows]), self.options.alphas)

    def score(self, place: int) -> Float[np.ndarray, " A"]:
        """Give the correlation of every alpha at one channel, on validation or on what folds of train leave out."""
        latents, options, groups = self.read(place, "train"), self.options, self.task.groups("train")
        if "validation" in self.task.splits:
            predicted = self.fit(latents).predict(self.read(place, "validation"))
            return pearson(predicted.numpy(), self.task.numbers("validation"))
        predicted = torch.empty(len(options.alphas), len(latents), dtype=torch.float64)
        drawn = KFold(options.folds, shuffle=True, random_state=options.seed)
        for others, held_out in (drawn if groups is None else GroupKFold(options.folds)).split(latents, groups=groups):
            predicted[:, held_out] = self.fit(latents, others).predict(latents[held_out])
        return pearson(predicted.numpy(), self.task.numbers("train"))


def _rmse(predicted: Float[np.ndarray, " N"] | float, gold: Float[np.ndarray, " N"]) -> float:
    return float(np.sqrt(np.mean((predicted - gold) ** 2)))
