"""Chosen logistic probes on disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probes.fitting.saved import SavedHead, save_fitted
from probes.heads.classes.results import training_names
from probes.logistic.probe import LinearProbe
from probes.logistic.result import LogisticFit
from probes.tasks.classes.task import ClassTask


def save_probe(folder: Path, fit: LogisticFit, task: ClassTask, facts: Mapping[str, Any]) -> SavedHead[LinearProbe]:
    """Write a chosen probe.

    Args:
        folder: Folder of the head; created if absent.
        fit: The probe alone: one layer, one C.
        task: The task it was fitted on.
        facts: Its `pooling`, `layer` and `convergence`.

    Returns:
        The probe and its record.
    """
    record = {
        "name": "logistic-probe",
        "pooling": facts["pooling"],
        "layers": [facts["layer"]],
        "C": fit.Cs[0],
        "is_pairs": task.is_pairs,
        "task": {"name": task.name, "digest": task.digest()},
        "convergence": facts["convergence"],
    }
    return save_fitted(folder, LinearProbe.of(fit, training_names(task)), record)
