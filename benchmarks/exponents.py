"""Exponents of measured curves: cost = fixed + factor * size ** exponent."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

FLAT = 1.25
"""A curve whose largest cost is at most this times its smallest has no exponent worth a name."""
STARTS = (0.5, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Growth:
    """How a cost grows.

    Attributes:
        exponent: Of the part that grows, the fixed part taken off; None where the curve is flat.
        error: Standard error of the exponent, by the scatter about the fit.
        fixed: Cost at size zero; None where the curve is flat.
        factor: Cost of the part that grows at size 1; None where the curve is flat.
        local: Slope of the logarithms over the larger half of the sizes, fixed part included.
        ratio: Largest cost / smallest cost.
        is_flat: Whether the cost does not grow.
    """

    exponent: float | None
    error: float | None
    fixed: float | None
    factor: float | None
    local: float
    ratio: float
    is_flat: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def fit_growth(sizes: Sequence[float], costs: Sequence[float]) -> Growth:
    """Fit `fixed + factor * size ** exponent` to a curve, by least squares on the logarithms of the costs.

    The fixed part is what a plain slope of logarithms leaves out: over small sizes it makes any exponent look smaller.
    The slope over the larger half of the sizes is given beside it, which assumes nothing about the fixed part.

    Args:
        sizes: At least four, above 0, ascending, at a geometric spacing.
        costs: Seconds or bytes, one a size; those below 1e-9 of the largest count as that.

    Raises:
        ValueError: Fewer than four sizes.
    """
    x, y = np.asarray(sizes, np.float64), np.asarray(costs, np.float64)
    if len(x) < 4:
        raise ValueError(f"a curve of {len(x)} sizes; give at least 4.")
    y = np.maximum(y, 1e-9 * y.max())
    half = slice(len(x) // 2, None)
    local = float(np.polyfit(np.log(x[half]), np.log(y[half]), 1)[0])
    ratio = float(y.max() / y.min())
    if ratio <= FLAT:
        return Growth(None, None, None, None, local, ratio, True)
    x0, y0 = float(np.exp(np.log(x).mean())), float(np.exp(np.log(y).mean()))
    fits = [_fit(x / x0, y / y0, start) for start in STARTS]
    found = min(fits, key=lambda fit: float(fit.cost))
    fixed, factor, exponent = np.exp(found.x[0]), np.exp(found.x[1]), found.x[2]
    freedom = max(1, len(x) - 3)
    spread = 2 * found.cost / freedom * np.linalg.pinv(found.jac.T @ found.jac)
    return Growth(
        float(exponent),
        float(np.sqrt(spread[2, 2])),
        float(fixed * y0),
        float(factor * y0 / x0**exponent),
        local,
        ratio,
        False,
    )


def _fit(x: NDArray[np.float64], y: NDArray[np.float64], start: float) -> Any:
    """Minimise from one exponent, the other two being the best ones for it; fixed and factor by their logarithms."""

    def residuals(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        fixed, factor, exponent = parameters
        found: NDArray[np.float64] = np.logaddexp(fixed, factor + exponent * np.log(x)) - np.log(y)
        return found

    parts, _ = nnls(np.column_stack([1 / y, x**start / y]), np.ones(len(y)))
    lowest = -12.0  # a fixed part of less than 1e-5 of the typical cost is none
    first = np.clip(np.log(np.maximum(parts, 1e-9)), lowest, 12)
    return least_squares(residuals, [*first, start], bounds=([lowest, lowest, 0.0], [12.0, 12.0, 4.0]))
