"""What a search for a mask plan chooses from, and what every trial costs: block passes times texts."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from extract.errors import ConfigError
from extract.masks.grid import k_and_k0
from extract.masks.plan import MaskPlan
from extract.wiring.tree import count_blocks, route_of
from probes.runs.kinds import KINDS
from probes.tasks.base import Task

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
    """Gives for a number of rows per split the different texts that must go through the decoder."""
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
        found = {}
        for plan in self.plans:
            point = k_and_k0(plan)
            if point is None:
                raise ConfigError(
                    f"the plan {plan.text!r} is no point of a (k, k0) grid, along whose axes a coordinate search goes; "
                    "give --k with --k0, or search by halving."
                )
            found[point] = plan
        return found

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
    needed: dict[Any, int] = {}  # text to the fewest rows per split whose draw holds it
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


def draw_rows(task: Task, n_rows: int) -> Any:
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
    known: dict[MaskPlan, int] = field(default_factory=dict)
    """How many texts each plan was computed for."""

    def price(self, plans: Sequence[MaskPlan], n_rows: int) -> int:
        """Price plans on some rows per split, in block passes times texts that are not computed yet."""
        n_texts = self.space.n_texts(n_rows)
        alike: dict[int, list[MaskPlan]] = {}
        for plan in plans:
            alike.setdefault(self._kept(plan, n_texts), []).append(plan)
        return sum(self.space.block_passes(group) * (n_texts - kept) for kept, group in alike.items())

    def _kept(self, plan: MaskPlan, n_texts: int) -> int:
        """Return how many of some texts need not be computed again."""
        known = self.known.get(plan, 0)
        return min(known, n_texts) if self.space.keeps_rows or known >= n_texts else 0

    def charge(self, plans: Sequence[MaskPlan], n_rows: int) -> int:
        """Note that plans were computed for some rows per split, and return the price."""
        cost, n_texts = self.price(plans, n_rows), self.space.n_texts(n_rows)
        self.spent += cost
        self.known.update({plan: max(n_texts, self.known.get(plan, 0)) for plan in plans})
        return cost

    def affordable_rows(self, plans: Sequence[MaskPlan], *, n_passes: int | None = None, part: float = 1.0) -> int:
        """Tell on how many rows per split plans can be scored, so that the best can still be computed for all rows.

        The plans were computed for the same texts so far; `part` is the share of what is left that may be spent, and
        `n_passes` the block passes per text, if more will follow on the same rows than those of the plans.
        """
        everything, one = self.space.n_texts(self.space.n_rows), self.space.n_blocks
        kept = self._kept(plans[0], everything)
        passes = n_passes or self.space.block_passes(plans)
        spare = self.share * self.space.full_cost - self.spent - one * (everything - kept)
        if spare < 0:
            return 0
        if self.space.keeps_rows:
            passes -= one  # a text computed now is one less for the plan that will be completed in the end
        return self.space.rows_within(kept + part * spare / passes) if passes > 0 else self.space.n_rows
