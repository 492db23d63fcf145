"""The result of a head: one frozen record for every kind of task, and its serial form in scores.json."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from extract.decoders.decoder_spec import FINAL_NORM
from extract.records import Values, to_plain
from probes.data.pair_task import PairTask
from probes.metrics.bootstrap import SeedSummary
from probes.metrics.prediction_metrics import pearson

Rows = NDArray[Any]
"""What is predicted of rows: scores, or positions of names."""
SERIAL = (
    *("pooling", "layers", "options", "metric", "selection", "selection_score", "chosen", "is_optimistic"),
    *("optimistic_because", "departures", "summary", "baselines", "curves", "seeds", "extras"),
)
"""What a result says of itself in scores.json."""
MOST_LIKELY = 3
"""Classes of a row that are kept with their probabilities."""


@dataclass(frozen=True)
class Curve:
    """A score of every layer on one split."""

    name: str
    """What the line is, for instance `standardised` or `C 0.1`; empty where a head has one line only."""
    split: str
    """The split that was scored."""
    metric: str
    """The metric."""
    values: tuple[float, ...]
    """Scores in the order of the result's layers, the mean over seeds."""
    spread: tuple[float, ...] = ()
    """Standard deviations over seeds; empty for one seed."""
    by_seed: tuple[tuple[float, ...], ...] = ()
    """Scores of each seed; empty where the seeds agree or there is one."""


NO_CHOICE = "nothing to choose"
"""`selection` of a head with one layer and one value of everything."""


@dataclass(frozen=True, eq=False)
class HeadResult:
    """The result of one head on one task."""

    name: str
    """The head."""
    pooling: str
    """The pooling it read, or several joined by `+`."""
    layers: tuple[str, ...]
    """Names of the `L` layers it could read."""
    options: Values
    """Its options as plain values; a pair head's are how it is fitted, and what was set of its network."""
    metric: str
    """The metric it was chosen by."""
    selection: str
    """What was chosen and where, in words, for instance `validation (epoch and layer)`."""
    selection_score: float
    """The score that decided, by which mask plans are compared too; NaN where there is none."""
    chosen: Values
    """What was chosen: `layer`, and for instance `C`, `kind` or `threshold`; empty where nothing was."""
    summary: Mapping[str, Mapping[str, SeedSummary]]
    """Split to metric to mean, spread and interval over seeds."""
    curves: tuple[Curve, ...] = ()
    """Scores of every layer."""
    seeds: tuple[Values, ...] = ()
    """Per seed `seed`, `best_epoch`, `seconds`, `history` and what else the head records."""
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Baseline to split to its score by `metric`, for instance `majority`."""
    optimistic_because: str = ""
    """Why the reported numbers are optimistic; empty when they are not."""
    departures: tuple[str, ...] = ()
    """Where the run departs from the protocol it names, one line each."""
    extras: Values = field(default_factory=dict)
    """What only some heads have, plain values by name."""
    predictions: Mapping[str, Rows] = field(default_factory=dict)
    """Split to `(N,)` predictions: scores, or positions in `names`; -1 is no prediction."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Split to the class or tag names that predictions are positions of; empty for scores."""
    scored: Mapping[str, Rows] = field(default_factory=dict)
    """Split to `(S, N)` predictions as `summary` scores them: of every seed or draw, neither averaged nor calibrated.
    Empty where that is `predictions`."""
    row_scores: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Split to `(N,)` scores of single rows, higher is better, for paired tests; NaN where a row has none."""
    likely: Mapping[str, tuple[Rows, Rows]] = field(default_factory=dict)
    """Split to `(N, T)` positions of the likeliest classes and their probabilities, the highest first; empty for heads
    without probabilities."""
    top_cosines: Mapping[str, Rows] = field(default_factory=dict)
    """Kind of cosine to its `(N,)` values at the top layer, on the reported split; of `layer-cosine`."""

    @property
    def is_optimistic(self) -> bool:
        """Whether the reported numbers are optimistic."""
        return bool(self.optimistic_because)

    @property
    def chosen_on(self) -> str:
        """The split or folds that the choice was made on; empty where there was nothing to choose."""
        return "" if self.selection == NO_CHOICE else self.selection.partition(" (")[0]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that were scored."""
        return tuple(self.summary)

    @property
    def reported_split(self) -> str:
        """The split to report: test, or validation where there is no test."""
        return "test" if "test" in self.summary else "validation"

    def mean(self, split: str, metric: str | None = None) -> float:
        """Return the mean over seeds of a metric on a split; NaN where the split was not scored."""
        summary = self.summary.get(split, {}).get(metric or self.metric)
        return float("nan") if summary is None else summary.mean

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form, without rows (docs/scores_format.md)."""
        return {name: to_plain(getattr(self, name)) for name in SERIAL}


def top_layer(layers: Sequence[str]) -> int:
    """Return the position of the final norm, or of the highest layer where a head does not read it."""
    return layers.index(FINAL_NORM) if FINAL_NORM in layers else len(layers) - 1


N_LARGEST = 10
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, eq=False)
class Residuals:
    """Predicted minus gold over the rows of a split, in the units of the gold."""

    predicted: Float[np.ndarray, " N"]
    """Calibrated predictions."""
    gold: Float[np.ndarray, " N"]
    """The gold."""
    n_words: Float[np.ndarray, " N"]
    """Words of both texts together."""
    overlap: Float[np.ndarray, " N"]
    """Jaccard index of the two sets of words, 0 to 1."""
    texts: tuple[tuple[str, str], ...]
    """The pairs of texts."""

    @property
    def values(self) -> Float[np.ndarray, " N"]:
        """The residuals."""
        difference: Float[np.ndarray, " N"] = self.predicted - self.gold
        return difference

    def largest(self, n: int = N_LARGEST) -> list[dict[str, Any]]:
        """List the `n` rows with the largest residuals, the worst first."""
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
        """Return the figures of a report, without texts; correlations with a constant are NaN."""
        size = np.abs(self.values)
        properties = {"n_words": self.n_words, "overlap": self.overlap, "gold": self.gold}
        return {
            "n": len(size),
            "bias": float(self.values.mean()),
            "mean_absolute": float(size.mean()),
            "root_mean_square": float(np.sqrt((size**2).mean())),
            "size_against": {name: float(pearson(size, values)) for name, values in properties.items()},
            "prediction_against_overlap": float(pearson(self.predicted, self.overlap)),
            "gold_against_overlap": float(pearson(self.gold, self.overlap)),
            "quarters": {name: self.by_quarter(properties[name]) for name in ("n_words", "overlap")},
        }

    def by_quarter(self, values: Float[np.ndarray, " N"]) -> list[dict[str, float]]:
        """Score the quarters of the rows by `values` such as length or overlap, rows of equal value together."""
        group = np.searchsorted(np.quantile(values, [0.25, 0.5, 0.75]), values)
        parts = [np.flatnonzero(group == k) for k in np.unique(group)]
        return [
            {
                "low": float(values[rows].min()),
                "high": float(values[rows].max()),
                "n": len(rows),
                "pearson": float(pearson(self.predicted[rows], self.gold[rows])),
                "mean_absolute": float(np.abs(self.values[rows]).mean()),
            }
            for rows in parts
        ]


def residuals_of(task: PairTask, split: str, predicted: Float[np.ndarray, " N"]) -> Residuals:
    """Compare predictions, in the units of the gold, with the gold of a split."""
    rows = task.splits[split]
    first, second, gold = (rows[column][:] for column in ("sentence1", "sentence2", "score"))
    return residuals_between(first, second, gold=gold, predicted=predicted)


def residuals_between(
    first: Sequence[str], second: Sequence[str], *, gold: ArrayLike, predicted: Float[np.ndarray, " N"]
) -> Residuals:
    """Compare predictions with the gold of pairs of texts."""
    texts = tuple(zip(first, second, strict=True))
    n_words, overlap = (np.array(column) for column in zip(*(_compare_words(*pair) for pair in texts), strict=True))
    return Residuals(np.asarray(predicted, np.float64), np.asarray(gold, np.float64), n_words, overlap, texts)


@lru_cache(maxsize=50_000)  # the pairs of a task, whose residuals every head reports
def _compare_words(first: str, second: str) -> tuple[float, float]:
    """Count the words of two texts, and the share of their different words that both have."""
    a, b = (_WORD.findall(text.lower()) for text in (first, second))
    return float(len(a) + len(b)), len({*a} & {*b}) / max(len({*a} | {*b}), 1)
