"""Classification tasks: texts or pairs of one class each, with splits, metrics and intervals."""

from probes.metrics.bootstrap import Resampling
from probes.metrics.class_metrics import CLASS_METRICS, class_metric, score_classes
from probes.metrics.intervals import resample_scores, summarise_class_seeds
from probes.tasks.classes.columns import build_class_splits
from probes.tasks.classes.known import CLASS_TASKS, ClassTaskEntry, load_class_task
from probes.tasks.classes.look_both_ways import look_both_ways_split
from probes.tasks.classes.readers import load_class_hub, load_class_sample, read_class_files
from probes.tasks.classes.task import ClassTask

__all__ = [
    "CLASS_METRICS",
    "CLASS_TASKS",
    "ClassTask",
    "ClassTaskEntry",
    "Resampling",
    "build_class_splits",
    "class_metric",
    "load_class_hub",
    "load_class_sample",
    "load_class_task",
    "look_both_ways_split",
    "read_class_files",
    "resample_scores",
    "score_classes",
    "summarise_class_seeds",
]
