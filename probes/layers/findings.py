"""Findings about the layers of one head on one task: views with intervals, and the set that holds the best."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from extract.errors import HeadError, first_line
from extract.files import read_file
from extract.records import from_json
from probes.layers import FINDINGS
from probes.metrics.bootstrap import Resampling, UnitScorer
from probes.metrics.prediction_metrics import CORRELATIONS
from probes.metrics.significance import joint_intervals

FINDINGS_SCHEMA = 1
"""The file of a run folder that holds the findings of its heads."""


@dataclass(frozen=True)
class View:
    """One answer to which layers matter: its title and the question it answers."""

    title: str
    asks: str
    is_gain: bool = True
    """Whether a value is a difference, so that 0 means nothing; else a score."""
    is_retrained: bool = False
    """Whether probes are fitted again for it."""


VIEWS = {
    "alone": View("alone", "how far does the layer get by itself?", is_gain=False),
    "baseline": View("baselines", "how far does one get without a decoder?", is_gain=False, is_retrained=True),
    "shapley": View("Shapley value", "what is its fair share of what the head gains from all layers?"),
    "shapley-group": View("Shapley value of a group", "what is the fair share of a group of layers?"),
    "without-imputed": View("lost without, imputed", "what does the fitted head lose when the layer is its mean?"),
    "with-imputed": View("gained with, imputed", "what does the fitted head gain when all others are their means?"),
    "without": View("lost without, retrained", "what is lost when a probe is fitted without it?", is_retrained=True),
    "with": View("layer and chosen, retrained", "what does a probe of the chosen layer gain by it?", is_retrained=True),
    "prefix": View("up to the layer", "how far do all layers up to it get?", is_gain=False, is_retrained=True),
    "suffix": View("from the layer on", "how far do it and all above get?", is_gain=False, is_retrained=True),
    "greedy": View("greedy forward", "how few layers suffice?", is_gain=False, is_retrained=True),
    "greedy-gap": View("all minus picked", "what do the picked layers lack?", is_retrained=True),
    "new-information": View("new information", "how many bits does it add to the chosen layer?", is_retrained=True),
    "v-information": View("V-information", "how many bits can a linear probe read from it?", is_retrained=True),
    "code-length": View(
        "code length", "how many bits does it take to send the labels by it?", is_gain=False, is_retrained=True
    ),
    "mix": View("weight in the mix", "how much does a learned mix of layers use it?", is_gain=False, is_retrained=True),
    "control": View("control", "how far does it get on labels that mean nothing?", is_gain=False, is_retrained=True),
    "selectivity": View("selectivity", "how much better is it than on labels that mean nothing?", is_retrained=True),
    "view-score": View(
        "score by views", "how far do all views get, and all but one?", is_gain=False, is_retrained=True
    ),
    "without-view": View("lost without a view", "what does a view of the texts add to the others?", is_retrained=True),
}
"""Every view, in the order of a report."""
OF_EVERY_LAYER = ("alone", "control")
"""Views that one figure draws together, layer by layer."""
OF_TEXTS = ("view-score", "without-view")
"""Views whose values are those of views of the texts (`views` of a run), not of layers."""


@dataclass(frozen=True)
class ViewCurve:
    """The values of one view over layers: bottom up, in the order of choice for `greedy`, or of groups of layers.

    `metric` may be `bits` or `weight`. There are no ends of intervals where there are no draws, and no `spread` over
    seeds for one fit. `name` says which of several curves of one view it is, and `note` how it was computed.
    """

    view: str
    metric: str
    layers: tuple[str, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    name: str = ""
    note: str = ""


@dataclass(frozen=True, eq=False)
class Resampled:
    """A score of each of `N` layers or sets of layers, with those of every seed and of every resample."""

    value: Float[np.ndarray, " N"]
    seeds: Float[np.ndarray, "N S"]
    draws: Float[np.ndarray, "N R"]

    @classmethod
    def of(cls, scorer: UnitScorer, predicted: NDArray[np.generic], resampling: Resampling) -> "Resampled":
        """Score predictions of one fit, a row for each layer."""
        draws = scorer.resample(predicted, resampling)
        return cls(scorer.score(predicted), np.zeros((len(draws), 0)), draws)

    @classmethod
    def unpack(cls, columns: Float[np.ndarray, "N C"], n_seeds: int) -> "Resampled":
        """Read what `pack` made."""
        return cls(columns[:, 0], columns[:, 1 : 1 + n_seeds], columns[:, 1 + n_seeds :])

    def pack(self) -> Float[np.ndarray, "N C"]:
        """Return all scores side by side, for sums over layers."""
        return np.concatenate([self.value[:, None], self.seeds, self.draws], axis=1)

    def __sub__(self, other: "Resampled") -> "Resampled":
        return Resampled(self.value - other.value, self.seeds - other.seeds, self.draws - other.draws)

    def without_nan(self) -> "Resampled":
        """Return 0 for scores that are not finite, as the correlation of a constant."""
        return Resampled(np.nan_to_num(self.value), np.nan_to_num(self.seeds), np.nan_to_num(self.draws))

    def curve(
        self,
        view: str,
        metric: str,
        layers: Sequence[str],
        *,
        confidence: float,
        highest: float = np.inf,
        name: str = "",
        note: str = "",
    ) -> ViewCurve:
        """Make a view, with intervals that hold for all of its layers together and are no higher than `highest`."""
        is_correlation = not VIEWS[view].is_gain and metric in CORRELATIONS
        low, high = joint_intervals(
            self.value, self.draws, confidence=confidence, highest=highest, is_correlation=is_correlation
        )
        spread = self.seeds.std(1, ddof=1) if self.seeds.shape[1] > 1 else np.zeros(0)
        values, lows, highs, spreads = (tuple(column.tolist()) for column in (self.value, low, high, spread))
        return ViewCurve(view, metric, tuple(layers), values, lows, highs, spreads, name, note)


@dataclass(frozen=True)
class Agreement:
    """How similarly two views rank the layers: Spearman's correlation with its interval over layers."""

    one: str
    other: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class HeadFindings:
    """Findings about the layers of one head.

    Intervals are over the `n_units` units (rows, groups, sentences or documents) of the split. `best` has the highest
    score there, and `best_set` are the layers that are statistically tied with it, at `confidence` for all of them
    together. `chosen` is the layer to use: the one that was chosen on `chosen_on`, before the split was read.
    """

    head: str
    pooling: str
    metric: str
    split: str
    unit: str
    n_units: int
    layers: tuple[str, ...]
    best: str
    best_set: tuple[str, ...]
    confidence: float
    curves: tuple[ViewCurve, ...]
    agreement: tuple[Agreement, ...] = ()
    answer: str = ""
    warnings: tuple[str, ...] = ()
    chosen: str = ""
    """Empty in findings of earlier versions."""
    chosen_on: str = ""

    @property
    def recommended(self) -> str:
        """The layer to use: the chosen one; in findings of earlier versions the best."""
        return self.chosen or self.best

    def recommend(self) -> str:
        """Name the layer to use with its score, the layers tied with the best, and the best where it is not tied."""
        score = self.score(self.recommended)
        on = f", chosen on {self.chosen_on}" if self.chosen_on else ""
        return f"Use {self.recommended}{on}: {self.metric} {score} on {self.split}. {self.tied}"

    @property
    def tied(self) -> str:
        """Name the layers that are statistically tied with the best, and the best where the choice is not."""
        n_layers, n_tied = len(self.layers), len(self.best_set)
        named = f"{describe_layers(self.best_set, self.layers)} ({n_tied} of {n_layers} layers)"
        if n_tied == n_layers:
            tied = f"All {n_layers} layers are statistically tied with the best."
        elif self.best_set == (self.recommended,):
            tied = f"No other of the {n_layers} layers is statistically tied with it."
        else:
            tied = f"{named} {'is' if n_tied == 1 else 'are'} statistically tied with the best on {self.split}."
        if self.recommended not in self.best_set:
            tied += f" It is not among them: {self.best} has {self.score(self.best)}, which no choice may be based on."
        return tied

    def score(self, layer: str) -> str:
        """Write the score of a layer alone, with its interval."""
        alone = self.curve("alone")
        if alone is None:
            return "-"
        k = alone.layers.index(layer)
        score = f"{100 * alone.values[k]:.1f}"
        if not alone.low or not math.isfinite(alone.low[k]):
            return score
        return f"{score} ({100 * alone.low[k]:.1f} to {100 * alone.high[k]:.1f})"

    def curve(self, view: str, name: str = "") -> ViewCurve | None:
        """Return a view, None where it was not computed."""
        return next((curve for curve in self.curves if curve.view == view and name in ("", curve.name)), None)

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield a row per view and layer, whose keys are columns of `compare_layers`."""
        for curve in self.curves:
            missing = (float("nan"),) * len(curve.values)
            numbers = (curve.values, curve.low or missing, curve.high or missing, curve.spread or missing)
            for layer, value, low, high, std in zip(curve.layers, *numbers, strict=True):
                yield {
                    "view": curve.view,
                    "name": curve.name,
                    "layer": layer,
                    "metric": curve.metric,
                    "value": value,
                    "low": low,
                    "high": high,
                    "std": std,
                    "in_set": layer in self.best_set,
                    "is_chosen": layer == self.recommended,
                }


def describe_layers(layers: Sequence[str], every: Sequence[str]) -> str:
    """Name layers; three or more neighbours are named by the first and the last.

    Example:
        >>> describe_layers(["b1", "b3", "b4", "b5"], ["b1", "b2", "b3", "b4", "b5"])
        'b1 and b3 to b5'
    """
    runs: list[list[int]] = []
    for position in sorted(every.index(layer) for layer in layers):
        if runs and position == runs[-1][-1] + 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    names: list[str] = []
    for run in runs:
        names += [f"{every[run[0]]} to {every[run[-1]]}"] if len(run) > 2 else [every[position] for position in run]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def load_findings(folder: Path) -> list[HeadFindings]:
    """Read the findings of a run folder; none where there are none."""
    if not (folder / FINDINGS).exists():
        return []
    try:
        values = json.loads(read_file(folder / FINDINGS))
        if values["schema"] != FINDINGS_SCHEMA:
            raise ValueError(f"schema {values['schema']}, this version reads {FINDINGS_SCHEMA}")
        return [read_findings(head) for head in values["heads"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = first_line(error)
        raise HeadError(
            f"{FINDINGS} of run {folder.name!r} cannot be read ({reason}); make it again: icecore layers RUN."
        ) from error


def read_findings(values: object) -> HeadFindings:
    """Read findings from their serial form, where NaN is null; refuse those that no figure could be drawn of."""
    findings: HeadFindings = from_json(HeadFindings, values)
    if not {findings.best, findings.recommended, *findings.best_set} <= set(findings.layers):
        raise ValueError("its best layers are not among its layers")
    for curve in findings.curves:
        lists = [numbers for numbers in (curve.values, curve.low, curve.high, curve.spread) if numbers]
        if curve.view not in VIEWS or {len(curve.layers)} != {len(numbers) for numbers in lists} or not curve.layers:
            raise ValueError(f"its view {curve.view!r} is not one value per layer")
        if curve.view in OF_EVERY_LAYER and curve.layers != findings.layers:
            raise ValueError(f"its view {curve.view!r} is not of every layer")
    return findings
