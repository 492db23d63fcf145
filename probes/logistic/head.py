"""The logistic probe as a Lightning module: one epoch gathers the training rows, then the solver does the rest."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lightning
import torch
from jaxtyping import Float, Int
from torch import Tensor

from extract.errors import HeadError
from probes.logistic.checks import check_finite, check_strengths
from probes.logistic.options import SolverOptions
from probes.logistic.result import ConvergenceReport, LogisticFit
from probes.logistic.solver import fit_logistic


class LogisticHead(lightning.LightningModule):
    """Logistic probes of every layer and C, solved in closed batches by L-BFGS.

    A `Trainer` with `max_epochs=1` gathers the batches `(latents, codes)` of its one epoch and solves at its end;
    `fit` does the same without a trainer. Choose layer and C on validation before predicting. It is fitted in one
    process: a sampler for several repeats rows to fill up, and a repeated row changes the minimum.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        n_classes: Classes `K`.
        Cs: Inverse strengths of the penalty.
        tol: Tolerance of the solver, see `SolverOptions`.
        precision: Precision of the solver, see `SolverOptions`.

    Raises:
        HeadError: A C or a tolerance outside its range.
        UnknownNameError: A precision that stands in no table.

    Example:
        >>> head = LogisticHead(1, 1, n_classes=2, Cs=(1.0,))
        >>> latents, codes = torch.tensor([[[0.0], [1.0], [2.0], [3.0]]]), torch.tensor([0, 0, 1, 1])
        >>> bool(head.fit(latents, codes).is_converged.all())
        True
        >>> head.choose(layer=0, c=0)
        >>> head.predict_step((latents, codes), 0).tolist()
        [0, 0, 1, 1]
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    scale: Tensor
    chosen: Tensor

    def __init__(
        self,
        n_layers: int,
        width: int,
        *,
        n_classes: int,
        Cs: Sequence[float] = (0.01, 0.1, 1.0, 10.0, 100.0),
        tol: float = SolverOptions.tol,
        precision: str = "float32",
    ) -> None:
        super().__init__()
        check_strengths(Cs)
        self.options = SolverOptions(tol=tol, precision=precision)
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.Cs, self.n_classes = tuple(Cs), n_classes
        self.register_buffer("weight", torch.zeros(n_layers, len(Cs), n_classes, width, dtype=self.options.dtype))
        self.register_buffer("bias", torch.zeros(n_layers, len(Cs), n_classes, dtype=self.options.dtype))
        self.register_buffer("mean", torch.zeros(n_layers, 1, width, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(n_layers, 1, width, dtype=torch.float64))
        self.register_buffer("chosen", torch.full((2,), -1))
        self.report: ConvergenceReport | None = None
        self._gathered: list[tuple[Tensor, Tensor]] = []

    def fit(self, latents: Float[Tensor, "L N D"], codes: Int[Tensor, " N"]) -> ConvergenceReport:
        """Solve every layer and C on the training rows.

        Args:
            latents: `(L, N, D)` latents.
            codes: `(N,)` class codes.

        Returns:
            How each problem ended.

        Raises:
            HeadError: Rows that no probe can be fitted on.
        """
        options = replace(self.options, device=str(self.weight.device))
        return self.take(fit_logistic(latents, codes, Cs=self.Cs, n_classes=self.n_classes, options=options))

    def take(self, fit: LogisticFit) -> ConvergenceReport:
        """Take over probes that were fitted elsewhere, for instance after SMOTE.

        Args:
            fit: Probes of one fold, with the layers, width, classes and C of this head.

        Returns:
            How each problem ended.

        Raises:
            HeadError: A fit of other shape.
        """
        wanted = (*self.weight.shape[:2], 1, *self.weight.shape[2:])
        if tuple(fit.weight.shape) != wanted:
            raise HeadError(
                f"the fit has weights of shape {tuple(fit.weight.shape)}; allowed: {wanted}, that is layers, C, one "
                "fold, classes, width. Fit with the arguments of this head."
            )
        self.weight.copy_(fit.weight[:, :, 0])
        self.bias.copy_(fit.bias[:, :, 0])
        self.mean.copy_(fit.mean)
        self.scale.copy_(fit.scale)
        self.report = fit.report
        return fit.report

    def forward(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, "L C B K"]:
        """Score latents by the probes of every layer and C."""
        rows = ((latents - self.mean) / self.scale).to(self.weight.dtype)
        return torch.einsum("lbd,lckd->lcbk", rows, self.weight) + self.bias[:, :, None]

    def choose(self, *, layer: int, c: int) -> None:
        """Choose the probe that predicts.

        Args:
            layer: Which layer, by its place.
            c: Which C, by its place.

        Raises:
            HeadError: A place that does not exist.
        """
        for name, place, count in (("layer", layer, self.weight.shape[0]), ("c", c, len(self.Cs))):
            if not 0 <= place < count:
                raise HeadError(f"{name} is {place}; allowed: 0 to {count - 1}. Choose by place.")
        self.chosen.copy_(torch.tensor([layer, c]))

    def setup(self, stage: str) -> None:
        """Refuse a trainer of several processes, each of which would solve on its share alone.

        Raises:
            HeadError: More than one process to fit in.
        """
        n_processes = self.trainer.world_size
        if stage == "fit" and n_processes > 1:
            raise HeadError(
                f"the trainer has {n_processes} processes; allowed: 1, because the minimum is one of all rows. Use "
                "devices=1, num_nodes=1: the solver takes every layer and C at once as it is."
            )

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        """Gather a batch."""
        self._gathered.append((batch[0].detach().cpu(), batch[1].cpu()))

    def on_train_epoch_end(self) -> None:
        """Solve on what the epoch gathered."""
        latents, codes = torch.cat([part[0] for part in self._gathered], 1), torch.cat([p[1] for p in self._gathered])
        self._gathered.clear()
        self.fit(latents, codes)

    def predict_step(self, batch: tuple[Tensor, Tensor], _: int) -> Int[Tensor, " B"]:
        """Predict the class codes of a batch by the chosen probe.

        Raises:
            HeadError: No probe was chosen, or a row with a feature that is NaN or infinite.
        """
        layer, c = self.chosen.tolist()
        if layer < 0:
            raise HeadError(
                f"no probe was chosen of {self.weight.shape[0]} layers and {len(self.Cs)} C; allowed: one of them. "
                "Call choose(layer=..., c=...) with the best on validation."
            )
        rows = torch.ones(batch[0].shape[1], dtype=torch.bool)
        check_finite(batch[0][layer : layer + 1], rows=rows, first_layer=layer, where="to predict: ")
        logits: Tensor = self(batch[0])
        return logits[layer, c].argmax(-1)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Use none: the solver steps by itself."""
        return []

    def arguments(self) -> dict[str, Any]:
        """Give the constructor's arguments as plain values, to build the head again."""
        return dict(self.hparams)
