"""Caches that are there already: finding that of a configuration, and making a configuration say what one holds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from extract.decoders.known import DECODER_ALIASES
from extract.decoders.layers import select_layers
from extract.decoders.spec import DecoderSpec
from extract.digest import digest_rows
from extract.errors import CacheError, ConfigError, HeadError, first_line
from extract.files import read_file
from extract.inputs.joined import JoinedText, digest_texts
from extract.inputs.template import InputTemplate
from extract.own.names import describe_own, import_own
from extract.poolings.reba_options import REBA, RebaOptions
from extract.poolings.table import select_word_poolings
from extract.records import complete, forget_defaults
from extract.run.runner import own_names, unique_texts
from extract.run.spec import ExtractionSpec, WordSpec
from extract.store.cache import LatentCache
from extract.store.manifest import Manifest
from extract.store.mean import MeanCache
from extract.store.reuse import find_cache, passing_over, whole_caches
from extract.store.shards.cache import open_cache
from extract.store.shards.index import INDEX
from probes.fitting.protocols import find_protocol
from probes.runs.config import RunConfig
from probes.runs.finished import UNREADABLE, find_recorded, recorded_folder
from probes.runs.record import CONFIG, MANIFESTS
from probes.runs.results import read_scores
from probes.tasks.base import Task
from probes.tasks.corpus import Corpus


def find_cache_of(config: RunConfig, source: Task | Corpus) -> LatentCache:
    """Find the one cache of a task or corpus without its decoder: by name, contents and texts."""
    members = config.extraction.members
    if len(members) > 1:
        parts = [find_cache_of(replace(config, extraction=each), source) for each in members]
        window = {"window": parts[0].identity["template"]["window"]}
        template = {**config.extraction.template.to_dict(), **window}
        return MeanCache(parts, identity={**parts[0].identity, "template": template})
    texts = source.texts()
    found = []
    for cache in whole_caches(Path(config.caches)):
        shown = show_as(cache, config.extraction) if _is_from(cache, config.decoder) else None
        if shown is not None and _has_texts(shown, texts):
            with passing_over(cache.path):
                shown.verify()
                found.append(shown)
    if len(found) > 1:  # of several that hold these texts, the one that holds no others
        wanted = digest_rows(digest_texts(unique_texts(texts)))
        found = [cache for cache in found if cache.identity["text_digest"] == wanted] or found
    if len(found) != 1:
        names = ", ".join(cache.path.name for cache in found) or "none"
        raise CacheError(
            f"{len(found)} caches in {config.caches!r} fit {source.name!r} in this configuration ({names}); "
            "allowed: exactly one. Name it with --cache FILE, or make it with: icecore extract CONFIG."
        )
    return found[0]


def find_cache_of_run(folder: Path, caches: str = "") -> LatentCache:
    """Find the cache that a finished run read: by what it holds, in a folder of caches, where the run says if empty.

    Raises:
        HeadError: No finished run there, or a sweep or search, which reads several caches.
        CacheError: The cache is gone; says what to do.
    """
    values = read_scores(folder)
    if values["what"] != "run":
        raise HeadError(
            f"{str(folder)!r} is a {values['what']}, which reads a cache for each plan; name the caches themselves."
        )
    try:
        config = yaml.safe_load(read_file(folder / CONFIG))
        [path] = (folder / MANIFESTS).glob("[!.]*.json")
        manifest = Manifest.from_json(read_file(path).decode())
        place = Path(caches or find_recorded(config["caches"], folder, recorded_folder(config, folder)))
    except (*UNREADABLE, CacheError) as error:
        raise HeadError(
            f"{str(folder)!r} does not say which cache it read ({first_line(error)}); name the cache."
        ) from error
    found = find_cache(place, manifest.identity)
    if found is None:
        raise CacheError(
            f"the cache {path.stem!r} of the run {str(folder)!r} is not in {str(place)!r}; say where it is, or "
            f"extract it again: icecore extract {folder / CONFIG}."
        )
    return found


def open_named(source: str | Path) -> LatentCache:
    """Open a cache file, shards, or the cache that a run read, by its folder; raises as `open_cache` and as above.

    It is compared with its checksums, so nothing is said of a damaged one.
    """
    if is_run(Path(source)):
        return find_cache_of_run(Path(source))
    cache = open_cache(source)
    cache.verify()
    return cache


def is_run(source: Path) -> bool:
    """Whether a path is that of a run, not of a cache file or of a folder of shards."""
    return source.is_dir() and not (source / INDEX).is_file()


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


def config_of(config: RunConfig, cache: LatentCache) -> RunConfig:
    """Return a configuration that says of decoder and extraction what a cache holds; as it is where it says so already.

    Raises:
        ConfigError: The protocol extracts something else.
    """
    if _is_from(cache, config.decoder) and show_as(cache, config.extraction) is not None:
        return config
    identity, decoder = cache.identity, config.decoder
    if not _is_from(cache, decoder):
        found = cache.manifest.provenance["decoder"]
        decoder = replace(
            decoder, name=found["name"], adapter=found["adapter"] or None, dtype=found["dtype"], revision=None
        )
    import_own(cache.manifest.provenance.get("own", {}), folder=cache.path)
    template, own = _template_of(cache), config.extraction.template
    if own.to_dict()["spans"] == template["spans"]:
        template["spans"] = own.spans  # a file, which the cache holds a digest of
    words: dict[str, Any] = {} if cache.is_words else {"poolings": cache.poolings}
    spec = ExtractionSpec(
        plan=identity["plan"], template=forget_defaults(InputTemplate.from_dict(template)), layers=tuple(cache.layers),
        reba=RebaOptions(**identity.get("reba", {})),
        storage_dtype=identity["storage_dtype"], batch_tokens=config.extraction.batch_tokens, **words,
        words=forget_defaults(WordSpec(cache.poolings, identity["words"]["shift"], identity["words"]["on_lost"]))
        if cache.is_words else config.extraction.words,
    )  # fmt: skip
    # What a protocol decides must be in the cache as the configuration has it, be it from the protocol or typed.
    decided = find_protocol(config.protocol).extraction.get(config.task.kind, {})
    wanted = {
        part: {name: getattr(getattr(config.extraction, part), name) for name in value}
        if isinstance(value, Mapping)
        else getattr(config.extraction, part)
        for part, value in decided.items()
    }
    spec = complete(forget_defaults(spec), wanted)
    rest = {key: source for key, source in config.sources.items() if key.partition(".")[0] != "extraction"}
    sources = {**rest, "extraction": f"cache {cache.path.name}"}
    made = replace(config, decoder=decoder, extraction=spec, sources=sources)
    if show_as(cache, made.extraction) is None:
        raise ConfigError(
            f"cache {cache.path.name!r} does not hold what protocol {config.protocol!r} extracts; extract it under the "
            "protocol: icecore extract CONFIG."
        )
    return made


def _is_from(cache: LatentCache, spec: DecoderSpec) -> bool:
    """Whether a cache names the decoder of a configuration; its weights are not at hand to compare."""
    decoder = cache.manifest.provenance.get("decoder")
    if decoder is None:
        return False
    folder = Path(spec.name).expanduser()
    names = {spec.name, folder.name, folder.resolve().name, DECODER_ALIASES.get(spec.name.lower(), spec.name.lower())}
    adapters = {spec.adapter, Path(spec.adapter).name} if spec.adapter else {""}
    is_as_held = decoder.get("quantization") == spec.quantization and spec.dtype in ("auto", decoder["dtype"])
    return decoder["name"] in names and decoder["adapter"] in adapters and is_as_held


def show_as(cache: LatentCache, spec: ExtractionSpec) -> LatentCache | None:
    """Return what a configuration extracts of a cache that may hold more; None where it does not hold all of it."""
    identity, n_blocks = cache.identity, cache.manifest.provenance["decoder"]["n_layers"]
    found = [identity["plan"], _template_of(cache), identity["storage_dtype"]]
    wanted: list[object] = [spec.mask_plan.text, spec.template.to_dict(), spec.storage_dtype]
    poolings = spec.poolings
    if cache.is_words:
        found += [identity["words"]["shift"], identity["words"]["on_lost"]]
        wanted += [spec.words.shift, spec.words.on_lost]
        poolings = select_word_poolings(spec.words.poolings, spec.mask_plan, n_blocks)
    layers = select_layers(spec.layers, n_blocks)
    own = {
        key: each["sha256"]
        for key, each in describe_own(own_names(spec.mask_plan, poolings, poolings if cache.is_words else None)).items()
    }
    reba = asdict(spec.reba) if REBA & set(poolings) else {}
    widths = {layer: width for layer, width in identity.get("widths", {}).items() if layer in layers}
    found += [{key: digest for key, digest in identity.get("own", {}).items() if key in own}]
    found += [identity.get("reba", {}) if reba else {}]
    wanted += [own, reba]
    if found != wanted or not (set(layers) <= set(cache.layers) and set(poolings) <= set(cache.poolings)):
        return None
    part: dict[str, Any] = {"poolings": list(poolings)}
    words = {"words": {**identity["words"], **part}} if cache.is_words else part
    rest = {key: value for key, value in identity.items() if key not in ("own", "reba", "widths")}
    further = {key: value for key, value in {"own": own, "reba": reba, "widths": widths}.items() if value}
    return cache.shown_as({**rest, "layers": list(layers), **words, **further})


def _template_of(cache: LatentCache) -> dict[str, Any]:
    """Return the template of a cache; the window beside it is the decoder's."""
    return {"spans": "", **{key: value for key, value in cache.identity["template"].items() if key != "window"}}
