"""Ridge probes of a number task: every layer and alpha, the best on validation, test read once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, KFold
from torch import Tensor, nn

from extract.errors import HeadError, TaskError
from probes.data.class_task import NumberTask
from probes.fitting.fit_options import require_counts
from probes.fitting.saved_fits import SavedHead
from probes.heads.head_table import HeadOptions, Purpose
from probes.heads.layer_head import Choice, Fitted, LayerHead, only_channel
from probes.heads.result import Rows
from probes.metrics.bootstrap import Resampling, SeedSummary, summarise_seeds
from probes.metrics.prediction_metrics import pearson


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
        require_counts(self, "folds", least=2)


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

    def arguments(self) -> dict[str, object]:
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

    def probe(self, column: int) -> RidgeProbe:
        """Give the probe of one penalty, by its position."""
        probe = RidgeProbe(len(self.mean))
        probe.load_state_dict({**vars(self), "weight": self.weight[column]})
        return probe.eval()


def fit_ridge(latents: Float[Tensor, "N D"], gold: Float[Tensor, " N"], alphas: Sequence[float]) -> RidgeFit:
    """Minimise the sum of squared errors plus `alpha` times the squared norm of the weights, for each alpha.

    One singular value decomposition of the standardised features solves all of them; no penalty shrinks the bias.
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


class RidgeHead(LayerHead[RidgeProbe]):
    """The head `ridge-probe`: every layer and alpha; validation, or folds of train, choose by Pearson."""

    module = RidgeProbe
    option = "alpha"
    task: NumberTask
    options: RidgeOptions

    @staticmethod
    def check(task: NumberTask, resolved: HeadOptions, purpose: Purpose) -> None:
        """Refuse a task without splits to fit and choose on, or with fewer rows or groups than folds."""
        del purpose  # there is always a score to choose a plan by
        if "train" not in task.splits or len(task.splits) == 1:
            raise TaskError(
                f"task {task.name!r} has only {' and '.join(task.splits)}; add train, and validation or test rows."
            )
        n_units = len(set(task.groups("train") or range(len(task.rows("train")))))
        folds = resolved.options.folds
        if "validation" not in task.splits and n_units < folds:
            raise HeadError(f"train has {n_units} rows or groups for {folds} folds; give more rows, or fewer folds.")

    @property
    def values(self) -> tuple[float, ...]:
        """The penalties."""
        return self.options.alphas

    @property
    def selection(self) -> str:
        """Validation, or folds of train."""
        return (
            "validation" if "validation" in self.task.splits else f"{self.options.folds}-fold cross-validation on train"
        )

    def fit(self) -> Fitted[RidgeProbe]:
        """Fit every layer and alpha."""
        surface = np.array([self.score(layer) for layer in range(len(self.channels.names))])
        if np.isnan(surface).all():
            raise HeadError("every ridge probe predicts the same number for every row; check the latents and the rows.")
        choice = Choice.best(surface, self.options.alphas)
        fit = self.fit_rows(self.read(choice.layer, "train"))
        return fit.probe(choice.column), choice, {"alpha": self.options.alphas[choice.column]}

    def score(self, layer: int) -> Float[np.ndarray, " A"]:
        """Correlate the predictions of every alpha at a layer, on validation or on what folds of train leave out."""
        latents, options, groups = self.read(layer, "train"), self.options, self.task.groups("train")
        if "validation" in self.task.splits:
            predicted = self.fit_rows(latents).predict(self.read(layer, "validation"))
            return pearson(predicted.numpy(), self.task.numbers("validation"))
        predicted = torch.empty(len(options.alphas), len(latents), dtype=torch.float64)
        shuffled = KFold(options.folds, shuffle=True, random_state=options.seed)
        folds = shuffled if groups is None else GroupKFold(options.folds)
        for others, held_out in folds.split(latents, groups=groups):
            predicted[:, held_out] = self.fit_rows(latents, others).predict(latents[held_out])
        return pearson(predicted.numpy(), self.task.numbers("train"))

    def fit_rows(self, latents: Float[Tensor, "N D"], rows: slice | np.ndarray = slice(None)) -> RidgeFit:
        """Fit every alpha on some rows of train, all by default."""
        return fit_ridge(latents[rows], torch.from_numpy(self.task.numbers("train")[rows]), self.options.alphas)

    def read(self, layer: int, split: str) -> Float[Tensor, "N D"]:
        """Read the latents of a split at a layer."""
        rows = self.context.cache.rows_of(list(self.task.rows(split)["text"]))
        return only_channel(self.channels, layer).gather(self.context.cache, rows)[0]

    def predict(self, module: RidgeProbe, layer: int, split: str) -> Mapping[str, Rows]:
        """Predict the numbers of a split."""
        return dict.fromkeys(self.task.metrics, module(self.read(layer, split)).numpy()[None])

    def summarise(self, split: str, metric: str, predicted: Rows) -> SeedSummary:
        """Correlate predictions with the numbers."""
        return summarise_seeds(
            predicted,
            self.task.numbers(split),
            metric=metric,
            groups=self.task.units(split),
            resampling=Resampling(self.context.n_resamples),
        )

    def row_scores(self, split: str, predicted: Rows) -> NDArray[np.float64]:
        """Score a row by its absolute error, with a minus."""
        return np.asarray(-np.abs(predicted - self.task.numbers(split)), np.float64)

    def extras(self, saved: SavedHead[RidgeProbe], predictions: Mapping[str, Rows]) -> dict[str, object]:
        """Report the errors of the probe and of the mean of train."""
        del saved
        mean = self.task.numbers("train").mean()

        def rmse(predicted: Rows | float, split: str) -> float:
            return float(np.sqrt(np.mean((predicted - self.task.numbers(split)) ** 2)))

        return {
            "rmse": {
                split: {"probe": rmse(predicted, split), "mean_of_train": rmse(mean, split)}
                for split, predicted in predictions.items()
            }
        }
