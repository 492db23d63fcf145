"""A linear readout of any set of layers, refitted for each: ridge regression from sums that are taken once.

Classes are read by penalised discriminant analysis, which is ridge regression on their indicators and a rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Float32
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from sklearn.decomposition import PCA
from sklearn.model_selection import GroupKFold

from extract.errors import HeadError
from probes.layers.rows import LayerRows

FOLDS = 5
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Penalties per row of train, on features of variance 1."""
RANK = 1e-8
"""Share of the largest variance below which a direction within classes has none."""
AT_ONCE = 1 << 27
"""Outputs in memory at once."""


def reduce_layer(
    train: Float32[np.ndarray, "N F"], scored: Float32[np.ndarray, "M F"], components: int
) -> tuple[Float32[np.ndarray, "N d"], Float32[np.ndarray, "M d"]]:
    """Standardise the features of a layer by train, and keep their first principal components of train.

    A feature that is constant in train is left out. HeadError where a latent is not finite.
    """
    if not (np.isfinite(train).all() and np.isfinite(scored).all()):
        raise HeadError("a latent is NaN or infinite, so no probe can be fitted; extract again, with dtype float32.")
    varies = np.ptp(train, axis=0) > 0
    train, scored = train[:, varies], scored[:, varies]
    mean, scale = train.mean(0, dtype=np.float64), train.std(0, dtype=np.float64)
    train, scored = (((part - mean) / scale).astype(np.float32) for part in (train, scored))
    if train.shape[1] <= components:
        return train, scored
    pca = PCA(min(components, len(train) - 1), svd_solver="randomized", random_state=0).fit(train)
    return pca.transform(train).astype(np.float32), pca.transform(scored).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Readout:
    """Ridge regressions of sets of layers.

    Attributes:
        rows: The rows.
        scored: Reduced features of the scored split, all layers side by side, `(M, d)`.
        places: Columns of each layer there.
        grams: Per fold, `X'X` of the rows of train in the fold, `(F, d, d)`.
        crosses: Per fold, `X'Y`, `(F, d, K)`.
        gram: The sum over folds.
        cross: The sum over folds.
        squares: Per fold, the sum of squares of the centred targets.
        centre: Mean of the targets over train.
    """

    rows: LayerRows
    scored: Float32[np.ndarray, "M d"]
    places: tuple[slice, ...]
    grams: Float[np.ndarray, "F d d"]
    crosses: Float[np.ndarray, "F d K"]
    gram: Float[np.ndarray, "d d"]
    cross: Float[np.ndarray, "d K"]
    squares: Float[np.ndarray, " F"]
    centre: Float[np.ndarray, " K"]

    @classmethod
    def of(cls, rows: LayerRows, *, components: int) -> "Readout":
        """Read every layer once, keeping its first principal components."""
        parts = [
            reduce_layer(rows.features(k, True), rows.features(k, False), components) for k in range(len(rows.layers))
        ]
        ends = np.cumsum([0, *(train.shape[1] for train, _ in parts)])
        places = tuple(slice(int(a), int(b)) for a, b in pairwise(ends))
        train = np.concatenate([part for part, _ in parts], axis=1).astype(np.float64)
        scored = np.concatenate([part for _, part in parts], axis=1)
        targets = rows.targets()
        centre = targets.mean(0)
        centred = targets - centre
        n_folds = min(FOLDS, len(np.unique(rows.units)))
        folds = [held for _, held in GroupKFold(n_folds).split(train, groups=rows.units)]
        grams = np.stack([train[fold].T @ train[fold] for fold in folds])
        crosses = np.stack([train[fold].T @ centred[fold] for fold in folds])
        squares = np.array([(centred[fold] ** 2).sum() for fold in folds])
        return cls(rows, scored, places, grams, crosses, grams.sum(0), crosses.sum(0), squares, centre)

    def columns(self, layers: Sequence[int]) -> np.ndarray:
        """List the columns of some layers."""
        return np.concatenate([np.arange(self.places[k].start, self.places[k].stop) for k in layers])

    def error(self, layers: Sequence[int], penalty: float) -> float:
        """Return the squared error on rows of train that a fold leaves out, as a share of the variance of the gold."""
        index = self.columns(layers)
        total = 0.0
        for gram, cross, square in zip(self.grams, self.crosses, self.squares, strict=True):
            inside, given = gram[np.ix_(index, index)], cross[index]
            weight = _solve(self.gram[np.ix_(index, index)] - inside, self.cross[index] - given, self._times(penalty))
            total += _error(weight, inside, given, square)
        return float(total / self.squares.sum())

    def penalty(self, layers: Sequence[int]) -> float:
        """Choose the penalty of some layers by the folds."""
        return min(PENALTIES, key=lambda each: self.error(layers, each))

    def outputs(self, layers: Sequence[int], penalty: float = 0.0) -> Float[np.ndarray, "M K"]:
        """Fit on some layers, and apply to the scored split; the penalty is chosen by the folds where it is 0."""
        index = self.columns(layers)
        weight = _solve(
            self.gram[np.ix_(index, index)], self.cross[index], self._times(penalty or self.penalty(layers))
        )
        turn, shift = self._discriminant(weight, index)
        return np.asarray(self.scored[:, index] @ (weight @ turn) + shift)

    def growing(self, order: Sequence[int]) -> list[Float[np.ndarray, "M K"]]:
        """Fit on the first layer of an order, on the first two, and so on; gives the outputs of each.

        One Cholesky factor of all columns holds those of every beginning, so that all fits cost little more than one.
        """
        index = self.columns(order)
        ends = np.cumsum([self.places[k].stop - self.places[k].start for k in order]).tolist()
        errors = np.zeros((len(ends), len(PENALTIES)))
        for gram, cross, square in zip(self.grams, self.crosses, self.squares, strict=True):
            inside, given = gram[np.ix_(index, index)], cross[index]
            rest, target = self.gram[np.ix_(index, index)] - inside, self.cross[index] - given
            for p, penalty in enumerate(PENALTIES):
                lower, _ = _factor(rest, self._times(penalty))
                for k, end in enumerate(ends):
                    weight = cho_solve((lower[:end, :end], True), target[:end])
                    errors[k, p] += _error(weight, inside[:end, :end], given[:end], square)
        whole, crossed, found = self.gram[np.ix_(index, index)], self.cross[index], {}
        picked = errors.argmin(1).tolist()
        for p in set(picked):
            lower, _ = _factor(whole, self._times(PENALTIES[p]))
            for k, end in enumerate(ends):
                if picked[k] == p:
                    weight = cho_solve((lower[:end, :end], True), crossed[:end])
                    turn, shift = self._discriminant(weight, index[:end])
                    found[k] = np.asarray(self.scored[:, index[:end]] @ (weight @ turn) + shift)
        return [found[k] for k in range(len(ends))]

    def _discriminant(
        self, weight: Float[np.ndarray, "d K"], index: np.ndarray
    ) -> tuple[Float[np.ndarray, "K K"], Float[np.ndarray, " K"]]:
        """Return what turns fitted indicators into scores of classes: a matrix and an offset.

        The largest fitted indicator would never be a rare class. Discriminant analysis of the fitted indicators gives
        each class its log-posterior under normal features of one covariance, penalised as the regression is (Hastie,
        Buja and Tibshirani 1995). Numbers are left as they are.
        """
        if not self.rows.n_classes:
            return np.eye(weight.shape[1]), self.centre
        counts = np.bincount(self.rows.gold, minlength=self.rows.n_classes).astype(np.float64)
        share = counts / counts.sum()
        means = (self.cross[index].T @ weight) / np.maximum(counts, 1)[:, None]  # of the fitted indicators, by class
        within = means.T @ (share[:, None] * (np.eye(len(share)) - means))
        turn = np.linalg.pinv((within + within.T) / 2, rcond=RANK, hermitian=True) @ means.T
        with np.errstate(divide="ignore"):
            return turn, np.log(share) - 0.5 * (means.T * turn).sum(0)

    def _times(self, penalty: float) -> float:
        return penalty * len(self.rows.gold)

    def together(self) -> "Joint":
        """Fit on all layers once; what each layer adds can then be left out."""
        every = range(len(self.places))
        weight = _solve(self.gram, self.cross, self._times(self.penalty(every)))
        turn, shift = self._discriminant(weight, self.columns(every))
        weight = weight @ turn
        added = np.stack([self.scored[:, place] @ weight[place] for place in self.places])
        return Joint(self.rows, added, shift)


@dataclass(frozen=True, eq=False)
class Joint:
    """One readout of all layers: what each layer adds to the outputs, which is 0 at its mean over train."""

    rows: LayerRows
    added: Float[np.ndarray, "L M K"]
    centre: Float[np.ndarray, " K"]

    def __call__(self, masks: Bool[np.ndarray, "S L"]) -> np.ndarray:
        """Predict with every set of layers, the others being their means over train: `(1, sets, N)`."""
        step = max(1, AT_ONCE // self.added[0].size)
        found = []
        for start in range(0, len(masks), step):
            outputs = np.tensordot(masks[start : start + step].astype(np.float64), self.added, 1) + self.centre
            found.append(self.rows.decide(outputs))
        return np.concatenate(found)[None]


def _factor(gram: Float[np.ndarray, "d d"], penalty: float) -> tuple[Float[np.ndarray, "d d"], bool]:
    try:
        found: tuple[Float[np.ndarray, "d d"], bool] = cho_factor(gram + penalty * np.eye(len(gram)), lower=True)
    except LinAlgError as error:
        raise HeadError(f"a readout of layers cannot be fitted ({error}); check the latents.") from error
    return found


def _solve(gram: Float[np.ndarray, "d d"], cross: Float[np.ndarray, "d K"], penalty: float) -> Float[np.ndarray, "d K"]:
    return np.asarray(cho_solve(_factor(gram, penalty), cross))


def _error(
    weight: Float[np.ndarray, "d K"], gram: Float[np.ndarray, "d d"], cross: Float[np.ndarray, "d K"], square: float
) -> float:
    """Return the squared error of weights on rows of which only the sums are known."""
    return float(square - 2 * (weight * cross).sum() + (weight * (gram @ weight)).sum())
