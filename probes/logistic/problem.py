"""A problem as the solver sees it: its log-loss, and its rows centred, scaled and rotated onto their Gram matrix."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import linear

from extract.errors import HeadError, require_name
from extract.linear import QuickLinear, is_quick, multiply_each


@dataclass(frozen=True)
class Targets:
    """Labels and weights of `G` problems; two classes are one sigmoid (`R = 1`), more are a softmax (`R = K`)."""

    codes: Int[Tensor, "G N"]
    """`(G, N)` int64 class codes."""
    weights: Float[Tensor, "G N"] | None
    """`(G, N)` weights of the rows, 0 where a row only fills up; None when all are 1."""
    offset: Float[Tensor, "G R 1"] | None
    """`(G, R, 1)` added to logits: minus infinity for a class of which a problem has no row; None without."""
    n_classes: int
    """Classes `K`."""

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
    `V` spans the rows, which contain the minimum (representer theorem). The last column of `Z` is 1, for the intercept.
    """

    features: Float[Tensor, "A N P"]
    """`(G, N, P)`: `Z`, with rows of zeros where a fold has fewer rows than another."""
    energy: Float[Tensor, "G 1 P"]
    """`(G, 1, P)` weighted sums of squares of the columns."""
    rotation: Float[Tensor, "A D Q"]
    """`(G, D, P - 1)`: `V`."""
    n_rows: Float[Tensor, " G"]
    """`(G,)` float64 total weight of the rows."""
    targets: Targets
    """Labels and weights."""
    which: tuple[int, ...]
    """Index into `features` and `rotation` of each design."""

    @property
    def is_looped(self) -> bool:
        """Whether products go one by one through oneDNN, where that beats PyTorch's batched product."""
        return is_quick(self.features)

    def select(self, index: Int[Tensor, " B"]) -> "Designs":
        """Take some of the designs; where products go one by one, nothing large is copied."""
        which = tuple(self.which[i] for i in index.tolist())
        part = replace(
            self, energy=self.energy[index], n_rows=self.n_rows[index], targets=self.targets.select(index), which=which
        )
        if self.is_looped:
            return part
        return replace(
            part, features=self.features[index], rotation=self.rotation[index], which=tuple(range(len(which)))
        )

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
    """Standardise weighted rows in place, and return their mean and scale (1 where nothing is scaled)."""
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
    """Turn standardised float64 rows onto the axes of their weighted Gram matrix, and fill up to `n_padded` rows."""
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


PRECISIONS = {
    "float32": "twice as fast or more; objectives agree with float64 to about 1e-6",
    "float64": "for tight tolerances and for comparing coefficients",
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class SolverOptions:
    """Options of `fit_logistic`; a HeadError or an UnknownNameError refuses a value."""

    tol: float = 3e-5
    """Largest entry of the gradient of the mean objective at which a problem may stop: what scikit-learn calls `tol`.

    Below scikit-learn's default of 1e-4, so that no objective ends above scikit-learn's: on latents of Banking77 (300
    rows, 77 classes, C 0.01 to 100) 1e-4 leaves some 1e-5 of themselves above it, and 3e-5 none."""
    gap_tol: float = 1e-3
    """Largest decrease still expected of the objective, as a share of it, at which a problem may stop."""
    max_iterations: int = 500
    """Most L-BFGS iterations per problem."""
    history: int = 40
    """Pairs of steps and gradient changes that L-BFGS remembers: on latents of Banking77 (3,000 rows), 40 need a
    tenth fewer iterations than 20."""
    precision: str = "float32"
    """A name from `PRECISIONS`."""
    is_standardised: bool = True
    """Whether features are divided by the standard deviation of the training rows."""
    device: str = "cpu"
    """Device of the computation; results are on the CPU."""
    chunk_bytes: int = 1 << 28
    """Approximate memory of the problems that are solved together."""

    def __post_init__(self) -> None:
        for name in ("tol", "gap_tol"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                usual = self.__dataclass_fields__[name].default
                raise HeadError(f"{name} is {value!r}; allowed: a number above 0. Try {name}={usual:g}.")
        for name in ("max_iterations", "history", "chunk_bytes"):
            value = getattr(self, name)
            if value < 1:
                raise HeadError(f"{name} is {value!r}; allowed: 1 or more. Leave it out for the default.")
        require_name("precision", self.precision, PRECISIONS)

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of the precision."""
        return DTYPES[self.precision]


def check_strengths(Cs: Sequence[float]) -> None:
    """Refuse with a HeadError an empty list of C, or a C that is no number above 0."""
    if len(Cs) == 0:
        raise HeadError("the list of C is empty; allowed: one C or more, each above 0. Try Cs=(0.01, 0.1, 1, 10, 100).")
    for value in Cs:
        if not (math.isfinite(value) and value > 0):
            raise HeadError(f"C is {value!r}; allowed: finite numbers above 0. A strong penalty is a small C, as 0.01.")


def check_codes(codes: Int[Tensor, " N"], *, n_classes: int, folds: Bool[Tensor, "F N"]) -> None:
    """Refuse with a HeadError codes of classes `0 .. K - 1` on which no probe can be fitted in every fold."""
    for fold, rows in enumerate(folds):
        where = "the training split" if len(folds) == 1 else f"the training split of fold {fold}"
        n_rows = int(rows.sum())
        if n_rows == 0:
            raise HeadError(f"{where} is empty (0 rows); allowed: rows of at least 2 classes. Check split and weights.")
        used = codes[rows]
        low, high = int(used.min()), int(used.max())
        if low < 0 or high >= n_classes:
            wrong = low if low < 0 else high
            raise HeadError(
                f"label code {wrong} is in {where}; allowed: 0 to {n_classes - 1}. Number the classes from 0."
            )
        n_present = len(torch.unique(used))
        if n_present < 2:
            raise HeadError(
                f"{where} holds one class only (code {high}, {n_rows} rows); allowed: at least 2 classes. "
                "Check the split, or leave this task out."
            )
        if n_classes > n_rows:
            raise HeadError(
                f"{where} holds {n_rows} rows for {n_classes} classes; allowed: at least as many rows as classes. "
                "Give more rows, or merge rare classes."
            )


def check_finite(
    latents: Float[Tensor, "L N D"], *, rows: Bool[Tensor, " N"], first_layer: int, where: str = ""
) -> None:
    """Refuse with a HeadError NaN and infinite features in rows that count; `where` begins the message."""
    # A sum is finite if and only if no term is NaN or infinite, short of an overflow that the second look sorts out.
    if bool(torch.isfinite(latents.sum(-1, dtype=torch.float64)[:, rows]).all()):
        return
    is_bad = ~torch.isfinite(latents) & rows[:, None].to(latents.device)
    for layer, row, dimension in is_bad.nonzero()[:1].tolist():
        raise HeadError(
            f"{where}layer {first_layer + layer}, row {row} holds {float(latents[layer, row, dimension])} in dimension "
            f"{dimension}; allowed: finite features. Extract that row again, or leave it out."
        )


def check_weights(weights: Float[Tensor, "F N"]) -> None:
    """Refuse with a HeadError weights (0 leaves a row out of a fold) that are negative or not finite."""
    is_bad = ~(torch.isfinite(weights) & (weights >= 0))
    for fold, row in is_bad.nonzero()[:1].tolist():
        raise HeadError(
            f"the weight of row {row} in fold {fold} is {float(weights[fold, row])}; allowed: finite numbers, 0 or "
            "more. A weight of 0 leaves the row out."
        )


@dataclass(frozen=True)
class ConvergenceReport:
    """Convergence of each problem."""

    objective: Float[Tensor, "L C F"]
    """`C * summed log-loss + 0.5 * squared weights`, on standardised features: scikit-learn's."""
    gradient_norm: Float[Tensor, "L C F"]
    """Largest entry of the gradient of that objective over `C` and the total weight of the rows, by weights and
    intercepts: what scikit-learn compares with `tol`. Recomputed from the returned weights."""
    gap: Float[Tensor, "L C F"]
    """Decrease of the objective still expected, as a share of it: half of gradient times quasi-Newton step."""
    n_iterations: Int[Tensor, "L C F"]
    """L-BFGS iterations, from the solution of the next smaller C."""
    is_converged: Bool[Tensor, "L C F"]
    """Whether gradient norm and gap are within `tol` and `gap_tol`."""


@dataclass(frozen=True)
class LogisticFit:
    """Probes of every layer, C and fold, on standardised features `(x - mean) / scale`.

    In raw latents a dimension of large mean would cost the intercept its digits; `raw` gives those in float64.
    """

    weight: Float[Tensor, "L C F K D"]
    """The rows of two classes are opposites, half of scikit-learn's `coef_` each."""
    bias: Float[Tensor, "L C F K"]
    """Minus infinity for a class of which a fold has no row."""
    mean: Float[Tensor, "L F D"]
    """Float64."""
    scale: Float[Tensor, "L F D"]
    """Float64."""
    Cs: tuple[float, ...]
    """Inverse strengths of the penalty, in the order of the fit."""
    report: ConvergenceReport
    """Convergence of each problem."""

    def logits(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, "L C B K"]:
        """Score raw latents by the probes of the first fold, every layer and C."""
        mean, scale = self.mean[:, 0, None].to(latents.device), self.scale[:, 0, None].to(latents.device)
        rows = ((latents - mean) / scale).to(self.weight.dtype)
        weight, bias = self.weight[:, :, 0].to(latents.device), self.bias[:, :, 0].to(latents.device)
        return torch.einsum("lbd,lckd->lcbk", rows, weight) + bias[:, :, None]

    def raw(self, layer: int, c: int) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"]]:
        """Return weights and intercepts of a probe of the first fold, for raw latents, in float64."""
        weight = self.weight[layer, c, 0].double() / self.scale[layer, 0]
        return weight, self.bias[layer, c, 0].double() - weight @ self.mean[layer, 0]

    def before(self, mean: Float[Tensor, "L D"], scale: Float[Tensor, "L D"]) -> "LogisticFit":
        """Return the probes, of one fold, for raw latents that were standardised before the fit (as before SMOTE)."""
        if self.mean.shape[1] != 1:
            raise HeadError(
                f"the fit has {self.mean.shape[1]} folds; allowed: 1, whose rows were standardised before. "
                "Fit each fold alone."
            )
        inner, outer = self.mean[:, 0], scale.double()
        return replace(self, mean=(mean.double() + outer * inner)[:, None], scale=(outer * self.scale[:, 0])[:, None])
