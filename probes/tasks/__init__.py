"""Tasks: rows with gold and splits, from local files, the hub, or the samples shipped with the project."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.readers.splits import SPLITS
    from probes.tasks.base import Task
    from probes.tasks.classes.task import ClassTask
    from probes.tasks.numbers.task import NumberTask
    from probes.tasks.pairs.audit import (
        audit_notes,
        conflicting_pairs,
        pair_is_in,
        repeats_earlier_pair,
        sentence_is_in,
    )
    from probes.tasks.pairs.readers import load_sample, load_stsb, load_stsb_hub, load_stsb_local, read_pair_files
    from probes.tasks.pairs.task import PairTask
    from probes.tasks.table import TASKS, TaskEntry, load_task
    from probes.tasks.words.task import WordTask

_HOMES = {
    "SPLITS": "probes.readers.splits",
    "TASKS": "probes.tasks.table",
    "ClassTask": "probes.tasks.classes.task",
    "NumberTask": "probes.tasks.numbers.task",
    "PairTask": "probes.tasks.pairs.task",
    "Task": "probes.tasks.base",
    "TaskEntry": "probes.tasks.table",
    "WordTask": "probes.tasks.words.task",
    "audit_notes": "probes.tasks.pairs.audit",
    "conflicting_pairs": "probes.tasks.pairs.audit",
    "load_sample": "probes.tasks.pairs.readers",
    "load_stsb": "probes.tasks.pairs.readers",
    "load_stsb_hub": "probes.tasks.pairs.readers",
    "load_stsb_local": "probes.tasks.pairs.readers",
    "load_task": "probes.tasks.table",
    "pair_is_in": "probes.tasks.pairs.audit",
    "read_pair_files": "probes.tasks.pairs.readers",
    "repeats_earlier_pair": "probes.tasks.pairs.audit",
    "sentence_is_in": "probes.tasks.pairs.audit",
}
"""Names of this package, loaded when they are used: the table of tasks alone loads no reader."""

__all__ = [
    "SPLITS",
    "TASKS",
    "ClassTask",
    "NumberTask",
    "PairTask",
    "Task",
    "TaskEntry",
    "WordTask",
    "audit_notes",
    "conflicting_pairs",
    "load_sample",
    "load_stsb",
    "load_stsb_hub",
    "load_stsb_local",
    "load_task",
    "pair_is_in",
    "read_pair_files",
    "repeats_earlier_pair",
    "sentence_is_in",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'probes.tasks' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
