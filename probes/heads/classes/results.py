"""The result of a head for classes, made from its predictions."""

from typing import Any

import numpy as np
from jaxtyping import Int

from extract.errors import TaskError
from probes.heads.options import HeadOptions
from probes.heads.result import HeadResult
from probes.heads.setting import Setting
from probes.metrics.bootstrap import Resampling
from probes.metrics.class_metrics import score_classes
from probes.metrics.intervals import summarise_class_seeds
from probes.tasks.audit import why_optimistic
from probes.tasks.classes.task import ClassTask


def class_result(
    resolved: HeadOptions, setting: Setting, predictions: dict[str, Int[np.ndarray, " N"]], *,
    optimistic_because: str = "", **facts: Any,
) -> HeadResult:  # fmt: skip
    """Score predictions of every split by every metric of the task.

    Args:
        resolved: The head and its options.
        setting: What all heads of the run share.
        predictions: Split to `(N,)` classes, as the task numbers them.
        optimistic_because: Why the head's choice makes its numbers optimistic; the task's own reasons are added.
        facts: The other fields of the result.

    Returns:
        The result.
    """
    task = setting.task
    summary = {
        split: {
            metric: summarise_class_seeds(
                found[None], task.labels(split), metric=metric, groups=task.groups(split),
                resampling=Resampling(setting.n_resamples),
            )
            for metric in task.metrics
        }
        for split, found in predictions.items()
    }  # fmt: skip
    return HeadResult(
        name=resolved.name,
        metric=task.metric,
        selection_score=facts["chosen"]["score"],
        summary=summary,
        baselines={"majority": majority_scores(task)},
        optimistic_because="; ".join(filter(None, (optimistic_because, why_optimistic(task)))),
        predictions=predictions,
        names=dict.fromkeys(predictions, task.class_names),
        row_scores={split: (found == task.labels(split)).astype(np.float64) for split, found in predictions.items()},
        **facts,
    )


def majority_scores(task: ClassTask) -> dict[str, float]:
    """Score the most frequent training class on every split: what a probe must beat."""
    most = int(np.bincount(task.labels("train")).argmax())
    return {
        split: float(score_classes(np.full(len(rows), most), task.labels(split), metric=task.metric))
        for split, rows in task.splits.items()
    }


def training_names(task: ClassTask) -> list[str]:
    """Name the classes that train has rows of, in the order of a probe's outputs."""
    return [task.class_names[number] for number in task.training_classes]


def require_rows(task: ClassTask) -> None:
    """Refuse a task that leaves nothing to report.

    Raises:
        TaskError: It has neither a validation nor a test split.
    """
    if not {"validation", "test"} & set(task.splits):
        raise TaskError(f"task {task.name!r} has only the split train; add validation or test rows.")


def fewest_rows(task: ClassTask, folds: int) -> int:
    """Count the rows per split at which every class has one, or one for every fold of cross-validation.

    Args:
        task: The task.
        folds: Folds, which a task without a validation split is scored by.

    Returns:
        Rows per split.
    """
    counts = [np.unique(task.labels(split), return_counts=True)[1] for split in task.splits]
    if "validation" in task.splits:
        return max(len(each) for each in counts)
    (train,) = counts
    return len(train) + int(np.ceil(folds * train.sum() / train.min()))
