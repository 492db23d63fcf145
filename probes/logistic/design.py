"""A problem as the solver sees it: its log-loss, and its rows centred, scaled and rotated onto their Gram matrix."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear

from extract.linear import QuickLinear, is_quick, multiply_each


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
        """`R`, the logits per row."""
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
        """Sum the log-loss over the rows of each problem, in float64; also gives the derivatives by the logits.

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


@dataclass(frozen=True)
class Designs:
    """`G` designs (a layer with the training rows of a fold), turned so that their Gram matrices are diagonal.

    With `X` the standardised rows and `V` orthonormal, `Z = X V` and `W V` give the same logits and the same penalty
    as `X` and `W`: the minimum is the same, and the curvature of every axis is known. With fewer rows than dimensions
    `V` spans the rows, in which the minimum lies (representer theorem). The last column of `Z` is 1, for the intercept.

    Attributes:
        features: `(G, N, P)`: `Z`, with rows of zeros where a fold has fewer rows than another.
        energy: `(G, 1, P)` weighted sums of squares of the columns.
        rotation: `(G, D, P - 1)`: `V`.
        n_rows: `(G,)` float64 total weight of the rows.
        targets: Labels and weights.
        which: Which of `features` and `rotation` these designs are.
    """

    features: Float[Tensor, "A N P"]
    energy: Float[Tensor, "G 1 P"]
    rotation: Float[Tensor, "A D Q"]
    n_rows: Float[Tensor, " G"]
    targets: Targets
    which: tuple[int, ...]

    @property
    def is_looped(self) -> bool:
        """Whether products go one by one through oneDNN, where that beats PyTorch's batched product."""
        return is_quick(self.features)

    def select(self, index: Int[Tensor, " B"]) -> "Designs":
        """Take some of the designs; where products go one by one, nothing large is copied."""
        kept = tuple(self.which[i] for i in index.tolist())
        part = replace(
            self, energy=self.energy[index], n_rows=self.n_rows[index], targets=self.targets.select(index), which=kept
        )
        if self.is_looped:
            return part
        here = tuple(range(len(kept)))
        return replace(part, features=self.features[index], rotation=self.rotation[index], which=here)

    def logits(self, weight: Float[Tensor, "G R P"]) -> Float[Tensor, "G R N"]:
        """Compute `W Z'`."""
        if not self.is_looped:
            return torch.bmm(weight, self.features.transpose(1, 2))
        return multiply_each(weight, [self.features[i] for i in self.which])

    def gradient(self, residual: Float[Tensor, "G R N"]) -> Float[Tensor, "G R P"]:
        """Compute `R Z`."""
        if not self.is_looped:
            return torch.bmm(residual, self.features)
        return multiply_each(residual, [self.features[i].t() for i in self.which])

    def unrotated(self, weight: Float[Tensor, "G R P"]) -> Float[Tensor, "G R D"]:
        """Turn weights, or gradients, back to the standardised features; the intercept is left out."""
        turned = weight[..., :-1]
        if not self.is_looped:
            return torch.bmm(turned, self.rotation.transpose(1, 2))
        return multiply_each(turned, [self.rotation[i] for i in self.which])

    def gradient_norm(self, gradient: Float[Tensor, "G R P"]) -> Float[Tensor, " G"]:
        """Return the largest entry of the gradient of the mean loss by standardised weights and intercepts."""
        largest = torch.maximum(self.unrotated(gradient).abs().amax((1, 2)), gradient[..., -1].abs().amax(1))
        return largest.double() / self.n_rows


def standardise_rows(
    rows: Float[Tensor, "N D"], weights: Float[Tensor, " N"], *, is_standardised: bool = True
) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Standardise weighted rows in place, by their own mean and scale, which it gives (1 where nothing is scaled).

    Args:
        rows: Float64 training rows; changed in place.
        weights: Float64 weights above 0; a weight of 2 is a row that is there twice.
        is_standardised: Whether to divide by the standard deviation (that of the rows, as scikit-learn's scaler).
            The mean is taken off anyway: with a free intercept that changes no prediction.
    """
    share = weights / weights.sum()
    mean = share @ rows
    rows -= mean
    scale = torch.ones_like(mean)
    if is_standardised:
        spread = torch.linalg.vector_norm(rows * share.sqrt()[:, None], dim=0)
        scale = torch.where(spread > 1e-6 * mean.abs().clamp(min=1e-6), spread, scale)
        rows /= scale
    return mean, scale


def build_design(
    features: Float[Tensor, "N D"], weights: Float[Tensor, " N"], *, n_padded: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "M P"], Float[Tensor, "1 P"], Float[Tensor, "D Q"]]:
    """Turn standardised float64 rows onto the axes of their weighted Gram matrix, and fill up to `n_padded` rows.

    Returns:
        `Z` with its column of ones, the weighted sum of squares of each column, and `V`.
    """
    n_rows, width = features.shape
    x = features.to(dtype)
    basis = None
    if n_padded < width:  # every design of a batch has the same shape, so the longest decides
        filled = torch.nn.functional.pad(x, (0, 0, 0, n_padded - n_rows))
        basis = torch.linalg.qr(filled.t())[0]
        x = _product(x, basis.t())
    scaled = x * weights.to(dtype).sqrt()[:, None]
    energy, axes = torch.linalg.eigh(_product(scaled.t(), scaled.t()).double())
    turn = axes.to(dtype)
    z = torch.cat([_product(x, turn.t()), x.new_ones(n_rows, 1)], 1)
    z = torch.nn.functional.pad(z, (0, 0, 0, n_padded - n_rows))
    energy = torch.cat([energy.clamp(min=0), weights.sum()[None]]).to(dtype)[None]
    return z.contiguous(), energy, (turn if basis is None else _product(basis, turn.t())).contiguous()


def _product(x: Float[Tensor, "A M"], y: Float[Tensor, "B M"]) -> Float[Tensor, "A B"]:
    with QuickLinear():
        return linear(x, y)
