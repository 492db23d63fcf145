"""Where a head is wrong: its residuals, by size, by length, by lexical overlap, and against the gold."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from probes.metrics.correlation import pearson
from probes.tasks import PairTask

N_LARGEST = 10
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, eq=False)
class Residuals:
    """Predicted minus gold over the rows of a split, in the units of the gold.

    Attributes:
        predicted: Calibrated predictions.
        gold: The gold.
        n_words: Words of both texts together.
        overlap: Jaccard index of the two sets of words, 0 to 1.
        texts: The pairs of texts.
    """

    predicted: Float[np.ndarray, " N"]
    gold: Float[np.ndarray, " N"]
    n_words: Float[np.ndarray, " N"]
    overlap: Float[np.ndarray, " N"]
    texts: tuple[tuple[str, str], ...]

    @property
    def values(self) -> Float[np.ndarray, " N"]:
        """The residuals."""
        difference: Float[np.ndarray, " N"] = self.predicted - self.gold
        return difference

    def largest(self, n: int = N_LARGEST) -> list[dict[str, Any]]:
        """List the `n` rows that are furthest off, the worst first."""
        order = np.argsort(-np.abs(self.values), kind="stable")[:n]
        return [
            {
                "row": int(i),
                "gold": float(self.gold[i]),
                "predicted": float(self.predicted[i]),
                "sentence1": self.texts[i][0],
                "sentence2": self.texts[i][1],
            }
            for i in order
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of a report: error measures, what makes a row hard, and scores of quarters, without texts.

        The absolute residual is correlated with length, overlap and gold: NaN where one side is constant.
        """
        size = np.abs(self.values)
        sides = {"n_words": self.n_words, "overlap": self.overlap, "gold": self.gold}
        return {
            "n": len(size),
            "bias": float(self.values.mean()),
            "mean_absolute": float(size.mean()),
            "root_mean_square": float(np.sqrt((size**2).mean())),
            "size_against": {name: float(pearson(size, side)) for name, side in sides.items()},
            "prediction_against_overlap": float(pearson(self.predicted, self.overlap)),
            "gold_against_overlap": float(pearson(self.gold, self.overlap)),
            "quarters": {name: self.by_quarter(side) for name, side in sides.items() if name != "gold"},
        }

    def by_quarter(self, side: Float[np.ndarray, " N"]) -> list[dict[str, float]]:
        """Score the quarters of the rows by length, overlap or what else `side` holds, rows of equal value together.

        Returns:
            Per quarter that holds rows, the lowest first: smallest and largest value, rows, Pearson correlation of
            predictions with gold (NaN where one of them is constant) and mean absolute error.
        """
        group = np.searchsorted(np.quantile(side, [0.25, 0.5, 0.75]), side)
        parts = [np.flatnonzero(group == k) for k in np.unique(group)]
        return [
            {
                "low": float(side[rows].min()),
                "high": float(side[rows].max()),
                "n": len(rows),
                "pearson": float(pearson(self.predicted[rows], self.gold[rows])),
                "mean_absolute": float(np.abs(self.values[rows]).mean()),
            }
            for rows in parts
        ]


def residuals_of(task: PairTask, split: str, predicted: Float[np.ndarray, " N"]) -> Residuals:
    """Compare predictions, in the units of the gold, with the gold of a split."""
    rows = task.splits[split]
    return residuals_between(rows["sentence1"], rows["sentence2"], gold=rows["score"], predicted=predicted)


def residuals_between(
    first: Sequence[str], second: Sequence[str], *, gold: Any, predicted: Float[np.ndarray, " N"]
) -> Residuals:
    """Compare predictions with gold, each for two texts."""
    texts = tuple(zip(first, second, strict=True))
    words = [tuple(_WORD.findall(text.lower()) for text in pair) for pair in texts]
    return Residuals(
        np.asarray(predicted, np.float64),
        np.asarray(gold, np.float64),
        np.array([float(len(a) + len(b)) for a, b in words]),
        np.array([len({*a} & {*b}) / max(len({*a} | {*b}), 1) for a, b in words]),
        texts,
    )
