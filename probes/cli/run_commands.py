"""Commands that extract and fit: extract, fit, embed."""

import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from extract.decoders.decoder import Decoder, load_decoder
from extract.errors import ConfigError, InputError, UsageError, unknown_name
from extract.files import write_file
from extract.inputs.batches import stream_texts
from extract.inputs.joined_text import JoinedText
from extract.linear import bfloat16_gain
from extract.run.embed import Estimate, estimate_extraction
from extract.run.extraction import describe_extraction, launched_size, unique_texts
from extract.store.cache import ViewCache, find_cache
from extract.store.manifest import Manifest
from extract.store.writer import WRITERS
from probes.cli.commands import EmbedArgs, ExtractArgs, FitArgs
from probes.cli.screen import read_lines, show, show_run, show_task, watcher_of
from probes.data.task import Corpus, Task, load_corpus, read_texts
from probes.heads.head_table import AUTOENCODER
from probes.runs.folder import command_line
from probes.runs.run import check_heads, find_sides, obtain_cache, obtain_shards, pretrain, run
from probes.runs.run_config import RunConfig, load_run_task, obtain_corpus
from probes.runs.watcher import Watcher

# --- Runs ---


WORTH_SAYING = 1.3
"""How much faster products must be in bfloat16 for a dry run to say so."""


def extract_command(args: ExtractArgs) -> int:
    if args.ray is not None:
        _check_ray(args)
    if args.shards:
        return _extract_shards(args)
    if args.texts and args.dry_run:
        return estimate(args.config, watcher_of(args), [(args.config, read_corpus(args.texts, args.column))])
    if args.texts:
        return embed_file(args.config, args.texts, column=args.column, to=args.out, watcher=watcher_of(args))
    if args.dry_run:
        return estimate(args.config, watcher_of(args))
    for config, source in _sources(args.config, load_run_task(args.config)):
        cache = obtain_cache(config, source, watcher=watcher_of(args))
        for part in cache.views.values() if isinstance(cache, ViewCache) else [cache]:
            show(str(part.path))
    return 0


def _extract_shards(args: ExtractArgs) -> int:
    if args.texts == "-" and launched_size() > 1:
        raise UsageError(
            f"{launched_size()} processes were launched together, and only one can read the standard input; write the "
            "texts to a file that all see, and name it with --texts."
        )
    if args.texts:
        column = column_of(args.texts, args.column)
        lines = (line.rstrip("\n") for line in sys.stdin if line.strip())
        stream: Iterable[str] = lines if args.texts == "-" else stream_texts(args.texts, column=column)
        sources: list[tuple[RunConfig, str, Iterable[str | JoinedText]]] = [
            (args.config, Path(args.texts).name, stream)
        ]
    else:
        all_of_run = _sources(args.config, load_run_task(args.config))
        sources = [(config, source.name, source.texts()) for config, source in all_of_run]
    for config, name, texts in sources:
        folder = Path(args.shards, name if len(sources) > 1 else "")
        cache = obtain_shards(
            config, texts, name=name, folder=folder, window=args.window, n_on_ray=args.ray, watcher=watcher_of(args)
        )
        show(str(cache.path))
    return 0


def _check_ray(args: ExtractArgs) -> None:
    if args.ray is not None and args.ray < 1:
        raise UsageError(f"--ray is {args.ray}; allowed: a number of workers, at least 1.")
    if not args.shards:
        raise UsageError("--ray lets workers fill a folder of shards together; name the folder with --shards.")
    if args.texts == "-":
        raise UsageError(
            "--ray lets every worker read the texts, and none of them can read the standard input; write the texts to "
            "a file that all nodes see, and name it with --texts."
        )
    if launched_size() > 1:
        raise UsageError(
            f"{launched_size()} processes were launched together, and --ray starts workers itself; start one process."
        )


def fit_command(args: FitArgs) -> int:
    from probes.runs.run_caches import find_cache_of, open_named

    config, name, head = args.config, args.cache, args.head
    watcher = watcher_of(args)
    if head == AUTOENCODER:
        spec = config.pretraining
        if not (name or spec.corpus):
            raise ConfigError(
                "there are no texts to fit autoencoders on; give --cache FILE, or name a corpus with "
                "pretraining.corpus (icecore list corpora)."
            )
        texts = None if name else load_corpus(spec.corpus, spec.texts, spec.options)
        cache = open_named(name) if texts is None else find_cache_of(config, texts)
        result = pretrain(config, cache, watcher=watcher, command=command_line())
        show(f"{result.folder}/summary.md holds the losses of every layer.")
        return 0
    if head:  # a head for another kind of task is refused by name
        config = replace(config, heads={head: config.heads.get(head)})
    cache = open_named(name) if name else find_cache_of(config, load_run_task(config))
    corpus = obtain_corpus(config)
    corpus_cache = find_cache_of(config, corpus) if corpus else None
    loaded = run(config, cache=cache, corpus_cache=corpus_cache, watcher=watcher, command=command_line())
    show_run(loaded.folder, loaded.record)
    return 0


def _sources(config: RunConfig, task: Task) -> list[tuple[RunConfig, Task | Corpus]]:
    """Give everything whose texts a run extracts, and how: its task, and the corpus that its heads start from.

    Queries and documents are two where the template tells them apart.
    """
    sides, corpus = find_sides(config, task), obtain_corpus(config)
    sources: list[tuple[RunConfig, Task | Corpus]] = [(config, sides.queries if sides else task)]
    if sides:
        sources.append((sides.config, sides.documents))
    return sources if corpus is None else [*sources, (config, corpus)]


def estimate(
    config: RunConfig,
    watcher: Watcher,
    sources: Sequence[tuple[RunConfig, Task | Corpus]] = (),
    *,
    task: Task | None = None,
) -> int:
    """Estimate an extraction: of the sources, or where there are none of what a run extracts; `task` was shown.

    What a run would find in a cache is not estimated.
    """
    is_cached = not sources
    if not sources:
        if task is None:
            task = load_run_task(config)
            show_task(task)
        sources = _sources(config, task)
        check_heads(config, task)  # the splits that they need are there, with enough rows
    decoder = load_decoder(config.decoder, report=watcher.say)
    estimates: list[Estimate] = []
    lines: list[str] = []
    for member, source in sources:
        texts = unique_texts(source.texts())
        lines += [f"{source.name}:"] * (len(sources) > 1)
        for joined, views in member.extraction.passes:
            lines += [f"view      {', '.join(views)}"] * bool(member.extraction.views)
            for spec in joined.members:
                manifest = describe_extraction(decoder, texts, spec)
                lines += _settings_lines(manifest)
                read = [member.extraction.readings[name] for name in views] if member.extraction.views else [spec]
                parts = [describe_extraction(decoder, texts, part).identity for one in read for part in one.members]
                if is_cached and all(find_cache(Path(member.caches), part) for part in parts):
                    lines.append(f"cached    in {member.caches}: nothing to extract")
                    continue
                estimates.append(estimate_extraction(decoder, texts, spec=spec, manifest=manifest))
                lines += _estimate_lines(estimates[-1], len(manifest.layers))
    if len(estimates) > 1:
        lines += ["together:", *_total_lines(estimates)]
    show("\n".join([*lines, *(_faster_line(decoder) if estimates else ())]))
    return 0


def _faster_line(decoder: Decoder) -> list[str]:
    """Say when bfloat16 would pay on this CPU: a line, or none."""
    weights = [layer.weight for layer in decoder.module.modules() if isinstance(layer, torch.nn.Linear)]
    gain = bfloat16_gain(max(weights, key=torch.Tensor.numel)) if weights else None
    if gain is None or gain < WORTH_SAYING:
        return []
    return [
        f"faster    products take 1/{gain:.1f} of the time in bfloat16 on this processor (--decoder.dtype bfloat16); "
        "docs/speed.md says what that did to scores"
    ]


def _settings_lines(manifest: Manifest) -> list[str]:
    """Write out what is in force once defaults and protocol are filled in: plan, template and poolings."""
    template = {key: value for key, value in manifest.identity.template.items() if key != "window"}
    said = ", ".join(f"{key} {'none' if value in (None, '') else repr(value)}" for key, value in template.items())
    return [f"plan      {manifest.identity.plan}", f"template  {said}", f"poolings  {', '.join(manifest.poolings)}"]


def _estimate_lines(estimate: Estimate, n_layers: int) -> list[str]:
    """Write an estimate out: rows, tokens, words if any, bytes per pooling and layer, time."""
    noun = "unique texts, or windows of them" if estimate.n_words else "unique texts"
    lines = [
        f"rows      {estimate.n_rows:,} {noun}, the longest of {estimate.longest:,} tokens, "
        f"{estimate.n_truncated:,} truncated",
        f"example   {estimate.example}",
        f"tokens    {estimate.n_tokens:,}",
        *([f"words     {estimate.n_words:,}"] if estimate.n_words else []),
    ]
    for pooling, size in estimate.bytes_by_pooling().items():
        lines.append(f"{pooling:9} {size / 1e6:,.1f} MB, {size / n_layers / 1e6:,.2f} MB for each of {n_layers} layers")
    return [*lines, *_total_lines([estimate])]


def _total_lines(estimates: Sequence[Estimate]) -> list[str]:
    seconds = sum(estimate.seconds for estimate in estimates)
    rate = sum(estimate.n_tokens for estimate in estimates) / seconds
    minutes, rest = divmod(round(seconds), 60)
    return [
        f"disk      {sum(estimate.n_bytes for estimate in estimates) / 1e6:,.1f} MB in all",
        f"time      about {minutes} min {rest} s for the extraction, at {rate:,.0f} tokens/s; heads are not estimated",
    ]


# --- Latents of a file ---


def embed_command(args: EmbedArgs) -> int:
    return embed_file(args.config, args.file, column=args.column, to=args.out, watcher=watcher_of(args))


def column_of(file: str, column: str) -> str:
    """Return the column of the texts of a file; `UsageError` where one is named and the file is no table."""
    if column and (file in ("-", "task") or Path(file).suffix.lower() == ".txt"):
        raise UsageError(f"--column names a column of a table, but the texts come from {file!r}; leave --column out.")
    return column or "text"


def read_corpus(file: str, column: str) -> Corpus:
    """Read the texts of a file, or of standard input for `-`, with repeats; an InputError for none."""
    name, column = "standard input" if file == "-" else Path(file).name, column_of(file, column)
    lines = read_lines(file) if file == "-" else read_texts(Path(file), column=column)
    texts = tuple(text for text in lines if text.strip())
    if not texts:
        raise InputError(f"{file!r} holds no texts; give at least one, a line each.")
    return Corpus(name, file, texts)


def embed_file(config: RunConfig, file: str, *, column: str, to: str, watcher: Watcher) -> int:
    """Extract the latents of the texts of a file; also write them to `to` where that is not empty."""
    out = Path(to)
    if to and out.suffix not in (".npy", *WRITERS):
        raise unknown_name("suffix of --out", out.suffix, (".npy", *WRITERS))
    corpus = read_corpus(file, column)
    cache = obtain_cache(config, corpus, watcher=watcher)
    show(str(cache.path))
    if to:
        if out.suffix == ".npy":
            rows, content = cache.rows_of(corpus.texts()), io.BytesIO()
            latents = [cache.gather(rows, pooling).transpose(0, 1).numpy() for pooling in cache.poolings]
            np.save(content, np.stack(latents, axis=2))
            write_file(out, content.getvalue())
        else:
            cache.export(out, texts=corpus.texts())
        show(str(out))
    return 0
