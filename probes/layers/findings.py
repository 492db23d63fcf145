"""Findings about the layers of one head on one task, and what the head predicts from every layer by itself.

Findings are views with intervals, and the set that holds the best.
"""

import io
import json
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt
from numpy.typing import NDArray

from extract.errors import HeadError, first_line
from extract.files import read_file, write_file
from extract.records import from_json
from probes.layers import FINDINGS, PREDICTED
from probes.metrics.bootstrap import Resampling, UnitScorer
from probes.metrics.prediction_metrics import CORRELATIONS
from probes.metrics.significance import FEW_UNITS, joint_intervals, too_few

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
        "score by views", "how far do all views get, all but one, and one?", is_gain=False, is_retrained=True
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
    def of_seeds(cls, scorer: UnitScorer, predicted: NDArray[np.generic], resampling: Resampling) -> "Resampled":
        """Score predictions `(S, N, ...)` of a fit for each seed, the mean over seeds."""
        flat, shape = predicted.reshape(-1, predicted.shape[-1]), predicted.shape[:2]
        seeds = scorer.score(flat).reshape(shape)
        return cls(seeds.mean(0), seeds.T, scorer.resample(flat, resampling).reshape(*shape, -1).mean(0))

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
        if self.n_units < FEW_UNITS:
            return f"There are {too_few(self.unit, self.n_units)} to tell layers apart."
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


# --- Predictions of every layer ---


MOST_HALF = 60_000
"""Numbers below it fit half floats; others are kept in single precision."""
FINEST = 0.05
"""Step of a half float, as a share of the spread of the numbers of a layer; where it is larger they are kept whole."""
MOST_BYTES = 1 << 30
"""Of a file that is read, once unpacked."""


@dataclass(frozen=True, eq=False)
class LayerPredictions:
    """Predictions of one split from each of `L` layers alone: `N` numbers, or the `T` likeliest of `K` names."""

    head: str
    """The head."""
    split: str
    """The split that was predicted."""
    layers: tuple[str, ...]
    """Its `L` layers, bottom up."""
    numbers: Float[np.ndarray, "L N"] | None = None
    """`(L, N)` numbers, the mean over seeds, as the head gives them; None where it predicts names."""
    names: tuple[str, ...] = ()
    """What the codes are positions of; empty for numbers."""
    codes: UInt[np.ndarray, "L N T"] | None = None
    """`(L, N, T)` positions of names, the likeliest first, and `K` for no prediction; None for numbers."""
    shares: Float[np.ndarray, "L N T"] | None = None
    """`(L, N, T)` probabilities of these names; None for a head without probabilities."""

    @classmethod
    def of(
        cls,
        head: str,
        split: str,
        layers: Sequence[str],
        alone: NDArray[np.generic],
        names: Sequence[str],
        likely: tuple[NDArray[np.generic], NDArray[np.generic]] | None = None,
    ) -> "LayerPredictions":
        """Keep `(S, L, N)` predictions of `S` seeds: of numbers the mean, of names those of the first seed.

        `likely` are the codes and probabilities `(L, N, T)` of the likeliest classes.
        """
        if not names:
            numbers = np.asarray(alone, np.float64).mean(0)
            finite = np.nan_to_num(numbers)
            is_small = np.abs(finite).max(initial=0) < MOST_HALF
            step = np.spacing(np.abs(finite).max(axis=1, initial=0).astype(np.float16)) if is_small else np.inf
            is_fine = bool((step < FINEST * np.std(finite, axis=1)).all())  # raw cosines may all be close to 1
            return cls(head, split, tuple(layers), numbers=numbers.astype(np.float16 if is_fine else np.float32))
        first, shares = (alone[0][..., None], None) if likely is None else likely
        codes = np.where(np.asarray(first) < 0, len(names), first).astype(np.uint16)
        kept = None if shares is None else np.asarray(shares, np.float16)
        return cls(head, split, tuple(layers), names=tuple(names), codes=codes, shares=kept)

    def of_layer(self, k: int) -> list[str] | list[float]:
        """Return what the `k`-th layer predicts: numbers, or the likeliest names, empty for none."""
        if self.codes is None:
            return [] if self.numbers is None else self.numbers[k].astype(np.float64).tolist()
        return [(*self.names, "")[code] for code in self.codes[k, :, 0].tolist()]

    @property
    def n_rows(self) -> int:
        """How many rows were predicted."""
        return int(next(part for part in (self.numbers, self.codes) if part is not None).shape[1])


def save_predictions(folder: Path, predictions: LayerPredictions) -> None:
    """Write them into the folder of a run, in place of those of the same head."""
    arrays = {name: getattr(predictions, name) for name in ("numbers", "codes", "shares")}
    about = {name: getattr(predictions, name) for name in ("head", "split", "layers", "names")}
    content = io.BytesIO()
    np.savez_compressed(
        content,
        about=np.frombuffer(json.dumps(about).encode(), np.uint8),
        **{name: array for name, array in arrays.items() if array is not None},
    )
    path = folder / PREDICTED / f"{predictions.head}.npz"
    path.parent.mkdir(exist_ok=True)
    write_file(path, content.getvalue())


UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, RecursionError, StopIteration),
    zipfile.BadZipFile,
)
"""What reading a damaged file of predictions may raise."""


def load_predictions(folder: Path, head: str) -> LayerPredictions | None:
    """Read those of a head back; None where the run has none."""
    path = folder / PREDICTED / f"{head}.npz"
    if not path.exists():
        return None
    try:
        content = io.BytesIO(read_file(path))
        if sum(part.file_size for part in zipfile.ZipFile(content).infolist()) > MOST_BYTES:
            raise ValueError(f"it holds more than {MOST_BYTES:,} bytes")
        with np.load(content, allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            arrays = {name: file[name] for name in ("numbers", "codes", "shares") if name in file}
        layers, names = (tuple(map(str, about[name])) for name in ("layers", "names"))
        _check(layers, names, arrays)
    except UNREADABLE as error:
        raise HeadError(
            f"{str(path)!r} cannot be read ({first_line(error)}); make it again: icecore layers {folder.name}."
        ) from error
    return LayerPredictions(head, str(about["split"]), layers, names=names, **arrays)


def _check(layers: Sequence[str], names: Sequence[str], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Refuse arrays that are not of these layers and names."""
    for name, kind, n_axes in (("numbers", "f", 2), ("codes", "u", 3), ("shares", "f", 3)):
        if name in arrays and (arrays[name].dtype.kind, arrays[name].ndim) != (kind, n_axes):
            raise ValueError(f"{name} is an array of {arrays[name].dtype} of {arrays[name].ndim} axes")
    shapes = {array.shape[:2] for array in arrays.values()}
    if len(shapes) != 1 or next(iter(shapes))[0] != len(layers) or ("codes" in arrays) == ("numbers" in arrays):
        raise ValueError("its arrays are not of its layers")
    if "codes" in arrays and int(np.max(arrays["codes"], initial=0)) > len(names):
        raise ValueError("a code is that of no name")
    if "shares" in arrays and ("codes" not in arrays or arrays["shares"].shape != arrays["codes"].shape):
        raise ValueError("its probabilities are not of its codes")
