"""A task without its test split: what plans are chosen on, and what a fitted head is known by."""

from dataclasses import replace
from typing import TypeVar

import numpy as np

from extract.errors import TaskError
from probes.tasks.classes.columns import build_class_splits
from probes.tasks.classes.task import ClassTask
from probes.tasks.pairs.task import PairTask
from probes.tasks.words.task import WordTask

T = TypeVar("T", PairTask, ClassTask, WordTask, PairTask | ClassTask | WordTask)


def without_test(task: T) -> T:
    """Leave the test split out, so that nothing can be chosen on it.

    Args:
        task: Any task.

    Returns:
        The same task with the splits train and validation, where it has them. Classes that only test has are gone, and
        the others numbered anew, for a number is the seed by which rows of a class are drawn.

    Raises:
        TaskError: There is no other split.

    Example:
        >>> from probes.tasks.table import load_any_task
        >>> list(without_test(load_any_task("class-sample")).splits)
        ['train', 'validation']
    """
    kept = {split: rows for split, rows in task.splits.items() if split != "test"}
    if not kept:
        raise TaskError(f"task {task.name!r} has no split 'train'; it has: test. Add rows that heads are fitted on.")
    rest = replace(task, splits=type(task.splits)(kept))
    return _number_anew(rest) if isinstance(rest, ClassTask) else rest


def _number_anew(task: ClassTask) -> ClassTask:
    present = np.unique(np.concatenate([task.labels(split) for split in task.splits]))
    if len(present) == task.n_classes:
        return task
    columns = {
        split: {**rows.to_dict(), "label": np.searchsorted(present, task.labels(split)).tolist()}
        for split, rows in task.splits.items()
    }
    names = tuple(task.class_names[code] for code in present)
    return replace(task, splits=build_class_splits(columns), class_names=names)
