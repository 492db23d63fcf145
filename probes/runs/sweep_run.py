"""A sweep: every point of a grid is fitted without test, one is chosen on validation, and then test is read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from extract.decoders.decoder_spec import plain_decoder
from extract.errors import ConfigError, HeadError, unknown_name
from extract.files import digest_json
from extract.masks.mask_plan import MaskPlan
from extract.records import to_plain
from extract.registry import describe_own
from extract.store.cache import LatentCache
from probes.data.task import Task
from probes.fitting.fit_options import find_protocol
from probes.heads.result import HeadResult
from probes.metrics.significance import bootstrap_p_value, correct_p_values, normalised_ranks
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
    SweepCost,
    Transfer,
    label_of,
)
from probes.report.write import write_plans
from probes.runs.config_file import ConfigSource, as_config
from probes.runs.folder import SWEEP, describe_inputs, name_sweep, open_folder, write_stamp
from probes.runs.grid import Grid, Point, digest_fit, grid_of, plan_grid
from probes.runs.plan_runs import (
    evaluate_plan,
    finite_score,
    headline,
    heads_folder,
    refuse_random_decoder,
    require_unread_test,
    score_plan_baselines,
)
from probes.runs.run import (
    Gaps,
    RunResult,
    check_heads,
    custom_names,
    lead_over_plan,
    make_header,
    score_gaps,
    split_rows,
)
from probes.runs.run_config import RunConfig, describe_sources, load_run_task
from probes.runs.sweep_caches import PointCaches, obtain_point_caches
from probes.runs.sweep_gains import LEFT_OUT, make_part, make_transfer, rows_by_source
from probes.runs.task_kinds import KINDS
from probes.runs.watcher import SILENT, Watcher, watching

TEST_READS = ("chosen", "all")
"""Points that test is read for: those chosen with the reference beside them, or every one."""


def sweep(
    config: ConfigSource,
    over: Mapping[str, object] | Sequence[str] = (),
    *,
    reference: str = "",
    choose_on: str = "",
    test: str = "chosen",
    watcher: Watcher | None = None,
) -> RunResult[PlansScores]:
    """Run a configuration at every point of a grid, choose one for each head on validation, and read test.

    Args:
        config: The configuration, as `run` takes it; its section `sweep` may name axes.
        over: Axes: a mapping of a key to its values, as `{"extraction.plan": ["causal", "backward"]}`, or of a name to
            named sets of keys, as `{"encoder": {"plain": {}, "last": {"poolings": ["last"]}}}`; or what is typed after
            `--over`, as `["extraction.plan=causal,backward", "encoders"]`. Those of the configuration when empty.
        reference: Some values of the point that others are compared with, as `plan=causal`; the first ones when empty.
        choose_on: Where tasks are an axis, the task to choose on; all of them when empty.
        test: Points that test is read for: `chosen` (and the reference), or `all`.
        watcher: Progress callbacks; by default a bar in a notebook, and nothing elsewhere.

    Returns:
        The folder of the sweep, and its scores; `icecore.points_frame` lists them, a column per axis.

    Raises:
        IcecoreError: An axis that is no key, or a point that a run would refuse; names the point.

    Example:
        >>> result = sweep("configs/demo.yaml", {"poolings": ["mean", "last"]})  # doctest: +SKIP
    """
    with watching(watcher) as shown:
        record = as_config(config, report=shown.say)
        if isinstance(over, Mapping):
            if over:
                rest = {key: value for key, value in record.sweep.items() if key in ("reference", "choose_on")}
                record = replace(record, sweep={**rest, "over": dict(over)})
            over = ()
        grid = grid_of(record, list(over), reference=reference, choose_on=choose_on)
        return run_grid(record, grid, test=test, watcher=shown)


def run_sweep(
    config: RunConfig, plans: Sequence[MaskPlan], *, test: str = "chosen", watcher: Watcher = SILENT, command: str = ""
) -> RunResult[PlansScores]:
    """Run a configuration under many plans: the grid with this one axis; see `run_grid`."""
    return run_grid(config, plan_grid(config, plans), test=test, watcher=watcher, command=command)


def run_grid(
    config: RunConfig,
    grid: Grid,
    *,
    test: str = "chosen",
    removes_decoders: bool = False,
    watcher: Watcher = SILENT,
    command: str = "",
) -> RunResult[PlansScores]:
    """Extract and fit every point of a grid, choose one for each head on validation, and read test.

    Args:
        config: The configuration of the sweep, which names its folder.
        grid: Its points.
        test: One of `TEST_READS`; unless it is `all`, test is set aside until every point is fitted and chosen.
        removes_decoders: Whether decoders that had to be fetched are removed again once they were run.
        watcher: Progress callbacks.
        command: The command line, for the record.

    Returns:
        The folder, and the scores of every point. What is cached or fitted stays after an error.

    Raises:
        IcecoreError: Any input that a run could not work with, before anything is extracted where that is possible.
    """
    if test not in TEST_READS:
        raise ConfigError(f"test is {test!r}; allowed: {', '.join(TEST_READS)}, the points that test is read for.")
    inputs = describe_inputs(config, SWEEP, test) if grid.is_of_plans else None
    tasks = load_tasks(grid)
    for point in grid.points:
        if test == "chosen":
            require_unread_test(point.config)
        refuse_random_decoder(point.config)
        check_heads(point.config, tasks[point.label], chooses_plan=True)
    slots, chosen_on = slots_of(grid), find_choice_task(grid, tasks)
    caches = obtain_point_caches(grid, tasks, watcher=watcher, removes=removes_decoders)
    folder = open_sweep_folder(config, grid)
    sweep = _Sweep(config, grid, tasks, caches, folder, slots, watcher, chosen_on)
    scores = sweep.run(reads_all=test == "all", command=command)
    first = tasks[grid.points[0].label]
    write_plans(folder, scores, KINDS[first.kind].report, formats=config.figures)
    if inputs is not None:
        write_stamp(folder, inputs, task=first, caches=list(caches.of.values()), cache_id="")
    return RunResult(folder, scores)


def open_sweep_folder(config: RunConfig, grid: Grid) -> Path:
    """Open the folder of a sweep, whose config.yaml holds the grid beside the configuration."""
    name, values = name_sweep(config, SWEEP, grid.settings())
    return open_folder(config.runs, name, values, sources=describe_sources(config))


def load_tasks(grid: Grid) -> dict[str, Task]:
    """Load the task of every point by its label, each task once."""
    loaded: dict[str, Task] = {}
    tasks = {}
    for point in grid.points:
        config = point.config
        changes = bool(find_protocol(config.protocol).cut)  # which may read the tokenizer
        beside = [plain_decoder(config.decoder), config.extraction.template.settings()] if changes else []
        key = digest_json([to_plain(config.task), config.protocol, beside])
        if key not in loaded:
            loaded[key] = load_run_task(config)
        tasks[point.label] = loaded[key]
    return tasks


def find_choice_task(grid: Grid, tasks: Mapping[str, Task]) -> str:
    """Find the value of the axis of tasks that a sweep chooses on; empty for all of them, or where there is no axis."""
    wanted, axis = grid.choose_on, grid.task_axis
    if not wanted:
        return ""
    if not axis:
        raise ConfigError(f"choose_on is {wanted!r}, but tasks are no axis of the sweep; add --over task=NAME,NAME.")
    names = {point.values[axis]: tasks[point.label].name for point in grid.points}
    named = next((value for value, name in names.items() if wanted in (value, name)), None)
    if named is None:
        raise unknown_name("task to choose on", wanted, names)
    return named


def slots_of(grid: Grid) -> dict[str, int]:
    """Name the heads that are compared, by their position in a configuration; `head` where points name others there.

    Points with fewer heads than others are compared by those that all have.
    """
    n_heads = min(len(point.config.heads) for point in grid.points)
    slots = {}
    for slot in range(n_heads):
        names = {list(point.config.heads)[slot] for point in grid.points}
        label = names.pop() if len(names) == 1 else "head" if n_heads == 1 else f"head {slot + 1}"
        slots[label] = slot
    return slots


@dataclass
class _Sweep:
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

    @property
    def points(self) -> list[Point]:
        """The points that did not fail."""
        return [point for point in self.grid.points if point.label in self.caches.of]

    @cached_property
    def parts(self) -> dict[str, dict[str, Point]]:
        """The points that did not fail by the values of the other axes, and then by that of the axis of tasks."""
        axis, parts = self.grid.task_axis, dict[str, dict[str, Point]]()
        for point in self.points:
            system = {name: value for name, value in point.values.items() if name != axis}
            parts.setdefault(label_of(system), {})[point.values.get(axis, "")] = point
        n_tasks = max(map(len, parts.values()))
        return {system: points for system, points in parts.items() if len(points) == n_tasks}

    def on_tasks(self, point: Point) -> dict[str, Point]:
        """Return the points that differ from one in their task alone, by the value of the axis of tasks."""
        return next(points for points in self.parts.values() if point in points.values())

    def run(self, *, reads_all: bool, command: str) -> PlansScores:
        """Fit every point, choose, and read test."""
        for point in self.points:
            self.rows[point.label] = self._score(point, reads_all=reads_all)
        reference = self._reference()
        chosen = {name: self._choose(name) for name in self.slots}
        test_read = self._read_tests(chosen, reference, reads_all=reads_all)
        choices = {name: self._choice(name, point, reference) for name, point in chosen.items()}
        first = next(iter(chosen.values()))
        task, decoder = self.tasks[first.label], self.caches.of[first.label].manifest.provenance["decoder"]
        baselines = score_plan_baselines(self.config, task, choices, self.watcher)
        config = self.config if self.grid.is_of_plans else first.config
        header = make_header(config, SWEEP, self.folder, command=command, decoder=decoder, task=task.describe())
        names = [name for point in self.grid.points for name in custom_names(point.config)]
        header = replace(header, own=describe_own(list(dict.fromkeys(names))))
        cost = SweepCost(self.caches.block_passes, self.caches.apart, self.caches.block_passes / self.caches.apart)
        rows, grid = tuple(self.rows.values()), self._grid_scores(chosen, reference, reads_all=reads_all)
        return PlansScores(header, test_read, rows, choices, cost, baselines=baselines, grid=grid)

    def _grid_scores(self, chosen: Mapping[str, Point], reference: Point, *, reads_all: bool) -> GridScores | None:
        if self.grid.is_of_plans:
            return None
        failures = self.caches.failed
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
            tuple(FailedPoint(p.values, failures[p.label]) for p in self.grid.points if p.label in failures),
            self.grid.task_axis,
            tuple(transfers),
        )

    def _score(self, point: Point, *, reads_all: bool) -> PlanScores:
        task = self.tasks[point.label]
        row = self._evaluate(point, point.config, task if reads_all else task.without_test())
        if self.grid.is_of_plans:
            for name in point.config.heads:
                finite_score(row, name)  # refused at the first plan, and not after the last
        self.watcher.say(f"{row.label}: {headline(row)}")
        return row

    def _evaluate(self, point: Point, config: RunConfig, task: Task) -> PlanScores:
        """Fit heads at a point; points with the same latents and heads share the fits."""
        cache = self.caches.of[point.label]
        is_of_plans = self.grid.is_of_plans
        row = evaluate_plan(
            config, task, point.plan, cache, self._heads_folder(point, cache), adds_zero_shot=is_of_plans
        )
        if is_of_plans:
            return row
        decoder: DecoderInfo = cache.manifest.provenance["decoder"]
        return replace(row, point=point.values, task=task.name, decoder=decoder)

    def _heads_folder(self, point: Point, cache: LatentCache) -> Path:
        """Name where the heads of a point are: by its latents, and by what is fitted where that differs."""
        folder = heads_folder(self.folder, cache)
        if self.grid.is_of_plans:
            return folder
        return folder.with_name(f"{folder.name}-{digest_fit(point.config, self.tasks[point.label].digest())}")

    def _reference(self) -> Point:
        """Return the point that others are compared with; the first where it failed."""
        points = self.points
        return next((point for point in points if point.values == self.grid.reference), points[0])

    def result(self, point: Point, name: str) -> HeadResult:
        """Return the result of a head at a point."""
        return self.rows[point.label].heads[list(point.config.heads)[self.slots[name]]]

    def _choose(self, name: str) -> Point:
        """Choose the point with the best validation score of a head; of equals the first.

        Where tasks are an axis, that is the score on the task to choose on, or else the mean normalised rank over all.
        """
        on = self.chosen_on or next(iter(next(iter(self.parts.values()))))
        systems = [points[on] for points in self.parts.values() if on in points]
        if not self.chosen_on and self.grid.task_axis:
            ranks = self._ranks(name).mean(axis=1)
            return systems[int(np.argmin(ranks))]
        scores = self._selection_scores(name, systems)
        return systems[int(np.argmax(scores))]

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
        """Return the normalised ranks of systems on every task, 0 the best, by the scores that decide."""
        systems = list(self.parts.values())
        columns = [self._selection_scores(name, [points[value] for points in systems]) for value in systems[0]]
        scores = np.stack(columns, axis=1)
        return normalised_ranks(scores) if len(systems) > 1 else np.zeros_like(scores)

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
        part = replace(point.config, heads={name: point.config.heads[name] for name in heads})
        tested = self._evaluate(point, part, self.tasks[point.label])
        zero_shot = tested.zero_shot if kind.zero_shot_head in part.heads else row.zero_shot
        return replace(row, zero_shot=zero_shot, heads={**row.heads, **{name: tested.heads[name] for name in heads}})

    def _choice(self, name: str, point: Point, reference: Point) -> PlanChoice:
        """Describe what was chosen for a head, and what it gained on test over the reference; test decides nothing."""
        task_of = point.values.get(self.grid.task_axis, "")
        beside = self.on_tasks(reference)[task_of]
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
        rows = split_rows(task, split, KINDS[task.kind].report)
        results = [self.result(point, name) for point in others]
        compared = score_gaps(results, default, split, rows=rows, n_resamples=self.config.bootstrap)
        p_values = [bootstrap_p_value(gap, draws) for gap, draws in zip(compared.gaps, compared.draws, strict=True)]
        corrected = correct_p_values(p_values)
        for number, (point, result) in enumerate(zip(others, results, strict=True)):
            gap = compared.interval(number, around=result.mean(split) - default.mean(split))
            tests = (p_values[number], float(corrected[number]), compared.n_units)
            yield PointGap(point.values, name, split, gap.value, gap.low, gap.high, *tests)

    # Gains over tasks, and over the sources of rows.

    def _over_tasks(self, name: str, point: Point, reference: Point) -> Transfer | None:
        """Compare the chosen system with the reference on every task; None without an axis of tasks."""
        axis, systems = self.grid.task_axis, list(self.parts.values())
        if not axis:
            return None
        chosen, beside, ranks = self.on_tasks(point), self.on_tasks(reference), self._ranks(name)
        row = systems.index(chosen)
        parts, draws = list[PartGain](), list[NDArray[np.float64]]()
        for column, (value, here) in enumerate(chosen.items()):
            result, other, task = self.result(here, name), self.result(beside[value], name), self.tasks[here.label]
            split = "test" if "test" in result.predictions and "test" in other.predictions else "validation"
            if split not in result.predictions or split not in other.predictions:
                continue
            rows = split_rows(task, split, KINDS[task.kind].report)
            compared = score_gaps([result], other, split, rows=rows, n_resamples=self.config.bootstrap)
            scores = result.mean(split), other.mean(split)
            gap = compared.interval(0, around=scores[0] - scores[1])
            parts.append(make_part(value, here, result.metric, split, scores, gap, rank=float(ranks[row, column])))
            draws.append(compared.draws[0] + gap.value - compared.gaps[0])
        where = f"the task {self.chosen_on}" if self.chosen_on else "all tasks, by the mean normalised rank"
        return make_transfer(name, "tasks", where, parts, draws)

    def _over_sources(self, name: str, point: Point, reference: Point) -> Iterator[Transfer]:
        """Compare the chosen point with the reference on each source of rows, then with it left out of the choice."""
        beside = self.on_tasks(reference)[point.values.get(self.grid.task_axis, "")]
        task, result, other = self.tasks[point.label], self.result(point, name), self.result(beside, name)
        split = "test" if "test" in result.predictions and "test" in other.predictions else "validation"
        for over, on in (("sources", split), (LEFT_OUT, "validation")):
            if on not in result.predictions or on not in other.predictions or result.names.get(on):
                continue
            parts, draws = list[PartGain](), list[NDArray[np.float64]]()
            sources = rows_by_source(task, on)
            for source, rows in sources.items():
                chosen = point if over == "sources" else self._choose_without(name, point, sources, source)
                compared = self._gap_on(name, [chosen], beside, on, rows)
                gap = compared.interval(0)
                scores = float(compared.scores[0]), float(compared.scores[0] - compared.gaps[0])
                parts.append(make_part(source, chosen, result.metric, on, scores, gap))
                draws.append(compared.draws[0])
            where = "all sources of validation" if over == "sources" else "the other sources of validation"
            if (transfer := make_transfer(name, over, where, parts, draws)) is not None:
                yield transfer

    def _choose_without(self, name: str, point: Point, sources: Mapping[str, Sequence[int]], left_out: str) -> Point:
        """Choose a point on validation without the rows of one source; each keeps the layer that it has on all."""
        value = point.values.get(self.grid.task_axis, "")
        systems = [points[value] for points in self.parts.values()]
        rows = [row for source, part in sources.items() if source != left_out for row in part]
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
        part = split_rows(task, split, KINDS[task.kind].report, rows)
        results, other = [self.result(point, name) for point in points], self.result(beside, name)
        n_resamples = n_resamples or self.config.bootstrap
        return score_gaps(results, other, split, rows=part, n_resamples=n_resamples, part=rows)
