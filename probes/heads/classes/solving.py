"""Probes of a chunk of layers, fitted on train and scored on the rows that select: the classes of train alone count."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.heads.classes.options import NO_OVERSAMPLING, ProbeOptions
from probes.logistic.checks import check_finite
from probes.logistic.oversampling import oversample
from probes.logistic.result import LogisticFit
from probes.logistic.solver import fit_logistic
from probes.metrics.class_metrics import score_classes
from probes.tasks.classes.task import ClassTask


def training_codes(task: ClassTask) -> Int[Tensor, " N"]:
    """Number the training rows by the classes that train has.

    Args:
        task: The task.

    Returns:
        `(N,)` places in `task.training_classes`. A class of validation or test alone would only add an output: it
        turns the sigmoid of two classes into a softmax, under which the same C is another penalty.
    """
    return torch.from_numpy(np.searchsorted(task.training_classes, task.labels("train")))


@dataclass(frozen=True, eq=False)
class Part:
    """Probes of a chunk of layers, and their scores on the selecting rows.

    Attributes:
        fit: The probes, by the places in `training_classes`.
        surface: `(l, C)` scores; NaN where nothing is to choose.
    """

    fit: LogisticFit
    surface: Float[np.ndarray, "l C"]


@dataclass(frozen=True)
class ChunkSolver:
    """Fits chunks of layers.

    Attributes:
        task: The task.
        options: Options of the probes, oversampling among them.
        folds: Training rows of each fold; None where validation decides, or nothing is to choose.
        device: Where to compute.
    """

    task: ClassTask
    options: ProbeOptions
    folds: Bool[Tensor, "F N"] | None
    device: str

    def solve(self, chunk: dict[str, Tensor], *, first_layer: int) -> Part:
        """Fit a chunk on train, and score it on validation or on the rows each fold leaves out.

        Args:
            chunk: `train`, and `validation` where the task has it, to features `(l, N, W)`.
            first_layer: Place of the chunk's first layer, for messages.

        Returns:
            The probes and their scores.

        Raises:
            HeadError: Rows that no probe can be fitted on or judged by.
        """
        train, gold, metric = chunk["train"], training_codes(self.task), self.task.metric
        check_features(train, split="train", first_layer=first_layer)
        fit = self.fit(train, gold)
        if self.folds is None and "validation" not in chunk:  # one layer and one C
            return Part(fit, np.full((1, 1), np.nan))
        if self.folds is None:
            check_features(chunk["validation"], split="validation", first_layer=first_layer)
            predicted = self.task.training_classes[fit.logits(chunk["validation"]).argmax(-1).numpy()]
            return Part(fit, np.asarray(score_classes(predicted, self.task.labels("validation"), metric=metric)))
        scores = []
        for inside in self.folds:
            found = self.fit(train[:, inside], gold[inside]).logits(train[:, ~inside]).argmax(-1).numpy()
            scores.append(score_classes(found, gold[~inside].numpy(), metric=metric))
        return Part(fit, np.asarray(np.mean(scores, axis=0)))

    def fit(self, latents: Float[Tensor, "l N W"], codes: Int[Tensor, " N"]) -> LogisticFit:
        """Fit every layer and C, on rows oversampled first where that is asked for."""
        Cs, n_classes = self.options.Cs, len(self.task.training_classes)
        settings = self.options.solver(device=self.device)
        if self.options.oversampling == NO_OVERSAMPLING:
            return fit_logistic(latents, codes, Cs=Cs, n_classes=n_classes, options=settings)
        more = oversample(
            latents, codes, mode=self.options.oversampling, seed=self.options.seed,
            is_standardised=self.options.is_standardised, dtype=settings.dtype,
        )  # fmt: skip
        settings = replace(settings, is_standardised=False)  # they are scaled already, where they should be
        fit = fit_logistic(more.latents, more.codes, Cs=Cs, n_classes=n_classes, options=settings)
        return fit.before(more.mean, more.scale)


def check_features(latents: Float[Tensor, "l N W"], *, split: str, first_layer: int) -> None:
    """Refuse NaN and infinite features of a split: their class would be the first one, and nothing would say so.

    Args:
        latents: `(l, N, W)` features.
        split: Their split.
        first_layer: Place of the first layer.

    Raises:
        HeadError: Names split, layer and row of the first.
    """
    rows = torch.ones(latents.shape[1], dtype=torch.bool)
    check_finite(latents, rows=rows, first_layer=first_layer, where=f"{split}: ")
