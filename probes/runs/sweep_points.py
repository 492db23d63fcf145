"""The points of a sweep or search: heads fitted at each, one chosen on validation, all compared with a reference."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

from extract.errors import CodeError, ConfigError, HeadError, IcecoreError, TaskError, first_line
from extract.masks.mask_plan import MaskPlan
from extract.registry import describe_own
from extract.store.cache import LatentCache, ViewCache
from probes.data.task import MIN_SPLIT_ROWS, Task
from probes.fitting.fit_options import find_protocol
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import Difference
from probes.metrics.significance import bootstrap_p_value, correct_p_values, normalised_ranks, resamples_for
from probes.report.document import EVERY_PLAN
from probes.report.scores import (
    DecoderInfo,
    FailedPoint,
    GridScores,
    Lead,
    PartGain,
    PlanChoice,
    PlanGain,
    PlanScores,
    PlansScores,
    PointGap,
    SearchCost,
    SourceCurve,
    SweepCost,
    Ties,
    Transfer,
    label_of,
)
from probes.runs.folder import SEARCH, SWEEP
from probes.runs.grid import Grid, Point
from probes.runs.run import (
    Gaps,
    custom_names,
    evaluate_heads,
    lead_over_plan,
    make_context,
    make_header,
    score_baselines,
    score_gaps,
)
from probes.runs.run_config import RunConfig
from probes.runs.sweep_caches import PointCaches
from probes.runs.task_kinds import KINDS
from probes.runs.watcher import Watcher

LEFT_OUT = "sources, each left out of the choice"


def refuse_random_decoder(config: RunConfig) -> None:
    """Refuse the baseline that only runs have."""
    if config.random_decoder:
        raise ConfigError(
            "random_decoder is true, but a sweep has no such baseline; leave it out, and run the best plan with it."
        )


def require_unread_test(config: RunConfig) -> None:
    """Refuse a protocol that fits no head without test, where plans are to be chosen before test is read."""
    if find_protocol(config.protocol).selection == "test":
        raise ConfigError(
            f"protocol {config.protocol!r} chooses epochs on test, which is read for chosen plans alone; use protocol "
            "icecore, or `icecore sweep --test all`, which reads test for every plan."
        )


def evaluate_plan(
    config: RunConfig, task: Task, plan: MaskPlan, cache: LatentCache, folder: Path, *, adds_zero_shot: bool = True
) -> PlanScores:
    """Fit the heads of a configuration on the cache of one plan, and beside them that which needs no training."""
    kind = KINDS[config.task.kind]
    beside = kind.zero_shot_head if adds_zero_shot else ""
    if beside:
        config = replace(config, heads={**{beside: config.heads.get(beside)}, **config.heads})
    heads = evaluate_heads(config, make_context(config, task, cache, folder, has_details=False))
    zero_shot = kind.zero_shot(heads[beside]) if beside else {}
    return PlanScores(plan, cache.path.name, cache.certificate, heads, zero_shot)


class NoScoreError(HeadError):
    """A head has no score by which plans can be compared."""


def finite_score(row: PlanScores, head: str) -> float:
    """Return the validation score of a plan; refuse one that is no number, by which plans cannot be compared."""
    score = row.heads[head].selection_score
    if not math.isfinite(score):
        raise NoScoreError(
            f"the score of head {head!r} under plan {row.plan.text!r} is {score}, by which no plan can be chosen; give "
            "the task a validation split or the head several layers or Cs; leave the plan out if it alone has no score."
        )
    return score


def headline(row: PlanScores) -> str:
    """Return the validation scores of a plan in one line."""
    parts = [f"{name} {100 * result.selection_score:.1f}" for name, result in row.heads.items()]
    if row.zero_shot:
        parts.insert(0, f"zero-shot validation Spearman {100 * row.zero_shot['validation']['spearman']:.1f}")
    return ", ".join(parts)


def systems_of(grid: Grid, points: Iterable[Point]) -> dict[str, dict[str, Point]]:
    """Group points by the values of other axes, then by that of the axis of tasks; systems that lack a task are out."""
    task_axis, systems = grid.task_axis, dict[str, dict[str, Point]]()
    for point in points:
        values = {name: value for name, value in point.values.items() if name != task_axis}
        systems.setdefault(label_of(values), {})[point.values.get(task_axis, "")] = point
    n_tasks = len({point.values.get(task_axis, "") for point in grid.points})
    return {name: parts for name, parts in systems.items() if len(parts) == n_tasks}


@dataclass
class Sweep:
    """A sweep whose caches are there."""

    config: RunConfig
    grid: Grid
    tasks: Mapping[str, Task]
    caches: PointCaches
    folder: Path
    slots: Mapping[str, int]
    watcher: Watcher
    chosen_on: str
    """The value of the axis of tasks that is chosen on; empty for all."""
    rows: dict[str, PlanScores] = field(default_factory=dict)
    """Scores by label of the point."""
    found: Mapping[str, Point] | None = None
    """What a search has found, by the value of the axis of tasks."""
    search: SearchCost | None = None

    @property
    def points(self) -> list[Point]:
        """The points that did not fail; what a search has found comes first."""
        points = [point for point in self.grid.points if point.label in self.caches.of]
        found = list((self.found or {}).values())
        return sorted(points, key=lambda point: point not in found)

    @cached_property
    def parts(self) -> dict[str, dict[str, Point]]:
        """The points that did not fail by the values of the other axes, and then by that of the axis of tasks."""
        return systems_of(self.grid, self.points)

    def on_tasks(self, point: Point) -> dict[str, Point]:
        """Return the points that differ from one in their task alone, by the value of the axis of tasks."""
        return next(points for points in self.parts.values() if point in points.values())

    def run(self, *, reads_all: bool, command: str) -> PlansScores:
        """Fit every point, choose, and read test."""
        parts = {label: task if reads_all else task.without_test() for label, task in self.tasks.items()}
        self.fit_all(lambda point: point.config, parts, needs_score=self.grid.is_of_plans)
        if self.found and (failed := [point.label for point in self.found.values() if point.label not in self.rows]):
            raise HeadError(f"{failed[0]!r} was found, but fails on all rows: {self.caches.failed[failed[0]]}")
        points = [point for points in self.parts.values() for point in points.values()]
        # The first where the reference failed, on one of several tasks too.
        reference = next((point for point in points if point.values == self.grid.reference), points[0])
        chosen = {name: self._choose(name) for name in self.slots}
        test_read = self._read_tests(chosen, reference, reads_all=reads_all)
        choices = {name: self._choice(name, point, reference) for name, point in chosen.items()}
        first = next(iter(chosen.values()))
        task, decoder = self.tasks[first.label], self.caches.of[first.label].manifest.provenance["decoder"]
        self.watcher.say("baselines, which need no decoder")
        kind, heads = KINDS[task.kind], {name: choice.result for name, choice in choices.items()}
        baselines = score_baselines(
            kind.baselines(task), heads, task=task, report=kind.report, n_resamples=self.config.bootstrap
        )
        config = self.config if self.grid.is_of_plans else first.config
        what = SEARCH if self.search else SWEEP
        header = make_header(config, what, self.folder, command=command, decoder=decoder, task=task.describe())
        names = [name for point in self.grid.points for name in custom_names(point.config)]
        header = replace(header, own=describe_own(list(dict.fromkeys(names))))
        passes, apart = self.caches.block_passes, self.caches.apart
        cost = None if self.search else SweepCost(passes, apart, passes / apart)
        rows, grid = tuple(self.rows.values()), self._grid_scores(chosen, reference, reads_all=reads_all)
        failures = () if grid else self._failures()
        return PlansScores(header, test_read, rows, choices, cost, self.search, baselines, grid, failures)

    def _failures(self) -> tuple[FailedPoint, ...]:
        failures = self.caches.failed
        return tuple(FailedPoint(p.values, failures[p.label]) for p in self.grid.points if p.label in failures)

    def _grid_scores(self, chosen: Mapping[str, Point], reference: Point, *, reads_all: bool) -> GridScores | None:
        if self.grid.is_of_plans and self.search:
            return None
        gaps = [
            gap
            for name in self.slots
            for value, beside in self.on_tasks(reference).items()
            for gap in self._gaps(name, value, beside, reads_all=reads_all)
        ]
        transfers = [
            transfer
            for name, point in chosen.items()
            for transfer in (self._over_tasks(name, point, reference), *self._over_sources(name, point, reference))
            if transfer is not None
        ]
        return GridScores(
            self.grid.axes,
            reference.values,
            tuple(gaps),
            self._failures(),
            self.grid.task_axis,
            tuple(transfers),
            tuple(curve for name, point in chosen.items() for curve in self._source_curves(name, point, reference)),
            self.grid.choose_by,
            {name: self._by_source(name) for name in self.slots} if self.grid.choose_by == "sources" else {},
            {name: ties for name, point in chosen.items() if (ties := self._ties(name, point))},
        )

    def _ties(self, name: str, point: Point) -> Ties | None:
        """Compare other points with the one chosen for a head; None where more than rows of validation decided."""
        grid = self.grid
        if self.search or grid.choose_by == "sources" or (grid.task_axis and not self.chosen_on):
            return None
        gaps = list(self._gaps(name, self._task_of(point), point, reads_all=False))
        return Ties(tuple(label_of(gap.point) for gap in gaps if not gap.is_certain), len(gaps)) if gaps else None

    def _by_source(self, name: str) -> dict[str, float]:
        """Return the mean over sources by which points were chosen for a head, by label; no point without one."""
        points = [parts[self.chosen_on or next(iter(parts))] for parts in self.parts.values()]
        worths = zip(points, self.worths(name).tolist(), strict=True)
        return {point.label: worth for point, worth in worths if math.isfinite(worth)}

    def fit_all(
        self, config_at: Callable[[Point], RunConfig], tasks: Mapping[str, Task], *, needs_score: bool = False
    ) -> None:
        """Fit the heads of every point; one where that fails costs itself alone, and is tried again by the next run.

        A mistake in the configuration ends it at once, and so does what leaves no point. With `needs_score`, a point
        without a score fails; the first one ends it, as others will have none either.
        """
        for point in self.points:
            config = config_at(point)
            try:
                row = self.evaluate(point, config, tasks[point.label])
                if needs_score:
                    for name in config.heads:
                        finite_score(row, name)
            except (ConfigError, CodeError):
                raise
            except (IcecoreError, RuntimeError, ArithmeticError, np.linalg.LinAlgError) as error:
                if len(self.caches.of) == 1 or (isinstance(error, NoScoreError) and not self.rows):
                    raise
                self.caches.fail([point.label], first_line(error), self.watcher)
                continue
            self.rows[point.label] = row
            self.watcher.say(f"{row.label}: {headline(row)}")
        if not self.parts and not self.found:
            raise HeadError(f"nothing was computed on every task: {'; '.join(self.caches.failed.values())}")

    def evaluate(self, point: Point, config: RunConfig, task: Task) -> PlanScores:
        """Fit heads at a point; points with the same latents and heads share the fits, by the name of their folder."""
        cache = self.caches.of[point.label]
        fitted = point.config.digest_fit(self.tasks[point.label].digest())
        folder = self.folder / "heads" / f"{cache.manifest.short_id}-{fitted}"
        if self.grid.is_of_plans:
            early = folder.with_name(cache.manifest.short_id)  # of early versions, whose fits are found
            return evaluate_plan(config, task, point.plan, cache, early if early.exists() else folder)
        row = evaluate_plan(config, task, point.plan, cache, folder, adds_zero_shot=False)
        decoder: DecoderInfo = cache.manifest.provenance["decoder"]
        passes = cache.views.values() if isinstance(cache, ViewCache) else [cache]  # those of one file are one
        n_tokens = sum({one.path: int(one.n_tokens.sum()) for one in passes}.values())
        return replace(row, point=point.values, task=task.name, decoder=decoder, n_tokens=n_tokens)

    def result(self, point: Point, name: str) -> HeadResult:
        """Return the result of a head at a point."""
        return self.rows[point.label].heads[list(point.config.heads)[self.slots[name]]]

    def _choose(self, name: str) -> Point:
        """Choose the point that is best on validation, of equals the first; or take what a search has found."""
        systems = list(self.parts.values())
        best = self.found or systems[int(np.argmax(self.worths(name)))]
        return best[self.chosen_on or next(iter(best))]

    def worths(self, name: str) -> NDArray[np.float64]:
        """Return by what each system is chosen for a head: its validation score; -inf without one.

        Where tasks are an axis, that on the task to choose on, or else from its mean normalised rank over all: 1 where
        it is the best of every task, 0 where the worst.
        """
        if self.grid.task_axis and not self.chosen_on:
            return np.asarray(1 - self._ranks(name).mean(axis=1) / max(1, len(self.parts) - 1), np.float64)
        on = self.chosen_on or next(iter(next(iter(self.parts.values()))))
        points = [points[on] for points in self.parts.values()]
        scores = self._selection_scores(name, points)
        if self.grid.choose_by == "rows":
            return scores
        return self._source_means(name, points, rows_by_source(self.tasks[points[0].label], "validation").values())

    def _selection_scores(self, name: str, points: Sequence[Point]) -> NDArray[np.float64]:
        """Return the scores that decide, of points on one task; what has none is last."""
        results = [self.result(point, name) for point in points]
        metrics = {result.metric for result in results}
        if len(metrics) > 1:
            raise ConfigError(
                f"points are scored by {' and '.join(sorted(metrics))}, which cannot be compared; give the heads of "
                "all points one metric."
            )
        scores = np.array([result.selection_score for result in results])
        if not np.isfinite(scores).any():
            raise HeadError(
                f"no point has a finite score of head {name!r}, by which one can be chosen; give the task a validation "
                "split or the head several layers or Cs."
            )
        return np.where(np.isfinite(scores), scores, -np.inf)

    def _ranks(self, name: str) -> NDArray[np.float64]:
        """Return the normalised ranks of systems on every task, 0 the best, by the scores that decide.

        On a task where all are equal every system has 0, and one without a score has the rank of the worst.
        """
        systems = list(self.parts.values())
        columns = [self._selection_scores(name, [points[value] for points in systems]) for value in systems[0]]
        scores = np.stack(columns, axis=1)
        has_score = np.isfinite(scores)
        lowest = np.where(has_score, scores, np.inf).min(axis=0)
        ranks = np.nan_to_num(normalised_ranks(np.where(has_score, scores, lowest)))
        return np.where(has_score, ranks, len(systems) - 1)

    def _read_tests(self, chosen: Mapping[str, Point], reference: Point, *, reads_all: bool) -> str:
        """Read test for the chosen points and the reference, on every task, and say for which it was read."""
        if not any("test" in self.tasks[point.label].splits for point in self.points):
            return "no plan" if self.grid.is_of_plans else "no point"
        if reads_all:
            return EVERY_PLAN
        slots: dict[str, set[int]] = {}
        for name, slot in self.slots.items():
            for point in (*self.on_tasks(chosen[name]).values(), *self.on_tasks(reference).values()):
                slots.setdefault(point.label, set()).add(slot)
        read = [point for point in self.points if point.label in slots]
        for point in read:
            if "test" in self.tasks[point.label].splits:
                heads = [head for slot, head in enumerate(point.config.heads) if slot in slots[point.label]]
                self.rows[point.label] = self._read_test(point, heads)
        return " and ".join(self.rows[point.label].label for point in read)

    def _read_test(self, point: Point, heads: Sequence[str]) -> PlanScores:
        """Score heads of one point on test as well; saved ones are not fitted again."""
        row, kind = self.rows[point.label], KINDS[self.tasks[point.label].kind]
        self.watcher.say(f"{row.label}: reading test")
        if self.search:  # every head, also that beside them which needs no training
            return self.evaluate(point, point.config, self.tasks[point.label])
        part = replace(point.config, heads={name: point.config.heads[name] for name in heads})
        tested = self.evaluate(point, part, self.tasks[point.label])
        zero_shot = tested.zero_shot if kind.zero_shot_head in part.heads else row.zero_shot
        return replace(row, zero_shot=zero_shot, heads={**row.heads, **{name: tested.heads[name] for name in heads}})

    def _choice(self, name: str, point: Point, reference: Point) -> PlanChoice:
        """Describe what was chosen for a head, and what it gained on test over the reference; test decides nothing."""
        beside = self.on_tasks(reference)[self._task_of(point)]
        best, default = self.result(point, name), self.result(beside, name)
        where = {} if self.grid.is_of_plans else dict(point.values)
        if "test" not in best.summary:
            return PlanChoice(point.plan, best, point=where)
        over = self.rows[beside.label].label
        gain = PlanGain(best.metric, over, default.mean("test", best.metric), best.mean("test"))
        task = self.tasks[point.label]
        report, n_resamples = KINDS[task.kind].report, self.config.bootstrap
        lead: Lead | None = None
        if point.label != beside.label:
            lead = lead_over_plan(best, default, task=task, report=report, n_resamples=n_resamples)
        return PlanChoice(point.plan, best, gain, lead, where)

    def _gaps(self, name: str, value: str, reference: Point, *, reads_all: bool) -> Iterable[PointGap]:
        """Compare a head at every point of a task with the reference, on test where it was read for all points."""
        default = self.result(reference, name)
        split = "test" if reads_all and "test" in default.predictions else "validation"
        of_task = [points[value] for points in self.parts.values()]
        others = [
            point
            for point in of_task
            if point.label != reference.label and split in self.result(point, name).predictions
        ]
        if split not in default.predictions or not others:
            return
        task = self.tasks[reference.label]
        rows = KINDS[task.kind].report.split_rows(task, split)
        results = [self.result(point, name) for point in others]
        n_tests = max(1, self.search.n_plans - 1) if self.search else len(others)
        n_resamples = resamples_for(n_tests, self.config.bootstrap)
        compared = score_gaps(results, default, split, rows=rows, n_resamples=n_resamples)
        p_values = [bootstrap_p_value(gap, draws) for gap, draws in zip(compared.gaps, compared.draws, strict=True)]
        corrected = correct_p_values(p_values)
        if self.search:  # among all points, most of which have no score on all rows
            corrected = np.minimum(1, np.asarray(p_values) * n_tests)
        for number, (point, result) in enumerate(zip(others, results, strict=True)):
            gap = compared.interval(number, around=result.mean(split) - default.mean(split))
            tests = (p_values[number], float(corrected[number]), compared.n_units)
            yield PointGap(point.values, name, split, gap.value, gap.low, gap.high, *tests)

    # Gains over tasks, and over the sources of rows; and layers by source.

    def _source_curves(self, name: str, point: Point, reference: Point) -> Iterator[SourceCurve]:
        """Score every layer of a head without training on each source of validation, at a choice and the reference."""
        for here in dict.fromkeys([point.label, self.on_tasks(reference)[self._task_of(point)].label]):
            at = next(point for point in self.points if point.label == here)
            task, result = self.tasks[here], self.result(at, name)
            if result.name != KINDS[task.kind].zero_shot_head:
                continue
            config = replace(at.config, heads={result.name: at.config.heads[result.name]}, bootstrap=100)
            for source, rows in rows_by_source(task, "validation").items():
                cache = self.caches.of[here]
                try:
                    part = task.without_test().keep_rows({"validation": rows}, note=f"validation rows of {source}")
                    with TemporaryDirectory() as folder:
                        scored = evaluate_plan(config, part, at.plan, cache, Path(folder), adds_zero_shot=False)
                except (TaskError, HeadError):  # as where all rows of a source have the same gold
                    continue
                alone = scored.heads[result.name]
                curves = [c.values for c in alone.curves if (c.split, c.metric) == ("validation", alone.metric)]
                if curves:
                    values = tuple(map(float, np.max(curves, axis=0)))
                    yield SourceCurve(at.values, name, source, alone.metric, alone.layers, values, len(rows))

    def _task_of(self, point: Point) -> str:
        return point.values.get(self.grid.task_axis, "")

    def _source_means(
        self, name: str, points: Sequence[Point], sources: Iterable[Sequence[int]]
    ) -> NDArray[np.float64]:
        """Return the mean of the scores of points, each with its layer, over sources on which one has a score."""
        parts = [self._gap_on(name, points, points[0], "validation", rows, n_resamples=1) for rows in sources]
        scores = [part.scores for part in parts if np.isfinite(part.scores).any()]
        if not scores:
            raise HeadError(f"head {name!r} has no score on any source of validation; leave choose_by: sources out.")
        return np.asarray(np.nan_to_num(np.mean(scores, axis=0), nan=-np.inf), np.float64)

    def _over_tasks(self, name: str, point: Point, reference: Point) -> Transfer | None:
        """Compare the chosen system with the reference on every task; None without an axis of tasks."""
        axis, systems = self.grid.task_axis, list(self.parts.values())
        if not axis:
            return None
        chosen, beside, ranks = self.on_tasks(point), self.on_tasks(reference), self._ranks(name)
        ranks = np.full_like(ranks, np.nan) if self.search else ranks  # among all points, which were not all scored
        row = systems.index(chosen)
        parts = list[PartGain]()
        for column, (value, here) in enumerate(chosen.items()):
            result, other, task = self.result(here, name), self.result(beside[value], name), self.tasks[here.label]
            split = "test" if "test" in result.predictions and "test" in other.predictions else "validation"
            if split not in result.predictions or split not in other.predictions:
                continue
            rows = KINDS[task.kind].report.split_rows(task, split)
            compared = score_gaps([result], other, split, rows=rows, n_resamples=self.config.bootstrap)
            scores = result.mean(split), other.mean(split)
            gap = compared.interval(0, around=scores[0] - scores[1])
            part = _part(value, here, result.metric, split, scores, gap, rank=float(ranks[row, column]))
            parts.append(replace(part, is_chosen_on=value == self.chosen_on))
        where = f"the task {self.chosen_on}" if self.chosen_on else "all tasks, by the mean normalised rank"
        return make_transfer(name, "tasks", where, parts)

    def _over_sources(self, name: str, point: Point, reference: Point) -> Iterator[Transfer]:
        """Compare the chosen point with the reference on each source of rows, then with it left out of the choice."""
        beside = self.on_tasks(reference)[self._task_of(point)]
        task, result, other = self.tasks[point.label], self.result(point, name), self.result(beside, name)
        split = "test" if "test" in result.predictions and "test" in other.predictions else "validation"
        for over, on in (("sources", split), (LEFT_OUT, "validation")):
            if on not in result.predictions or on not in other.predictions or result.names.get(on):
                continue
            if self.search and over == LEFT_OUT:  # other points are not there to be chosen
                continue
            parts = list[PartGain]()
            sources = rows_by_source(task, on)
            for source, rows in sources.items():
                chosen = point if over == "sources" else self._choose_without(name, point, sources, source)
                compared = self._gap_on(name, [chosen], beside, on, rows)
                gap = compared.interval(0)
                scores = float(compared.scores[0]), float(compared.scores[0] - compared.gaps[0])
                parts.append(_part(source, chosen, result.metric, on, scores, gap))
            where = "all sources of validation"
            if over == LEFT_OUT:
                where = "the other sources of validation, with the layer that each has on all"
            if (transfer := make_transfer(name, over, where, parts)) is not None:
                yield transfer

    def _choose_without(self, name: str, point: Point, sources: Mapping[str, Sequence[int]], left_out: str) -> Point:
        """Choose a point on validation without the rows of one source; each keeps the layer that it has on all."""
        systems = [points[self._task_of(point)] for points in self.parts.values()]
        others = [part for source, part in sources.items() if source != left_out]
        if self.grid.choose_by == "sources":
            return systems[int(np.argmax(self._source_means(name, systems, others)))]
        rows = [row for part in others for row in part]
        compared = self._gap_on(name, systems, systems[0], "validation", rows, n_resamples=1)
        return systems[int(np.argmax(np.nan_to_num(compared.scores, nan=-np.inf)))]

    def _gap_on(
        self,
        name: str,
        points: Sequence[Point],
        beside: Point,
        split: str,
        rows: Sequence[int],
        *,
        n_resamples: int = 0,
    ) -> Gaps:
        """Compare points with another on some rows of a split."""
        task = self.tasks[beside.label]
        part = KINDS[task.kind].report.split_rows(task, split, rows)
        results, other = [self.result(point, name) for point in points], self.result(beside, name)
        n_resamples = n_resamples or self.config.bootstrap
        return score_gaps(results, other, split, rows=part, n_resamples=n_resamples, part=rows)


# --- Gains on parts: tasks, or sources of rows ---


def rows_by_source(task: Task, split: str) -> dict[str, list[int]]:
    """Group the rows of a split by their source; nothing where a task names none, or one alone with enough rows."""
    groups = {source: part for source, part in _group_by_source(task, split).items() if len(part) >= MIN_SPLIT_ROWS}
    return groups if len(groups) > 1 else {}


def _group_by_source(task: Task, split: str) -> dict[str, list[int]]:
    rows = task.rows(split)
    column = next((name for name in ("source", "subset") if name in rows.column_names and name in task.columns), "")
    groups: dict[str, list[int]] = {}
    for row, source in enumerate(rows[column][:] if column else ()):
        groups.setdefault(str(source), []).append(row)
    return groups


def require_sources(task: Task) -> None:
    """Refuse a task of which validation does not name two sources of enough rows, by which to choose."""
    if rows_by_source(task, "validation"):
        return
    rows = {source: len(part) for source, part in _group_by_source(task, "validation").items()}
    counted = ", ".join(f"{source} {n}" for source, n in list(rows.items())[:4])
    why, way = "name no source", "name their column as task.options.source"
    if rows:
        why = f"have fewer than two sources with at least {MIN_SPLIT_ROWS} rows ({counted})"
        way = "give more rows"
    raise ConfigError(
        f"choose_by is 'sources', but the validation rows of task {task.name!r} {why}; {way}, or leave --choose-by out."
    )


def _part(
    name: str,
    point: Point,
    metric: str,
    split: str,
    scores: tuple[float, float],
    gap: Difference,
    *,
    rank: float = math.nan,
) -> PartGain:
    return PartGain(name, point.values, metric, split, *scores, gap.value, gap.low, gap.high, rank, gap.n_units)


def make_transfer(name: str, over: str, chosen_on: str, parts: Sequence[PartGain]) -> Transfer | None:
    """Average gains over parts, with an interval over the draw of parts as well as of rows; None for one part.

    A part on which one of the two has no score, and the task that chose, are listed and left out of the average. The
    interval is Student's: the gains that were measured vary with the parts and with their rows.
    """
    if len(parts) < 2:
        return None
    gains = np.array([part.value for part in parts if part.counts])
    low, high, spread = math.nan, math.nan, math.nan
    if len(gains) > 1:
        spread = float(gains.std(ddof=1))
        reach = float(student_t.ppf(0.975, len(gains) - 1)) * spread / math.sqrt(len(gains))
        low, high = float(gains.mean()) - reach, float(gains.mean()) + reach
    mean = float(gains.mean()) if len(gains) else math.nan
    return Transfer(name, over, chosen_on, tuple(parts), mean, low, high, spread)
