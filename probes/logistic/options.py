"""How the solver works: when it stops, in which precision, and how much it holds at once."""

import math
from dataclasses import dataclass

import torch

from extract.errors import HeadError, unknown_name

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
    history: int = 20
    """Pairs of steps and gradient changes that L-BFGS remembers."""
    precision: str = "float32"
    """A name from `PRECISIONS`."""
    is_standardised: bool = True
    """Whether features are divided by the standard deviation of the training rows."""
    device: str = "cpu"
    """Where to compute; results come back to the CPU."""
    chunk_bytes: int = 1 << 28
    """About how much memory the problems solved together may take."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("tol", "gap_tol"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                usual = self.__dataclass_fields__[name].default
                raise HeadError(f"{name} is {value!r}; allowed: a number above 0. Try {name}={usual:g}.")
        for name in ("max_iterations", "history", "chunk_bytes"):
            value = getattr(self, name)
            if value < 1:
                raise HeadError(f"{name} is {value!r}; allowed: 1 or more. Leave it out for the default.")
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of the precision."""
        return DTYPES[self.precision]
