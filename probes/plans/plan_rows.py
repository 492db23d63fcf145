"""The rows of a task as a search for a mask plan draws on them: never those of test, and nested."""

from functools import cache
from typing import Any

import numpy as np

from extract.masks.plan import MaskPlan
from extract.run.runner import unique_texts
from probes.plans.plan_space import PlanSpace
from probes.tasks.classes.task import ClassTask
from probes.tasks.table import AnyTask

FEWEST_ROWS = 16
"""Below this many rows per split a validation score says next to nothing."""


def space_of(task: AnyTask, plans: tuple[MaskPlan, ...], *, n_blocks: int, folds: int = 5) -> PlanSpace:
    """Describe a task and plans for a search.

    Args:
        task: A task without its test split.
        plans: The plans.
        n_blocks: Blocks of the decoder.
        folds: Folds of cross-validation, which a classification task without a validation split is scored by.

    Returns:
        The space: rows are drawn by the task's `subset`, texts counted once.
    """
    n_rows = max(len(rows) for rows in task.splits.values())
    fewest = min(n_rows, max(FEWEST_ROWS, _fewest(task, folds)))

    @cache
    def n_texts(rows_per_split: int) -> int:
        if rows_per_split < fewest:  # never drawn: in proportion
            return n_texts(fewest) * rows_per_split // fewest
        return len(unique_texts(draw_rows(task, rows_per_split).texts()))

    return PlanSpace(plans, n_blocks, n_rows, n_texts, fewest)


def draw_rows(task: AnyTask, n_rows: int) -> Any:
    """Draw rows of every split; a larger draw holds every smaller one, and one of all rows is the task itself."""
    return task if n_rows >= max(len(rows) for rows in task.splits.values()) else task.subset(n_rows)


def _fewest(task: AnyTask, folds: int) -> int:
    """Rows per split at which every class has one, or one for every fold of cross-validation."""
    if not isinstance(task, ClassTask):
        return FEWEST_ROWS
    counts = [np.unique(task.labels(split), return_counts=True)[1] for split in task.splits]
    if "validation" in task.splits:
        return max(len(each) for each in counts)
    (train,) = counts
    return len(train) + int(np.ceil(folds * train.sum() / train.min()))
