"""A sweep: every point of a grid is fitted without test, one is chosen on validation, and then test is read.

A search does so for some points alone, on ever more rows.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from extract.decoders.decoder import read_n_blocks
from extract.errors import CodeError, ConfigError, HeadError, IcecoreError, first_line, unknown_name
from extract.run.shards import reading_routes, sweep_cost
from probes.data.task import Task
from probes.report.scores import PlansScores, SearchCost
from probes.report.write import write_plans
from probes.runs.config_file import ConfigSource, as_config
from probes.runs.folder import Inputs, describe_inputs, name_sweep, open_folder, write_stamp
from probes.runs.grid import BUDGET, Grid, Point, grid_of, load_tasks, read_search
from probes.runs.grid_search import (
    FEWEST_ROWS,
    STRATEGIES,
    Family,
    Ledger,
    SearchSpace,
    Trial,
    count_texts,
    draw_rows,
    require_search,
    rows_of,
    search_points,
)
from probes.runs.run import RunResult, check_heads
from probes.runs.run_config import RunConfig, describe_sources
from probes.runs.sweep_caches import (
    Grown,
    PointCaches,
    find_families,
    find_misfits,
    keeps_rows,
    obtain_point_caches,
    remove_again,
)
from probes.runs.sweep_points import (
    Sweep,
    refuse_random_decoder,
    require_sources,
    require_unread_test,
    systems_of,
)
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
    choose_by: str = "",
    test: str = "chosen",
    search: str = "",
    budget: float | None = None,
    remove_decoders: bool = False,
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
        choose_by: `sources`: the mean over the sources of validation decides, each counting alike (cross-validation
            over sources, a head keeping its layer); `rows`, the default, scores all rows together.
        test: Points that test is read for: `chosen` (and the reference), or `all`.
        search: `halving` scores every point on few rows, and ever fewer points on ever more rows; `coordinate` searches
            a (k, k0) grid of mask plans. That of the configuration when empty, or else every point on all rows.
        budget: With a search, the most that choosing may compute, as a share of all points on all rows of train and
            validation: between 0 and 1, and 0.25 when None.
        remove_decoders: Remove decoders that had to be fetched once they have been run.
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
                axes = ("over", "points", "plans", "ratios")
                rest = {key: value for key, value in record.sweep.items() if key not in axes}
                record = replace(record, sweep={**rest, "over": dict(over)})
            over = ()
        grid = grid_of(record, list(over), reference=reference, choose_on=choose_on, choose_by=choose_by)
        strategy, share = read_search(record, search, budget)
        run = partial(search_grid, strategy=strategy, budget=share) if strategy else run_grid
        return run(record, grid, test=test, removes_decoders=remove_decoders, watcher=shown)


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

    Unless `test` is `all`, test is set aside until every point is fitted and chosen. With `removes_decoders`, decoders
    that had to be fetched are removed again once they were run. What is cached or fitted stays after an error.
    """
    inputs = describe_inputs(config, grid, test=test, removes=removes_decoders)
    tasks = load_checked(grid, test)
    slots, chosen_on = slots_of(grid), find_choice_task(grid, tasks)
    caches = obtain_point_caches(grid, tasks, watcher=watcher, removes=removes_decoders)
    folder = open_sweep_folder(config, grid)
    sweep = Sweep(config, grid, tasks, caches, folder, slots, watcher, chosen_on)
    scores = sweep.run(reads_all=test == "all", command=command)
    return _finish(sweep, scores, inputs)


def _finish(sweep: Sweep, scores: PlansScores, inputs: Inputs | None) -> RunResult[PlansScores]:
    """Write the report of a sweep or search, and its stamp unless a point failed, which is tried again."""
    task, caches = sweep.tasks[sweep.grid.points[0].label], sweep.caches
    write_plans(sweep.folder, scores, KINDS[task.kind].report, formats=sweep.config.figures)
    if inputs is not None and not caches.failed:
        write_stamp(sweep.folder, inputs, tasks=sweep.tasks.values(), caches=list(caches.of.values()), cache_id="")
    return RunResult(sweep.folder, scores)


def load_checked(grid: Grid, test: str, strategy: str = "", budget: float = BUDGET) -> dict[str, Task]:
    """Load the tasks of points, and refuse what no sweep, or no search with a strategy, can work with."""
    if test not in TEST_READS:
        raise ConfigError(f"test is {test!r}; allowed: {', '.join(TEST_READS)}, the points that test is read for.")
    if strategy:
        _require_search(grid, test, strategy, budget)
    tasks = load_tasks(grid)
    for point in grid.points:
        if test == "chosen":
            require_unread_test(point.config)
        refuse_random_decoder(point.config)
        check_heads(point.config, tasks[point.label], chooses_plan=True)
    _require_same_rows(grid, tasks)
    on = find_choice_task(grid, tasks)
    if grid.choose_by != "sources":
        return tasks
    if grid.task_axis and not grid.choose_on:
        raise ConfigError("choose_by is 'sources', but tasks are an axis; name the one to choose on with --choose-on.")
    for point in grid.points:
        task = tasks[point.label]
        if point.values.get(grid.task_axis, "") == on:
            require_sources(task)
    return tasks


def _require_same_rows(grid: Grid, tasks: Mapping[str, Task]) -> None:
    """Refuse points that read other rows of one task, as under protocols that cut them otherwise."""
    first: dict[str, Point] = {}
    for point in grid.points:
        beside = first.setdefault(point.values.get(grid.task_axis, ""), point)
        if tasks[point.label].digest() != tasks[beside.label].digest():
            raise ConfigError(
                f"the points {beside.label!r} and {point.label!r} read other rows of task {tasks[point.label].name!r}, "
                "so they cannot be compared; sweep them apart, or make the task an axis."
            )


def _require_search(grid: Grid, test: str, strategy: str, budget: float) -> None:
    """Refuse what no search can work with."""
    require_search(strategy, budget)
    if test != "chosen":
        raise ConfigError(
            f"test is {test!r}, but a search reads test for what it found and for the reference; leave test or the "
            "search out."
        )
    if grid.choose_by == "sources":
        raise ConfigError("choose_by is 'sources', which few rows of a search cannot tell; leave one of the two out.")


def search_grid(
    config: RunConfig,
    grid: Grid,
    *,
    strategy: str = "halving",
    budget: float = BUDGET,
    test: str = "chosen",
    removes_decoders: bool = False,
    watcher: Watcher = SILENT,
    command: str = "",
) -> RunResult[PlansScores]:
    """Search a grid for the point that the first head is best with, then fit every head on it and on the reference.

    `budget` is the most that choosing may compute, as a share of all points on all rows of train and validation; the
    unit of cost is one text that passes one block of a decoder, and what points share counts once. The reference and
    test, which are read in the end, come on top. What is cached or fitted stays after an error, and the same call goes
    on from there.
    """
    inputs = describe_inputs(config, grid, test=test, removes=removes_decoders, search=strategy, budget=budget)
    tasks, grown = load_checked(grid, test, strategy, budget), Grown()
    slots, chosen_on = slots_of(grid), find_choice_task(grid, tasks)
    searched = SearchedGrid(config, grid, tasks, chosen_on, slots, watcher, grown, removes_decoders)
    space = searched.space
    next(STRATEGIES[strategy][0](space, Ledger(space, budget)))  # refuses a budget too small to begin with
    folder = open_sweep_folder(config, grid, search=strategy, budget=budget)
    search = search_points(strategy, space, partial(searched.score, folder=folder), budget=budget)
    watcher.say(f"{search.chosen} was found for {search.share:.2f} of what all {len(space.points)} points would cost")
    found = searched.systems[search.chosen]
    beside = next(
        (parts for parts in searched.alive.values() if any(p.values == grid.reference for p in parts.values())), found
    )
    labels = {point.label for point in (*found.values(), *beside.values())}
    last = replace(grid, points=tuple(point for point in grid.points if point.label in labels))
    caches = searched.obtain(last, tasks)
    caches.failed |= searched.failed
    cost = SearchCost(
        strategy,
        budget,
        searched.by,
        len(space.points),
        space.n_texts(space.n_rows),
        search.cost,
        search.full_cost,
        search.share,
        search.trials,
        len(searched.systems),
    )
    sweep = Sweep(config, grid, tasks, caches, folder, slots, watcher, chosen_on, found=found, search=cost)
    scores = sweep.run(reads_all=False, command=command)
    for spec in grown.fetched:
        remove_again(spec, watcher)
    return _finish(sweep, scores, inputs)


@dataclass
class SearchedGrid:
    """A grid that is searched: what its points cost, and their scores on parts of the rows, test aside."""

    config: RunConfig
    grid: Grid
    tasks: Mapping[str, Task]
    chosen_on: str
    slots: Mapping[str, int]
    watcher: Watcher
    grown: Grown
    removes: bool
    failed: dict[str, str] = field(default_factory=dict)
    """Label to why a point has no score."""

    @property
    def by(self) -> str:
        """Name what decides."""
        head = next(iter(self.slots))
        is_ranked = self.grid.task_axis and not self.chosen_on
        return f"{head}, by normalised ranks over tasks" if is_ranked else head

    @cached_property
    def systems(self) -> dict[str, dict[str, Point]]:
        """What is chosen among, by name: points by the value of the axis of tasks."""
        systems = systems_of(self.grid, self.grid.points)
        if self.grid.is_of_plans:
            return {points[""].plan.text: points for points in systems.values()}
        return systems

    @cached_property
    def scored(self) -> dict[str, str]:
        """The points that decide, by label, with the name of their system: all, or those of the task to choose on."""
        return {
            point.label: name
            for name, points in self.systems.items()
            for value, point in points.items()
            if value == self.chosen_on or not self.chosen_on
        }

    @property
    def alive(self) -> dict[str, dict[str, Point]]:
        """The systems of which no point failed before the search."""
        return {
            name: points
            for name, points in self.systems.items()
            if not any(point.label in self.failed for point in points.values())
        }

    @cached_property
    def judged(self) -> dict[str, Task]:
        """The tasks of points without test, by label; one object for a task."""
        aside = {id(task): task.without_test() for task in self.tasks.values()}
        return {label: aside[id(task)] for label, task in self.tasks.items()}

    def _of(self, labels: Iterable[str]) -> Grid:
        """Return the grid of some points."""
        held = set(labels)
        return replace(self.grid, points=tuple(point for point in self.grid.points if point.label in held))

    @cached_property
    def space(self) -> SearchSpace:
        """The points, their families and the rows they can be scored on; a decoder that is not there costs its own."""
        judged = self.judged
        tasks = {id(judged[label]): judged[label] for label in self.scored}
        n_rows = max(map(rows_of, tasks.values()))
        scored, fewest = self._of(self.scored), FEWEST_ROWS
        for point in scored.points:
            task, head = judged[point.label], next(iter(point.config.heads.values())) or {}
            fewest = max(fewest, KINDS[task.kind].fewest_rows(task, int(head.get("folds", 5))))
        fewest = min(n_rows, fewest)
        counts = {key: count_texts(task, fewest) for key, task in tasks.items()}
        families = list[Family]()
        self.failed |= scored.unread
        for _, listed in find_families(scored, judged):
            spec, points = listed[0][0].config.decoder, [point for family in listed for point in family]
            try:
                n_blocks = read_n_blocks(spec, report=self.watcher.say)
            except (IcecoreError, OSError, RuntimeError) as error:
                if len(self.failed) + len(points) == len(self.scored):
                    raise  # nothing is left
                self.failed |= dict.fromkeys((point.label for point in points), first_line(error))
                continue
            misfits = find_misfits(listed, n_blocks, is_only=self.grid.has_one_decoder)
            self.failed |= misfits
            for family in listed:
                if self.grid.is_of_plans:
                    sweep_cost([point.plan for point in family], n_blocks)  # refuses those with tails
                first, task = family[0].config.extraction, judged[family[0].label]
                fitting = [point for point in family if point.label not in misfits]
                specs = {self.scored[point.label]: point.config.extraction for point in fitting}
                if specs:
                    routes = reading_routes(specs, n_blocks)
                    families.append(Family(routes, counts[id(task)], keeps_rows(first, task)))
        if not self.alive:
            raise HeadError(f"no point can be computed on every task: {'; '.join(dict.fromkeys(self.failed.values()))}")
        plans = {name: points[""].plan for name, points in self.alive.items()} if self.grid.is_of_plans else {}
        return SearchSpace(
            tuple(self.alive),
            tuple(families),
            n_rows,
            fewest,
            plans,
            n_texts=lambda rows: sum(count(rows) for count in counts.values()),
        )

    def obtain(self, grid: Grid, tasks: Mapping[str, Task]) -> PointCaches:
        """Find or extract caches of points, and keep them for the rounds that follow."""
        return obtain_point_caches(grid, tasks, watcher=self.watcher, removes=self.removes, grown=self.grown)

    def score(
        self,
        trial: Trial,
        *,
        folder: Path,
        obtain: Callable[[Grid, Mapping[str, Task]], PointCaches] | None = None,
    ) -> list[float]:
        """Score the points of a trial with the first head, on rows of train and validation."""
        labels = [label for label, name in self.scored.items() if name in trial.points]
        grid, name, say = self._of(labels), next(iter(self.slots)), self.watcher.say
        parts = {id(self.judged[label]): self.judged[label] for label in labels}
        drawn = {key: draw_rows(task, trial.n_rows) for key, task in parts.items()}
        tasks = {label: drawn[id(self.judged[label])] for label in labels}
        n_texts = self.space.n_texts(trial.n_rows)
        say(f"{len(trial.points)} points on at most {trial.n_rows:,} rows per split ({n_texts:,} texts)")
        scores = dict.fromkeys(trial.points, math.nan)
        try:
            caches = (obtain or self.obtain)(grid, tasks)
            self.failed |= caches.failed
            sweep = Sweep(self.config, grid, tasks, caches, folder, {name: 0}, self.watcher, "")
            sweep.fit_all(
                lambda point: replace(point.config, heads=dict([next(iter(point.config.heads.items()))])), tasks
            )
            worths = sweep.worths(name)
        except (ConfigError, CodeError):
            raise
        except (IcecoreError, OSError, RuntimeError, ArithmeticError, np.linalg.LinAlgError) as error:
            self.failed |= {label: self.failed.get(label, first_line(error)) for label in labels}
            if self.failed.keys() >= self.scored.keys():
                raise
            say(f"the {len(labels)} points of this trial failed: {first_line(error)}")
            return [scores[point] for point in trial.points]
        self.failed |= caches.failed
        for points, worth in zip(sweep.parts.values(), worths, strict=True):
            scores[self.scored[next(iter(points.values())).label]] = worth if math.isfinite(worth) else math.nan
        return [float(scores[point]) for point in trial.points]


def open_sweep_folder(config: RunConfig, grid: Grid, **search: object) -> Path:
    """Open the folder of a sweep or search, whose config.yaml holds the grid beside the configuration."""
    name, settings = name_sweep(config, grid, **search)
    return open_folder(config.runs, name, settings, sources=describe_sources(config))


def find_choice_task(grid: Grid, tasks: Mapping[str, Task]) -> str:
    """Find the value of the axis of tasks that a sweep chooses on; empty for all of them, or where there is no axis."""
    target, axis = grid.choose_on, grid.task_axis
    if not target:
        return ""
    if not axis:
        raise ConfigError(f"choose_on is {target!r}, but tasks are no axis of the sweep; add --over task=NAME,NAME.")
    names = {point.values[axis]: tasks[point.label].name for point in grid.points}
    named = [value for value, name in names.items() if target == name]
    if target in names:
        return target
    if len(named) > 1:
        raise ConfigError(
            f"choose_on is {target!r}, which {' and '.join(named)} are; allowed: one of {', '.join(names)}."
        )
    if not named:
        raise unknown_name("task to choose on", target, names)
    return named[0]


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
