"""Loading a task of words by its name, its options checked."""

from probes.tasks.entries import load_entry
from probes.tasks.words.known import WORD_TASKS
from probes.tasks.words.task import WordTask


def load_word_task(name: str, /, **options: object) -> WordTask:
    """Load a task of words of the table.

    Args:
        name: A key of `WORD_TASKS`.
        options: The task's own options, plain values as they come from a YAML file.

    Returns:
        The task, checked.

    Raises:
        UnknownNameError: If the task or an option stands in no table.
        TaskError: If an option is missing or of the wrong kind, or the rows cannot be used.

    Example:
        >>> load_word_task("words-sample", tags="pos").metric
        'accuracy'
    """
    return load_entry(WORD_TASKS, name, options)
