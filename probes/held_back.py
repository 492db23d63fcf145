"""A task without its test split: what plans are chosen on, and what a fitted head is known by."""

from dataclasses import replace
from typing import TypeVar

from probes.classes.task import ClassTask
from probes.tasks.pairs import PairTask
from probes.words.task import WordTask

T = TypeVar("T", PairTask, ClassTask, WordTask, PairTask | ClassTask | WordTask)


def without_test(task: T) -> T:
    """Leave the test split out, so that nothing can be chosen on it.

    Args:
        task: Any task.

    Returns:
        The same task with the splits train and validation, where it has them.

    Example:
        >>> from probes.known_tasks import load_any_task
        >>> list(without_test(load_any_task("class-sample")).splits)
        ['train', 'validation']
    """
    kept = {split: rows for split, rows in task.splits.items() if split != "test"}
    return replace(task, splits=type(task.splits)(kept))
