"""The commands that take a configuration: run, extract, fit."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from extract.cache import LatentCache
from extract.errors import CacheError, ConfigError
from extract.estimate import Estimate, estimate_extraction
from extract.known import DECODER_ALIASES
from extract.layers import select_layers
from extract.loading import load_decoder
from extract.plan import parse_plan
from extract.runner import describe_extraction, unique_texts
from extract.spec import DecoderSpec, ExtractionSpec
from probes.classes.report import class_table
from probes.cli.parsing import Flags, read_arguments
from probes.cli.screen import screen_watcher
from probes.config import RunConfig
from probes.heads.registry import head_entry
from probes.heads.saved import AUTOENCODER
from probes.known_tasks import AnyTask
from probes.obtain import obtain_cache, obtain_corpus
from probes.record import command_line
from probes.report.table import screen_table
from probes.runs import RunResult, pretrain, run
from probes.tasks.corpus import Corpus, load_corpus

DRY_RUN = (bool, False, "print rows, tokens, bytes and an estimated time; write nothing")


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
    corpus = obtain_corpus(parsed.config)
    sources: list[AnyTask | Corpus] = [_task(parsed.config), *([corpus] if corpus else [])]
    for source in sources:
        cache = obtain_cache(parsed.config, source, watcher=screen_watcher(Console(stderr=True)))
        Console(markup=False).print(f"{cache.path}", soft_wrap=True, highlight=False)
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
        cache = LatentCache(name) if name else find_cache_of(config, _corpus(config))
        result = pretrain(config, cache, watcher=watcher, command=command_line())
        Console(markup=False).print(f"{result.folder}/summary.md holds the losses of every layer.", soft_wrap=True)
        return 0
    if head:
        if head not in config.heads:
            head_entry(head)  # an unknown head is told as such
        config = replace(config, heads={head: config.heads.get(head)})
    cache = LatentCache(name) if name else find_cache_of(config, _task(config))
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


def _task(config: RunConfig) -> AnyTask:
    return config.task.load()


def find_cache_of(config: RunConfig, source: AnyTask | Corpus) -> LatentCache:
    """Find the cache of a task or corpus without its decoder: by name, contents and texts.

    Raises:
        CacheError: None fits, or several do.
    """
    texts = source.texts()
    found = []
    for path in sorted(Path(config.caches).glob("*.h5")):
        try:
            cache = LatentCache(path)
            cache.rows_of(texts)
        except CacheError:
            continue
        if _is_from(cache, config.decoder) and _holds(cache, config.extraction):
            found.append(cache)
    if len(found) != 1:
        names = ", ".join(cache.path.name for cache in found) or "none"
        raise CacheError(
            f"{len(found)} caches in {config.caches!r} fit {source.name!r} in this configuration ({names}); "
            "allowed: exactly one. Name it with --cache FILE, or make it with: icecore extract CONFIG."
        )
    return found[0]


def _is_from(cache: LatentCache, spec: DecoderSpec) -> bool:
    """Whether a cache names the decoder of a configuration; its weights are not at hand to compare."""
    decoder = cache.manifest.provenance["decoder"]
    folder = Path(spec.name).expanduser()
    names = {spec.name, folder.name, folder.resolve().name, DECODER_ALIASES.get(spec.name.lower(), spec.name.lower())}
    adapters = {spec.adapter, Path(spec.adapter).name} if spec.adapter else {""}
    return decoder["name"] in names and decoder["adapter"] in adapters and spec.dtype in ("auto", decoder["dtype"])


def _holds(cache: LatentCache, spec: ExtractionSpec) -> bool:
    """Whether a cache holds what a configuration extracts, or more."""
    identity = cache.identity
    template = {**spec.template.to_dict(), "window": identity["template"]["window"]}
    wanted = (parse_plan(spec.plan).text, template, spec.storage_dtype)
    n_blocks = cache.manifest.provenance["decoder"]["n_layers"]
    return (
        (identity["plan"], identity["template"], identity["storage_dtype"]) == wanted
        and set(select_layers(spec.layers, n_blocks)) <= set(cache.layers)
        and set(spec.poolings) <= set(cache.poolings)
    )


def _show(result: RunResult) -> None:
    console = Console(markup=False)
    is_pairs = "score_range" in result.scores["task"]
    scores = result.scores
    console.print(screen_table(scores) if is_pairs else class_table(scores))
    if result.scores["task"]["is_sample"]:
        console.print("The task is a sample shipped with icecore: these scores are no benchmark result.")
    console.print(f"{result.folder}/summary.md holds the summary, scores.json the numbers.", soft_wrap=True)


def _dry_run(config: RunConfig) -> int:
    texts = unique_texts(_task(config).texts())
    decoder = load_decoder(config.decoder, report=screen_watcher(Console(stderr=True)).say)
    manifest = describe_extraction(decoder, texts, config.extraction)
    estimate = estimate_extraction(decoder, texts, spec=config.extraction, manifest=manifest)
    Console(markup=False).print(
        dry_run_text(estimate, len(manifest.identity["layers"])), highlight=False, soft_wrap=True
    )
    return 0


def dry_run_text(estimate: Estimate, n_layers: int) -> str:
    """Write an estimate out.

    Args:
        estimate: The estimate.
        n_layers: Layers that would be stored.

    Returns:
        A few lines: rows, tokens, bytes per pooling and layer, time.
    """
    lines = [
        f"rows      {estimate.n_rows:,} unique texts, the longest of {estimate.longest:,} tokens, "
        f"{estimate.n_truncated:,} truncated",
        f"tokens    {estimate.n_tokens:,}",
    ]
    for pooling, size in estimate.bytes_by_pooling().items():
        lines.append(f"{pooling:9} {size / 1e6:,.1f} MB, {size / n_layers / 1e6:,.2f} MB for each of {n_layers} layers")
    lines.append(f"disk      {estimate.n_bytes / 1e6:,.1f} MB in all")
    minutes, seconds = divmod(round(estimate.seconds), 60)
    lines.append(f"time      about {minutes} min {seconds} s at {estimate.tokens_per_second:,.0f} tokens/s")
    return "\n".join(lines)
