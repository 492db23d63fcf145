"""Rows of the task tables, and loading one of them with its options checked, whatever kind of task it is."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from extract.errors import TaskError, unknown_name

Task = TypeVar("Task")
Kind = Literal["pairs", "classes", "words"]
CheckKind = Callable[[str, inspect.Parameter, object], None]
_KINDS: tuple[tuple[type, tuple[type, ...], str], ...] = (
    (bool, (bool,), "true or false"),
    (str, (str,), "a text"),
    (int, (int,), "a whole number"),
    (float, (int, float), "a number"),
)
"""Kind of a default, kinds of value it allows, and what to call them."""


@dataclass(frozen=True)
class TaskEntry(Generic[Task]):
    """One row of a table of tasks."""

    name: str
    description: str
    kind: Kind
    load: Callable[..., Task]
    """Its parameters are the task's options."""

    def options(self) -> tuple[str, ...]:
        """Name the options the task takes, in the order of its loader."""
        return tuple(inspect.signature(self.load).parameters)


def load_entry(table: Mapping[str, TaskEntry[Task]], name: str, options: Mapping[str, object]) -> Task:
    """Load a task of a table.

    Args:
        table: Tasks by name.
        name: One of them.
        options: The task's own options, plain values as they come from a YAML file.

    Returns:
        The task, checked.

    Raises:
        UnknownNameError: If the task or an option stands in no table.
        TaskError: If an option is missing or of the wrong kind, or the rows cannot be used.

    Example:
        >>> table = {"greeting": TaskEntry("greeting", "a text", "pairs", lambda to="you": f"hello {to}")}
        >>> load_entry(table, "greeting", {"to": "all"})
        'hello all'
    """
    if name not in table:
        raise unknown_name("task", name, table)
    entry = table[name]
    check_options("task", name, entry.load, options, check_kind=_check_kind)
    return entry.load(**options)


def check_options(
    what: str, name: str, load: Callable[..., object], options: Mapping[str, object], *, check_kind: CheckKind
) -> None:
    """Refuse options that a loader does not take, values of another kind, and options that are missing.

    Args:
        what: What is loaded, as messages call it.
        name: Its name.
        load: The loader; its parameters are the options.
        options: Options by name.
        check_kind: Refuses a value of another kind than the parameter's; gets the name, the parameter and the value.

    Raises:
        UnknownNameError: An option the loader does not take.
        TaskError: An option is missing, or what `check_kind` raises.
    """
    parameters = inspect.signature(load).parameters
    for option, value in options.items():
        if option not in parameters:
            raise unknown_name(f"{what} option", option, parameters, hint=f"These are the options of {what} {name!r}.")
        check_kind(name, parameters[option], value)
    for option, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise TaskError(f"{what} {name!r} needs the option `{option}`, which was not given.")


def _check_kind(name: str, parameter: inspect.Parameter, value: object) -> None:
    """Refuse `header: "false"` and its like: a non-empty text is true to Python."""
    for kind, allowed, noun in _KINDS:
        if isinstance(parameter.default, kind):
            if not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool)):
                raise TaskError(f"task option `{parameter.name}` of {name!r} is {value!r}, but {noun} is needed.")
            return
