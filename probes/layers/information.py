"""Bits: what a linear probe reads from a layer, what it adds to the best layer, and how short a code it gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV

from probes.layers.readout import PENALTIES, reduce_layer
from probes.layers.rows import LayerRows
from probes.logistic.options import SolverOptions
from probes.logistic.solver import fit_logistic

CS = (0.01, 0.1, 1.0)
"""Inverse penalties to choose from, on features of variance 1."""
HELD_OUT = 0.2
"""Share of the units of train on which the penalty is chosen."""
SPREAD = 0.01
"""Share of every probability that is spread over all classes, so that no row costs without bound."""
SOLVER = SolverOptions(tol=1e-3, gap_tol=1e-2, max_iterations=100)
"""Bits differ in the third digit from those of a tighter solver."""
FEWEST = 16
"""Rows of the first portion of a code at least."""


@dataclass(frozen=True, eq=False)
class LayerInformation:
    """Bits of every layer.

    Attributes:
        prior: `(M,)` bits that each row of the scored split costs without any latent.
        alone: `(L, M)` bits it costs with a probe of the layer.
        beside: `(L, M)` bits it costs with a probe of the best layer and this one.
        code: Bits it takes each layer to send the gold of train, portion by portion; none for numbers.
        uniform: Bits it takes without latents and without learning.
    """

    prior: Float[np.ndarray, " M"]
    alone: Float[np.ndarray, "L M"]
    beside: Float[np.ndarray, "L M"]
    code: Float[np.ndarray, " C"]
    uniform: float


def measure_information(rows: LayerRows, best: int, *, components: int) -> LayerInformation:
    """Measure V-information (Xu et al. 2020), new information and online code length (Voita and Titov 2020).

    Probes are logistic regressions for classes and ridge regressions, with normal errors, for numbers, both on the
    first principal components of a layer; their penalties are chosen on a part of train.

    Args:
        rows: The rows.
        best: Position of the layer that others are put beside.
        components: Principal components of a layer.
    """
    parts = [reduce_layer(rows.features(k, True), rows.features(k, False), components) for k in range(len(rows.layers))]
    ours = parts[best]
    coder = _Classes(rows) if rows.n_classes else _Numbers(rows)
    alone, picked = coder.losses(parts)
    others = [k for k in range(len(parts)) if k != best]
    beside = alone.copy()
    if others:
        beside[others] = coder.losses([_side_by_side(ours, parts[k]) for k in others])[0]
    code, uniform = coder.code([train for train, _ in parts], picked)
    return LayerInformation(coder.prior(), alone, beside, code, uniform)


Part = tuple[NDArray[np.float32], NDArray[np.float32]]
Parts = Sequence[Part]


def _side_by_side(one: "Part", other: "Part") -> "Part":
    return np.concatenate([one[0], other[0]], axis=1), np.concatenate([one[1], other[1]], axis=1)


class _Classes:
    """Codes of classes."""

    def __init__(self, rows: LayerRows) -> None:
        self.rows, self.k = rows, rows.n_classes
        self.scored_gold = rows.scored_gold

    def prior(self) -> Float[np.ndarray, " M"]:
        counts = np.bincount(self.rows.gold, minlength=self.k) + 0.5
        return _bits(np.broadcast_to(counts / counts.sum(), (len(self.scored_gold), self.k)), self.scored_gold)

    def losses(self, parts: Parts) -> tuple[Float[np.ndarray, "L M"], list[float]]:
        """Give the bits of every row, and the penalty chosen for each layer."""
        gold, inner = self.rows.gold, _inner(self.rows.units)
        train, scored = (np.stack(side) for side in zip(*parts, strict=True))
        trial = self._probabilities(train[:, inner], gold[inner], train[:, ~inner], CS)
        best = np.array([[_bits(each, gold[~inner]).mean() for each in layer] for layer in trial]).argmin(1)
        final = self._probabilities(train, gold, scored, CS)
        found = [_bits(layer[c], self.scored_gold) for layer, c in zip(final, best, strict=True)]
        return np.stack(found), [CS[c] for c in best]

    def code(
        self, parts: Sequence[Float32[np.ndarray, "N d"]], picked: Sequence[float]
    ) -> tuple[Float[np.ndarray, " L"], float]:
        """Send the gold of train in portions that double: the first by equal odds, each further by a probe of those."""
        n = len(self.rows.gold)
        order = np.random.default_rng(0).permutation(n)
        gold, features = self.rows.gold[order], np.stack(parts)[:, order]
        ends = [n]
        while ends[0] // 2 >= FEWEST:
            ends.insert(0, ends[0] // 2)
        bits = np.full(len(parts), ends[0] * np.log2(self.k))
        for C in set(picked):
            layers = [k for k, each in enumerate(picked) if each == C]
            for sent, end in pairwise(ends):
                found = self._probabilities(features[layers, :sent], gold[:sent], features[layers, sent:end], [C])
                bits[layers] += [_bits(each[0], gold[sent:end]).sum() for each in found]
        return bits, float(n * np.log2(self.k))

    def _probabilities(
        self, train: NDArray[np.float32], gold: Int[np.ndarray, " N"], rows: NDArray[np.float32], Cs: Sequence[float]
    ) -> Float[np.ndarray, "L C M K"]:
        """Give the probabilities of every class by layer and penalty; a class that was not seen gets its share."""
        seen, codes = np.unique(gold, return_inverse=True)
        if len(seen) == 1:
            found = np.ones((len(train), len(Cs), rows.shape[1], 1))
        else:
            fit = fit_logistic(
                torch.from_numpy(train), torch.from_numpy(codes), Cs=list(Cs), n_classes=len(seen), options=SOLVER
            )
            found = fit.logits(torch.from_numpy(rows)).double().softmax(-1).numpy()
        whole = np.full((*found.shape[:3], self.k), SPREAD / self.k)
        whole[..., seen] += (1 - SPREAD) * found
        return whole


class _Numbers:
    """Codes of numbers with normal errors, whose variance is that of rows left out of train."""

    def __init__(self, rows: LayerRows) -> None:
        self.rows = rows

    def prior(self) -> Float[np.ndarray, " M"]:
        return _normal_bits(self.rows.scored_gold - self.rows.gold.mean(), float(self.rows.gold.var()))

    def losses(self, parts: Parts) -> tuple[Float[np.ndarray, "L M"], list[float]]:
        gold = self.rows.gold.astype(np.float64)
        found, picked = [], []
        for train, scored in parts:
            fit = RidgeCV([each * len(gold) for each in PENALTIES]).fit(train.astype(np.float64), gold)
            errors = self.rows.scored_gold - fit.predict(scored.astype(np.float64))
            found.append(_normal_bits(errors, -float(fit.best_score_)))
            picked.append(float(fit.alpha_))
        return np.stack(found), picked

    def code(self, parts: Sequence[NDArray[np.float32]], picked: Sequence[float]) -> tuple[NDArray[np.float64], float]:
        """Give nothing: a number takes endlessly many bits."""
        del parts, picked
        return np.zeros(0), float("nan")


def _inner(units: Int[np.ndarray, " N"]) -> NDArray[np.bool_]:
    """Mark the rows of train that probes are tried on, whole units left out; all but one unit at most."""
    names = np.unique(units)
    n_out = min(max(1, round(HELD_OUT * len(names))), len(names) - 1)
    left_out = np.random.default_rng(0).permutation(names)[:n_out]
    inner: NDArray[np.bool_] = ~np.isin(units, left_out)
    return inner


def _bits(probabilities: Float[np.ndarray, "M K"], gold: Int[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
    """Return what each row costs; a class that train has not costs as much as the least likely share."""
    given = np.take_along_axis(probabilities, np.maximum(gold, 0)[:, None], axis=1)[:, 0]
    return -np.log2(np.where(gold < 0, SPREAD / probabilities.shape[1], given))


def _normal_bits(errors: Float[np.ndarray, " M"], variance: float) -> Float[np.ndarray, " M"]:
    safe = max(variance, 1e-12)
    return np.asarray(0.5 * (np.log2(2 * np.pi * safe) + errors**2 / safe * np.log2(np.e)))
