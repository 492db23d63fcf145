"""The logistic probe as a scikit-learn estimator."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from extract.errors import HeadError, IcecoreError, require_name
from probes.logistic.problem import LogisticFit, SolverOptions, check_codes, check_finite, standardise_rows
from probes.logistic.solver import fit_logistic

MODES = {
    "balance": "every class gets as many rows as the largest",
    "times-5": "every class gets five times its rows, so the shares stay (look-both-ways' released code)",
}
NEIGHBOURS = 5
FACTOR = 5


@dataclass(frozen=True)
class Oversampled:
    """The rows of a training fold with synthetic ones after them."""

    latents: Float[Tensor, "L M D"]
    """Centred and perhaps scaled rows, the real ones first."""
    codes: Int[Tensor, " M"]
    """Class codes."""
    mean: Float[Tensor, "L D"]
    """Float64 mean of the real rows, already subtracted."""
    scale: Float[Tensor, "L D"]
    """Float64 standard deviation of the real rows, already divided by; 1 where nothing was scaled."""


def oversample(
    latents: Float[Tensor, "L N D"],
    codes: Int[Tensor, " N"],
    *,
    mode: str,
    seed: int,
    is_standardised: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Oversampled:
    """Standardise the rows of a training fold and add synthetic ones (SMOTE, Chawla et al., 2002; imbalanced-learn).

    Fit on the result without standardising, and convert the fit by `LogisticFit.before(mean, scale)`.
    """
    require_name("oversampling mode", mode, MODES)
    all_rows = torch.ones(1, len(codes), dtype=torch.bool)
    check_codes(codes, n_classes=int(codes.max()) + 1 if len(codes) else 0, folds=all_rows)
    check_finite(latents, rows=all_rows[0], first_layer=0)
    growth = plan_growth(codes, mode)
    gold, layers, moments = codes.numpy(), [], []
    for layer in latents:
        x = layer.to(torch.float64, copy=True)
        moments.append(standardise_rows(x, x.new_ones(len(x)), is_standardised=is_standardised))
        layers.append(_grow(x.to(dtype).numpy(), gold, growth, seed=seed))
    added = [codes.new_full((extra,), code) for code, (_, extra, _) in growth.items()]
    return Oversampled(
        latents=torch.from_numpy(np.stack(layers)),
        codes=torch.cat([codes, *added]),
        mean=torch.stack([mean for mean, _ in moments]),
        scale=torch.stack([scale for _, scale in moments]),
    )


def fit_oversampled(
    latents: Float[Tensor, "L N D"],
    codes: Int[Tensor, " N"],
    *,
    Cs: Sequence[float],
    mode: str,
    seed: int,
    n_classes: int,
    options: SolverOptions,
) -> LogisticFit:
    """Fit probes of raw latents on oversampled rows, which are scaled first where the options say so."""
    more = oversample(
        latents, codes, mode=mode, seed=seed, is_standardised=options.is_standardised, dtype=options.dtype
    )
    scaled = replace(options, is_standardised=False)
    fit = fit_logistic(more.latents, more.codes, Cs=Cs, n_classes=n_classes, options=scaled)
    return fit.before(more.mean, more.scale)


def describe_oversampling(codes: Int[Tensor, " N"], *, mode: str, class_names: Sequence[str]) -> dict[str, Any]:
    """Describe `oversample` as plain values: rows, classes of fewer neighbours than 5, and classes of one row."""
    growth = plan_growth(codes, mode)
    return {
        "mode": mode,
        "n_rows": len(codes),
        "n_synthetic": sum(extra for _, extra, _ in growth.values()),
        "clipped": {class_names[code]: k for code, (_, _, k) in growth.items() if 0 < k < NEIGHBOURS},
        "duplicated": [class_names[code] for code, (_, _, k) in growth.items() if k == 0],
    }


def plan_growth(codes: Int[Tensor, " N"], mode: str) -> dict[int, tuple[int, int, int]]:
    """Count rows, new rows and neighbours of each class that gets new rows; one number for all under `times-5`."""
    counts = {code: int(n) for code, n in enumerate(torch.bincount(codes)) if n > 0}
    largest = max(counts.values())
    extra = {code: largest - n if mode == "balance" else (FACTOR - 1) * n for code, n in counts.items()}
    fewest = min((n for n in counts.values() if n > 1), default=1)
    most = NEIGHBOURS if mode == "balance" else min(NEIGHBOURS, fewest - 1)
    return {code: (n, extra[code], min(most, n - 1)) for code, n in counts.items() if extra[code]}


def _grow(
    x: NDArray[np.floating], gold: NDArray[np.int64], growth: dict[int, tuple[int, int, int]], *, seed: int
) -> NDArray[np.floating]:
    """Append the new rows of each class."""
    parts = [x]
    for code, (n_rows, n_extra, n_neighbours) in growth.items():
        if n_neighbours == 0:
            parts.append(np.repeat(x[gold == code], n_extra, axis=0))
            continue
        # one class at a time, because their numbers of neighbours differ; all other rows are the second label
        sampler = _smote({1: n_rows + n_extra}, n_neighbours, seed=seed + code)
        grown, _ = sampler.fit_resample(x, (gold == code).astype(np.int64))
        parts.append(grown[len(x) :].astype(x.dtype))
    return np.concatenate(parts)


def _smote(strategy: dict[int, int], n_neighbours: int, *, seed: int) -> Any:
    try:
        over_sampling = import_module("imblearn.over_sampling")
    except ImportError as error:
        raise HeadError(
            f"oversampling needs imbalanced-learn, which cannot be imported ({error}); allowed: an environment that "
            "has it. Run: pip install imbalanced-learn."
        ) from error
    return over_sampling.SMOTE(sampling_strategy=strategy, k_neighbors=n_neighbours, random_state=seed)


class LogisticProbe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """One logistic probe: multinomial, L2, L-BFGS, standardised on the rows it is fitted on.

    With `standardise=False` it minimises what scikit-learn's `LogisticRegression` of the same `C` minimises; with it,
    what that minimises after `StandardScaler`. Arguments are checked in `fit`, as scikit-learn asks.

    Args:
        C: Inverse strength of the penalty.
        tol: Largest gradient entry of the mean objective, and largest expected decrease, at which to stop.
        max_iter: Most iterations.
        standardise: Whether to divide features by their standard deviation.
        oversampling: A name from `probes.logistic.estimator.MODES`, for SMOTE on the training rows, scaled before
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
                "sample_weight came with oversampling; allowed: one of them, because SMOTE ignores weights. Leave one "
                "out."
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


def stratified_folds(
    codes: Int[Tensor, " N"], *, n_folds: int, seed: int, groups: Sequence[object] | None = None
) -> Bool[Tensor, "F N"]:
    """Draw folds in which every class keeps its share, as True for the training rows of a fold.

    Groups (documents, abstracts) stay whole, which may leave a fold without a class, which is then never predicted
    there. Errors are those of `check_folds`.

    Example:
        >>> folds = stratified_folds(torch.tensor([0, 1, 0, 1]), n_folds=2, seed=0)
        >>> folds.sum(1).tolist(), bool((folds[0] ^ folds[1]).all())
        ([2, 2], True)
    """
    check_folds(codes, n_folds=n_folds, groups=groups)
    gold = codes.numpy()
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    split = kind(n_folds, shuffle=True, random_state=seed).split(np.zeros(len(gold)), gold, groups)
    folds = torch.zeros(n_folds, len(gold), dtype=torch.bool)
    for fold, (training, _) in enumerate(split):
        folds[fold, torch.from_numpy(training)] = True
    return folds


def check_folds(
    codes: Int[Tensor, " N"],
    *,
    n_folds: int,
    groups: Sequence[object] | None = None,
    class_names: Sequence[str] | None = None,
) -> None:
    """Refuse with a HeadError fewer than two folds, or more than a class has rows, or than there are groups."""
    if n_folds < 2:
        raise HeadError(f"n_folds is {n_folds}; allowed: 2 or more. Use a validation split where one exists.")
    counts = torch.bincount(codes)
    if groups is not None:
        n_groups, largest = len(set(groups)), int(counts.max())
        if min(n_groups, largest) < n_folds:
            raise HeadError(
                f"{n_groups} groups with at most {largest} rows of one class cannot be cut into {n_folds} folds; "
                "allowed: at least one group, and one row of the largest class, per fold. Use fewer folds, or give a "
                "validation split."
            )
        return
    for code in ((counts > 0) & (counts < n_folds)).nonzero()[:1, 0].tolist():
        rows = "a single row" if counts[code] == 1 else f"{int(counts[code])} rows"
        name = code if class_names is None else repr(class_names[code])
        raise HeadError(
            f"class {name} has {rows} for {n_folds} folds; allowed: at least one row per fold. "
            "Merge or drop the class, use fewer folds, or give a validation split."
        )
