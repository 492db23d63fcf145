"""A sweep: every point of a grid is fitted without test, one is chosen on validation, and then test is read."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from extract.decoders.decoder_spec import plain_decoder
from extract.errors import ConfigError, HeadError
from extract.files import digest_json
from extract.masks.mask_plan import MaskPlan
from extract.records import to_plain
from extract.store.cache import LatentCache
from probes.data.task import Task
from probes.fitting.fit_options import find_protocol
from probes.heads.result import HeadResult
from probes.metrics.significance import bootstrap_p_value, correct_p_values
from probes.report.document import EVERY_PLAN
from probes.report.scores import (
    DecoderInfo,
    FailedPoint,
    GridScores,
    Lead,
    PlanChoice,
    PlanGain,
    PlanScores,
    PlansScores,
    PointGap,
    SweepCost,
)
from probes.report.write import write_plans
from probes.runs.folder import name_sweep, open_folder
from probes.runs.grid import Grid, Point, plan_grid
from probes.runs.plan_runs import (
    evaluate_plan,
    finite_score,
    headline,
    heads_folder,
    refuse_random_decoder,
    require_unread_test,
    score_plan_baselines,
)
from probes.runs.run import RunResult, check_heads, lead_over_plan, make_header, score_gaps, split_rows
from probes.runs.run_config import RunConfig, describe_sources, load_run_task
from probes.runs.run_stamp import SWEEP, describe_inputs, write_stamp
from probes.runs.sweep_caches import PointCaches, obtain_point_caches
from probes.runs.task_kinds import KINDS
from probes.runs.watcher import SILENT, Watcher

TEST_READS = ("chosen", "all")
"""Points that test is read for: those chosen with the reference beside them, or every one."""
FITTED = ("heads", "seeds", "protocol", "calibration", "anchor_identical", "task")
"""Settings that decide a fit on the same latents."""


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
    slots = slots_of(grid)
    caches = obtain_point_caches(grid, tasks, watcher=watcher, removes=removes_decoders)
    folder = open_sweep_folder(config, grid)
    sweep = _Sweep(config, grid, tasks, caches, folder, slots, watcher)
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
    rows: dict[str, PlanScores] = field(default_factory=dict)
    """Scores by label of the point."""

    @property
    def points(self) -> list[Point]:
        """The points that did not fail."""
        return [point for point in self.grid.points if point.label in self.caches.of]

    def run(self, *, reads_all: bool, command: str) -> PlansScores:
        """Fit every point, choose, and read test."""
        for point in self.points:
            self.rows[point.label] = self._score(point, reads_all=reads_all)
        reference = self._reference()
        chosen = {name: self._choose(name) for name in self.slots}
        test_read = self._read_tests(chosen, reference, reads_all=reads_all)
        choices = {name: self._choice(name, point, reference) for name, point in chosen.items()}
        first = self.points[0]
        task = self.tasks[first.label]
        decoder = self.caches.of[first.label].manifest.provenance["decoder"]
        baselines = score_plan_baselines(self.config, task, choices, self.watcher)
        header = make_header(first.config, SWEEP, self.folder, command=command, decoder=decoder, task=task.describe())
        cost = SweepCost(self.caches.block_passes, self.caches.apart, self.caches.block_passes / self.caches.apart)
        rows = tuple(self.rows.values())
        return PlansScores(
            header, test_read, rows, choices, cost, baselines=baselines, grid=self._grid_scores(reference, reads_all)
        )

    def _grid_scores(self, reference: Point, reads_all: bool) -> GridScores | None:
        if self.grid.is_of_plans:
            return None
        failed = [
            FailedPoint(point.values, self.caches.failed[point.label])
            for point in self.grid.points
            if point.label in self.caches.failed
        ]
        gaps = [gap for name in self.slots for gap in self._gaps(name, reference, reads_all=reads_all)]
        return GridScores(self.grid.axes, reference.values, tuple(gaps), tuple(failed))

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
        values = point.config.to_dict()
        fitted = digest_json({key: values[key] for key in FITTED})
        return folder.with_name(f"{folder.name}-{fitted[:8]}")

    def _reference(self) -> Point:
        """Return the point that others are compared with; the first where it failed."""
        points = self.points
        return next((point for point in points if point.values == self.grid.reference), points[0])

    def result(self, point: Point, name: str) -> HeadResult:
        """Return the result of a head at a point."""
        return self.rows[point.label].heads[list(point.config.heads)[self.slots[name]]]

    def _choose(self, name: str) -> Point:
        """Choose the point with the best validation score of a head; of equals the first."""
        scores = {point.label: self.result(point, name).selection_score for point in self.points}
        if not any(map(math.isfinite, scores.values())):
            raise HeadError(
                f"no point has a finite score of head {name!r}, by which one can be chosen; give the task a validation "
                "split or the head several layers or Cs."
            )
        metrics = {self.result(point, name).metric for point in self.points}
        if len(metrics) > 1:
            raise ConfigError(
                f"points are scored by {' and '.join(sorted(metrics))}, which cannot be compared; give the heads of "
                "all points one metric."
            )
        return max(self.points, key=lambda point: _comparable(scores[point.label]))

    def _read_tests(self, chosen: Mapping[str, Point], reference: Point, *, reads_all: bool) -> str:
        """Read test for the chosen points and the reference, and say for which it was read."""
        if "test" not in self.tasks[reference.label].splits:
            return "no plan" if self.grid.is_of_plans else "no point"
        if reads_all:
            return EVERY_PLAN
        labels = {reference.label, *(point.label for point in chosen.values())}
        read = [point for point in self.points if point.label in labels]
        for point in read:
            names = list(point.config.heads)
            heads = [
                names[slot] for name, slot in self.slots.items() if point.label in (reference.label, chosen[name].label)
            ]
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
        best, default = self.result(point, name), self.result(reference, name)
        where = {} if self.grid.is_of_plans else dict(point.values)
        if "test" not in best.summary:
            return PlanChoice(point.plan, best, point=where)
        over = self.rows[reference.label].label
        gain = PlanGain(best.metric, over, default.mean("test", best.metric), best.mean("test"))
        task = self.tasks[point.label]
        report, n_resamples = KINDS[task.kind].report, self.config.bootstrap
        lead: Lead | None = None
        if point.label != reference.label:
            lead = lead_over_plan(best, default, task=task, report=report, n_resamples=n_resamples)
        return PlanChoice(point.plan, best, gain, lead, where)

    def _gaps(self, name: str, reference: Point, *, reads_all: bool) -> Iterable[PointGap]:
        """Compare a head at every point with the reference, on test where it was read for all, else on validation."""
        default = self.result(reference, name)
        split = "test" if reads_all and "test" in default.predictions else "validation"
        others = [
            point
            for point in self.points
            if point.label != reference.label and split in self.result(point, name).predictions
        ]
        if split not in default.predictions or not others:
            return []
        task = self.tasks[reference.label]
        rows = split_rows(task, split, KINDS[task.kind].report)
        results = [self.result(point, name) for point in others]
        found = score_gaps(results, default, split, rows=rows, n_resamples=self.config.bootstrap)
        p_values = [bootstrap_p_value(gap, draws) for gap, draws in zip(found.gaps, found.draws, strict=True)]
        corrected = correct_p_values(p_values)
        gaps = []
        for number, (point, result) in enumerate(zip(others, results, strict=True)):
            interval = found.interval(number)
            moved = result.mean(split) - default.mean(split) - interval.value  # to the difference of the scores
            ends = (interval.value + moved, interval.low + moved, interval.high + moved)
            tests = (p_values[number], float(corrected[number]), found.n_units)
            gaps.append(PointGap(point.values, name, split, *ends, *tests))
        return gaps


def _comparable(score: float) -> float:
    return score if math.isfinite(score) else -math.inf
