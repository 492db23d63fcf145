"""The one table of tasks: a new task is one loader and one row here."""

from probes.tasks.entries import TaskEntry, load_entry
from probes.tasks.pairs.files import read_pair_files
from probes.tasks.pairs.sts import load_sample, load_stsb, load_stsb_hub, load_stsb_local
from probes.tasks.pairs.task import PairTask

_ENTRIES = (
    TaskEntry("sts-sample", "small sample written for this project, gold 0-5, no benchmark", "pairs", load_sample),
    TaskEntry("stsb", "STS Benchmark: $ICECORE_DATA/stsb where it exists, else the hub", "pairs", load_stsb),
    TaskEntry("stsb-local", "STS Benchmark from its three CSV files, gold 0-5", "pairs", load_stsb_local),
    TaskEntry("stsb-hub", "STS Benchmark (or its like) from the hub, gold 0-1", "pairs", load_stsb_hub),
    TaskEntry("pair-files", "your own CSV, TSV, JSON Lines or Parquet files", "pairs", read_pair_files),
)
TASKS: dict[str, TaskEntry[PairTask]] = {entry.name: entry for entry in _ENTRIES}


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
    return load_entry(TASKS, name, options)
