"""A run: extract what is missing, fit, report, all into one folder."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from extract.cache import LatentCache
from extract.errors import TaskError
from extract.loading import choose_device, load_decoder
from extract.progress import ExtractionProgress
from extract.runner import extract_latents
from extract.workers import Workers, join_workers
from probes.config import RunConfig
from probes.evaluate import Setting, evaluate_head
from probes.fit import EpochReport
from probes.record import describe_cache, describe_program, describe_task, open_folder
from probes.report.write import write_report
from probes.tasks import PairTask

SCORES_SCHEMA = 1


@dataclass(frozen=True)
class Watcher:
    """Who is told what a run does; by default nobody.

    Attributes:
        say: Receives one-line remarks.
        extraction: Makes the progress of an extraction from its title; silent when absent.
        epochs: Makes, for a head and a seed, the function told of every epoch; silent when absent.
    """

    say: Callable[[str], None] = lambda _: None
    extraction: Callable[[str], ExtractionProgress] | None = None
    epochs: Callable[[str, int], EpochReport] | None = None


SILENT = Watcher()


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        folder: The run folder.
        scores: The content of its scores.json.
    """

    folder: Path
    scores: dict[str, Any]


def obtain_cache(config: RunConfig, task: PairTask, *, watcher: Watcher = SILENT) -> LatentCache:
    """Find the cache a run needs, or extract it.

    Args:
        config: The run.
        task: Its task; every text of every split is extracted.
        watcher: Is told what happens.

    Returns:
        The whole cache.

    Raises:
        IcecoreError: The decoder, the texts or the disk do not allow it; says which.
    """
    workers: Workers = join_workers(config.decoder.device)
    decoder = load_decoder(replace(config.decoder, device=workers.device), report=watcher.say)
    title = f"extracting {task.name}"
    progress = watcher.extraction(title) if watcher.extraction and workers.rank == 0 else None
    return extract_latents(
        decoder, task.texts(), spec=config.extraction, folder=config.caches, progress=progress, workers=workers
    )


def run(
    config: RunConfig, *, cache: LatentCache | None = None, watcher: Watcher = SILENT, command: str = ""
) -> RunResult:
    """Run a configuration: extract what is missing, fit every head, report.

    Args:
        config: The run.
        cache: Latents to use instead of extracting; must hold every text of the task.
        watcher: Is told what happens.
        command: The command line, for the record.

    Returns:
        The run folder and its scores.

    Raises:
        IcecoreError: Any input the run cannot work with, in one sentence. What is cached or fitted stays.

    Example:
        >>> from probes import RunConfig, run
        >>> result = run(RunConfig(name="demo"))  # doctest: +SKIP
        >>> result.scores["heads"]["layer-cosine"]["chosen"]  # doctest: +SKIP
    """
    started = time.monotonic()
    task = config.task.load()
    require_splits(task)  # told before anything is extracted
    if cache is None:
        cache = obtain_cache(config, task, watcher=watcher)
    extracted = time.monotonic()
    watcher.say(f"latents: {cache.path} ({len(cache):,} texts, {len(cache.layers)} layers)")
    folder = open_folder(config.runs, config.name, config.to_dict())
    device = str(choose_device(config.decoder.device))
    setting = Setting(cache, task, config.seeds, config.bootstrap, device, folder / "heads")
    heads = {}
    for name, options in config.heads.items():
        watch = partial(watcher.epochs, name) if watcher.epochs else None
        heads[name] = evaluate_head(name, options or {}, setting, watch=watch)
    scores = {
        "schema": SCORES_SCHEMA,
        "name": config.name,
        "protocol": config.protocol,
        "command": command,
        **describe_program(),
        "device": device,
        "n_resamples": config.bootstrap,
        "decoder": cache.manifest.provenance["decoder"],
        "cache": describe_cache(cache),
        "task": describe_task(task),
        "heads": heads,
        "seconds": {
            "extraction": round(extracted - started, 2),
            "heads": round(time.monotonic() - extracted, 2),
        },
    }
    write_report(folder, scores, cache)
    return RunResult(folder, scores)


def require_splits(task: PairTask) -> None:
    """Refuse a task without the splits that every head is fitted and chosen on.

    Raises:
        TaskError: Names the missing split.
    """
    for split in ("train", "validation"):
        if split not in task.splits:
            raise TaskError(f"task {task.name!r} has no split {split!r}, which every head needs; add rows to it.")
