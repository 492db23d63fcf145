"""Finding a good mask plan without scoring every plan on all rows (Look Both Ways leaves open how to choose k and k0).

A strategy is a generator: it yields the plans to score next and on how many rows, is sent their validation scores, and
returns the plan it chose. It computes nothing itself.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from extract.errors import ConfigError, unknown_name
from extract.masks.mask_plan import MaskPlan, k_and_k0
from extract.wiring.states import count_blocks, route_of
from probes.data.task import Task
from probes.runs.task_kinds import KINDS

FEWEST_ROWS = 16
"""With fewer rows per split a validation score says next to nothing."""


@dataclass(frozen=True)
class PlanSpace:
    """Plans, and the rows they can be scored on, drawn from every split alike: more rows hold all fewer ones."""

    plans: tuple[MaskPlan, ...]
    """Of equally good ones the first is chosen."""
    n_blocks: int
    n_rows: int
    """Rows per split at which nothing is left out."""
    n_texts: Callable[[int], int]
    """Counts the different texts of so many rows per split, which the decoder must read."""
    fewest_rows: int = 1
    """Fewest rows per split on which a plan can be scored."""
    keeps_rows: bool = True
    """Whether latents of fewer rows serve for more rows, so that only the new texts are computed."""

    @cached_property
    def full_cost(self) -> int:
        """Block passes times texts of every plan on all rows, in one sweep."""
        return self.block_passes(self.plans) * self.n_texts(self.n_rows)

    @cached_property
    def points(self) -> dict[tuple[int, int], MaskPlan]:
        """The plans by k and k0; refuses a plan that is no point of a (k, k0) grid."""
        points = {}
        for plan in self.plans:
            point = k_and_k0(plan)
            if point is None:
                raise ConfigError(
                    f"the plan {plan.text!r} is no point of a (k, k0) grid, along whose axes a coordinate search goes; "
                    "give --k with --k0, or search by halving."
                )
            points[point] = plan
        return points

    def block_passes(self, plans: Iterable[MaskPlan]) -> int:
        """Count the block passes of some plans for one text, when what they share is computed once."""
        return count_blocks([route_of(plan, self.n_blocks) for plan in plans])

    def rows_within(self, n_texts: float) -> int:
        """Return the most rows per split that need no more texts; 0 where even one row needs more."""
        return bisect_right(range(1, self.n_rows + 1), n_texts, key=self.n_texts)


def space_of(task: Task, plans: tuple[MaskPlan, ...], *, n_blocks: int, fewest: int = FEWEST_ROWS) -> PlanSpace:
    """Describe plans and a task without its test split for a search; its heads need at least `fewest` rows per split.

    Rows are drawn once, in the order of the task's `subset`: how many texts some rows hold is read off this one draw.
    """
    kind, n_rows = KINDS[task.kind], max(len(rows) for rows in task.splits.values())
    least = min(n_rows, max(FEWEST_ROWS, fewest))
    needed: dict[Hashable, int] = {}  # text to the fewest rows per split whose draw holds it
    for split in task.splits:
        texts = kind.row_texts(task, split)
        for n_drawn, row in enumerate(task.draw_order(split, seed=0), start=1):
            for text in texts[row]:
                needed[text] = min(n_drawn, needed.get(text, n_drawn))
    counts = np.cumsum(np.bincount(list(needed.values()), minlength=n_rows + 1)).tolist()

    def n_texts(rows_per_split: int) -> int:
        if rows_per_split < least:  # never drawn: in proportion
            return int(counts[least]) * rows_per_split // least
        return int(counts[rows_per_split])

    return PlanSpace(plans, n_blocks, n_rows, n_texts, least, keeps_rows=not kind.reads_words)


def draw_rows(task: Task, n_rows: int) -> Task:
    """Draw rows of every split; a larger draw holds every smaller one, and one of all rows is the task itself."""
    return task if n_rows >= max(len(rows) for rows in task.splits.values()) else task.subset(n_rows)


@dataclass
class Ledger:
    """What a search has computed and may still compute. Plans that lack the same texts are swept together."""

    space: PlanSpace
    share: float
    """The budget, as a share of scoring every plan on all rows."""
    spent: int = 0
    """Block passes times texts so far."""
    n_computed: dict[MaskPlan, int] = field(default_factory=dict)
    """Number of texts that each plan was computed for."""

    def price(self, plans: Sequence[MaskPlan], n_rows: int) -> int:
        """Price plans on some rows per split, in block passes times texts that are not computed yet."""
        n_texts = self.space.n_texts(n_rows)
        alike: dict[int, list[MaskPlan]] = {}
        for plan in plans:
            alike.setdefault(self._n_reusable(plan, n_texts), []).append(plan)
        return sum(self.space.block_passes(group) * (n_texts - n_reusable) for n_reusable, group in alike.items())

    def _n_reusable(self, plan: MaskPlan, n_texts: int) -> int:
        """Return how many of some texts need not be computed again."""
        n_computed = self.n_computed.get(plan, 0)
        return min(n_computed, n_texts) if self.space.keeps_rows or n_computed >= n_texts else 0

    def charge(self, plans: Sequence[MaskPlan], n_rows: int) -> int:
        """Note that plans were computed for some rows per split, and return the price."""
        cost, n_texts = self.price(plans, n_rows), self.space.n_texts(n_rows)
        self.spent += cost
        self.n_computed.update({plan: max(n_texts, self.n_computed.get(plan, 0)) for plan in plans})
        return cost

    def affordable_rows(self, plans: Sequence[MaskPlan], *, n_passes: int | None = None, part: float = 1.0) -> int:
        """Return on how many rows per split plans can be scored so that the best can still be computed for all rows.

        The plans were computed for the same texts so far; `part` is the share of what is left that may be spent, and
        `n_passes` the block passes per text, if more will follow on the same rows than those of the plans.
        """
        everything, one = self.space.n_texts(self.space.n_rows), self.space.n_blocks
        n_reusable = self._n_reusable(plans[0], everything)
        passes = n_passes or self.space.block_passes(plans)
        spare = self.share * self.space.full_cost - self.spent - one * (everything - n_reusable)
        if spare < 0:
            return 0
        if self.space.keeps_rows:
            passes -= one  # a text computed now is one less for the plan that will be completed in the end
        return self.space.rows_within(n_reusable + part * spare / passes) if passes > 0 else self.space.n_rows


SHRINK = 3
"""Of the plans of a rung about one in so many goes on to the next, where the budget allows that many rungs."""
ENOUGH = 2
"""Several rungs only where the first has so many times the fewest rows: a plan that noise drops is lost for good."""


@dataclass(frozen=True)
class Trial:
    """Plans to score on the same rows."""

    plans: tuple[MaskPlan, ...]
    n_rows: int
    """Rows per split."""


Strategy = Generator[Trial, Sequence[float], MaskPlan]
Score = Callable[[Trial], Sequence[float]]


@dataclass(frozen=True)
class Step:
    """A trial with its scores."""

    trial: Trial
    scores: tuple[float, ...]
    """Validation score of each plan; higher is better."""
    cost: int
    """Block passes times texts."""


@dataclass(frozen=True)
class Search:
    """A finished search."""

    chosen: MaskPlan
    steps: tuple[Step, ...]
    cost: int
    """Block passes times texts, those that complete the chosen plan included."""
    full_cost: int
    """The same for every plan on all rows."""

    @property
    def share(self) -> float:
        """Cost as a share of scoring every plan on all rows."""
        return self.cost / self.full_cost


def halving(space: PlanSpace, ledger: Ledger) -> Strategy:
    """Score all plans on few rows, keep the best, score these on more rows, and so on (successive halving).

    Every rung gets an equal part of the budget (Jamieson and Talwalkar, 2016), hence the fewer plans are left, the more
    rows they are scored on. There are as many rungs as leave the first one rows enough; one rung is all plans on as
    many rows as the budget allows. A budget that does not allow even that is refused.
    """
    n_rungs, alive = _count_rungs(space, ledger), space.plans
    for left in range(n_rungs, 0, -1):
        n_rows = ledger.affordable_rows(alive, part=1 / left)
        scores = yield Trial(alive, n_rows)
        n_kept = math.ceil(len(space.plans) ** ((left - 1) / n_rungs)) if n_rows < space.n_rows else 1
        ranked = sorted(range(len(alive)), key=lambda k: -_comparable(scores[k]))
        alive = tuple(alive[k] for k in sorted(ranked[:n_kept]))
        if len(alive) == 1:
            break
    return alive[0]


def _count_rungs(space: PlanSpace, ledger: Ledger) -> int:
    most = max(1, math.ceil(math.log(len(space.plans), SHRINK)))
    for n_rungs in range(most, 0, -1):
        fewest = space.fewest_rows * (ENOUGH if n_rungs > 1 else 1)
        if ledger.affordable_rows(space.plans, part=1 / n_rungs) >= min(fewest, space.n_rows):
            return n_rungs
    raise _too_little(space, ledger, "all plans", ledger.affordable_rows(space.plans))


def coordinate(space: PlanSpace, ledger: Ledger) -> Strategy:
    """Go along one axis of the (k, k0) grid at a time, each line through the best plan so far.

    The first line is k0 = k (nosink-bidirectional only), the second has the best k and every k0, the third the best k0
    and every k, and so on until a line through the best plan holds nothing new. Every plan is scored on the same rows,
    as many as the budget allows for the three longest lines; further lines need what the shorter ones left over. A
    plan that is no point of the grid is refused, and a budget that does not allow three lines.
    """
    points = space.points
    n_rows = ledger.affordable_rows(space.plans, n_passes=_passes_of_lines(space))
    if n_rows < space.fewest_rows:
        raise _too_little(space, ledger, "the lines of a coordinate search", n_rows)
    scored: dict[tuple[int, int], float] = {}
    line, axis, n_idle = _diagonal(points), 0, 0
    while n_idle < 2:
        new = [point for point in line if point not in scored]
        plans = tuple(points[point] for point in new)
        if plans and ledger.affordable_rows(plans) >= n_rows:
            scores = yield Trial(plans, n_rows)
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


def search_plans(strategy: str, space: PlanSpace, score: Score, *, budget: float = 0.25) -> Search:
    """Search for a plan with a strategy from `STRATEGIES`.

    `score` gives the validation scores of a trial's plans. `budget` is the most that may be computed, as a share of
    scoring every plan on all rows, the chosen plan on all rows included; one too small for the strategy is refused.
    """
    require_search(strategy, budget)
    ledger, steps = Ledger(space, budget), []
    running = STRATEGIES[strategy][0](space, ledger)
    trial = next(running)
    while True:
        scores = tuple(float(value) for value in score(trial))
        steps.append(Step(trial, scores, ledger.charge(trial.plans, trial.n_rows)))
        try:
            trial = running.send(scores)
        except StopIteration as end:
            chosen: MaskPlan = end.value
            break
    ledger.charge((chosen,), space.n_rows)
    return Search(chosen, tuple(steps), ledger.spent, space.full_cost)


STRATEGIES: dict[str, tuple[Callable[[PlanSpace, Ledger], Strategy], str]] = {
    "halving": (halving, "all plans on few rows, the best of them on more, and so on"),
    "coordinate": (coordinate, "one axis of the (k, k0) grid at a time, on some of the rows"),
}
"""Strategies by name, each with one line about it."""


def _comparable(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def _diagonal(points: dict[tuple[int, int], MaskPlan]) -> list[tuple[int, int]]:
    """List for every k the point with the largest k0."""
    return [(k, max(k0 for other, k0 in points if other == k)) for k in dict.fromkeys(k for k, _ in points)]


def _passes_of_lines(space: PlanSpace) -> int:
    """Count the block passes of the first line and of the longest further line along each axis."""
    points = space.points
    lines = [
        [[points[point] for point in points if point[axis] == value] for value in {point[axis] for point in points}]
        for axis in (0, 1)
    ]
    first = space.block_passes(points[point] for point in _diagonal(points))
    return first + sum(max(space.block_passes(line) for line in along) for along in lines)


def _too_little(space: PlanSpace, ledger: Ledger, plans: str, n_rows: int) -> ConfigError:
    return ConfigError(
        f"a budget of {ledger.share:g} of the full grid leaves {n_rows} rows per split to score {plans} on; at least "
        f"{space.fewest_rows} are needed. Raise --budget, or sweep the {len(space.plans)} plans as they are."
    )
