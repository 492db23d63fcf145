"""Options of the head `logistic-probe`, as they stand in a config."""

from dataclasses import dataclass

from extract.errors import HeadError, unknown_name
from probes.logistic.checks import check_strengths
from probes.logistic.options import SolverOptions
from probes.logistic.oversampling import MODES

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
            tol=self.tol, max_iterations=self.max_iterations, precision=self.precision,
            is_standardised=self.is_standardised, device=device,
        )  # fmt: skip
