"""What tasks with numbers as gold share: enough rows, and different gold, for a correlation."""

from extract.errors import TaskError
from probes.tasks.base import Task

MIN_SPLIT_ROWS = 8
"""The fewest rows of a split; a correlation over fewer means nothing."""


def check_graded(task: Task, column: str) -> None:
    """Refuse splits in which a correlation with the gold means nothing.

    Args:
        task: The task.
        column: The column of the gold.

    Raises:
        TaskError: A split has fewer than 8 rows, or its gold is constant.
    """
    for split, rows in task.splits.items():
        if len(rows) < MIN_SPLIT_ROWS:
            raise TaskError(
                f"split {split!r} of task {task.name!r} has {len(rows)} rows, but a correlation needs at least "
                f"{MIN_SPLIT_ROWS}: add rows or leave the split out."
            )
        gold = set(rows[column])
        if len(gold) == 1:
            raise TaskError(
                f"split {split!r} of task {task.name!r} has the same gold {gold.pop():g} in all {len(rows)} rows, so a "
                "correlation is undefined: give rows with different gold or leave the split out."
            )


def check_graded_draw(n_per_split: int) -> None:
    """Refuse a draw of fewer than 8 rows per split.

    Raises:
        TaskError: Names the smallest number allowed.
    """
    if n_per_split < MIN_SPLIT_ROWS:
        raise TaskError(
            f"n_per_split is {n_per_split}, but a split needs at least {MIN_SPLIT_ROWS} rows for a correlation."
        )
