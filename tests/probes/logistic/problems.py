"""Small classification problems with planted classes, and scikit-learn's answer to them."""

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from probes.logistic.problem import SolverOptions

TIGHT = SolverOptions(tol=1e-9, gap_tol=1e-11, precision="float64", max_iterations=2000)


def plant(
    n_layers: int, n_rows: int, width: int, *, n_classes: int, seed: int = 0, signal: float = 1.0
) -> tuple[Float[Tensor, "L N D"], Int[Tensor, " N"]]:
    """Draw layers of correlated features of uneven scale, far from zero, around class means; every class has rows."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.cat([torch.arange(n_classes), torch.randint(n_classes, (n_rows - n_classes,), generator=generator)])
    means = signal * torch.randn(n_layers, n_classes, width, generator=generator)
    noise = torch.randn(n_layers, n_rows, width, generator=generator)
    mix = torch.randn(n_layers, width, width, generator=generator) * torch.logspace(-1, 1, width)[:, None]
    return (noise + means[:, codes]) @ mix + 5, codes


def oracle(
    x: Float[Tensor, "N D"], codes: Int[Tensor, " N"], C: float, *, tol: float = 1e-10, weights: Tensor | None = None
) -> LogisticRegression:
    """Fit scikit-learn's logistic regression on standardised rows, in float64."""
    weighing = None if weights is None else weights.numpy()
    scaled = StandardScaler().fit_transform(x.double().numpy(), sample_weight=weighing)
    return LogisticRegression(C=C, tol=tol, max_iter=20000).fit(scaled, codes.numpy(), sample_weight=weighing)


def objective(
    x: Float[Tensor, "N D"], codes: Int[Tensor, " N"], weight: NDArray[np.float64], bias: NDArray[np.float64], C: float
) -> float:
    """Compute scikit-learn's objective on standardised rows, from weights of its own shape."""
    scaled = StandardScaler().fit_transform(x.double().numpy())
    logits = scaled @ weight.T + bias
    if logits.shape[1] == 1:
        logits = np.hstack([np.zeros_like(logits), logits])
    losses = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(codes)), codes.numpy()]
    return float(C * losses.sum() + 0.5 * (weight**2).sum())


def as_sklearn(weight: Tensor, bias: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return weights in scikit-learn's shape, which has one row for two classes."""
    w, b = weight.double().numpy(), bias.double().numpy()
    return (w[1:] - w[:1], b[1:] - b[:1]) if len(w) == 2 else (w, b)
