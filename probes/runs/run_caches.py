"""Caches without their decoder: finding that of a configuration, and a configuration that says what a cache holds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from extract.decoders.decoder_spec import DECODER_ALIASES, DecoderSpec, select_layers
from extract.errors import CacheError, ConfigError
from extract.files import digest_rows
from extract.inputs.joined_text import JoinedText, digest_texts
from extract.inputs.template import InputTemplate
from extract.poolings.pooling_table import REBA, RebaOptions, select_word_poolings
from extract.records import Values, complete, forget_defaults
from extract.registry import describe_own, import_own
from extract.run.extraction import own_names, unique_texts
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.store.cache import LatentCache, MeanCache, ViewCache, open_cache, passing_over, whole_caches
from extract.store.manifest import Plain, view_parts
from extract.store.reader import INDEX
from probes.data.task import Corpus, Task
from probes.fitting.fit_options import find_protocol
from probes.runs.folder import RunFolder
from probes.runs.run_config import RunConfig


def find_cache_of(config: RunConfig, source: Task | Corpus) -> LatentCache:
    """Find the one cache of a task or corpus without its decoder: by name, contents and texts."""
    return _find_cache(config, config.extraction, source)


def _find_cache(config: RunConfig, spec: ExtractionSpec, source: Task | Corpus) -> LatentCache:
    """Find the cache of one extraction; of views, and of templates that are averaged, that of each."""
    if spec.views:
        return ViewCache({name: _find_cache(config, view, source) for name, view in spec.readings.items()})
    members = spec.members
    if len(members) > 1:
        parts = [_find_cache(config, member, source) for member in members]
        window = {"window": parts[0].identity.template["window"]}
        template = {**spec.template.to_dict(), **window}
        return MeanCache(parts, identity=replace(parts[0].identity, template=template))
    texts = source.texts()
    matches = []
    for cache in whole_caches(Path(config.caches)):
        match = show_as(cache, spec) if _is_from(cache, config.decoder) else None
        if match is not None and _has_texts(match, texts):
            with passing_over(cache.path):
                match.verify_latents()
                matches.append(match)
    if len(matches) > 1:  # of several that hold these texts, the one that holds no others
        digest = digest_rows(digest_texts(unique_texts(texts)))
        matches = [cache for cache in matches if cache.identity.text_digest == digest] or matches
    if len(matches) != 1:
        names = ", ".join(cache.path.name for cache in matches) or "none"
        raise CacheError(
            f"{len(matches)} caches in {config.caches!r} fit {source.name!r} in this configuration ({names}); "
            "allowed: exactly one. Name it with --cache FILE, or make it with: icecore extract CONFIG."
        )
    return matches[0]


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


def open_named(source: str | Path, caches: str | Path = "") -> LatentCache:
    """Open a cache file, shards, or the cache of a run, in `caches` or where it says, and compare the checksums."""
    if is_run(Path(source)):
        return RunFolder(Path(source)).cache(caches)
    cache = open_cache(source)
    cache.verify_latents()
    return cache


def is_run(source: Path) -> bool:
    """Whether a path is that of a run, not of a cache file or of a folder of shards."""
    return source.is_dir() and not (source / INDEX).is_file()


def config_of(config: RunConfig, cache: LatentCache) -> RunConfig:
    """Return a configuration whose decoder and extraction are those of a cache; unchanged where they are already."""
    if _is_from(cache, config.decoder) and show_as(cache, config.extraction) is not None:
        return config
    if config.views or cache.identity.views is not None:
        views = ", ".join(view_parts(cache.identity)) or "none"
        raise ConfigError(
            f"cache {cache.path.name!r} has other views ({views}) or other latents than the configuration "
            f"({', '.join(config.views) or 'none'}); give the configuration those of the cache, or leave the cache out."
        )
    decoder = config.decoder
    if not _is_from(cache, decoder):
        recorded = cache.manifest.provenance["decoder"]
        adapter = recorded["adapter"] or None
        decoder = replace(decoder, name=recorded["name"], adapter=adapter, dtype=recorded["dtype"], revision=None)
    import_own(cache.manifest.provenance.get("own", {}), folder=cache.path)
    spec = complete(_spec_of(cache, config.extraction), _decided_by_protocol(config))
    rest = {key: source for key, source in config.sources.items() if key.partition(".")[0] != "extraction"}
    sources = {**rest, "extraction": f"cache {cache.path.name}"}
    adapted = replace(config, decoder=decoder, extraction=spec, sources=sources)
    if show_as(cache, adapted.extraction) is None:
        raise ConfigError(
            f"cache {cache.path.name!r} does not hold what protocol {config.protocol!r} extracts; extract it under the "
            "protocol: icecore extract CONFIG."
        )
    return adapted


def _spec_of(cache: LatentCache, typed: ExtractionSpec) -> ExtractionSpec:
    """Return the extraction that a cache records; what it does not record is as typed."""
    identity, template = cache.identity, _template_of(cache)
    if typed.template.to_dict()["spans"] == template["spans"]:
        template["spans"] = typed.template.spans  # a file, of which the cache holds a digest
    poolings, words = cache.poolings, typed.words
    if identity.words is not None:
        poolings = ExtractionSpec.poolings
        words = forget_defaults(WordSpec(cache.poolings, identity.words.shift, identity.words.on_lost))
    return forget_defaults(
        ExtractionSpec(
            plan=identity.plan,
            template=forget_defaults(InputTemplate.from_dict(template)),
            layers=tuple(cache.layers),
            reba=RebaOptions(**(identity.reba or {})),
            storage_dtype=identity.storage_dtype,
            batch_tokens=typed.batch_tokens,
            store_texts=typed.store_texts,
            poolings=poolings,
            words=words,
        )
    )


def _decided_by_protocol(config: RunConfig) -> Values:
    """Return the values of the extraction that a protocol decides, as the configuration has them."""
    decided = find_protocol(config.protocol).extraction.get(config.task.kind, {})
    return {
        part: {name: getattr(getattr(config.extraction, part), name) for name in value}
        if isinstance(value, Mapping)
        else getattr(config.extraction, part)
        for part, value in decided.items()
    }


def _is_from(cache: LatentCache, spec: DecoderSpec) -> bool:
    """Whether a cache names the decoder of a configuration; its weights are not at hand to compare."""
    decoder = cache.manifest.provenance.get("decoder")
    if decoder is None:
        return False
    folder = Path(spec.name).expanduser()
    names = {spec.name, folder.name, folder.resolve().name, DECODER_ALIASES.get(spec.name.lower(), spec.name.lower())}
    adapters = {",".join(spec.adapters), ",".join(Path(adapter).name for adapter in spec.adapters)}
    is_as_held = decoder.get("quantization") == spec.quantization and spec.dtype in ("auto", decoder["dtype"])
    return decoder["name"] in names and decoder["adapter"] in adapters and is_as_held


def show_as(cache: LatentCache, spec: ExtractionSpec) -> LatentCache | None:
    """Return what a configuration extracts of a cache that may hold more; None where it does not hold all of it."""
    if spec.views or isinstance(cache, ViewCache):
        if not isinstance(cache, ViewCache) or not spec.views or not set(spec.views) <= set(cache.views):
            return None
        parts = {name: show_as(cache.views[name], view) for name, view in spec.readings.items()}
        whole = {name: part for name, part in parts.items() if part is not None}
        return ViewCache(whole) if len(whole) == len(parts) else None
    identity, n_blocks = cache.identity, cache.manifest.provenance["decoder"]["n_layers"]
    layers, poolings = select_layers(spec.layers, n_blocks), spec.poolings
    if cache.is_words:
        poolings = select_word_poolings(spec.words.poolings, spec.mask_plan, n_blocks, n_copies=spec.template.repeat)
    names = own_names(spec.mask_plan, poolings, poolings if cache.is_words else None)
    custom = {key: part["sha256"] for key, part in describe_own(names).items()}
    reba = asdict(spec.reba) if REBA & set(poolings) else {}
    needed = {
        "plan": spec.mask_plan.text,
        "template": spec.template.to_dict(),
        "storage_dtype": spec.storage_dtype,
        "words": (spec.words.shift, spec.words.on_lost) if cache.is_words else None,
        "custom": custom,
        "reba": reba,
    }
    recorded = {
        "plan": identity.plan,
        "template": _template_of(cache),
        "storage_dtype": identity.storage_dtype,
        "words": None if identity.words is None else (identity.words.shift, identity.words.on_lost),
        "custom": {key: digest for key, digest in (identity.own or {}).items() if key in custom},
        "reba": (identity.reba or {}) if reba else {},
    }
    if recorded != needed or not (set(layers) <= set(cache.layers) and set(poolings) <= set(cache.poolings)):
        return None
    if identity.words is None:
        identity = replace(identity, poolings=tuple(poolings))
    else:
        identity = replace(identity, words=replace(identity.words, poolings=tuple(poolings)))
    widths = {layer: width for layer, width in (identity.widths or {}).items() if layer in layers}
    identity = replace(identity, layers=tuple(layers), widths=widths or None)
    return cache.shown_as(replace(identity, own=custom or None, reba=reba or None))


def _template_of(cache: LatentCache) -> Plain:
    """Return the template of a cache; the window beside it is the decoder's."""
    return {"spans": "", **{key: value for key, value in cache.identity.template.items() if key != "window"}}
