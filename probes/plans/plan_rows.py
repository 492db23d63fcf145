"""Nested row samples for plan search. Never includes test rows."""

from functools import cache
from typing import Any

from extract.masks.plan import MaskPlan
from extract.run.runner import unique_texts
from probes.plans.plan_space import PlanSpace
from probes.tasks.base import Task

FEWEST_ROWS = 16
"""With fewer rows per split a validation score says next to nothing."""


def space_of(task: Task, plans: tuple[MaskPlan, ...], *, n_blocks: int, fewest: int = FEWEST_ROWS) -> PlanSpace:
    """Describe a task and plans for a search.

    Args:
        task: A task without its test split.
        plans: The plans.
        n_blocks: Blocks of the decoder.
        fewest: Fewest rows per split that its heads can be scored on.

    Returns:
        The space: rows are drawn by the task's `subset`, texts counted once.
    """
    n_rows = max(len(rows) for rows in task.splits.values())
    least = min(n_rows, max(FEWEST_ROWS, fewest))

    @cache
    def n_texts(rows_per_split: int) -> int:
        if rows_per_split < least:  # never drawn: in proportion
            return n_texts(least) * rows_per_split // least
        return len(unique_texts(draw_rows(task, rows_per_split).texts()))

    return PlanSpace(plans, n_blocks, n_rows, n_texts, least)


def draw_rows(task: Task, n_rows: int) -> Any:
    """Draw rows of every split; a larger draw holds every smaller one, and one of all rows is the task itself."""
    return task if n_rows >= max(len(rows) for rows in task.splits.values()) else task.subset(n_rows)
