"""Chosen logistic probes on disk."""

from pathlib import Path

from probes.fitting.saved import save_fitted
from probes.heads.classes.logistic_probe import ProbeResult, training_names
from probes.logistic.probe import LinearProbe
from probes.tasks.classes.task import ClassTask


def save_probe(folder: Path, result: ProbeResult, task: ClassTask) -> None:
    """Write the chosen probe of a result; a head without weights writes nothing.

    Args:
        folder: Folder of the head; created if absent.
        result: The result of fitting.
        task: The task it was fitted on.
    """
    if result.fit is None:
        return
    record = {
        "name": "logistic-probe",
        "pooling": result.scores["pooling"],
        "layers": [result.scores["chosen"]["layer"]],
        "C": result.fit.Cs[0],
        "is_pairs": task.is_pairs,
        "task": {"name": task.name, "digest": task.digest()},
        "convergence": result.scores["convergence"]["chosen"],
    }
    save_fitted(folder, LinearProbe.of(result.fit, training_names(task)), record)
