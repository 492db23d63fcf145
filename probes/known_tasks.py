"""Every task that a run can take, of whatever kind, in one table."""

from typing import Literal

from extract.errors import unknown_name
from probes.classes.known import CLASS_TASKS, ClassTaskEntry, load_class_task
from probes.classes.task import ClassTask
from probes.tasks.pairs import PairTask
from probes.tasks.registry import TASKS, TaskEntry, load_task
from probes.words.known import WORD_TASKS, WordTaskEntry
from probes.words.load import load_word_task
from probes.words.task import WordTask

Kind = Literal["pairs", "classes", "words"]
AnyTask = PairTask | ClassTask | WordTask
ALL_TASKS: dict[str, TaskEntry | ClassTaskEntry | WordTaskEntry] = {**TASKS, **CLASS_TASKS, **WORD_TASKS}


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
    if name in CLASS_TASKS:
        return load_class_task(name, **options)
    if name in WORD_TASKS:
        return load_word_task(name, **options)
    if name in TASKS:
        return load_task(name, **options)
    raise unknown_name("task", name, ALL_TASKS)
