"""Classification tasks: texts or pairs of one class each."""

from probes.tasks.classes.look_both_ways import look_both_ways_split
from probes.tasks.classes.readers import load_class_hub, load_class_sample, read_class_files
from probes.tasks.classes.task import ClassTask, build_class_splits

__all__ = [
    "ClassTask",
    "build_class_splits",
    "load_class_hub",
    "load_class_sample",
    "look_both_ways_split",
    "read_class_files",
]
