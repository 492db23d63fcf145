"""Probes of chunks of layers: their options, how they are fitted and scored, and how one of them is picked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from extract.errors import HeadError, unknown_name
from probes.heads.classes.class_head import check_features
from probes.heads.classes.results import training_codes
from probes.logistic.checks import check_strengths
from probes.logistic.options import SolverOptions
from probes.logistic.oversampling import MODES, fit_oversampled
from probes.logistic.result import ConvergenceReport, LogisticFit
from probes.logistic.solver import fit_logistic
from probes.metrics.class_metrics import score_classes
from probes.tasks.classes.task import ClassTask

NO_OVERSAMPLING = "none"


@dataclass(frozen=True)
class ProbeOptions:
    """Options of the head `logistic-probe`."""

    Cs: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)
    """Inverse strengths of the penalty, on features as the solver sees them; layer and C are chosen together."""
    oversampling: str = NO_OVERSAMPLING
    """`none`, `balance` or `times-5`: SMOTE inside the training fold, after scaling where there is scaling."""
    is_standardised: bool = True
    """Whether features are divided by their standard deviation over training rows."""
    max_iterations: int = SolverOptions.max_iterations
    """Most L-BFGS iterations per problem."""
    tol: float = SolverOptions.tol
    """Largest entry of the gradient of the mean objective at which a problem may stop; see `SolverOptions`."""
    precision: str = SolverOptions.precision
    """`float32` or `float64`, of the solver and of the weights; a tight `tol` needs float64."""
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
        """Return the options of the solver."""
        return SolverOptions(
            tol=self.tol,
            max_iterations=self.max_iterations,
            precision=self.precision,
            is_standardised=self.is_standardised,
            device=device,
        )


@dataclass(frozen=True, eq=False)
class Part:
    """Probes of a chunk of `l` layers, and their scores on the selecting rows; NaN where nothing is to choose."""

    fit: LogisticFit
    surface: Float[np.ndarray, "l C"]


@dataclass(frozen=True)
class ChunkSolver:
    """Fits chunks of layers.

    Attributes:
        task: The task; the classes of its train alone count.
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
            first_layer: Position of the chunk's first layer, for messages.
        """
        train, gold, metric = chunk["train"], training_codes(self.task), self.task.metric
        for split, rows in chunk.items():
            check_features(rows, split=split, first_layer=first_layer)
        fit = self.fit(train, gold)
        if self.folds is None and "validation" not in chunk:  # one layer and one C
            return Part(fit, np.full((1, 1), np.nan))
        if self.folds is None:
            predicted = self.task.training_classes[fit.logits(chunk["validation"]).argmax(-1).numpy()]
            return Part(fit, np.asarray(score_classes(predicted, self.task.labels("validation"), metric=metric)))
        scores = []
        for inside in self.folds:
            found = self.fit(train[:, inside], gold[inside]).logits(train[:, ~inside]).argmax(-1).numpy()
            scores.append(score_classes(found, gold[~inside].numpy(), metric=metric))
        return Part(fit, np.asarray(np.mean(scores, axis=0)))

    def fit(self, latents: Float[Tensor, "l N W"], codes: Int[Tensor, " N"]) -> LogisticFit:
        """Fit every layer and C, on rows oversampled first where that is asked for."""
        options, n_classes = self.options, len(self.task.training_classes)
        settings = options.solver(device=self.device)
        if options.oversampling == NO_OVERSAMPLING:
            return fit_logistic(latents, codes, Cs=options.Cs, n_classes=n_classes, options=settings)
        return fit_oversampled(
            latents,
            codes,
            Cs=options.Cs,
            mode=options.oversampling,
            seed=options.seed,
            n_classes=n_classes,
            options=settings,
        )


def describe_convergence(fits: Sequence[LogisticFit]) -> dict[str, Any]:
    """Say how the problems of all chunks ended, in plain values."""
    converged = torch.cat([fit.report.is_converged for fit in fits])
    return {
        "n_problems": converged.numel(),
        "n_converged": int(converged.sum()),
        "largest_gradient_norm": float(torch.cat([fit.report.gradient_norm for fit in fits]).max()),
        "n_iterations": int(torch.cat([fit.report.n_iterations for fit in fits]).sum()),
    }


def pick_probe(fits: Sequence[LogisticFit], place: tuple[int, int]) -> LogisticFit:
    """Take one probe (one layer, one C, one fold) out of the chunks, by position of layer, over all chunks, and C."""
    layer, c = place
    starts = np.cumsum([0, *(len(fit.weight) for fit in fits)])
    chunk = int(np.searchsorted(starts, layer, side="right")) - 1
    fit, k = fits[chunk], int(layer - starts[chunk])
    one = slice(k, k + 1), slice(c, c + 1)
    report = ConvergenceReport(*(getattr(fit.report, key)[one] for key in ConvergenceReport.__dataclass_fields__))
    return replace(
        fit,
        weight=fit.weight[one],
        bias=fit.bias[one],
        mean=fit.mean[one[0]],
        scale=fit.scale[one[0]],
        Cs=(fit.Cs[c],),
        report=report,
    )
