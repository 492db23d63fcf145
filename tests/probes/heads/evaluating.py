"""Evaluating a head by its name, as a run does, without a run."""

import json
from pathlib import Path
from typing import Any

from extract.store.cache import LatentCache
from probes.data.task import Task
from probes.fitting.fit_options import ignore_epoch
from probes.heads.head_table import head_entry, resolve_head
from probes.heads.layer_head import FitContext, Reporter
from probes.heads.result import HeadResult


def make_setting(
    cache: LatentCache, task: Task, folder: Path, *, seeds: tuple[int, ...] = (0,), **more: Any
) -> FitContext:
    """Share a cache and a task among heads that are kept under a folder; few resamples."""
    return FitContext(cache, task, seeds, more.pop("n_resamples", 100), "cpu", folder, **more)


def evaluate(
    name: str, options: dict[str, Any], setting: FitContext, *, watch: Reporter = lambda _: ignore_epoch
) -> HeadResult:
    """Resolve the options of a head for the task of a setting, and evaluate it."""
    task = setting.task
    resolved = resolve_head(name, options, protocol=setting.protocol, kind=task.kind, task=task.name)
    return head_entry(name).evaluate(resolved, setting, watch)


def as_text(result: HeadResult) -> str:
    """Write a result out to the last digit; unlike dictionaries, texts with NaN in them can be equal."""
    return json.dumps(result.to_dict(), sort_keys=True)
