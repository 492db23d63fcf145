"""Measures of a cloud of latents: directions, norms, massive dimensions, and how many dimensions it fills."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import entr
from scipy.stats import t

from probes.geometry.two_nn import find_neighbours, two_nn

N_GROUPS = 10
"""Groups of rows that intervals leave out in turn."""
MASSIVE = 10.0
"""How many times the median a dimension's mean magnitude is above which the dimension is called massive."""
CONFIDENCE = 0.95
Measured = dict[str, float]
"""Measure to value."""
Points = Float[np.ndarray, "N D"]
Groups = Int[np.ndarray, " N"]
"""The group of each row; intervals leave out one after the other."""


class Estimate(NamedTuple):
    """A value with its interval, NaN where it has none."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


@dataclass(frozen=True)
class Measure:
    """A measure of the geometry: how it is labelled, and the unit of its axis."""

    label: str
    unit: str
    family: str
    """What it is computed with, a key of `FAMILIES`."""
    is_log: bool = False
    """Whether a figure needs a logarithmic scale."""
    has_interval: bool = True
    """Whether leaving out rows gives an interval: not of counts and quantiles, which move in steps."""


MEASURES = {
    "mean-cosine": Measure("mean cosine of two rows", "cosine", "cosine"),
    "norm": Measure("mean norm", "Euclidean norm", "norm", is_log=True),
    "norm-q05": Measure("norm, 5 % quantile", "Euclidean norm", "norm", is_log=True, has_interval=False),
    "norm-median": Measure("norm, median", "Euclidean norm", "norm", is_log=True, has_interval=False),
    "norm-q95": Measure("norm, 95 % quantile", "Euclidean norm", "norm", is_log=True, has_interval=False),
    "massive-dimensions": Measure("massive dimensions", "number of dimensions", "massive", has_interval=False),
    "massive-share": Measure("massive dimensions, share", "share of squared norm", "massive"),
    "effective-rank": Measure("effective rank", "dimensions", "rank"),
    "participation-ratio": Measure("participation ratio", "dimensions", "rank"),
    "intrinsic-dimension": Measure("intrinsic dimension (TwoNN)", "dimensions", "dimension"),
}
"""Every measure of one layer, in the order of tables and figures."""


def mean_cosine(x: Points) -> Measured:
    """Return the mean cosine over all pairs of different rows; 0 is isotropic (Ethayarajh 2019)."""
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    total = np.divide(x, norms, out=np.zeros_like(x), where=norms > 0).sum(axis=0)
    n = len(x)
    return {"mean-cosine": float((total @ total - np.count_nonzero(norms)) / (n * (n - 1)))}


def norm_profile(x: Points) -> Measured:
    """Return mean, median and outer quantiles of the Euclidean norms of the rows."""
    norms = np.linalg.norm(x, axis=1)
    low, middle, high = np.quantile(norms, [0.05, 0.5, 0.95])
    return {"norm": float(norms.mean()), "norm-q05": float(low), "norm-median": float(middle), "norm-q95": float(high)}


def massive_dimensions(x: Points, *, multiple: float = MASSIVE) -> Int[np.ndarray, " M"]:
    """Find the dimensions whose mean magnitude exceeds `multiple` times the median of all dimensions."""
    magnitude = np.abs(x).mean(axis=0)
    return np.flatnonzero(magnitude > multiple * np.median(magnitude))


def massive_share(x: Points, *, multiple: float = MASSIVE) -> Measured:
    """Count massive dimensions, and give their share of the squared norm of all rows (Sun et al. 2024)."""
    found = massive_dimensions(x, multiple=multiple)
    squares = np.square(x).sum(axis=0)
    return {"massive-dimensions": float(len(found)), "massive-share": float(squares[found].sum() / squares.sum())}


def ranks(x: Points) -> Measured:
    """Return effective rank and participation ratio of the centred rows.

    The effective rank is exp(entropy) of the singular values over their sum (Roy and Vetterli 2007); the participation
    ratio is the squared sum of the variances of the principal components over the sum of their squares.
    """
    centred = x - x.mean(axis=0)
    return _ranks_of(centred.T @ centred if x.shape[0] >= x.shape[1] else centred @ centred.T)


def _ranks_of(gram: Float[np.ndarray, "K K"]) -> Measured:
    variances = np.linalg.eigvalsh(gram).clip(min=0)
    if not variances.sum():
        return {"effective-rank": float("nan"), "participation-ratio": float("nan")}
    shares = np.sqrt(variances) / np.sqrt(variances).sum()
    entropy = float(entr(shares).sum())
    ratio = float(variances.sum() ** 2 / np.square(variances).sum())
    return {"effective-rank": float(np.exp(entropy)), "participation-ratio": ratio}


def _ranks_without(x: Points, groups: Groups) -> list[Measured]:
    """Compute `ranks` of all rows and without each group, from one Gram matrix where rows outnumber dimensions."""
    parts = [groups == number for number in np.unique(groups)]
    if x.shape[0] < x.shape[1]:
        return [ranks(x), *(ranks(x[~part]) for part in parts)]
    centred = x - x.mean(axis=0)
    gram = centred.T @ centred
    found = [_ranks_of(gram)]
    for part in parts:
        rows, total = centred[part], centred[part].sum(axis=0)
        found.append(_ranks_of(gram - rows.T @ rows - np.outer(total, total) / np.count_nonzero(~part)))
    return found


def _dimension_without(x: Points, groups: Groups) -> list[Measured]:
    """Estimate the intrinsic dimension of all rows and without each group, from one search for neighbours."""
    near = find_neighbours(x)
    kept = [np.ones(len(x), np.bool_), *(groups != number for number in np.unique(groups))]
    return [{"intrinsic-dimension": two_nn(near, keep=mask[near.points])} for mask in kept]


def _without(measure: Callable[[Points], Measured]) -> Callable[[Points, Groups], list[Measured]]:
    """Return what computes a measure of all rows and without each group."""
    return lambda x, groups: [measure(x), *(measure(x[groups != number]) for number in np.unique(groups))]


FAMILIES: Mapping[str, Callable[[Points, Groups], list[Measured]]] = {
    "cosine": _without(mean_cosine),
    "norm": _without(norm_profile),
    "massive": _without(massive_share),
    "rank": _ranks_without,
    "dimension": _dimension_without,
}
"""What computes each family of measures: of all rows, and without each group of rows."""


def jackknife(value: float, without: Float[np.ndarray, " G"]) -> Estimate:
    """Give a value its interval: Student's t on the spread of the values without each of `G` groups of rows.

    This is the delete-a-group jackknife (Kott 2001). There is no interval where a value is NaN.
    """
    n = len(without)
    error = np.sqrt((n - 1) / n * np.square(without - without.mean()).sum())
    half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1) * error)
    return Estimate(value, value - half, value + half)


def measure_rows(x: Float[np.ndarray, "N D"], groups: Groups, families: Iterable[str]) -> dict[str, Estimate]:
    """Measure rows by every family; intervals follow from leaving out each of the `groups` of rows in turn."""
    points = x.astype(np.float64)
    found: dict[str, Estimate] = {}
    for family in families:
        whole, *parts = FAMILIES[family](points, groups)
        for name, value in whole.items():
            without = np.array([part[name] for part in parts])
            found[name] = jackknife(value, without) if MEASURES[name].has_interval else Estimate(value)
    return found
