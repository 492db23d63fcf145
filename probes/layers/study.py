"""Everything that is found about the layers of one head on one task: the views, their intervals, and an answer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from extract.errors import HeadError, TaskError, unknown_name
from extract.linear import estimated_products
from probes.heads.context import FitContext, Reporter
from probes.heads.head_table import HeadOptions
from probes.heads.layer_head import HeadParts, Together, take_apart
from probes.heads.result import HeadResult
from probes.layers.findings import VIEWS, Agreement, HeadFindings, ViewCurve
from probes.layers.shapley import (
    CONTROLS,
    MOST_EXACT,
    Worth,
    baseline_predictions,
    group_layers,
    selectivity,
    shapley_values,
    worth_of_groups,
)
from probes.layers.views import FITTED_KINDS, LayerRows, Readout, learn_mix, measure_information, predict_sets, rows_of
from probes.metrics.bootstrap import Resampling, UnitScorer, mean_scorer
from probes.metrics.correlation import CORRELATIONS, spearman
from probes.metrics.significance import best_set, joint_intervals

# What was found, in words: which layers matter, with the uncertainty, and what a reader must know.

FEW_UNITS = 100


def answer(found: HeadFindings) -> str:
    """Answer which layers matter: the set that holds the best, what the best alone lacks, and what is lost without it.

    Scores are times 100.
    """
    alone = found.curve("alone")
    if alone is None:
        return ""
    best, n = alone.layers.index(found.best), len(found.layers)
    score = f"{found.metric} {_percent(alone.values[best])}{_ends(alone, best)} on {found.split}"
    if len(found.best_set) == 1:
        first = f"Of {n} layers {found.best} is the best by itself, and no other can be told to be as good: {score}."
    elif len(found.best_set) == n:
        first = f"No layer can be told from the best, {found.best} ({score})."
    else:
        named = f"{describe_layers(found.best_set, found.layers)} ({len(found.best_set)} of {n} layers)"
        first = f"{named} cannot be told from the best, {found.best} ({score})."
    return " ".join(filter(None, [first, _joint(found), _few(found), _lost(found)]))


def _joint(found: HeadFindings) -> str:
    """Compare the readout of all layers with that of the first pick: the same probe, so that only layers differ."""
    greedy, gap = found.curve("greedy"), found.curve("greedy-gap")
    if greedy is None or gap is None:
        return ""
    whole = _percent(greedy.values[0] + gap.values[0])
    ends = f", {_percent(gap.low[0])} to {_percent(gap.high[0])}" if gap.low else ""
    one = f"{greedy.layers[0]} alone {_percent(greedy.values[0])}"
    return f"A readout of all layers has {whole}, one of {one} ({100 * gap.values[0]:+.1f}{ends})."


def _few(found: HeadFindings) -> str:
    gap, greedy = found.curve("greedy-gap"), found.curve("greedy")
    if gap is None or greedy is None:
        return ""
    enough = next((k for k, low in enumerate(gap.low) if low <= 0), None)
    if enough is None:
        return f"{len(gap.layers)} picked layers still lack {100 * gap.values[-1]:.1f} of what all have."
    if enough == 0:
        return f"One layer, {greedy.layers[0]}, cannot be told from all of them in that readout."
    picked = ", ".join(greedy.layers[: enough + 1])
    return f"{enough + 1} layers ({picked}) cannot be told from all of them ({_percent(greedy.values[enough])})."


def _lost(found: HeadFindings) -> str:
    without = found.curve("without") or found.curve("without-imputed")
    if without is None:
        return ""
    how = "refitted" if without.view == "without" else "with its mean in its place"
    worst = int(np.nanargmax(without.values))
    hurts = [layer for layer, low in zip(without.layers, without.low, strict=True) if low > 0]
    lost = f"{100 * without.values[worst]:.1f}{_ends(without, worst)}"
    if not hurts:
        return f"Leaving out any one layer loses nothing that can be told ({how}; at most {lost})."
    return f"Without {without.layers[worst]} it loses most, {lost} ({how})."


def describe_layers(layers: Sequence[str], every: Sequence[str]) -> str:
    """Name layers, runs of three or more by their ends.

    Example:
        >>> describe_layers(["b1", "b3", "b4", "b5"], ["b1", "b2", "b3", "b4", "b5"])
        'b1 and b3 to b5'
    """
    places = sorted(every.index(layer) for layer in layers)
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    names: list[str] = []
    for run in runs:
        names += [f"{every[run[0]]} to {every[run[-1]]}"] if len(run) > 2 else [every[place] for place in run]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def warnings(parts: HeadParts, split: str, result: HeadResult) -> tuple[str, ...]:
    """Say what a reader of the findings must know, a sentence each."""
    found = []
    if split == "validation":
        found.append("The scored split is validation, which the run made its choices on, so scores are optimistic.")
    if result.is_optimistic:
        found.append(f"The head is optimistic: {result.optimistic_because}.")
    if parts.scorer.n_units < FEW_UNITS:
        found.append(f"Only {parts.scorer.n_units} {parts.scorer.unit} were scored, so the set of layers is wide.")
    unconverged = result.extras.get("convergence", {})
    if unconverged and unconverged["n_converged"] < unconverged["n_problems"]:
        missing = unconverged["n_problems"] - unconverged["n_converged"]
        found.append(f"{missing} of {unconverged['n_problems']} probes of the run did not converge.")
    return tuple(found)


def doubts(found: HeadFindings) -> tuple[str, ...]:
    """Say where the best layer is no better than labels that mean nothing, or than no decoder."""
    said = []
    for curve in (each for each in found.curves if each.view == "selectivity" and each.low):
        place = curve.layers.index(found.best)
        if curve.low[place] <= 0:
            said.append(
                f"At {found.best} the head is not told to be better than on control labels (by {curve.name}): "
                f"{100 * curve.values[place]:+.1f}{_ends(curve, place)}."
            )
    alone, baselines = found.curve("alone"), found.curve("baseline")
    if alone is not None and baselines is not None:
        score = alone.values[alone.layers.index(found.best)]
        for name, value in zip(baselines.layers, baselines.values, strict=True):
            if value >= score:
                said.append(f"The baseline {name}, without a decoder, has {_percent(value)}: no layer alone has more.")
    return tuple(said)


def _ends(curve: ViewCurve, place: int) -> str:
    if not curve.low or not np.isfinite(curve.low[place]):
        return ""
    return f" ({_percent(curve.low[place])} to {_percent(curve.high[place])})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


PARTS = ("alone", "baselines", "shapley", "sets", "information", "mix")
"""Groups of views, in the order they are computed; `alone` always is."""
RANKED = ("alone", "shapley", "without-imputed", "without", "v-information", "mix")
"""Views whose rankings of the layers are compared."""


@dataclass(frozen=True)
class StudyOptions:
    """How layers are studied.

    Attributes:
        views: Names from `PARTS`; of kinds without fitting, `alone` is all there is.
        controls: Names from `CONTROLS`: labels that mean nothing, on which the head is fitted again.
        split: The split that is scored; test where empty, or validation where there is no test.
        n_resamples: Bootstrap resamples.
        confidence: Of the set and of all intervals of a view together.
        orders: Orders of layers drawn for Shapley values.
        components: Principal components of a layer in the readout of many layers.
        information_components: Principal components of a layer in the views of information.
        most_rows: Most rows of train that readouts and views of information are fitted on.
        mix_seeds: Seeds of the learned mix.
    """

    views: tuple[str, ...] = PARTS
    controls: tuple[str, ...] = ()
    split: str = ""
    n_resamples: int = 1000
    confidence: float = 0.95
    orders: int = 200
    components: int = 32
    information_components: int = 64
    most_rows: int = 20000
    mix_seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        """Refuse unknown views and controls, and numbers out of their ranges."""
        for noun, names, table in (("view of layers", self.views, PARTS), ("control", self.controls, tuple(CONTROLS))):
            for name in names:
                if name not in table:
                    raise unknown_name(noun, name, table)
        least = {"n_resamples": 100, "orders": 4, "components": 1, "information_components": 1, "most_rows": 100}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise HeadError(f"{name} is {getattr(self, name)}; allowed: a whole number of at least {smallest}.")
        if not 0.5 <= self.confidence < 1:
            raise HeadError(f"confidence is {self.confidence}; allowed: 0.5 to below 1, usually 0.95.")
        if self.orders % 2:
            raise HeadError(f"orders is {self.orders}; allowed: an even number, as each is drawn with its reverse.")


def study_layers(
    resolved: HeadOptions,
    setting: FitContext,
    result: HeadResult,
    options: StudyOptions,
    *,
    watch: Reporter,
    report: Callable[[str], None] = lambda _: None,
) -> HeadFindings:
    """Find out which layers matter to a head of a run, from its cache and its kept fits.

    Args:
        resolved: The head and its options.
        setting: What all heads of the run share.
        result: What came of the head in the run.
        options: What to compute, and how.
        watch: Receives epochs of what must be fitted.
        report: Receives a remark before each step.

    Raises:
        TaskError: A split that the task lacks, or predictions that cannot be scored.
        HeadError: A head of one layer, or latents that are not finite.
    """
    split = options.split or ("test" if "test" in setting.task.splits else "validation")
    if options.controls and setting.task.kind not in FITTED_KINDS:
        raise TaskError(f"controls refit a head on other labels, but a head of {setting.task.kind} is fitted on none.")
    if split not in setting.task.splits or split == "train":
        allowed = ", ".join(each for each in setting.task.splits if each != "train")
        raise TaskError(f"split is {split!r}; allowed: {allowed}.")
    report(f"{resolved.name}: every layer alone")
    parts = take_apart(resolved, setting, result, split, watch)
    study = _Study(resolved, setting, parts, split, options)
    curves = [study.alone]
    for how in options.controls:
        report(f"{resolved.name}: the head on control labels by {how}")
        curves += selectivity(
            resolved,
            setting,
            result,
            split=split,
            watch=watch,
            how=how,
            resampling=Resampling(options.n_resamples, options.confidence),
        )
    computed = (study.baselines, study.shapley, study.sets, study.information, study.mix)
    for name, compute in zip(PARTS[1:], computed, strict=True):
        if name in options.views and setting.task.kind in FITTED_KINDS:
            report(f"{resolved.name}: {name}")
            curves += compute()
    found = HeadFindings(
        head=resolved.name,
        pooling=parts.pooling,
        metric=parts.scorer.metric,
        split=split,
        unit=parts.scorer.unit,
        n_units=parts.scorer.n_units,
        layers=parts.layers,
        best=parts.layers[study.best],
        best_set=tuple(parts.layers[k] for k in study.kept),
        confidence=options.confidence,
        curves=tuple(curves),
        agreement=tuple(_agreements(curves)),
        warnings=warnings(parts, split, result),
    )
    return replace(found, answer=answer(found), warnings=(*found.warnings, *doubts(found)))


@dataclass(eq=False)
class _Study:
    """One head under study; what several views need is computed once."""

    resolved: HeadOptions
    setting: FitContext
    parts: HeadParts
    split: str
    options: StudyOptions
    alone: ViewCurve = field(init=False)
    best: int = field(init=False)
    kept: list[int] = field(init=False)

    def __post_init__(self) -> None:
        parts, n_seeds = self.parts, len(self.parts.alone)
        flat = parts.alone.reshape(-1, parts.alone.shape[-1])
        by_seed = parts.scorer.score(flat).reshape(n_seeds, -1)
        drawn = parts.scorer.resample(flat, self._how).reshape(*by_seed.shape, -1).mean(0)
        values, is_correlation = by_seed.mean(0), parts.scorer.metric in CORRELATIONS
        low, high = joint_intervals(
            values, drawn, confidence=self.options.confidence, highest=1.0, is_correlation=is_correlation
        )
        self.best = int(np.nanargmax(values))
        errors = parts.scorer.lead_errors(parts.alone, self._how)
        self.kept = best_set(
            values, drawn, errors, confidence=self.options.confidence, is_correlation=is_correlation
        ).tolist()
        self.alone = ViewCurve(
            "alone",
            parts.scorer.metric,
            parts.layers,
            _plain(values),
            _plain(low),
            _plain(high),
            _plain(by_seed.std(0, ddof=1)) if n_seeds > 1 else (),
            note=parts.how,
        )

    @property
    def _how(self) -> Resampling:
        return Resampling(self.options.n_resamples, self.options.confidence)

    @cached_property
    def rows(self) -> LayerRows:
        return rows_of(
            self.setting.cache,
            self.setting.task,
            pooling=self.parts.pooling,
            layers=self.resolved.layers,
            split=self.split,
            metric=self.parts.scorer.metric,
            most_rows=self.options.most_rows,
        )

    @cached_property
    def readout(self) -> Readout:
        return Readout.of(self.rows, components=self.components)

    @property
    def components(self) -> int:
        """Principal components of a layer in readouts: no more than a tenth of the rows of train."""
        return min(self.options.components, max(2, len(self.rows.gold) // 10))

    @property
    def joint(self) -> tuple[UnitScorer, Together, str]:
        """What reads all layers at once: the head, or else a readout of all of them; how it is scored and called."""
        if self.parts.together is not None:
            return self.parts.scorer, self.parts.together, f"of the head `{self.resolved.name}`"
        what = f"of a ridge readout of all layers ({self.components} principal components each)"
        return self.rows.scorer, self.readout.together(), what

    def baselines(self) -> Iterator[ViewCurve]:
        """Score what needs no decoder, on the same rows."""
        found = {name: splits[self.split] for name, splits in baseline_predictions(self.setting.task).items()}
        scorer, predicted = self.parts.scorer, np.stack(list(found.values()))
        columns = np.concatenate([scorer.score(predicted)[:, None], scorer.resample(predicted, self._how)], axis=1)
        columns[np.isnan(columns[:, 0])] = 0.0  # a constant has no correlation
        yield self._of_columns("baseline", scorer.metric, tuple(found), columns, 0, "without a decoder")

    def shapley(self) -> Iterator[ViewCurve]:
        """Compute Shapley values of layers and of groups, and each layer left out and alone, in the fitted head."""
        scorer, together, what = self.joint
        how = Resampling(min(200, self.options.n_resamples), self.options.confidence)
        worth, layers = _worth(scorer, together, how), self.parts.layers
        n_seeds = len(together(np.ones((1, len(layers)), bool)))
        with nullcontext() if len(layers) <= MOST_EXACT else estimated_products():
            found = shapley_values(worth, len(layers), n_orders=self.options.orders)
        note = (
            f"{what}; {self.options.orders} orders drawn with their reverses, standard error of the draw at most "
            f"{100 * float(found.errors[:, 0].max()):.2f} of 100; they sum to all - none = "
            f"{100 * float(found.all[0]):.1f} - {100 * float(found.none[0]):.1f}"
        )
        yield self._of_columns("shapley", scorer.metric, layers, found.values, n_seeds, note)
        groups = group_layers(layers)
        grouped = shapley_values(
            worth_of_groups(worth, tuple(groups.values()), len(layers)), len(groups), n_orders=self.options.orders
        )
        yield self._of_columns("shapley-group", scorer.metric, tuple(groups), grouped.values, n_seeds, what)
        every, none = np.ones((1, len(layers)), bool), np.zeros((1, len(layers)), bool)
        one = np.eye(len(layers), dtype=bool)
        scores = _worth(scorer, together, self._how)(np.concatenate([every, none, ~one, one]))
        whole, nothing, without, alone = np.split(scores, [1, 2, 2 + len(layers)])
        for view, gains in (("without-imputed", whole - without), ("with-imputed", alone - nothing)):
            yield self._of_columns(view, scorer.metric, layers, gains, n_seeds, f"{what}; means are those of train")

    def sets(self) -> Iterator[ViewCurve]:
        """Refit a readout without each layer, with it, up to it, from it on, and on picked layers."""
        layers, scorer = self.parts.layers, self.rows.scorer
        found = predict_sets(self.readout, self.best)
        whole, best, without, beside, prefix, suffix, greedy = (
            np.nan_to_num(np.concatenate([scorer.score(each)[:, None], scorer.resample(each, self._how)], axis=1))
            for each in (found.whole, found.best, found.without, found.beside, found.prefix, found.suffix, found.greedy)
        )
        what = f"ridge readout, {self.components} principal components of a layer, penalty by folds of train"
        picks = tuple(layers[k] for k in found.picks)
        for view, names, values in (
            ("without", layers, whole - without),
            ("with", layers, beside - best),
            ("prefix", layers, prefix),
            ("suffix", layers, suffix),
            ("greedy", picks, greedy),
            ("greedy-gap", picks, whole - greedy),
        ):
            yield self._of_columns(view, scorer.metric, names, values, 0, what)

    def information(self) -> Iterator[ViewCurve]:
        """Measure bits on the rows of the scored split."""
        rows, layers = self.rows, self.parts.layers
        found = measure_information(rows, self.best, components=self.options.information_components)
        scorer = mean_scorer(rows.scored_units, metric="bits", unit=self.parts.scorer.unit)
        what = f"{self.options.information_components} principal components, {len(rows.gold):,} rows of train"
        for view, gains, note in (
            ("v-information", found.prior - found.alone, what),
            ("new-information", found.alone[self.best] - found.beside, f"beside {layers[self.best]}; {what}"),
        ):
            columns = np.concatenate([scorer.score(gains)[:, None], scorer.resample(gains, self._how)], axis=1)
            yield self._of_columns(view, "bits", layers, columns, 0, f"bits per row; {note}")
        if len(found.code):
            note = (
                f"bits per row of train, sent in doubling portions; {found.uniform / len(rows.gold):.2f} by equal odds"
            )
            yield ViewCurve("code-length", "bits", layers, _plain(found.code / len(rows.gold)), note=note)

    def mix(self) -> Iterator[ViewCurve]:
        """Fit a mix of layers with every seed."""
        weights = learn_mix(self.rows, seeds=self.options.mix_seeds).weights
        spread = _plain(weights.std(0, ddof=1)) if len(weights) > 1 else ()
        note = f"softmax weights of layer-normed layers, {len(weights)} seeds; equal ones: {1 / weights.shape[1]:.3f}"
        yield ViewCurve("mix", "weight", self.parts.layers, _plain(weights.mean(0)), spread=spread, note=note)

    def _of_columns(
        self, view: str, metric: str, names: Sequence[str], columns: NDArray[np.float64], n_seeds: int, note: str
    ) -> ViewCurve:
        """Make a view of columns: the value, those of the seeds where there are any, and those of the resamples."""
        values, by_seed, drawn = columns[:, 0], columns[:, 1 : 1 + n_seeds], columns[:, 1 + n_seeds :]
        is_score = not VIEWS[view].is_gain
        low, high = joint_intervals(
            values,
            drawn,
            confidence=self.options.confidence,
            highest=1.0 if is_score else np.inf,
            is_correlation=is_score and metric in CORRELATIONS,
        )
        spread = _plain(by_seed.std(1, ddof=1)) if n_seeds > 1 else ()
        return ViewCurve(view, metric, tuple(names), _plain(values), _plain(low), _plain(high), spread, note=note)


def _worth(scorer: UnitScorer, together: Together, how: Resampling) -> Worth:
    """Score sets of layers: the mean over seeds, each seed, and the mean over seeds in each resample.

    A head that says nothing, as of no layers, has a correlation of 0.
    """

    def worth(masks: Bool[np.ndarray, "M L"]) -> Float[np.ndarray, "M R"]:
        found = []
        for start in range(0, len(masks), 512):
            predicted = together(masks[start : start + 512])
            scores = np.nan_to_num(np.stack([scorer.score(each) for each in predicted], axis=1))
            drawn = np.nan_to_num(np.mean([np.nan_to_num(scorer.resample(each, how)) for each in predicted], axis=0))
            found.append(np.concatenate([scores.mean(1, keepdims=True), scores, drawn], axis=1))
        return np.concatenate(found)

    return worth


def _agreements(curves: Sequence[ViewCurve], *, n_resamples: int = 1000) -> Iterator[Agreement]:
    """Correlate the rankings of the layers by every two views, with a bootstrap interval over layers."""
    ranked = [curve for curve in curves if curve.view in RANKED]
    n_layers = len(curves[0].values)
    drawn = np.random.default_rng(0).integers(0, n_layers, (n_resamples, n_layers))
    for k, one in enumerate(ranked):
        for other in ranked[k + 1 :]:
            values = np.array([one.values, other.values])
            known = np.isfinite(values).all(axis=0)
            value = float(spearman(values[0, known], values[1, known])) if known.sum() > 1 else float("nan")
            resampled = spearman(values[0, drawn], values[1, drawn])
            resampled = resampled[np.isfinite(resampled)]
            low, high = np.quantile(resampled, [0.025, 0.975]) if len(resampled) else (np.nan, np.nan)
            yield Agreement(one.view, other.view, value, float(low), float(high))


def _plain(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
