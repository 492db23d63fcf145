"""The part of a run that is of tasks of words: heads, scores, files."""

from functools import partial
from pathlib import Path
from typing import Any

from extract.errors import TaskError
from extract.store.cache import LatentCache
from probes.heads.words.evaluation import WordResult, WordSetting
from probes.heads.words.registry import evaluate_word_head, resolve_word_options
from probes.report.words.figures import draw_word_figures
from probes.report.words.predictions import write_word_predictions
from probes.report.words.summary import word_summary
from probes.runs.config import RunConfig
from probes.runs.obtain import SILENT, Watcher
from probes.tasks.words.task import WordTask

LBW_TOKENS = 32
"""Tokens that the code released with Look Both Ways keeps of a sentence."""


def evaluate_words(
    config: RunConfig, task: WordTask, cache: LatentCache, *, device: str, folder: Path, watcher: Watcher = SILENT
) -> dict[str, WordResult]:
    """Fit every head of a configuration on a task of words.

    Args:
        config: The run.
        task: Its task.
        cache: Latents of every word of the task.
        device: Where heads are fitted.
        folder: Where fitted heads are kept, one folder per head and seed.
        watcher: Is told of epochs.

    Returns:
        Head to what came of it.

    Raises:
        IcecoreError: Rows or options that a head cannot work with.
    """
    setting = WordSetting(cache, task, config.seeds, config.bootstrap, device, folder, config.protocol)
    found = {}
    for name, options in config.heads.items():
        resolved = resolve_word_options(name, options or {}, protocol=config.protocol)
        watch = partial(watcher.epochs, name) if watcher.epochs else None
        found[name] = evaluate_word_head(name, resolved, setting, watch=watch)
        found[name].scores["departures"] = departures(config.protocol, cache, found[name].scores["pooling"])
    return found


def departures(protocol: str, cache: LatentCache, pooling: str) -> list[str]:
    """Say where a run leaves the protocol it names, because of what the cache holds.

    Args:
        protocol: The protocol.
        cache: The word cache.
        pooling: The word pooling that a head reads.

    Returns:
        One line each; none where the protocol is kept, or leaves it open.
    """
    words, template = cache.identity["words"], cache.identity["template"]
    found = []
    if protocol == "magnet":
        if not words["shift"]:
            found.append("tokens are not shifted by one, as MAGNET shifts them")
        if pooling != "mean":
            found.append(f"a word is the {pooling} of its tokens, and not their mean, as with MAGNET")
    if protocol == "look-both-ways":
        kept = (template["max_tokens"], template["on_long"])
        if kept != (LBW_TOKENS, "truncate"):
            found.append(f"sentences are not cut to {LBW_TOKENS} tokens, as the released code cuts them")
    return found


def write_word_report(folder: Path, scores: dict[str, Any], task: WordTask, results: dict[str, WordResult]) -> None:
    """Write predictions, figures and summary into a run folder.

    Args:
        folder: The run folder.
        scores: The content of scores.json.
        task: The task.
        results: Head to what came of it.
    """
    write_word_predictions(folder / "predictions", task, results)
    figures = draw_word_figures(folder / "figures", scores, results)
    (folder / "summary.md").write_text(word_summary(scores, figures), encoding="utf-8")


def require_word_splits(task: WordTask, config: RunConfig, *, has_plans: bool = False) -> None:
    """Refuse a task without the splits that the heads of a run are fitted and chosen on.

    Args:
        task: The task.
        config: The run.
        has_plans: Whether a plan is chosen as well, as in a sweep.

    Raises:
        TaskError: Names the missing split.
    """
    if "train" not in task.splits:
        raise TaskError(f"task {task.name!r} has no split 'train', which every head needs; add rows to it.")
    if set(task.splits) == {"train"}:
        raise TaskError(f"task {task.name!r} has only the split train; add validation or test rows.")
    for name, options in config.heads.items():
        resolved = resolve_word_options(name, options or {}, protocol=config.protocol)
        if "validation" not in task.splits and (has_plans or resolved.options.keep == "best"):
            what, instead = ("its plan", "") if has_plans else ("its epoch", ", or set keep: last")
            raise TaskError(
                f"task {task.name!r} has no split 'validation', on which head {name!r} chooses {what}; add rows to "
                f"it{instead}."
            )
