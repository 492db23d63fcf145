"""Tasks: rows with gold and splits, from local files, the hub, or the samples shipped with the project."""

from probes.readers.splits import SPLITS
from probes.tasks.base import Task
from probes.tasks.classes.task import ClassTask
from probes.tasks.numbers.task import NumberTask
from probes.tasks.pairs.audit import audit_notes, conflicting_pairs, pair_is_in, repeats_earlier_pair, sentence_is_in
from probes.tasks.pairs.readers import load_sample, load_stsb, load_stsb_hub, load_stsb_local, read_pair_files
from probes.tasks.pairs.task import PairTask
from probes.tasks.table import TASKS, TaskEntry, load_task
from probes.tasks.words.task import WordTask

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
