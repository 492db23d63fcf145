"""The commands that take a configuration: run, extract, fit."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from extract.decoders.known import DECODER_ALIASES
from extract.decoders.layers import select_layers
from extract.decoders.loading import load_decoder
from extract.decoders.spec import DecoderSpec
from extract.errors import CacheError, ConfigError
from extract.inputs.joined import JoinedText
from extract.poolings.word_pooling import select_word_poolings
from extract.run.estimate import Estimate, estimate_extraction
from extract.run.runner import describe_extraction, unique_texts
from extract.run.spec import ExtractionSpec
from extract.store.cache import LatentCache
from extract.store.manifest import Manifest
from extract.store.reuse import passing_over, whole_caches
from probes.cli.parsing import Flags, read_arguments
from probes.cli.screen import screen_watcher, show
from probes.heads.pairs.pretraining import AUTOENCODER
from probes.report.write import screen_table
from probes.runs.config import RunConfig
from probes.runs.kinds import KINDS
from probes.runs.obtain import load_run_task, obtain_cache, obtain_corpus
from probes.runs.record import command_line
from probes.runs.run import RunResult, pretrain, run
from probes.tasks.base import Task
from probes.tasks.corpus import Corpus, load_corpus

DRY_RUN = (bool, False, "print plan, template, poolings, rows, tokens, bytes and an estimated time; write nothing")


def run_command(argv: Sequence[str]) -> int:
    """Extract what is missing, fit every head, report."""
    parsed = read_arguments("run", argv, description=run_command.__doc__ or "", flags={"dry_run": DRY_RUN})
    if parsed.flags["dry_run"]:
        return _dry_run(parsed.config)
    _show(run(parsed.config, watcher=screen_watcher(Console(stderr=True)), command=command_line()))
    return 0


def extract_command(argv: Sequence[str]) -> int:
    """Extract the latents of a config's task into its cache, or find them there."""
    parsed = read_arguments("extract", argv, description=extract_command.__doc__ or "", flags={"dry_run": DRY_RUN})
    if parsed.flags["dry_run"]:
        return _dry_run(parsed.config)
    for source in _sources(parsed.config):
        cache = obtain_cache(parsed.config, source, watcher=screen_watcher(Console(stderr=True)))
        show(str(cache.path))
    return 0


def fit_command(argv: Sequence[str]) -> int:
    """Fit and report on a cache that is already there; no decoder is loaded."""
    flags: Flags = {
        "cache": (str, "", "the cache file; when absent, found in the caches folder"),
        "head": (
            str, "", f"fit this head alone; {AUTOENCODER!r} fits layer-wise autoencoders on every text of the cache, "
            "which is that of pretraining.corpus when absent",
        ),
    }  # fmt: skip
    parsed = read_arguments("fit", argv, description=fit_command.__doc__ or "", flags=flags)
    config, name, head = parsed.config, parsed.flags["cache"], parsed.flags["head"]
    watcher = screen_watcher(Console(stderr=True))
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


def _sources(config: RunConfig) -> list[Task | Corpus]:
    """Return everything whose texts a run extracts: its task, and the corpus that its heads start from."""
    task, corpus = load_run_task(config), obtain_corpus(config)
    return [task] if corpus is None else [task, corpus]


def find_cache_of(config: RunConfig, source: Task | Corpus) -> LatentCache:
    """Find the one cache of a task or corpus without its decoder: by name, contents and texts."""
    texts = source.texts()
    found = []
    for cache in whole_caches(Path(config.caches)):
        shown = _show_as(cache, config.extraction) if _is_from(cache, config.decoder) else None
        if shown is not None and _has_texts(shown, texts):
            with passing_over(cache.path):
                shown.verify()
                found.append(shown)
    if len(found) != 1:
        names = ", ".join(cache.path.name for cache in found) or "none"
        raise CacheError(
            f"{len(found)} caches in {config.caches!r} fit {source.name!r} in this configuration ({names}); "
            "allowed: exactly one. Name it with --cache FILE, or make it with: icecore extract CONFIG."
        )
    return found[0]


def _has_texts(cache: LatentCache, texts: Sequence[str | JoinedText]) -> bool:
    """Whether a cache holds all of these texts, with their words where they come with them."""
    try:
        if isinstance(texts[0], JoinedText):
            cache.words_of([text for text in texts if isinstance(text, JoinedText)])
        else:
            cache.rows_of([text for text in texts if isinstance(text, str)])
    except CacheError:
        return False
    return True


def _open_named(name: str) -> LatentCache:
    cache = LatentCache(name)
    cache.verify()
    return cache


def _is_from(cache: LatentCache, spec: DecoderSpec) -> bool:
    """Whether a cache names the decoder of a configuration; its weights are not at hand to compare."""
    decoder = cache.manifest.provenance.get("decoder")
    if decoder is None:
        return False
    folder = Path(spec.name).expanduser()
    names = {spec.name, folder.name, folder.resolve().name, DECODER_ALIASES.get(spec.name.lower(), spec.name.lower())}
    adapters = {spec.adapter, Path(spec.adapter).name} if spec.adapter else {""}
    return decoder["name"] in names and decoder["adapter"] in adapters and spec.dtype in ("auto", decoder["dtype"])


def _show_as(cache: LatentCache, spec: ExtractionSpec) -> LatentCache | None:
    """Return of a cache what a configuration extracts; None where it does not hold all of it."""
    identity, n_blocks = cache.identity, cache.manifest.provenance["decoder"]["n_layers"]
    template = {**spec.template.to_dict(), "window": identity["template"]["window"]}
    found = [identity["plan"], identity["template"], identity["storage_dtype"]]
    wanted: list[object] = [spec.mask_plan.text, template, spec.storage_dtype]
    poolings = spec.poolings
    if cache.is_words:
        found += [identity["words"]["shift"], identity["words"]["on_lost"]]
        wanted += [spec.words.shift, spec.words.on_lost]
        poolings = select_word_poolings(spec.words.poolings, spec.mask_plan, n_blocks)
    layers = select_layers(spec.layers, n_blocks)
    if found != wanted or not (set(layers) <= set(cache.layers) and set(poolings) <= set(cache.poolings)):
        return None
    part = (
        {"words": {**identity["words"], "poolings": list(poolings)}} if cache.is_words else {"poolings": list(poolings)}
    )
    return cache.shown_as({**identity, "layers": list(layers), **part})


def _show(result: RunResult) -> None:
    scores = result.record
    Console(markup=False).print(screen_table(scores, KINDS[scores.header.kind].report))
    if scores.header.task["is_sample"]:
        show("The task is a sample shipped with icecore: these scores are no benchmark result.")
    show(f"{result.folder}/summary.md holds the summary, scores.json the numbers.")


def _dry_run(config: RunConfig) -> int:
    sources = _sources(config)
    decoder = load_decoder(config.decoder, report=screen_watcher(Console(stderr=True)).say)
    estimates: list[Estimate] = []
    lines: list[str] = []
    for source in sources:
        texts = unique_texts(source.texts())
        manifest = describe_extraction(decoder, texts, config.extraction)
        estimates.append(estimate_extraction(decoder, texts, spec=config.extraction, manifest=manifest))
        lines += [f"{source.name}:"] * (len(sources) > 1)
        lines += [_settings_text(manifest), _dry_run_text(estimates[-1], len(manifest.identity["layers"]))]
    if len(sources) > 1:
        lines += ["together:", _disk_line(estimates), _time_line(estimates)]
    show("\n".join(lines))
    return 0


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
