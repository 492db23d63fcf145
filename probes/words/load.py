"""Loading a task of words by its name, its options checked."""

import inspect

from extract.errors import TaskError, unknown_name
from probes.words.known import WORD_TASKS
from probes.words.task import WordTask


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
    if name not in WORD_TASKS:
        raise unknown_name("task", name, WORD_TASKS)
    entry = WORD_TASKS[name]
    parameters = inspect.signature(entry.load).parameters
    for option, value in options.items():
        if option not in parameters:
            raise unknown_name("task option", option, parameters, hint=f"These are the options of task {name!r}.")
        _check_kind(name, option, value, parameters[option].default)
    for option, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise TaskError(f"task {name!r} needs the option `{option}`, which was not given.")
    return entry.load(**options)


def _check_kind(name: str, option: str, value: object, default: object) -> None:
    """Refuse `has_comments: "false"` and its like: a non-empty text is true to Python."""
    kinds = ((bool, bool, "true or false"), (str, str, "a text"), (int, int, "a whole number"))
    for kind, allowed, noun in (*kinds, (float, (int, float), "a number")):
        if isinstance(default, kind):
            if not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool)):
                raise TaskError(f"task option `{option}` of {name!r} is {value!r}, but {noun} is needed.")
            return
