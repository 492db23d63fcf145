"""A run: extract what is missing, fit every head, report, all in one folder."""

import time
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from extract.decoders.loading import choose_device
from extract.digest import digest_bytes
from extract.files import read_file
from extract.own.names import describe_own
from extract.run.runner import own_names
from extract.store.cache import LatentCache
from probes.fitting.loggers import with_loggers
from probes.heads.pairs.autoencoders import AUTOENCODER
from probes.heads.registry import HEADS
from probes.heads.result import HeadResult
from probes.heads.setting import Setting
from probes.report.blocks import markdown_table
from probes.report.document import result_rows
from probes.report.scores import Header, PretrainingScores, RunScores
from probes.report.write import write_pretraining, write_run
from probes.runs.config import RunConfig, describe_sources
from probes.runs.existing import config_of, show_as
from probes.runs.kinds import KINDS
from probes.runs.obtain import (
    SILENT,
    EncoderShelf,
    Watcher,
    check_heads,
    find_sides,
    load_run_task,
    obtain_cache,
    obtain_corpus,
)
from probes.runs.record import CONFIG, describe_cache, describe_program, open_folder
from probes.tasks.base import Task


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, and its scores as a typed record."""

    folder: Path
    record: Any

    @property
    def scores(self) -> dict[str, Any]:
        """The content of scores.json."""
        found: dict[str, Any] = self.record.to_dict()
        return found

    def table(self) -> str:
        """Write the results of a run as a Markdown table: a row per head and metric, scores times 100."""
        titles, rows = result_rows(self.record, KINDS[self.record.header.kind].report)
        return markdown_table(rows, titles)


def run(
    config: RunConfig, *, cache: LatentCache | None = None, corpus_cache: LatentCache | None = None,
    watcher: Watcher = SILENT, command: str = "",
) -> RunResult:  # fmt: skip
    """Run a configuration: extract what is missing, fit every head, report.

    Args:
        config: The run.
        cache: Latents to use instead of extracting; must hold every text of the task. What they were extracted with is
            recorded in place of what the configuration says.
        corpus_cache: The same for the pretraining corpus.
        watcher: Receives what happens.
        command: The command line, for the record.

    Returns:
        The run folder and its scores.

    Raises:
        IcecoreError: Any input the run cannot work with, in one sentence. What is cached or fitted stays.

    Example:
        >>> from probes import RunConfig, run
        >>> result = run(RunConfig(name="demo"))  # doctest: +SKIP
        >>> result.record.heads["layer-cosine"].chosen  # doctest: +SKIP
    """
    started = time.monotonic()
    if cache:
        config = config_of(config, cache)
        cache = show_as(cache, config.extraction) or cache
    task = load_run_task(config)
    for note in task.notes:
        watcher.say(f"note: {note}")
    inferred = task.inferred_options()
    sources = config.sources | {f"task.options.{name}": "read from the data" for name in inferred}
    options = {**config.task.options, **inferred}
    config = replace(config, task=replace(config.task, options=options), sources=sources)
    check_heads(config, task)  # before anything is extracted
    _warn_of_notebook_parts(config)
    corpus = obtain_corpus(config)
    sides = find_sides(config, task)
    cache = cache or obtain_cache(config, sides.queries if sides else task, watcher=watcher)
    documents = obtain_cache(sides.config, sides.documents, watcher=watcher) if sides else None
    if corpus is not None and corpus_cache is None:
        corpus_cache = obtain_cache(config, corpus, watcher=watcher)
    extracted = time.monotonic()
    n_latents = f"{cache.n_words:,} words" if cache.is_words else f"{len(cache):,} texts"
    watcher.say(f"latents: {cache.path} ({n_latents}, {len(cache.layers)} layers)")
    folder = open_folder(config.runs, config.name, config.to_dict(), cache, sources=describe_sources(config))
    pretrained = EncoderShelf(config, corpus_cache, watcher)
    setting = make_setting(
        config, task, cache, folder / "heads", autoencoders=pretrained if corpus_cache else None, documents=documents
    )
    heads = evaluate_heads(config, setting, watcher=watcher)
    kind = KINDS[config.task.kind]
    scores = RunScores(
        make_header(
            config, "run", folder, command=command, decoder=cache.manifest.provenance["decoder"],
            task=kind.describe(task, cache),
        ),
        describe_cache(cache),
        heads,
        pretrained.describe(corpus),
        {"extraction": round(extracted - started, 2), "heads": round(time.monotonic() - extracted, 2)},
    )  # fmt: skip
    write_run(folder, scores, task, kind.report, formats=config.figures)
    return RunResult(folder, scores)


def make_setting(
    config: RunConfig, task: Task, cache: LatentCache, folder: Path, *, autoencoders: EncoderShelf | None = None,
    has_details: bool = True, documents: LatentCache | None = None,
) -> Setting:  # fmt: skip
    """Collect what all heads of a run share; `has_details` says whether to describe residuals and subsets of test."""
    return Setting(
        cache, task, config.seeds, config.bootstrap, str(choose_device(config.decoder.device)), folder,
        protocol=config.protocol, calibration=config.calibration, anchor_identical=config.anchor_identical,
        autoencoders=autoencoders, has_details=has_details, documents=documents,
    )  # fmt: skip


def evaluate_heads(config: RunConfig, setting: Setting, *, watcher: Watcher = SILENT) -> dict[str, HeadResult]:
    """Fit every head of a configuration, or find it fitted."""
    return {
        name: HEADS[name].evaluate(
            resolved, setting, with_loggers(partial(watcher.epochs, name), config.loggers, setting.folder / name)
        )
        for name, resolved in config.resolve_heads().items()
    }


def make_header(
    config: RunConfig, what: str, folder: Path, *, command: str, decoder: dict[str, Any], task: dict[str, Any]
) -> Header:
    """Make what every scores.json begins with; the task of a pretraining is empty."""
    return Header(
        what=what, kind=config.task.kind if task else "", protocol=config.protocol, name=folder.name, command=command,
        device=str(choose_device(config.decoder.device)), n_resamples=config.bootstrap, decoder=decoder, task=task,
        config_sha256=digest_bytes(read_file(folder / CONFIG)), own=describe_own(_own_names(config)),
        **describe_program(),
    )  # fmt: skip


def _warn_of_notebook_parts(config: RunConfig) -> None:
    """Warn where a part of the user lives in a notebook or a script, whose code no other process can import."""
    names = [name for name, part in describe_own(_own_names(config)).items() if part["module"] == "__main__"]
    if names:
        warnings.warn(
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} defined in a notebook or script, so another "
            "process cannot load this run; move the code to a module and import it from there.",
            stacklevel=3,
        )


def _own_names(config: RunConfig) -> list[tuple[str, str]]:
    spec = config.extraction
    words = spec.words.poolings if KINDS[config.task.kind].reads_words else None
    return [*own_names(spec.mask_plan, spec.poolings, words), *(("head", name) for name in config.heads)]


def pretrain(config: RunConfig, cache: LatentCache, *, watcher: Watcher = SILENT, command: str = "") -> RunResult:
    """Fit the layer-wise autoencoders of a configuration on the texts of a cache, and report their held-out losses."""
    config = config_of(config, cache)
    folder = open_folder(
        config.runs, f"{config.name}-{AUTOENCODER}", config.to_dict(), cache, sources=describe_sources(config)
    )
    pretrained = EncoderShelf(config, cache, watcher)
    for pooling in cache.poolings:
        pretrained(pooling)
    decoder = cache.manifest.provenance["decoder"]
    header = make_header(config, "pretraining", folder, command=command, decoder=decoder, task={})
    scores = PretrainingScores(header, describe_cache(cache), pretrained.describe(None))
    write_pretraining(folder, scores, formats=config.figures)
    return RunResult(folder, scores)
