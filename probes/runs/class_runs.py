"""The part of a run that is of classification tasks: heads, scores, files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from extract.decoders.layers import GROUPS, select_from
from extract.errors import ConfigError, TaskError
from extract.store.cache import LatentCache
from probes.heads.classes.logistic_probe import ProbeResult
from probes.heads.classes.registry import (
    ClassHeadOptions,
    check_class_head,
    evaluate_class_head,
    is_one_layer,
    resolve_class_options,
)
from probes.report.classes.summary import class_summary, draw_confusion, draw_surface, write_class_predictions
from probes.runs.config import RunConfig, TaskSpec
from probes.tasks.classes.look_both_ways import look_both_ways_split
from probes.tasks.classes.task import ClassTask
from probes.tasks.table import ALL_TASKS

LBW_OPTIONS: dict[str, dict[str, Any]] = {
    "logistic-probe": {
        "Cs": [1.0], "is_standardised": False, "max_iterations": 100, "oversampling": "times-5", "seed": 42,
        "layers": "final_norm",
    },
    "cosine-threshold": {"choose_on": "test", "layers": "final_norm"},
}  # fmt: skip
"""What the code released with Look Both Ways does; options of the config count before these."""


def spec_of(config: RunConfig) -> TaskSpec:
    """Give the task of a run with the options its protocol sets: look-both-ways drops rare classes, as released.

    Args:
        config: The run.

    Returns:
        The task's spec; options of the config count before the protocol's.
    """
    spec = config.task
    if config.protocol != "look-both-ways" or "rare" not in ALL_TASKS[spec.name].options():
        return spec
    return replace(spec, options={"rare": "drop", **spec.options})


def cut_task(config: RunConfig, task: ClassTask) -> ClassTask:
    """Cut a task as the protocol of a run says.

    Raises:
        TaskError: The rows do not allow it.
    """
    return look_both_ways_split(task) if config.protocol == "look-both-ways" else task


def evaluate_classes(
    config: RunConfig, task: ClassTask, cache: LatentCache, *, device: str, folder: Path
) -> dict[str, ProbeResult]:
    """Fit every head of a configuration on a classification task.

    Args:
        config: The run.
        task: Its task, cut as the protocol says.
        cache: Latents of every text of the task.
        device: Where heads are fitted.
        folder: Where fitted heads are kept, one folder per head.

    Returns:
        Head to what came of it.

    Raises:
        IcecoreError: Rows or options that a head cannot work with.
    """
    found = {}
    for name, resolved in _resolved(config).items():
        found[name] = evaluate_class_head(
            name, resolved, cache, task, device=device, n_resamples=config.bootstrap, folder=folder / name
        )
    return found


def describe_class_task(task: ClassTask) -> dict[str, Any]:
    """Describe a task, for a record of results."""
    return {
        "name": task.name,
        "source": task.source,
        "licence": task.licence,
        "is_sample": task.is_sample,
        "metrics": list(task.metrics),
        "n_classes": task.n_classes,
        "class_names": list(task.class_names),
        "has_groups": task.groups("train") is not None,
        "n_rows": {split: len(rows) for split, rows in task.splits.items()},
        "digest": task.digest(),
        "notes": list(task.notes),
    }


def write_class_report(folder: Path, scores: dict[str, Any], task: ClassTask, results: dict[str, ProbeResult]) -> None:
    """Write predictions, figures and summary into a run folder.

    Args:
        folder: The run folder.
        scores: The content of scores.json.
        task: The task.
        results: Head to what came of it.
    """
    write_class_predictions(folder / "predictions.csv", task, results)
    drawn = folder / "figures"
    drawn.mkdir(exist_ok=True)
    figures: dict[str, str] = {}
    split = "test" if "test" in task.splits else "validation"
    for name, result in results.items():
        stem = name.replace("-", "_")
        draw_surface(scores["heads"][name], drawn / f"{stem}_layers.png", title=f"{name}: score of each layer")
        figures[f"{name}: score of each layer"] = f"figures/{stem}_layers.png"
        if split in result.predictions:
            title = f"{name}: confusion on {split}"
            draw_confusion(task, result.predictions[split], drawn / f"{stem}_confusion.png", split=split, title=title)
            figures[title] = f"figures/{stem}_confusion.png"
    (folder / "summary.md").write_text(class_summary(scores, figures), encoding="utf-8")


def require_selection(config: RunConfig, task: ClassTask) -> None:
    """Refuse a sweep whose plans could be told apart on test alone, or not at all, before anything is extracted.

    Raises:
        ConfigError: Names the head.
        IcecoreError: What a head cannot work with; see `check_class_head`.
    """
    for name, resolved in _resolved(config).items():
        choose_on = getattr(resolved.options, "choose_on", None)
        if choose_on is not None and (choose_on == "test" or choose_on not in task.splits):
            raise ConfigError(
                f"head {name!r} has choose_on {choose_on!r} (protocol {config.protocol}), on which no plan can be "
                f"chosen; allowed: a split of task {task.name!r} but test ({', '.join(task.splits)}). Set choose_on: "
                "validation, or run each plan by itself."
            )
        strengths = getattr(resolved.options, "Cs", None)
        is_one = is_one_layer(_at_hand(resolved.layers, config.extraction.layers))
        if strengths and len(strengths) == 1 and is_one and "validation" not in task.splits:
            raise ConfigError(
                f"head {name!r} has one layer and one C, and task {task.name!r} no validation split (protocol "
                f"{config.protocol}), so there is no score to choose a plan by; give it several Cs or layers, which "
                "train decides on by cross-validation, or use protocol icecore."
            )
        check_class_head(name, resolved, task)


def _at_hand(layers: tuple[str, ...], extracted: tuple[str, ...]) -> tuple[str, ...]:
    """Resolve a selection against the extracted layers, where these are named and need no decoder to be known."""
    return layers if set(extracted) & set(GROUPS) else select_from(layers, sorted(extracted))


def _resolved(config: RunConfig) -> dict[str, ClassHeadOptions]:
    """Resolve the options of every head; those of the config count before the protocol's."""
    defaults = LBW_OPTIONS if config.protocol == "look-both-ways" else {}
    return {
        name: resolve_class_options(name, {**defaults.get(name, {}), **(options or {})})
        for name, options in config.heads.items()
    }


def require_heads(config: RunConfig, task: ClassTask) -> None:
    """Refuse a task that leaves nothing to report, or a head that cannot be fitted on it, before anything is extracted.

    Raises:
        TaskError: The task has neither a validation nor a test split.
        IcecoreError: What a head cannot work with; see `check_class_head`.
    """
    require_rows(task)
    for name, resolved in _resolved(config).items():
        check_class_head(name, resolved, task)


def require_rows(task: ClassTask) -> None:
    """Refuse a task that leaves nothing to report.

    Raises:
        TaskError: It has neither a validation nor a test split.
    """
    if not {"validation", "test"} & set(task.splits):
        raise TaskError(f"task {task.name!r} has only the split train; add validation or test rows.")
