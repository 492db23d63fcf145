"""The logistic probe as a scikit-learn estimator."""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from extract.errors import IcecoreError
from probes.logistic.options import SolverOptions
from probes.logistic.oversampling import fit_oversampled
from probes.logistic.result import LogisticFit
from probes.logistic.solver import fit_logistic


class LogisticProbe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """One logistic probe: multinomial, L2, L-BFGS, standardised on the rows it is fitted on.

    With `standardise=False` it minimises what scikit-learn's `LogisticRegression` of the same `C` minimises; with it,
    what that minimises after `StandardScaler`. Arguments are checked in `fit`, as scikit-learn asks.

    Args:
        C: Inverse strength of the penalty.
        tol: Largest gradient entry of the mean objective, and largest expected decrease, at which to stop.
        max_iter: Most iterations.
        standardise: Whether to divide features by their standard deviation.
        oversampling: A name from `probes.logistic.oversampling.MODES`, for SMOTE on the training rows, scaled before
            where `standardise` says so; or None. Then `sample_weight` is refused: SMOTE has no weighted form.
        random_state: Seed of SMOTE.

    Attributes:
        classes_: `(K,)` labels.
        coef_: `(K, D)` weights of raw features, `(1, D)` for two classes, as scikit-learn's.
        intercept_: `(K,)` intercepts, `(1,)` for two classes.
        n_iter_: `(1,)` iterations.
        fit_: The fit with its convergence report.

    Example:
        >>> probe = LogisticProbe(C=10.0).fit([[0.0], [1.0], [2.0], [3.0]], ["a", "a", "b", "b"])
        >>> probe.predict([[0.4], [2.6]]).tolist()
        ['a', 'b']
    """

    def __init__(
        self,
        C: Any = 1.0,
        *,
        tol: Any = 1e-8,
        max_iter: Any = 1000,
        standardise: Any = True,
        oversampling: Any = None,
        random_state: Any = None,
    ) -> None:
        self.C = C
        self.tol = tol
        self.max_iter = max_iter
        self.standardise = standardise
        self.oversampling = oversampling
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "LogisticProbe":
        """Fit the probe.

        Args:
            X: `(N, D)` features.
            y: `(N,)` labels.
            sample_weight: `(N,)` weights; 0 leaves a row out.

        Raises:
            ValueError: Features, labels or arguments on which no probe can be fitted.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=np.float64)
        try:
            self.fit_ = self._solve(torch.tensor(X)[None], torch.tensor(codes), weights)
        except IcecoreError as error:
            raise ValueError(str(error)) from error
        weight, bias = (part.numpy() for part in self.fit_.raw(0, 0))
        if len(self.classes_) == 2:
            weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
        self.coef_, self.intercept_ = weight, bias
        self.n_iter_ = self.fit_.report.n_iterations[0, 0].numpy()
        if not bool(self.fit_.report.is_converged.all()):
            norm = float(self.fit_.report.gradient_norm)
            warnings.warn(
                f"the gradient norm is {norm:.1e} after {self.n_iter_[0]} iterations; tol asks for {self.tol:.1e}. "
                "Raise max_iter or tol.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _solve(self, latents: torch.Tensor, codes: torch.Tensor, weights: NDArray[np.float64] | None) -> LogisticFit:
        options = SolverOptions(
            tol=self.tol,
            gap_tol=self.tol,
            max_iterations=self.max_iter,
            precision="float64",
            is_standardised=self.standardise,
        )
        n_classes = len(self.classes_)
        if self.oversampling is None:
            folds = None if weights is None else torch.tensor(weights)[None]
            return fit_logistic(latents, codes, Cs=[self.C], weights=folds, n_classes=n_classes, options=options)
        if weights is not None:
            raise ValueError(
                "sample_weight came with oversampling; allowed: one of them, for SMOTE draws rows without regard to "
                "weights. Leave one out."
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return fit_oversampled(
            latents, codes, Cs=[self.C], mode=self.oversampling, seed=seed, n_classes=n_classes, options=options
        )

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Score rows: `(N, K)`, or `(N,)` for the second of two classes."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        scores: NDArray[np.float64] = X @ self.coef_.T + self.intercept_
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the label of each row."""
        scores = self.decision_function(X)
        codes = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(1)
        labels: NDArray[Any] = self.classes_[codes]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict `(N, K)` probabilities."""
        scores = self.decision_function(X)
        both = np.stack([np.zeros_like(scores), scores], 1) if scores.ndim == 1 else scores
        probabilities: NDArray[np.float64] = softmax(both, axis=1)
        return probabilities
