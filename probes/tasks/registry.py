"""The one table of tasks: a new task is one loader and one row here."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from extract.errors import TaskError, unknown_name
from probes.tasks.pairs import PairTask
from probes.tasks.read_pairs import read_pair_files
from probes.tasks.sts import load_sample, load_stsb, load_stsb_hub, load_stsb_local


@dataclass(frozen=True)
class TaskEntry:
    """One row of the table."""

    name: str
    description: str
    kind: Literal["pairs"]
    load: Callable[..., PairTask]
    """Its parameters are the task's options."""

    def options(self) -> tuple[str, ...]:
        """Name the options the task takes, in the order of its loader."""
        return tuple(inspect.signature(self.load).parameters)


_ENTRIES = (
    TaskEntry("sts-sample", "small sample written for this project, gold 0-5, no benchmark", "pairs", load_sample),
    TaskEntry("stsb", "STS Benchmark: $ICECORE_DATA/stsb where it exists, else the hub", "pairs", load_stsb),
    TaskEntry("stsb-local", "STS Benchmark from its three CSV files, gold 0-5", "pairs", load_stsb_local),
    TaskEntry("stsb-hub", "STS Benchmark (or its like) from the hub, gold 0-1", "pairs", load_stsb_hub),
    TaskEntry("pair-files", "your own CSV, TSV, JSON Lines or Parquet files", "pairs", read_pair_files),
)
TASKS: dict[str, TaskEntry] = {entry.name: entry for entry in _ENTRIES}


def load_task(name: str, /, **options: object) -> PairTask:
    """Load a task of the table.

    Args:
        name: A key of `TASKS`.
        options: The task's own options, plain values as they come from a YAML file.

    Returns:
        The task, checked.

    Raises:
        UnknownNameError: If the task or an option stands in no table.
        TaskError: If an option is missing or of the wrong kind, or the rows cannot be used.

    Example:
        >>> load_task("sts-sample").is_sample
        True
    """
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    entry = TASKS[name]
    for option, value in options.items():
        if option not in entry.options():
            raise unknown_name("task option", option, entry.options(), hint=f"These are the options of task {name!r}.")
        _check_kind(entry, option, value)
    for option, parameter in inspect.signature(entry.load).parameters.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise TaskError(f"task {name!r} needs the option `{option}`, which was not given.")
    return entry.load(**options)


def _check_kind(entry: TaskEntry, option: str, value: object) -> None:
    """Refuse `header: "false"` and its like: a non-empty string is true to Python."""
    default = inspect.signature(entry.load).parameters[option].default
    for kind, noun in ((bool, "true or false"), (str, "a text")):
        if isinstance(default, kind) and not isinstance(value, kind):
            raise TaskError(f"task option `{option}` of {entry.name!r} is {value!r}, but {noun} is needed.")
