"""Every task that a run can take, of whatever kind, in one table."""

from typing import Any

from probes.tasks.classes.known import CLASS_TASKS
from probes.tasks.classes.task import ClassTask
from probes.tasks.entries import TaskEntry, load_entry
from probes.tasks.pairs.known import TASKS
from probes.tasks.pairs.task import PairTask
from probes.tasks.words.known import WORD_TASKS
from probes.tasks.words.task import WordTask

AnyTask = PairTask | ClassTask | WordTask
ALL_TASKS: dict[str, TaskEntry[Any]] = {**TASKS, **CLASS_TASKS, **WORD_TASKS}


def load_any_task(name: str, /, **options: object) -> AnyTask:
    """Load a task of any kind.

    Args:
        name: A key of `ALL_TASKS`.
        options: The task's own options, plain values as they come from a YAML file.

    Returns:
        The task, checked.

    Raises:
        UnknownNameError: If the task or an option stands in no table.
        TaskError: If an option is missing or of the wrong kind, or the rows cannot be used.

    Example:
        >>> load_any_task("class-sample").is_sample
        True
    """
    task: AnyTask = load_entry(ALL_TASKS, name, options)
    return task
