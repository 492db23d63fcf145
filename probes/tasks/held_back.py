"""A task without its test split: what plans are chosen on, and what a fitted head is known by."""

from typing import TypeVar

from probes.tasks.base import Task

T = TypeVar("T", bound=Task)


def without_test(task: T) -> T:
    """Leave the test split out; see `Task.without_test`."""
    return task.without_test()
