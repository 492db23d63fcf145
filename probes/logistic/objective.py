"""The log-loss of many problems at once, and the residuals from which every gradient follows."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Targets:
    """What `G` problems should predict.

    Two classes are one sigmoid (`R = 1`), as in scikit-learn; more are a softmax (`R = K`).

    Attributes:
        codes: `(G, N)` int64 class codes.
        weights: `(G, N)` weights of the rows, 0 where a row only fills up; None when all are 1.
        offset: `(G, R, 1)` added to logits: minus infinity for a class of which a problem has no row; None without.
        n_classes: Classes `K`.
    """

    codes: Int[Tensor, "G N"]
    weights: Float[Tensor, "G N"] | None
    offset: Float[Tensor, "G R 1"] | None
    n_classes: int

    @property
    def n_outputs(self) -> int:
        """Give `R`, the logits per row."""
        return 1 if self.n_classes == 2 else self.n_classes

    def class_weights(self) -> Float[Tensor, "G K"]:
        """Sum the weights of each class, in float64."""
        weights = torch.ones_like(self.codes) if self.weights is None else self.weights
        weights = weights.double()
        return weights.new_zeros(len(self.codes), self.n_classes).scatter_add_(1, self.codes, weights)

    def select(self, index: Int[Tensor, " A"]) -> "Targets":
        """Take some of the problems."""
        weights = None if self.weights is None else self.weights[index]
        offset = None if self.offset is None else self.offset[index]
        return Targets(self.codes[index], weights, offset, self.n_classes)

    def loss(self, logits: Float[Tensor, "G R N"]) -> tuple[Float[Tensor, " G"], Float[Tensor, "G R N"]]:
        """Sum the log-loss over the rows of each problem.

        Args:
            logits: `(G, R, N)`.

        Returns:
            `(G,)` float64 losses, and their derivatives by the logits.

        Example:
            >>> targets = Targets(torch.tensor([[0, 1, 2]]), None, None, 3)
            >>> value, residual = targets.loss(torch.zeros(1, 3, 3))
            >>> round(float(value), 4), round(float(residual[0, 0, 0]), 4)
            (3.2958, -0.6667)
        """
        losses, residual = self._binary(logits) if self.n_outputs == 1 else self._multinomial(logits)
        if self.weights is not None:
            losses = losses * self.weights
            residual *= self.weights[:, None]
        return losses.sum(1, dtype=torch.float64), residual

    def _binary(self, logits: Float[Tensor, "G 1 N"]) -> tuple[Float[Tensor, "G N"], Float[Tensor, "G 1 N"]]:
        sign = (1 - 2 * self.codes).to(logits.dtype)[:, None]
        against = sign * logits  # one sign for both classes, so that nothing cancels
        return torch.nn.functional.softplus(against)[:, 0], sign * torch.sigmoid(against)

    def _multinomial(self, logits: Float[Tensor, "G K N"]) -> tuple[Float[Tensor, "G N"], Float[Tensor, "G K N"]]:
        logits = logits if self.offset is None else logits + self.offset
        logarithms = torch.log_softmax(logits, 1)
        gold = self.codes[:, None]
        losses = -logarithms.gather(1, gold)[:, 0]
        residual = logarithms.exp_()
        residual.scatter_add_(1, gold, residual.new_full((), -1.0).expand(gold.shape))
        return losses, residual
