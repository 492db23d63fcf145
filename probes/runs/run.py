"""A run: extract what is missing, fit, report, all into one folder."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from extract.decoders.loading import choose_device
from extract.errors import TaskError
from extract.store.cache import LatentCache
from probes.fitting.protocols import PROTOCOLS
from probes.heads.pairs.evaluation import Evaluation, evaluate_head
from probes.heads.pairs.fitting import Setting
from probes.heads.saved import AUTOENCODER
from probes.report.residuals import Residuals, residuals_of, write_predictions
from probes.report.write import write_manifest, write_pretraining, write_report, write_scores
from probes.runs.class_runs import describe_class_task, evaluate_classes, require_heads, write_class_report
from probes.runs.config import RunConfig
from probes.runs.obtain import SILENT, EncoderShelf, Watcher, obtain_cache, obtain_corpus
from probes.runs.protocol_tasks import load_run_task
from probes.runs.record import describe_cache, describe_program, describe_task, open_folder
from probes.runs.word_runs import describe_word_task, evaluate_words, require_word_splits, write_word_report
from probes.tasks import PairTask
from probes.tasks.classes.task import ClassTask
from probes.tasks.words.task import WordTask

SCORES_SCHEMA = 2


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        folder: The run folder.
        scores: The content of its scores.json.
    """

    folder: Path
    scores: dict[str, Any]


def run(
    config: RunConfig, *, cache: LatentCache | None = None, corpus_cache: LatentCache | None = None,
    watcher: Watcher = SILENT, command: str = "",
) -> RunResult:  # fmt: skip
    """Run a configuration: extract what is missing, fit every head, report.

    Args:
        config: The run.
        cache: Latents to use instead of extracting; must hold every text of the task.
        corpus_cache: The same for the pretraining corpus.
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
    task = load_run_task(config)
    if isinstance(task, ClassTask):
        return _run_classes(config, task, cache=cache, watcher=watcher, command=command)
    if isinstance(task, WordTask):
        return _run_words(config, task, cache=cache, watcher=watcher, command=command)
    require_splits(task, protocol=config.protocol)  # told before anything is extracted
    corpus = obtain_corpus(config)
    cache = cache or obtain_cache(config, task, watcher=watcher)
    if corpus is not None and corpus_cache is None:
        corpus_cache = obtain_cache(config, corpus, watcher=watcher)
    extracted = time.monotonic()
    watcher.say(f"latents: {cache.path} ({len(cache):,} texts, {len(cache.layers)} layers)")
    folder = open_folder(config.runs, config.name, config.to_dict())
    pretrained = EncoderShelf(config, corpus_cache, watcher)
    setting = Setting(
        cache, task, config.seeds, config.bootstrap, str(choose_device(config.decoder.device)), folder / "heads",
        protocol=config.protocol, calibration=config.calibration, anchor_identical=config.anchor_identical,
        autoencoders=pretrained if corpus_cache else None,
    )  # fmt: skip
    found: dict[str, Evaluation] = {}
    for name, options in config.heads.items():
        watch = partial(watcher.epochs, name) if watcher.epochs else None
        found[name] = evaluate_head(name, options or {}, setting, watch=watch)
    scores = {
        **_describe(config, cache, device=setting.device, command=command),
        "task": describe_task(task),
        "pretraining": pretrained.describe(corpus),
        "heads": {name: evaluation.scores for name, evaluation in found.items()},
        "seconds": _durations(started, extracted),
    }
    residuals = _residuals(task, found)
    for name, of_head in residuals.items():
        scores["heads"][name]["residuals"] = {split: each.to_dict() for split, each in of_head.items()}
    write_predictions(folder / "predictions.csv", task, {name: each.calibrated for name, each in found.items()})
    write_report(folder, scores, cache, residuals=residuals)
    return RunResult(folder, scores)


def _run_classes(
    config: RunConfig, task: ClassTask, *, cache: LatentCache | None, watcher: Watcher, command: str
) -> RunResult:
    """Run a configuration whose task is one of classification."""
    started = time.monotonic()
    require_heads(config, task)  # told before anything is extracted
    cache = cache or obtain_cache(config, task, watcher=watcher)
    extracted = time.monotonic()
    watcher.say(f"latents: {cache.path} ({len(cache):,} texts, {len(cache.layers)} layers)")
    folder = open_folder(config.runs, config.name, config.to_dict())
    device = str(choose_device(config.decoder.device))
    found = evaluate_classes(config, task, cache, device=device, folder=folder / "heads")
    scores = {
        **_describe(config, cache, device=device, command=command),
        "task": describe_class_task(task),
        "heads": {name: result.scores for name, result in found.items()},
        "seconds": _durations(started, extracted),
    }
    write_scores(folder, scores)
    write_manifest(folder, cache)
    write_class_report(folder, scores, task, found)
    return RunResult(folder, scores)


def _run_words(
    config: RunConfig, task: WordTask, *, cache: LatentCache | None, watcher: Watcher, command: str
) -> RunResult:
    """Run a configuration whose task is one of words."""
    started = time.monotonic()
    require_word_splits(task, config)
    cache = cache or obtain_cache(config, task, watcher=watcher)
    extracted = time.monotonic()
    watcher.say(f"latents: {cache.path} ({cache.n_words:,} words, {len(cache.layers)} layers)")
    folder = open_folder(config.runs, config.name, config.to_dict())
    device = str(choose_device(config.decoder.device))
    found = evaluate_words(config, task, cache, device=device, folder=folder / "heads", watcher=watcher)
    scores = {
        **_describe(config, cache, device=device, command=command),
        "task": describe_word_task(task, cache),
        "heads": {name: result.scores for name, result in found.items()},
        "seconds": _durations(started, extracted),
    }
    write_scores(folder, scores)
    write_manifest(folder, cache)
    write_word_report(folder, scores, task, found)
    return RunResult(folder, scores)


def _describe(config: RunConfig, cache: LatentCache, *, device: str, command: str) -> dict[str, Any]:
    """Give what scores.json tells of any run."""
    return {
        "schema": SCORES_SCHEMA,
        "name": config.name,
        "protocol": config.protocol,
        "command": command,
        **describe_program(),
        "device": device,
        "n_resamples": config.bootstrap,
        "decoder": cache.manifest.provenance["decoder"],
        "cache": describe_cache(cache),
    }


def _durations(started: float, extracted: float) -> dict[str, float]:
    return {"extraction": round(extracted - started, 2), "heads": round(time.monotonic() - extracted, 2)}


def pretrain(config: RunConfig, cache: LatentCache, *, watcher: Watcher = SILENT, command: str = "") -> RunResult:
    """Fit the layer-wise autoencoders of a configuration on the texts of a cache, and report their losses.

    Args:
        config: The run; its `pretraining.autoencoder` and `pretraining.seed` count.
        cache: Latents of the corpus.
        watcher: Is told what happens.
        command: The command line, for the record.

    Returns:
        The run folder, with the losses of every layer on held-out texts.

    Raises:
        IcecoreError: An option or a cache that cannot be used.
    """
    folder = open_folder(config.runs, f"{config.name}-{AUTOENCODER}", config.to_dict())
    pretrained = EncoderShelf(config, cache, watcher)
    for pooling in cache.poolings:
        pretrained(pooling)
    scores = {
        "schema": SCORES_SCHEMA,
        "name": folder.name,
        "command": command,
        **describe_program(),
        "device": str(choose_device(config.decoder.device)),
        "decoder": cache.manifest.provenance["decoder"],
        "cache": describe_cache(cache),
        "pretraining": pretrained.describe(None),
    }
    write_pretraining(folder, scores)
    return RunResult(folder, scores)


def _residuals(task: PairTask, found: dict[str, Evaluation]) -> dict[str, dict[str, Residuals]]:
    return {
        name: {
            split: residuals_of(task, split, evaluation.calibrated[split]) for split in task.splits if split != "train"
        }
        for name, evaluation in found.items()
    }


def require_splits(task: PairTask, *, protocol: str = "icecore") -> None:
    """Refuse a task without the splits that every head is fitted and chosen on.

    Raises:
        TaskError: Names the missing split.
    """
    for split in dict.fromkeys(("train", "validation", PROTOCOLS[protocol].selection)):
        if split not in task.splits:
            raise TaskError(f"task {task.name!r} has no split {split!r}, which every head needs; add rows to it.")
