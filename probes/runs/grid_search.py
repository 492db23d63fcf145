"""Finding a good point of a grid without scoring every point on all rows.

A strategy is a generator: it yields the points to score next and on how many rows, is sent their validation scores, and
returns the point it chose. It computes nothing itself.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np

from extract.errors import ConfigError, unknown_name
from extract.masks.mask_plan import MaskPlan, k_and_k0
from extract.wiring.states import count_blocks
from probes.data.task import Task
from probes.data.zero_shot_task import CorpusTask, RerankingTask
from probes.report.scores import SearchTrial
from probes.runs.task_kinds import KINDS

FEWEST_ROWS = 16
"""With fewer rows per split a validation score says next to nothing."""


@dataclass(frozen=True)
class Family:
    """Points whose latents are of the same texts and the same passes through a decoder, but for their plans."""

    routes: Mapping[str, Sequence[tuple[Hashable, ...]]]
    """Point to the blocks that its texts pass, in every reading of it (`reading_routes`)."""
    n_texts: Callable[[int], int]
    """Counts the different texts of so many rows per split, which the decoder must read."""
    keeps_rows: bool = True
    """Whether latents of fewer rows serve for more rows, so that only the new texts are computed."""


@dataclass(frozen=True)
class SearchSpace:
    """Points, and the rows they can be scored on, drawn from every split alike: more rows hold all fewer ones.

    The unit of every cost is one text that passes one block; blocks that points share for a text count once.
    """

    points: tuple[str, ...]
    """Of equally good ones the first is chosen."""
    families: tuple[Family, ...]
    """A point is in one for each task that it is scored on."""
    n_rows: int
    """Rows per split at which nothing is left out."""
    fewest_rows: int = 1
    """Fewest rows per split on which a point can be scored."""
    plans: Mapping[str, MaskPlan] = field(default_factory=lambda: MappingProxyType({}))
    """Point to its plan where points differ in their plans alone."""
    n_texts: Callable[[int], int] = lambda _: 0
    """Counts the different texts of so many rows per split, of all tasks."""

    @cached_property
    def full_cost(self) -> int:
        """Block passes times texts of every point on all rows, in one sweep."""
        return self.cost(self.points, 0, self.n_rows)

    @cached_property
    def by_k_and_k0(self) -> dict[tuple[int, int], str]:
        """The points by k and k0; refuses what is no point of a (k, k0) grid."""
        points = {}
        for point in self.points:
            counts = k_and_k0(self.plans[point]) if point in self.plans else None
            if counts is None:
                raise ConfigError(
                    f"the {'plan' if self.plans else 'point'} {point!r} is no point of a (k, k0) grid, along whose "
                    "axes a coordinate search goes; give --k with --k0, or search by halving."
                )
            points[counts] = point
        return points

    def block_passes(self, points: Iterable[str]) -> int:
        """Count the block passes of some points for one text of each family, when what they share is computed once."""
        listed = list(points)
        return sum(_passes(family, listed) for family in self.families)

    def cost(self, points: Sequence[str], had: int, n_rows: int) -> int:
        """Count block passes times texts of points on some rows per split, when `had` rows are computed already."""
        cost = 0
        for family in self.families:
            n_held, n_new = family.n_texts(had), family.n_texts(n_rows)
            if family.keeps_rows or n_held >= n_new:
                n_new = max(0, n_new - n_held)
            cost += _passes(family, points) * n_new
        return cost


def _passes(family: Family, points: Sequence[str]) -> int:
    return count_blocks([route for point in points for route in family.routes.get(point, ())])


def count_texts(task: Task, least: int) -> Callable[[int], int]:
    """Return what counts the different texts of rows of every split, drawn once, in the order of the task's `subset`.

    Fewer than `least` rows are never drawn, and counted in proportion.
    """
    kind, n_rows = KINDS[task.kind], rows_of(task)
    least = min(least, n_rows)
    needed: dict[Hashable, int] = {}  # text to the fewest rows per split whose draw holds it
    for split in task.splits:
        texts = kind.row_texts(task, split)
        if isinstance(task, RerankingTask):  # the candidates are drawn with their query
            documents = [[task.corpus[index] for index in indices] for indices in task.splits[split]["documents"]]
            texts = [(*row, *drawn) for row, drawn in zip(texts, documents, strict=True)]
        for n_drawn, row in enumerate(task.draw_order(split, seed=0), start=1):
            for text in texts[row]:
                needed[text] = min(n_drawn, needed.get(text, n_drawn))
    if isinstance(task, CorpusTask):  # a corpus is searched whole, whatever the number of queries
        rest = n_rows if isinstance(task, RerankingTask) else 1
        needed |= {text: min(rest, needed.get(text, rest)) for text in task.corpus}
    counts = np.cumsum(np.bincount(list(needed.values()), minlength=n_rows + 1)).tolist()

    def n_texts(rows_per_split: int) -> int:
        if rows_per_split < least:
            return int(counts[least]) * rows_per_split // least
        return int(counts[min(rows_per_split, n_rows)])

    return n_texts


def rows_of(task: Task) -> int:
    """Return the number of rows of the largest split."""
    return max(len(rows) for rows in task.splits.values())


def draw_rows(task: Task, n_rows: int) -> Task:
    """Draw rows of every split; a larger draw holds every smaller one, and one of all rows is the task itself."""
    return task if n_rows >= rows_of(task) else task.subset(n_rows)


@dataclass
class Ledger:
    """What a search has computed and may still compute. Points that lack the same texts are swept together."""

    space: SearchSpace
    share: float
    """The budget, as a share of scoring every point on all rows."""
    spent: int = 0
    """Block passes times texts so far."""
    n_computed: dict[str, int] = field(default_factory=dict)
    """Rows per split that each point was computed for."""

    def price(self, points: Sequence[str], n_rows: int) -> int:
        """Price points on some rows per split, in block passes times texts that are not computed yet."""
        alike: dict[int, list[str]] = {}
        for point in points:
            alike.setdefault(self.n_computed.get(point, 0), []).append(point)
        return sum(self.space.cost(group, had, n_rows) for had, group in alike.items())

    def charge(self, points: Sequence[str], n_rows: int) -> int:
        """Note that points were computed for some rows per split, and return the price."""
        cost = self.price(points, n_rows)
        self.spent += cost
        self.n_computed.update({point: max(n_rows, self.n_computed.get(point, 0)) for point in points})
        return cost

    def affordable_rows(self, points: Sequence[str], *, n_passes: int | None = None, part: float = 1.0) -> int:
        """Return on how many rows per split points can be scored so that the best can still be computed for all rows.

        The points were computed for the same rows so far; `part` is the share of what is left that may be spent, and
        `n_passes` the block passes per text, if more will follow on the same rows than those of the points.
        """
        space, everything = self.space, self.space.n_rows
        had = self.n_computed.get(points[0], 0)
        factor = 1.0 if n_passes is None else n_passes / space.block_passes(points)

        def completing(n_rows: int) -> int:
            return max(space.cost([point], n_rows, everything) for point in points)

        rest = completing(had)
        keeps_rows = all(family.keeps_rows for family in space.families)

        def extra(n_rows: int) -> float:
            """Price the rows; a text computed now is one less for the point that will be completed in the end."""
            saved = rest - completing(n_rows) if keeps_rows else 0
            return factor * space.cost(points, had, n_rows) - saved

        left = self.share * space.full_cost - self.spent
        if part * left >= factor * space.cost(points, had, everything):  # which leaves nothing to complete
            return everything
        spare = left - rest
        return 0 if spare < 0 else had + bisect_right(range(had + 1, everything + 1), part * spare, key=extra)


SHRINK = 3
"""Of the points of a rung about one in so many goes on to the next, where the budget allows that many rungs."""
ENOUGH = 2
"""Several rungs only where the first has so many times the fewest rows: a point that noise drops is lost for good."""


@dataclass(frozen=True)
class Trial:
    """Points to score on the same rows."""

    points: tuple[str, ...]
    n_rows: int
    """Rows per split."""


Strategy = Generator[Trial, Sequence[float], str]
Score = Callable[[Trial], Sequence[float]]


@dataclass(frozen=True)
class Search:
    """A finished search."""

    chosen: str
    trials: tuple[SearchTrial, ...]
    cost: int
    """Block passes times texts, those that complete the chosen point included."""
    full_cost: int
    """The same for every point on all rows."""

    @property
    def share(self) -> float:
        """Cost as a share of scoring every point on all rows."""
        return self.cost / self.full_cost


def halving(space: SearchSpace, ledger: Ledger) -> Strategy:
    """Score all points on few rows, keep the best, score these on more rows, and so on (successive halving).

    Every rung gets an equal part of the budget (Jamieson and Talwalkar, 2016), hence the fewer points are left, the
    more rows they are scored on. There are as many rungs as leave the first one rows enough; one rung is all points on
    as many rows as the budget allows. A budget that does not allow even that is refused.
    """
    n_rungs, alive = _count_rungs(space, ledger), space.points
    for left in range(n_rungs, 0, -1):
        n_rows = ledger.affordable_rows(alive, part=1 / left)
        scores = yield Trial(alive, n_rows)
        n_kept = math.ceil(len(space.points) ** ((left - 1) / n_rungs)) if n_rows < space.n_rows else 1
        ranked = sorted(range(len(alive)), key=lambda k: -_comparable(scores[k]))
        alive = tuple(alive[k] for k in sorted(ranked[:n_kept]))
        if len(alive) == 1:
            break
    return alive[0]


def _count_rungs(space: SearchSpace, ledger: Ledger) -> int:
    most = max(1, math.ceil(math.log(len(space.points), SHRINK)))
    for n_rungs in range(most, 0, -1):
        fewest = space.fewest_rows * (ENOUGH if n_rungs > 1 else 1)
        if ledger.affordable_rows(space.points, part=1 / n_rungs) >= min(fewest, space.n_rows):
            return n_rungs
    raise _too_little(ledger, "all points")


def coordinate(space: SearchSpace, ledger: Ledger) -> Strategy:
    """Go along one axis of the (k, k0) grid at a time, each line through the best plan so far.

    The first line is k0 = k (nosink-bidirectional only), the second has the best k and every k0, the third the best k0
    and every k, and so on until a line through the best plan holds nothing new. Every plan is scored on the same rows,
    as many as the budget allows for the three longest lines; further lines need what the shorter ones left over. A
    plan that is no point of the grid is refused, and a budget that does not allow three lines.
    """
    points = space.by_k_and_k0
    n_passes = _passes_of_lines(space)
    n_rows = ledger.affordable_rows(space.points, n_passes=n_passes)
    if n_rows < space.fewest_rows:
        raise _too_little(ledger, "the lines of a coordinate search", n_passes=n_passes)
    scored: dict[tuple[int, int], float] = {}
    line, axis, n_idle = _diagonal(points), 0, 0
    while n_idle < 2:
        new = [point for point in line if point not in scored]
        named = tuple(points[point] for point in new)
        if named and ledger.affordable_rows(named) >= n_rows:
            scores = yield Trial(named, n_rows)
            scored.update(zip(new, map(_comparable, scores), strict=True))
            n_idle = 0
        else:
            n_idle += 1
        best = max(
            (point for point in points if point in scored), key=lambda point: scored[point]
        )  # of equals the first
        line, axis = [point for point in points if point[axis] == best[axis]], 1 - axis
    return points[best]


def require_search(strategy: str, budget: float) -> None:
    """Refuse an unknown strategy or a budget outside (0, 1], before anything is computed."""
    if strategy not in STRATEGIES:
        raise unknown_name("search strategy", strategy, STRATEGIES)
    if not 0 < budget <= 1:
        raise ConfigError(f"the search budget is {budget:g}; allowed: a share of the full grid's cost, as 0.25.")


def search_points(strategy: str, space: SearchSpace, score: Score, *, budget: float = 0.25) -> Search:
    """Search for a point with a strategy from `STRATEGIES`; the budget includes the chosen point on all rows."""
    require_search(strategy, budget)
    ledger, trials = Ledger(space, budget), []
    running = STRATEGIES[strategy][0](space, ledger)
    trial = next(running)
    while True:
        scores = [float(value) for value in score(trial)]
        cost = ledger.charge(trial.points, trial.n_rows)
        by_point = dict(zip(trial.points, scores, strict=True))
        trials.append(SearchTrial(trial.n_rows, space.n_texts(trial.n_rows), cost, by_point))
        try:
            trial = running.send(scores)
        except StopIteration as end:
            chosen: str = end.value
            break
    ledger.charge((chosen,), space.n_rows)
    return Search(chosen, tuple(trials), ledger.spent, space.full_cost)


STRATEGIES: dict[str, tuple[Callable[[SearchSpace, Ledger], Strategy], str]] = {
    "halving": (halving, "all points on few rows, the best of them on more, and so on"),
    "coordinate": (coordinate, "one axis of the (k, k0) grid at a time, on some of the rows"),
}
"""Strategies by name, each with one line about it."""


def _comparable(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def _diagonal(points: Mapping[tuple[int, int], str]) -> list[tuple[int, int]]:
    """List for every k the point with the largest k0."""
    return [(k, max(k0 for other, k0 in points if other == k)) for k in dict.fromkeys(k for k, _ in points)]


def _passes_of_lines(space: SearchSpace) -> int:
    """Count the block passes of the first line and of the longest further line along each axis."""
    points = space.by_k_and_k0
    lines = [
        [[points[point] for point in points if point[axis] == value] for value in {point[axis] for point in points}]
        for axis in (0, 1)
    ]
    first = space.block_passes(points[point] for point in _diagonal(points))
    return first + sum(max(space.block_passes(line) for line in along) for along in lines)


def _too_little(ledger: Ledger, points: str, *, n_passes: int | None = None) -> ConfigError:
    """Say that a budget is too small, and which is enough, in hundredths."""
    space = ledger.space

    def rows_of_share(hundredths: int) -> int:
        return Ledger(space, hundredths / 100).affordable_rows(space.points, n_passes=n_passes)

    n_rows = ledger.affordable_rows(space.points, n_passes=n_passes)
    enough = bisect_left(range(1, 100), space.fewest_rows, key=rows_of_share) + 1
    return ConfigError(
        f"a budget of {ledger.share:g} of the full grid leaves {n_rows} rows per split to score {points} on; at least "
        f"{space.fewest_rows} are needed. Set --budget to {enough / 100:g} or more, or sweep the {len(space.points)} "
        "points as they are."
    )
