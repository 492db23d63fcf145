"""A run: extract what is missing, fit, report, all into one folder."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from extract.cache import LatentCache
from extract.digest import digest_json
from extract.errors import ConfigError, TaskError
from extract.loading import choose_device, load_decoder
from extract.progress import ExtractionProgress
from extract.runner import extract_latents
from extract.workers import Workers, join_workers
from probes.config import RunConfig
from probes.evaluate import Setting, evaluate_head
from probes.fit import EpochReport
from probes.report.write import write_report
from probes.tasks import PairTask, load_task

SCORES_SCHEMA = 1
PACKAGES = ("icecore", "torch", "transformers", "lightning", "scipy", "numpy")


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


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        folder: The run folder.
        scores: The content of its scores.json.
    """

    folder: Path
    scores: dict[str, Any]


def obtain_cache(config: RunConfig, task: PairTask, *, watcher: Watcher = Watcher()) -> LatentCache:
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
    config: RunConfig, *, cache: LatentCache | None = None, watcher: Watcher = Watcher(), command: str = ""
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
    task = load_task(config.task.name, **config.task.options)
    for split in ("train", "validation"):  # told before anything is extracted
        if split not in task.splits:
            raise TaskError(f"task {task.name!r} has no split {split!r}, which every head needs; add rows to it.")
    if cache is None:
        cache = obtain_cache(config, task, watcher=watcher)
    extracted = time.monotonic()
    watcher.say(f"latents: {cache.path} ({len(cache):,} texts, {len(cache.layers)} layers)")
    folder = _open_folder(config)
    setting = Setting(cache, task, config.seeds, config.bootstrap, _device(config), folder / "heads")
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
        "device": _device(config),
        "n_resamples": config.bootstrap,
        "decoder": cache.manifest.provenance["decoder"],
        "cache": _describe_cache(cache),
        "task": _describe_task(task),
        "heads": heads,
        "seconds": {
            "extraction": round(extracted - started, 2),
            "heads": round(time.monotonic() - extracted, 2),
        },
    }
    write_report(folder, scores, cache)
    return RunResult(folder, scores)


def _open_folder(config: RunConfig) -> Path:
    """Open the folder of a run; another configuration of the same name keeps its own folder, nothing is overwritten."""
    text = yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)
    folder = Path(config.runs) / config.name
    taken = folder / "config.yaml"
    if taken.is_file() and taken.read_text(encoding="utf-8") != text:
        folder = folder.with_name(f"{config.name}-{digest_json(config.to_dict())[:8]}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the run folder {str(folder)!r} cannot be written ({error}); set `runs`.") from error
    return folder


def _device(config: RunConfig) -> str:
    return str(choose_device(config.decoder.device))


def _describe_cache(cache: LatentCache) -> dict[str, Any]:
    identity = cache.identity
    return {
        "file": cache.path.name,
        "id": cache.manifest.id,
        "plan": identity["plan"],
        "template": identity["template"],
        "poolings": list(cache.poolings),
        "storage_dtype": cache.storage_dtype,
        "n_rows": len(cache),
        "n_truncated": int(cache.is_truncated.sum()),
        "certificate": cache.certificate,
    }


def _describe_task(task: PairTask) -> dict[str, Any]:
    return {
        "name": task.name,
        "source": task.source,
        "is_sample": task.is_sample,
        "score_range": list(task.score_range),
        "n_pairs": {split: len(rows) for split, rows in task.splits.items()},
        "digest": task.digest(),
        "notes": list(task.notes),
    }


def describe_program() -> dict[str, Any]:
    """Give commit and versions, for a record of results."""
    return {"commit": _commit(), "versions": {package: version(package) for package in PACKAGES}}


def _commit() -> str:
    """Commit of the checkout this code runs from; empty when installed from a wheel."""
    if not (Path(__file__).parents[1] / ".git").exists():  # a wheel may lie inside somebody else's checkout
        return ""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def command_line() -> str:
    """Give this process's command line, the program by its name alone."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
