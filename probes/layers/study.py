"""The study of the layers of one head on one task: shares of layers, views with intervals, an answer in words."""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from math import factorial
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float

from extract.errors import HeadError, InputError, TaskError, require_counts, require_name
from extract.linear import estimated_products
from extract.poolings.pooling_table import JOIN
from probes.data.task import Same, Task
from probes.heads.head_table import HEADS, HeadOptions, TaskKind
from probes.heads.layer_head import FitContext, HeadParts, Reporter, Together, ablate
from probes.heads.result import HeadResult
from probes.latents.text_latents import channels_of
from probes.layers.findings import VIEWS, Agreement, HeadFindings, Resampled, ViewCurve
from probes.layers.views import LayerRows, Readout, learn_mix, measure_information, predict_sets
from probes.metrics.bootstrap import Resampling, UnitScorer, mean_scorer
from probes.metrics.prediction_metrics import CORRELATIONS, convert_tags, spearman, split_tag
from probes.metrics.significance import FEW_UNITS, best_set

Label = TypeVar("Label")
Worth = Callable[[Bool[np.ndarray, "M L"]], Float[np.ndarray, "M *R"]]
"""Scores `M` sets of players; further axes are seeds and resamples of the same score."""
MOST_EXACT = 12
"""Most players for which all sets are scored."""


@dataclass(frozen=True, eq=False)
class Shapley:
    """Shapley values, which sum to `all - none`; errors are those of drawing orders, 0 where all sets were scored."""

    values: Float[np.ndarray, "L *R"]
    errors: Float[np.ndarray, "L *R"]
    none: Float[np.ndarray, "*R"]
    all: Float[np.ndarray, "*R"]


def shapley_values(worth: Worth, n_players: int, *, n_orders: int = 200) -> Shapley:
    """Compute the Shapley value of every player: exactly up to 12 of them, else from drawn orders.

    Orders are drawn in pairs, each with its reverse, which removes most of the noise (Castro et al. 2009 for drawn
    orders; Mitchell et al. 2022 for antithetic ones).

    Example:
        >>> sums = lambda masks: masks @ np.array([1.0, 2.0, 4.0])
        >>> shapley_values(sums, 3).values.round(6).tolist()
        [1.0, 2.0, 4.0]
    """
    if n_orders < 4 or n_orders % 2:
        raise InputError(f"the number of orders is {n_orders}; allowed: an even number of at least 4.")
    if n_players <= MOST_EXACT:
        return _exact(worth, n_players)
    rng = np.random.default_rng(0)
    permutations = [rng.permutation(n_players) for _ in range(n_orders // 2)]
    orders = np.array([order for one in permutations for order in (one, one[::-1])])
    ranks = orders.argsort(1)
    masks = ranks[:, None, :] < np.arange(n_players + 1)[:, None]  # orders, sizes, players
    unique, rows = np.unique(masks.reshape(-1, n_players), axis=0, return_inverse=True)
    scores = worth(unique)[rows.reshape(len(orders), n_players + 1)]
    gains = np.diff(scores, axis=1)  # orders, steps, ...
    steps = ranks.reshape(*ranks.shape, *[1] * (gains.ndim - 2))
    by_player = np.take_along_axis(gains, np.broadcast_to(steps, gains.shape), axis=1)
    pairs = (by_player[::2] + by_player[1::2]) / 2
    errors = pairs.std(axis=0, ddof=1) / np.sqrt(len(pairs))
    return Shapley(pairs.mean(0), errors, np.asarray(scores[0, 0]), np.asarray(scores[0, -1]))


def _exact(worth: Worth, n: int) -> Shapley:
    masks = (np.arange(2**n)[:, None] >> np.arange(n)) & 1 == 1
    scores = worth(masks)
    sizes, weights = masks.sum(1), np.array([factorial(s) * factorial(n - s - 1) / factorial(n) for s in range(n)])
    values = []
    for player in range(n):
        without = np.flatnonzero(~masks[:, player])
        gains = scores[without | (1 << player)] - scores[without]
        values.append(np.tensordot(weights[sizes[without]], gains, 1))
    stacked = np.stack(values)
    return Shapley(stacked, np.zeros_like(stacked), np.asarray(scores[0]), np.asarray(scores[-1]))


def group_layers(layers: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Group layers: the embedding, the lower, middle and upper third of the blocks, and the final norm.

    Example:
        >>> group_layers(("embedding", "block_01", "block_02", "block_03", "final_norm"))
        {'embedding': (0,), 'lower third': (1,), 'middle third': (2,), 'upper third': (3,), 'final_norm': (4,)}
    """
    names = [name.rpartition("/")[2] for name in layers]
    blocks = [k for k, name in enumerate(names) if name.startswith("block_")]
    order = sorted(blocks, key=lambda k: (names[k], k))
    thirds = np.array_split(np.array(order, int), 3)
    labelled = zip(("lower third", "middle third", "upper third"), thirds, strict=True)
    groups = {"embedding": tuple(k for k, name in enumerate(names) if name == "embedding")}
    groups |= {label: tuple(sorted(part.tolist())) for label, part in labelled}
    groups |= {"final_norm": tuple(k for k, name in enumerate(names) if name == "final_norm")}
    return {label: part for label, part in groups.items() if part}


def worth_of_groups(worth: Worth, groups: tuple[tuple[int, ...], ...], n_layers: int) -> Worth:
    """Turn a score of sets of layers into one of sets of groups."""
    table = np.zeros((len(groups), n_layers), bool)
    for row, layers in zip(table, groups, strict=True):
        row[list(layers)] = True
    return lambda masks: worth(masks @ table)


CONTROLS = {
    "type": "the label of a word type: of the word itself, of the first word of a text, of those of a pair",
    "text": "the label of a text; of a word, at its place in its sentence",
    "shuffled": "the gold of train in random order; that of the other splits stays",
}


def control_task(task: Same, kind: TaskKind, control: str = "type", seed: int = 0) -> Same:
    """Replace the labels of a task by ones that say nothing about the texts (Hewitt and Liang 2019).

    Under `type` and `text` a label is drawn from the gold of train, as often as it occurs there, by the seed and the
    type or text alone: it is the same in every split and on every machine. Spans of a control are of one word each,
    so that no tag depends on the next. A text that train does not share has an arbitrary label, so a control by text
    is at chance outside train. `TaskError` for a kind without controls.

    Example:
        >>> from icecore import load_task
        >>> from probes.runs.task_kinds import KINDS
        >>> control = control_task(load_task("class-sample"), KINDS["classes"], "type", seed=1)
        >>> control.name, control.n_classes
        ('class-sample, control by type (seed 1)', 6)
    """
    require_name("control", control, CONTROLS)
    require_controls(kind)
    if "train" not in task.splits:
        raise TaskError(f"task {task.name!r} has no split 'train', whose gold the labels of a control are drawn from.")
    gold = kind.gold_column
    labels = kind.control_labels(task, control, seed)
    names = task.rows("train").column_names
    columns = {
        split: {**rows.select_columns(names)[:], gold: labels.get(split, rows[gold])}
        for split, rows in task.splits.items()
    }
    splits = task.hold(columns)
    name = f"{task.name}, control by {control} (seed {seed})"
    return task.replace_splits(splits, note=f"a control: {CONTROLS[control]} (seed {seed})", name=name)


def require_controls(kind: TaskKind) -> None:
    """Refuse controls of a kind of task without any."""
    if not kind.gold_column:
        raise TaskError(
            f"controls refit a head on other labels, and tasks of {kind.name} name no labels to replace; leave "
            "controls out."
        )


def text_labels(task: Task, gold: str, control: str, seed: int) -> Mapping[str, Sequence[object]]:
    """Draw the label of every text, or of every first word; or permute the gold of train."""
    pool = list(task.rows("train")[gold])
    if control == "shuffled":
        return {"train": [pool[row] for row in np.random.default_rng(seed).permutation(len(pool))]}
    pool = sorted(pool)
    labels = {}
    for split, rows in task.splits.items():
        columns = [rows[column] for column in task.text_columns]
        if control == "type":
            columns = [[(text.split() or [""])[0] for text in texts] for texts in columns]
        keys = (tuple(sorted(texts)) for texts in zip(*columns, strict=True))  # a pair in either order is the same
        labels[split] = [_draw(key, pool, seed) for key in keys]
    return labels


def word_labels(task: Task, gold: str, control: str, seed: int) -> Mapping[str, Sequence[object]]:
    """Draw the tag of every word, or of every word of a sentence; or permute the tags of train over all its words."""
    tags = list(task.rows("train")[gold])
    flat, is_spans = [tag for sentence in tags for tag in sentence], task.metrics[0] == "span-f1"
    if control == "shuffled":
        mixed = iter([flat[row] for row in np.random.default_rng(seed).permutation(len(flat))])
        rows = [[next(mixed) for _ in sentence] for sentence in tags]
        return {"train": [convert_tags(sentence) for sentence in rows] if is_spans else rows}
    pool = sorted(f"B-{split_tag(tag)[1]}" if is_spans and tag != "O" else tag for tag in flat)  # spans of one word
    return {
        split: [
            [
                _draw(word if control == "type" else (position, *words), pool, seed)
                for position, word in enumerate(words)
            ]
            for words in rows["words"]
        ]
        for split, rows in task.splits.items()
    }


def _draw(key: Hashable, pool: Sequence[Label], seed: int) -> Label:
    """Draw from a pool by seed and key alone, the same on every machine."""
    digest = hashlib.sha256(repr((seed, key)).encode()).digest()
    return pool[int.from_bytes(digest[:8], "big") * len(pool) >> 64]


def _score_layers(parts: HeadParts, resampling: Resampling) -> Resampled:
    """Score every layer alone, the mean over seeds; constant predictions have a correlation of 0."""
    by_seed = [Resampled.of(parts.scorer, rows, resampling).without_nan() for rows in parts.alone]
    values, draws = (np.mean([getattr(scores, name) for scores in by_seed], axis=0) for name in ("value", "draws"))
    return Resampled(values, np.zeros((len(values), 0)), draws)


WIDE_BELOW = 100
"""Units below which a set of tied layers is wide."""
PARTS = ("alone", "baselines", "by-view", "shapley", "sets", "information", "mix")
"""Groups of views, in the order they are computed; `alone` always is."""
RANKED = ("alone", "shapley", "without-imputed", "without", "v-information", "mix")
"""Views whose rankings of the layers are compared."""


@dataclass(frozen=True)
class StudyOptions:
    """How layers are studied."""

    views: tuple[str, ...] = PARTS
    """Names from `PARTS`; kinds without fitting have `alone`, `baselines` and `by-view` only."""
    controls: tuple[str, ...] = ()
    """Names from `CONTROLS`: labels without meaning, on which the head is fitted again."""
    split: str = ""
    """The split that is scored; test where empty, or validation where there is no test."""
    n_resamples: int = 1000
    """Bootstrap resamples."""
    confidence: float = 0.95
    """Of the set and of all intervals of a view together."""
    orders: int = 200
    """Random orders of the layers for Shapley values."""
    components: int = 32
    """Principal components of a layer in the readout of many layers."""
    information_components: int = 64
    """Principal components of a layer in the views of information."""
    most_rows: int = 20000
    """Most rows of train that readouts and views of information are fitted on."""
    mix_seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the learned mix."""

    def __post_init__(self) -> None:
        for noun, names, table in (("view of layers", self.views, PARTS), ("control", self.controls, tuple(CONTROLS))):
            for name in names:
                require_name(noun, name, table)
        least = {"n_resamples": 100, "orders": 4, "components": 1, "information_components": 1, "most_rows": 100}
        for name, smallest in least.items():
            require_counts(self, name, least=smallest)
        if not 0.5 <= self.confidence < 1:
            raise HeadError(f"confidence is {self.confidence}; allowed: 0.5 to below 1, usually 0.95.")
        if self.orders % 2:
            raise HeadError(f"orders is {self.orders}; allowed: an even number, as orders come in pairs.")


@dataclass(eq=False)
class HeadStudy:
    """One head of a run under study, from its cache and its saved fits; what several views need is computed once."""

    resolved: HeadOptions
    context: FitContext
    result: HeadResult
    options: StudyOptions
    kind: TaskKind
    reporter: Reporter

    def __post_init__(self) -> None:
        """Refuse a split that cannot be scored."""
        splits = self.context.task.splits
        self.resampling = Resampling(self.options.n_resamples, self.options.confidence)
        self.split = self.options.split or ("test" if "test" in splits else "validation")
        if self.split not in splits or self.split == "train":
            allowed = ", ".join(name for name in splits if name != "train")
            raise TaskError(f"split is {self.split!r}; allowed: {allowed}.")

    def findings(self, *, report: Callable[[str], None] = lambda _: None) -> HeadFindings:
        """Find out which layers matter to the head."""
        name, parts, (chosen, chosen_on) = self.resolved.name, self.parts, self.choice
        curves = [self.alone]
        for control in self.options.controls:
            report(f"{name}: the head on control labels by {control}")
            curves += self.selectivity(control)
        computed = (self.baselines, self.by_view, self.shapley, self.sets, self.information, self.mix)
        for view, compute in zip(PARTS[1:], computed, strict=True):
            if view in self.options.views and (view in ("baselines", "by-view") or self.kind.layer_rows):
                report(f"{name}: {view}")
                curves += compute()
        findings = HeadFindings(
            head=name,
            pooling=parts.pooling,
            metric=parts.scorer.metric,
            split=self.split,
            unit=parts.scorer.unit,
            n_units=parts.scorer.n_units,
            layers=parts.layers,
            best=parts.layers[int(np.nanargmax(self.scores.value))],
            best_set=tuple(parts.layers[k] for k in self.best_set),
            confidence=self.options.confidence,
            curves=tuple(curves),
            agreement=tuple(_agreements(curves)),
            warnings=warnings(parts, self.split, self.result),
            chosen=chosen,
            chosen_on=chosen_on,
        )
        return replace(findings, answer=answer(findings), warnings=(*findings.warnings, *doubts(findings)))

    @cached_property
    def parts(self) -> HeadParts:
        """The head, taken apart on the split."""
        return ablate(self.resolved, self.context, self.result, self.split, self.reporter)

    @cached_property
    def choice(self) -> tuple[str, str]:
        """The layer that the run chose, or else the best alone on validation, and what it was chosen on."""
        parts, split, layer = self.parts, self.split, str(self.result.chosen.get("layer", ""))
        if layer in parts.layers:
            return layer, self.result.chosen_on if len(parts.layers) > 1 else ""
        if "validation" in self.context.task.splits and split != "validation":
            split = "validation"
            parts = ablate(self.resolved, self.context, self.result, split, self.reporter)
        n_seeds, n_layers, n_rows = parts.alone.shape
        scores = parts.scorer.score(parts.alone.reshape(-1, n_rows)).reshape(n_seeds, n_layers).mean(0)
        return parts.layers[int(np.nanargmax(scores))], f"{split} among single layers"

    @property
    def chosen(self) -> int:
        """Position of the chosen layer."""
        return self.parts.layers.index(self.choice[0])

    @cached_property
    def scores(self) -> Resampled:
        """The scores of every layer alone."""
        return Resampled.of_seeds(self.parts.scorer, self.parts.alone, self.resampling)

    @property
    def alone(self) -> ViewCurve:
        """The curve of these scores."""
        return self._curve("alone", self.parts.scorer.metric, self.parts.layers, self.scores, self.parts.how)

    @property
    def best_set(self) -> list[int]:
        """Positions of the layers that are statistically tied with the best."""
        scorer = self.parts.scorer
        errors = scorer.lead_errors(self.parts.alone, self.resampling)
        confidence, is_correlation = self.options.confidence, scorer.metric in CORRELATIONS
        scores = self.scores
        tied = best_set(scores.value, scores.draws, errors, confidence=confidence, is_correlation=is_correlation)
        return [int(k) for k in tied]

    def selectivity(self, control: str = "type") -> tuple[ViewCurve, ViewCurve]:
        """Fit the head on control labels, on every layer alone, and take its score there from its score on the task."""
        context, split, parts = self.context, self.split, self.parts
        scores, task = _score_layers(parts, self.resampling), control_task(context.task, self.kind, control, 0)
        folder = context.folder / "controls" / f"{control}_0"
        quick = replace(context, task=task, folder=folder, n_resamples=2, has_details=False)
        result = HEADS[self.resolved.name].evaluate(self.resolved, quick, self.reporter)
        refitted = _score_layers(ablate(self.resolved, quick, result, split, self.reporter), self.resampling)
        note, confidence = CONTROLS[control], self.options.confidence
        metric, layers = parts.scorer.metric, parts.layers
        return (
            refitted.curve("control", metric, layers, confidence=confidence, name=control, note=note),
            (scores - refitted).curve("selectivity", metric, layers, confidence=confidence, name=control, note=note),
        )

    @cached_property
    def rows(self) -> LayerRows:
        """What probes of layers are fitted on and scored by."""
        read = self.kind.layer_rows
        if read is None:
            raise TaskError(f"tasks of {self.kind.name} have no probes of layers.")
        channels = channels_of(self.context.cache, self.parts.pooling, self.resolved.layers)
        metric, most_rows = self.parts.scorer.metric, self.options.most_rows
        return read(self.context.cache, self.context.task, channels, self.split, metric, most_rows)

    @cached_property
    def readout(self) -> Readout:
        """Readouts of sets of layers."""
        return Readout.of(self.rows, components=self.components)

    @property
    def components(self) -> int:
        """Principal components of a layer in readouts: no more than a tenth of the rows of train."""
        return min(self.options.components, max(2, len(self.rows.train.gold) // 10))

    @property
    def joint(self) -> tuple[UnitScorer, Together, str]:
        """The model that reads all layers, the head or else a readout of all of them: its scorer, itself, its name."""
        if self.parts.together is not None:
            return self.parts.scorer, self.parts.together, f"of the head `{self.resolved.name}`"
        name = f"of a ridge readout of all layers ({self.components} principal components each)"
        return self.rows.scorer, self.readout.together(), name

    def baselines(self) -> Iterator[ViewCurve]:
        """Score what needs no decoder, on the same rows."""
        baselines = self.kind.baselines(self.context.task)
        if not baselines:
            return
        scorer, names = self.parts.scorer, tuple(baselines)
        predictions = [baseline.predictions[self.split] for baseline in baselines.values()]
        scores = Resampled.of(scorer, np.stack(predictions), self.resampling)
        constant = np.isnan(scores.value)  # which has no correlation
        scores.value[constant] = scores.draws[constant] = 0.0
        yield self._curve("baseline", scorer.metric, names, scores, "without a decoder")

    def by_view(self) -> Iterator[ViewCurve]:
        """Score the head on all views of the texts and, fitted and chosen again, without each and on each alone."""
        views = self.parts.pooling.split(JOIN)
        if self.context.cache.identity.views is None or len(views) == 1:
            return
        sets = {f"without {view}": [other for other in views if other != view] for view in views}
        if len(views) > 2:  # of two, each alone is without the other
            sets |= {f"{view} alone": [view] for view in views}
        scores = [self._fitted_on(self.parts.pooling, self.context.folder)]
        for name, others in sets.items():
            folder = self.context.folder / "views" / name.replace(" ", "_")
            scores.append(self._fitted_on(JOIN.join(others), folder))
        packed, n_seeds = np.concatenate([score.pack() for score in scores]), scores[0].seeds.shape[1]
        parts = packed, packed[:1], packed[1 : 1 + len(views)]
        every, whole, rest = (Resampled.unpack(part, n_seeds) for part in parts)
        metric, note = self.parts.scorer.metric, f"the head `{self.resolved.name}` fitted and chosen again"
        yield self._curve("view-score", metric, ("all views", *sets), every, note)
        yield self._curve("without-view", metric, views, whole - rest, note)

    def _fitted_on(self, pooling: str, folder: Path) -> Resampled:
        """Score the head on some views, fitted or found in a folder."""
        quick = replace(self.context, folder=folder, n_resamples=2, has_details=False)
        resolved = replace(self.resolved, pooling=pooling)
        result = HEADS[self.resolved.name].evaluate(resolved, quick, self.reporter)
        rows = result.scored[self.split] if self.split in result.scored else result.predictions[self.split][None]
        scorer = self.parts.scorer
        by_seed, draws = scorer.score(rows), scorer.resample(rows, self.resampling)
        return Resampled(by_seed.mean(keepdims=True), by_seed[None], draws.mean(0, keepdims=True)).without_nan()

    def shapley(self) -> Iterator[ViewCurve]:
        """Compute Shapley values of layers and of groups, and each layer left out and alone, in the fitted head."""
        scorer, together, name = self.joint
        metric, layers = scorer.metric, self.parts.layers
        n_layers, n_seeds = len(layers), len(together(np.ones((1, len(layers)), bool)))
        fewer = Resampling(min(200, self.options.n_resamples), self.options.confidence)

        def worth(masks: Bool[np.ndarray, "M L"]) -> Float[np.ndarray, "M C"]:
            return score_sets(scorer, together, masks, fewer).pack()

        with nullcontext() if n_layers <= MOST_EXACT else estimated_products():
            shapley = shapley_values(worth, n_layers, n_orders=self.options.orders)
        note = (
            f"{name}; {self.options.orders} orders drawn with their reverses, standard error of the draw at most "
            f"{100 * float(shapley.errors[:, 0].max()):.2f} of 100; they sum to all - none = "
            f"{100 * float(shapley.all[0]):.1f} - {100 * float(shapley.none[0]):.1f}"
        )
        yield self._curve("shapley", metric, layers, Resampled.unpack(shapley.values, n_seeds), note)
        groups = group_layers(layers)
        group_worth = worth_of_groups(worth, tuple(groups.values()), n_layers)
        grouped = shapley_values(group_worth, len(groups), n_orders=self.options.orders)
        yield self._curve("shapley-group", metric, tuple(groups), Resampled.unpack(grouped.values, n_seeds), name)
        one = np.eye(n_layers, dtype=bool)
        masks = np.concatenate([np.ones((1, n_layers), bool), np.zeros((1, n_layers), bool), ~one, one])
        columns = score_sets(scorer, together, masks, self.resampling).pack()
        whole, nothing, without, alone = (
            Resampled.unpack(part, n_seeds) for part in np.split(columns, [1, 2, 2 + n_layers])
        )
        for view, gains in (("without-imputed", whole - without), ("with-imputed", alone - nothing)):
            yield self._curve(view, metric, layers, gains, f"{name}; means are those of train")

    def sets(self) -> Iterator[ViewCurve]:
        """Refit a readout without each layer, with it, up to it, from it on, and on picked layers."""
        layers, scorer = self.parts.layers, self.rows.scorer
        sets = predict_sets(self.readout, self.chosen)
        whole, best, without, beside, prefix, suffix, greedy = (
            Resampled.of(scorer, predicted, self.resampling).without_nan()
            for predicted in (sets.whole, sets.best, sets.without, sets.beside, sets.prefix, sets.suffix, sets.greedy)
        )
        note = f"ridge readout, {self.components} principal components of a layer, penalty by folds of train"
        picks = tuple(layers[k] for k in sets.picks)
        for view, names, scores in (
            ("without", layers, whole - without),
            ("with", layers, beside - best),
            ("prefix", layers, prefix),
            ("suffix", layers, suffix),
            ("greedy", picks, greedy),
            ("greedy-gap", picks, whole - greedy),
        ):
            yield self._curve(view, scorer.metric, names, scores, note)

    def information(self) -> Iterator[ViewCurve]:
        """Measure bits on the rows of the scored split."""
        rows, layers, components = self.rows, self.parts.layers, self.options.information_components
        bits = measure_information(rows, self.chosen, components=components)
        scorer = mean_scorer(rows.scored.units, metric="bits", unit=self.parts.scorer.unit)
        probe = f"{components} principal components, {len(rows.train.gold):,} rows of train"
        for view, gains, note in (
            ("v-information", bits.prior - bits.alone, probe),
            ("new-information", bits.alone[self.chosen] - bits.beside, f"beside {layers[self.chosen]}; {probe}"),
        ):
            scores = Resampled.of(scorer, gains, self.resampling)
            yield self._curve(view, "bits", layers, scores, f"bits per row; {note}")
        if len(bits.code):
            n_rows = len(rows.train.gold)
            note = f"bits per row of train, sent in doubling portions; {bits.uniform / n_rows:.2f} by equal odds"
            yield ViewCurve("code-length", "bits", layers, tuple((bits.code / n_rows).tolist()), note=note)

    def mix(self) -> Iterator[ViewCurve]:
        """Fit a mix of layers with every seed."""
        weights = learn_mix(self.rows, seeds=self.options.mix_seeds)
        spread = tuple(weights.std(0, ddof=1).tolist()) if len(weights) > 1 else ()
        note = f"softmax weights of layer-normed layers, {len(weights)} seeds; equal ones: {1 / weights.shape[1]:.3f}"
        yield ViewCurve("mix", "weight", self.parts.layers, tuple(weights.mean(0).tolist()), spread=spread, note=note)

    def _curve(self, view: str, metric: str, names: Sequence[str], scores: Resampled, note: str) -> ViewCurve:
        highest = np.inf if VIEWS[view].is_gain else 1.0
        return scores.curve(view, metric, names, confidence=self.options.confidence, highest=highest, note=note)


def score_sets(
    scorer: UnitScorer, together: Together, masks: Bool[np.ndarray, "M L"], resampling: Resampling
) -> Resampled:
    """Score sets of layers, the mean over seeds; the correlation of a constant, as of no layers, is 0."""
    seeds, draws = [], []
    for start in range(0, len(masks), 512):
        by_seed = together(masks[start : start + 512])
        seeds.append(np.nan_to_num(np.stack([scorer.score(predicted) for predicted in by_seed], axis=1)))
        resampled = [np.nan_to_num(scorer.resample(predicted, resampling)) for predicted in by_seed]
        draws.append(np.nan_to_num(np.mean(resampled, axis=0)))
    scores = np.concatenate(seeds)
    return Resampled(scores.mean(1), scores, np.concatenate(draws))


def _agreements(curves: Sequence[ViewCurve]) -> Iterator[Agreement]:
    """Correlate the rankings of the layers by every two views, with a bootstrap interval over layers."""
    ranked = [curve for curve in curves if curve.view in RANKED]
    n_layers = len(curves[0].values)
    draws = np.random.default_rng(0).integers(0, n_layers, (1000, n_layers))
    for k, one in enumerate(ranked):
        for other in ranked[k + 1 :]:
            values = np.array([one.values, other.values])
            is_finite = np.isfinite(values).all(axis=0)
            value = float(spearman(*values[:, is_finite])) if is_finite.sum() > 1 else float("nan")
            resampled = spearman(values[0, draws], values[1, draws])
            resampled = resampled[np.isfinite(resampled)]
            low, high = np.quantile(resampled, [0.025, 0.975]) if len(resampled) else (np.nan, np.nan)
            yield Agreement(one.view, other.view, value, float(low), float(high))


def answer(findings: HeadFindings) -> str:
    """Say which layer to use and which are tied with the best, what one layer lacks, and the loss without one."""
    if findings.curve("alone") is None:
        return ""
    if findings.n_units < FEW_UNITS:
        return " ".join(filter(None, (findings.recommend(), _by_view(findings))))
    said = (findings.recommend(), _by_view(findings), _joint(findings), _few(findings), _lost(findings))
    return " ".join(filter(None, said))


def _by_view(findings: HeadFindings) -> str:
    """Say what the head has with all views of the texts, and what each of them adds to the others."""
    scores, lost = findings.curve("view-score"), findings.curve("without-view")
    if scores is None or lost is None:
        return ""
    parts, by_name = [], dict(zip(scores.layers, scores.values, strict=True))
    for view, value, low, high in zip(lost.layers, lost.values, lost.low, lost.high, strict=True):
        ends = (low, high) if value >= 0 else (-high, -low)
        gap = f"{_percent(abs(value))} {'less' if value >= 0 else 'more'} ({_percent(ends[0])} to {_percent(ends[1])})"
        tied = ", statistically tied" * (findings.n_units < FEW_UNITS or not (low > 0 or high < 0))
        without = f"without {view} {_percent(by_name[f'without {view}'])}"
        alone = f" ({view} alone: {_percent(by_name[name])})" if (name := f"{view} alone") in by_name else ""
        parts.append(f"{without}, {'the same' if value == low == high else gap + tied}{alone}")
    together = "Both" if len(lost.layers) == 2 else f"All {len(lost.layers)}"
    return f"{together} views together have {_percent(scores.values[0])}; {'; '.join(parts)}."


def _joint(findings: HeadFindings) -> str:
    """Compare the readout of all layers with that of the first pick, which is the same probe."""
    greedy, gap = findings.curve("greedy"), findings.curve("greedy-gap")
    if greedy is None or gap is None:
        return ""
    whole = _percent(greedy.values[0] + gap.values[0])
    ends = f", {_percent(gap.low[0])} to {_percent(gap.high[0])}" if gap.low else ""
    reason = ", which folds of train pick first for it," * (greedy.layers[0] != findings.recommended)
    one = f"{greedy.layers[0]}{reason} {_percent(greedy.values[0])}"
    return f"A readout of all layers has {whole}, one of {one} ({100 * gap.values[0]:+.1f}{ends})."


def _few(findings: HeadFindings) -> str:
    gap, greedy = findings.curve("greedy-gap"), findings.curve("greedy")
    if gap is None or greedy is None:
        return ""
    enough = next((k for k, low in enumerate(gap.low) if low <= 0), None)
    if enough is None:
        return f"{len(gap.layers)} picked layers still lack {100 * gap.values[-1]:.1f} of what all have."
    if enough == 0:
        return "That one layer is statistically tied with all of them."
    picked = ", ".join(greedy.layers[: enough + 1])
    score = _percent(greedy.values[enough])
    return f"{enough + 1} layers ({picked}) are statistically tied with all of them ({score})."


def _lost(findings: HeadFindings) -> str:
    without = findings.curve("without") or findings.curve("without-imputed")
    if without is None:
        return ""
    method = "refitted" if without.view == "without" else "replaced by its mean"
    worst = int(np.nanargmax(without.values))
    lost = f"{100 * without.values[worst]:.1f}{_ends(without, worst)}"
    if any(low > 0 for low in without.low):
        return f"What is lost without {without.layers[worst]} the others replace least: {lost} ({method})."
    return f"Leaving out any one layer makes no significant difference ({method}; at most {lost})."


def warnings(parts: HeadParts, split: str, result: HeadResult) -> tuple[str, ...]:
    """List what a reader of the findings must know."""
    notes = []
    if split == "validation":
        notes.append("The scored split is validation, which the run made its choices on, so scores are optimistic.")
    if result.is_optimistic:
        notes.append(f"The head is optimistic: {result.optimistic_because}.")
    if parts.scorer.n_units < WIDE_BELOW:
        notes.append(f"Only {parts.scorer.n_units} {parts.scorer.unit} were scored, so the set of layers is wide.")
    unconverged = result.extras.get("convergence", {})
    if unconverged and unconverged["n_converged"] < unconverged["n_problems"]:
        missing = unconverged["n_problems"] - unconverged["n_converged"]
        notes.append(f"{missing} of {unconverged['n_problems']} probes of the run did not converge.")
    return tuple(notes)


def doubts(findings: HeadFindings) -> tuple[str, ...]:
    """Say where the best layer is no better than labels that mean nothing, or than no decoder."""
    notes = []
    for curve in findings.curves:
        if curve.view != "selectivity" or not curve.low:
            continue
        best = curve.layers.index(findings.recommended)
        if curve.low[best] <= 0:
            notes.append(
                f"At {findings.recommended} the head is not significantly better than on control labels (by "
                f"{curve.name}): {100 * curve.values[best]:+.1f}{_ends(curve, best)}."
            )
    alone, baselines = findings.curve("alone"), findings.curve("baseline")
    if alone is not None and baselines is not None:
        score = alone.values[alone.layers.index(findings.best)]
        for name, value in zip(baselines.layers, baselines.values, strict=True):
            if value >= score:
                notes.append(f"The baseline {name}, without a decoder, has {_percent(value)}: no layer alone has more.")
    return tuple(notes)


def _ends(curve: ViewCurve, k: int) -> str:
    if not curve.low or not np.isfinite(curve.low[k]):
        return ""
    return f" ({_percent(curve.low[k])} to {_percent(curve.high[k])})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
