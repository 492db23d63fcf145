"""The commands that take a configuration: run, extract, fit."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console

from extract.decoders.decoder import Decoder
from extract.decoders.loading import load_decoder
from extract.errors import ConfigError, UsageError
from extract.inputs.streams import stream_texts
from extract.linear import bfloat16_gain
from extract.run.estimate import Estimate, estimate_extraction
from extract.run.runner import describe_extraction, unique_texts
from extract.run.workers import launched_size
from extract.store.cache import LatentCache
from extract.store.manifest import Manifest
from extract.store.shards.cache import open_cache
from probes.cli.commands.embed import column_of, embed_file, read_corpus
from probes.cli.screen import show, watcher_of
from probes.heads.pairs.autoencoders import AUTOENCODER
from probes.report.write import screen_table
from probes.runs.config import RunConfig
from probes.runs.existing import find_cache_of
from probes.runs.kinds import KINDS
from probes.runs.obtain import (
    Watcher,
    check_heads,
    find_sides,
    load_run_task,
    obtain_cache,
    obtain_corpus,
    obtain_shards,
)
from probes.runs.record import command_line
from probes.runs.run import RunResult, pretrain, run
from probes.tasks.base import Task
from probes.tasks.corpora import load_corpus
from probes.tasks.corpus import Corpus

WORTH_SAYING = 1.3
"""How much faster products must be in bfloat16 for a dry run to say so."""


def run_command(found: SimpleNamespace) -> int:
    """Extract what is missing, fit every head, report."""
    if found.dry_run:
        return _dry_run(found.config, watcher_of(found))
    _show(run(found.config, watcher=watcher_of(found), command=command_line()))
    return 0


def extract_command(found: SimpleNamespace) -> int:
    """Extract the latents of a config's task, or of the texts of a file, into a cache, or find them there."""
    if found.ray is not None:
        _check_ray(found)
    if found.shards:
        return _extract_shards(found)
    if found.texts and found.dry_run:
        return _dry_run(found.config, watcher_of(found), [(found.config, read_corpus(found.texts, found.column))])
    if found.texts:
        return embed_file(found.config, found.texts, column=found.column, to=found.out, watcher=watcher_of(found))
    if found.dry_run:
        return _dry_run(found.config, watcher_of(found))
    for config, source in _sources(found.config, load_run_task(found.config)):
        cache = obtain_cache(config, source, watcher=watcher_of(found))
        show(str(cache.path))
    return 0


def _extract_shards(found: SimpleNamespace) -> int:
    if found.texts == "-" and launched_size() > 1:
        raise UsageError(
            f"{launched_size()} processes were launched together, and only one can read the standard input; write the "
            "texts to a file that all see, and name it with --texts."
        )
    if found.texts:
        column = column_of(found.texts, found.column)
        lines = (line.rstrip("\n") for line in sys.stdin if line.strip())
        stream: Iterable[str] = lines if found.texts == "-" else stream_texts(found.texts, column=column)
        sources: list[tuple[RunConfig, str, Iterable[Any]]] = [(found.config, Path(found.texts).name, stream)]
    else:
        all_of_run = _sources(found.config, load_run_task(found.config))
        sources = [(config, source.name, source.texts()) for config, source in all_of_run]
    for config, name, texts in sources:
        folder = Path(found.shards, name if len(sources) > 1 else "")
        cache = obtain_shards(
            config, texts, name=name, folder=folder, window=found.window, n_on_ray=found.ray, watcher=watcher_of(found)
        )
        show(str(cache.path))
    return 0


def _check_ray(found: SimpleNamespace) -> None:
    if found.ray < 1:
        raise UsageError(f"--ray is {found.ray}; allowed: a number of workers, at least 1.")
    if not found.shards:
        raise UsageError("--ray lets workers fill a folder of shards together; name the folder with --shards.")
    if found.texts == "-":
        raise UsageError(
            "--ray lets every worker read the texts, and none of them can read the standard input; write the texts to "
            "a file that all nodes see, and name it with --texts."
        )
    if launched_size() > 1:
        raise UsageError(
            f"{launched_size()} processes were launched together, and --ray starts workers itself; start one process."
        )


def fit_command(found: SimpleNamespace) -> int:
    """Fit and report on a cache that is already there; no decoder is loaded."""
    config, name, head = found.config, found.cache, found.head
    watcher = watcher_of(found)
    if head == AUTOENCODER:
        cache = _open_named(name) if name else find_cache_of(config, _corpus(config))
        result = pretrain(config, cache, watcher=watcher, command=command_line())
        show(f"{result.folder}/summary.md holds the losses of every layer.")
        return 0
    if head:  # a head for another kind of task is refused by name
        config = replace(config, heads={head: config.heads.get(head)})
    cache = _open_named(name) if name else find_cache_of(config, load_run_task(config))
    corpus = obtain_corpus(config)
    corpus_cache = find_cache_of(config, corpus) if corpus else None
    _show(run(config, cache=cache, corpus_cache=corpus_cache, watcher=watcher, command=command_line()))
    return 0


def _corpus(config: RunConfig) -> Corpus:
    spec = config.pretraining
    if not spec.corpus:
        raise ConfigError(
            "there are no texts to fit autoencoders on; give --cache FILE, or name a corpus with pretraining.corpus "
            "(icecore list corpora)."
        )
    return load_corpus(spec.corpus, spec.texts, spec.options)


def _sources(config: RunConfig, task: Task) -> list[tuple[RunConfig, Task | Corpus]]:
    """Give everything whose texts a run extracts, and how: its task, and the corpus that its heads start from.

    Queries and documents are two where the template tells them apart.
    """
    sides, corpus = find_sides(config, task), obtain_corpus(config)
    found: list[tuple[RunConfig, Task | Corpus]] = [(config, sides.queries if sides else task)]
    if sides:
        found.append((sides.config, sides.documents))
    return found if corpus is None else [*found, (config, corpus)]


def _open_named(name: str) -> LatentCache:
    cache = open_cache(name)
    cache.verify()
    return cache


def _show(result: RunResult) -> None:
    scores = result.record
    Console(markup=False).print(screen_table(scores, KINDS[scores.header.kind].report))
    if scores.header.task["is_sample"]:
        show("The task is a sample shipped with icecore: these scores are no benchmark result.")
    show(f"{result.folder}/report.html is the report; summary.md holds the summary, scores.json the numbers.")


def _dry_run(config: RunConfig, watcher: Watcher, sources: Sequence[tuple[RunConfig, Task | Corpus]] = ()) -> int:
    """Estimate an extraction: of the sources, or where there are none of what a run extracts."""
    notes: list[str] = []
    if not sources:
        task = load_run_task(config)
        notes = [f"note      {note}" for note in task.notes]
        sources = _sources(config, task)
        check_heads(config, task)  # the splits that they need are there, with enough rows
    decoder = load_decoder(config.decoder, report=watcher.say)
    estimates: list[Estimate] = []
    lines: list[str] = []
    for own, source in sources:
        texts = unique_texts(source.texts())
        lines += [f"{source.name}:"] * (len(sources) > 1)
        for spec in own.extraction.members:
            manifest = describe_extraction(decoder, texts, spec)
            estimates.append(estimate_extraction(decoder, texts, spec=spec, manifest=manifest))
            lines += [_settings_text(manifest), _dry_run_text(estimates[-1], len(manifest.identity["layers"]))]
    if len(estimates) > 1:
        lines += ["together:", _disk_line(estimates), _time_line(estimates)]
    show("\n".join([*lines, *_faster_line(decoder), *notes]))
    return 0


def _faster_line(decoder: Decoder) -> list[str]:
    """Say when bfloat16 would pay on this CPU: a line, or none."""
    weights = [own.weight for own in decoder.module.modules() if isinstance(own, torch.nn.Linear)]
    gain = bfloat16_gain(max(weights, key=torch.Tensor.numel)) if weights else None
    if gain is None or gain < WORTH_SAYING:
        return []
    return [
        f"faster    products take 1/{gain:.1f} of the time in bfloat16 on this processor (--decoder.dtype bfloat16); "
        "docs/speed.md says what that did to scores"
    ]


def _settings_text(manifest: Manifest) -> str:
    """Write out what is in force once defaults and protocol are filled in: plan, template and poolings."""
    template = {key: value for key, value in manifest.identity["template"].items() if key != "window"}
    said = ", ".join(f"{key} {'none' if value in (None, '') else repr(value)}" for key, value in template.items())
    return f"plan      {manifest.identity['plan']}\ntemplate  {said}\npoolings  {', '.join(manifest.poolings)}"


def _dry_run_text(estimate: Estimate, n_layers: int) -> str:
    """Write an estimate out: rows, tokens, words if any, bytes per pooling and layer, time."""
    what = "unique texts, or windows of them" if estimate.n_words else "unique texts"
    lines = [
        f"rows      {estimate.n_rows:,} {what}, the longest of {estimate.longest:,} tokens, "
        f"{estimate.n_truncated:,} truncated",
        f"example   {estimate.example}",
        f"tokens    {estimate.n_tokens:,}",
        *([f"words     {estimate.n_words:,}"] if estimate.n_words else []),
    ]
    for pooling, size in estimate.bytes_by_pooling().items():
        lines.append(f"{pooling:9} {size / 1e6:,.1f} MB, {size / n_layers / 1e6:,.2f} MB for each of {n_layers} layers")
    return "\n".join([*lines, _disk_line([estimate]), _time_line([estimate])])


def _disk_line(estimates: Sequence[Estimate]) -> str:
    return f"disk      {sum(estimate.n_bytes for estimate in estimates) / 1e6:,.1f} MB in all"


def _time_line(estimates: Sequence[Estimate]) -> str:
    seconds = sum(estimate.seconds for estimate in estimates)
    rate = sum(estimate.n_tokens for estimate in estimates) / seconds
    minutes, rest = divmod(round(seconds), 60)
    return f"time      about {minutes} min {rest} s at {rate:,.0f} tokens/s"
