"""The classes that a head is fitted on, and its result, made from its predictions."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from extract.errors import TaskError
from probes.heads.layerwise import layer_result
from probes.heads.options import HeadOptions
from probes.heads.result import HeadResult
from probes.heads.setting import Setting
from probes.metrics.class_metrics import score_classes
from probes.metrics.intervals import summarise_class_seeds
from probes.tasks.classes.task import ClassTask


def class_result(
    resolved: HeadOptions, setting: Setting, predictions: dict[str, Int[np.ndarray, " N"]], **facts: Any
) -> HeadResult:
    """Score predicted classes of every split, as the task numbers them; `facts` are those of `layer_result`."""
    task = setting.task
    return layer_result(
        resolved,
        setting,
        predictions,
        gold=task.labels,
        summarise=summarise_class_seeds,
        compare=lambda found, gold: (found == gold).astype(np.float64),
        baselines={"majority": majority_scores(task)},
        names=dict.fromkeys(predictions, task.class_names),
        **facts,
    )


def majority_scores(task: ClassTask) -> dict[str, float]:
    """Score the most frequent training class on every split: what a probe must beat."""
    most = int(np.bincount(task.labels("train")).argmax())
    return {
        split: float(score_classes(np.full(len(rows), most), task.labels(split), metric=task.metric))
        for split, rows in task.splits.items()
    }


def training_codes(task: ClassTask) -> Int[Tensor, " N"]:
    """Number the training rows by their places in `task.training_classes`.

    A class of validation or test alone would only add an output: it turns the sigmoid of two classes into a softmax,
    under which the same C is another penalty.
    """
    return torch.from_numpy(np.searchsorted(task.training_classes, task.labels("train")))


def training_names(task: ClassTask) -> list[str]:
    """Name the classes that train has rows of, in the order of a probe's outputs."""
    return [task.class_names[number] for number in task.training_classes]


def require_rows(task: ClassTask) -> None:
    """Refuse with a TaskError a task of train alone, which leaves nothing to report."""
    if not {"validation", "test"} & set(task.splits):
        raise TaskError(f"task {task.name!r} has only the split train; add validation or test rows.")


def fewest_rows(task: ClassTask, folds: int) -> int:
    """Count the rows per split at which every class has one, or one for every fold where there is no validation."""
    counts = [np.unique(task.labels(split), return_counts=True)[1] for split in task.splits]
    if "validation" in task.splits:
        return max(len(each) for each in counts)
    (train,) = counts
    return len(train) + int(np.ceil(folds * train.sum() / train.min()))
