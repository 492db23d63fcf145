"""Number tasks: texts with one number each."""

from probes.tasks.numbers.readers import load_number_sample, read_number_files
from probes.tasks.numbers.task import NumberTask

__all__ = ["NumberTask", "load_number_sample", "read_number_files"]
