"""What a run records of itself: its folder, the cache, the task, the program."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import (
    DECODER_ALIASES,
    DecoderSpec,
    read_recorded_decoder,
    select_layers,
    split_random,
)
from extract.errors import CacheError, CacheIdentityError, ConfigError, HeadError, first_line, printable
from extract.files import digest_bytes, digest_json, digest_rows, read_file, refuse_links, write_file
from extract.inputs.joined_text import JoinedText, digest_texts
from extract.inputs.template import InputTemplate
from extract.linear import describe_products
from extract.masks.mask_plan import parse_plan
from extract.poolings.pooling_table import REBA, RebaOptions, select_word_poolings
from extract.records import as_given, complete, forget_defaults
from extract.registry import describe_own, import_own, require_own, require_recorded
from extract.run.extraction import own_names, unique_texts
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.store.cache import LatentCache, MeanCache, find_cache, open_cache, passing_over, whole_caches
from extract.store.manifest import Manifest, differences, flatten
from extract.store.shard_index import INDEX
from probes.data.task import Corpus, Task
from probes.fitting.fit_options import find_protocol
from probes.fitting.saved_fits import DECODER_KEYS, FittedModule, SavedHead
from probes.heads.head_table import find_head
from probes.report.document import best_result
from probes.report.scores import SCORES_SCHEMA, RunScores, read_run, seal_scores
from probes.runs.results import read_scores
from probes.runs.run_config import PretrainingSpec, RunConfig, TaskSpec
from probes.runs.task_kinds import KINDS

CONFIG, MANIFESTS = "config.yaml", "manifests"
PLACES = ("caches", "runs")
"""Settings that do not say what a run is of, so no folder is named after them."""
SPEAKING = ("extraction.plan", "decoder.name", "task.name", "protocol")
"""Settings whose values say what they are of."""
MOST_LETTERS = 60
"""Of what a folder is named after beside its run."""
PATH_KEYS = ("caches", "runs", "name", "adapter", "spans")
"""Settings that name a place whether it is there or not."""
WORDING = ("instruction", "document_instruction", "task", "suffix", "joiner", "system", "answer")
"""Settings that are text as it is, even where it begins with a slash."""
LOOKS = ("figures", "loggers")
"""Settings of how a report looks, not of what it says: a run again with others goes to the same folder."""
PACKAGES = ("icecore", "torch", "transformers", "lightning", "scipy", "numpy")


def open_folder(
    runs: str,
    name: str,
    settings: dict[str, Any],
    cache: LatentCache | None = None,
    *,
    sources: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Open the folder of a run and write its settings, as plain values, to config.yaml.

    `sources` says by dotted key where values came from; it is written beside them as comments.

    Other settings under the same name keep their own folder, named after what differs, and so does another cache, whose
    manifest is written to `manifests/`: nothing is overwritten. No absolute path is written.

    Raises:
        ConfigError: The folder cannot be written, or holds a link.
    """
    portable, kept = without_absolute_paths(settings), _without_looks(settings)
    cache_id = cache.manifest.id if cache else ""
    place = Path(runs) / name
    digests = (digest_json(kept)[:8], digest_json([kept, cache_id])[:8])
    older, last = (place.with_name(f"{name}-{digest}") for digest in digests)
    telling = place.with_name(f"{name}-{_what_differs(place, portable)}".rstrip("-"))
    folders = (place, *[older] * older.exists(), telling, last.with_name(f"{telling.name}-{digests[0]}"))
    folder = next((each for each in folders if _is_ours(each, portable, cache_id)), last)
    refuse_links(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if cache:
            (folder / MANIFESTS).mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the run folder {str(folder)!r} cannot be written ({error}); set `runs`.") from error
    if cache:  # first: from then on no other cache takes this folder
        write_file(folder / MANIFESTS / f"{cache.path.stem}.json", cache.manifest.to_json() + "\n")
    write_file(folder / CONFIG, _with_sources(portable, sources))
    return folder


def _without_looks(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in LOOKS}


def _as_yaml(settings: Any) -> str:
    text: str = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return text


def _with_sources(settings: dict[str, Any], sources: Mapping[str, str]) -> str:
    """Write settings with the source of each as a comment; those that are not in the settings follow at the end."""
    text = _as_yaml(settings)
    lines, rest = text.split("\n"), {key: " ".join(printable(source).split()) for key, source in sources.items()}
    for key, number in _lines_of_keys(yaml.compose(text)):
        if key in rest:
            lines[number] += f"  # {rest.pop(key)}"
    rest = {key: source for key, source in rest.items() if key not in flatten(settings)}
    commented = "\n".join([*lines, *(f"# {key}: {source}\n" for key, source in sorted(rest.items()))])
    return commented if yaml.safe_load(commented) == yaml.safe_load(text) else text


def _lines_of_keys(node: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Pair the dotted keys of a document with the numbers of their lines."""
    for name, value in node.value:
        key, line = f"{prefix}{name.value}", name.start_mark.line
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _lines_of_keys(value, f"{key}.")
        elif value.start_mark.line > line or value.end_mark.line == line:
            yield key, line


def _what_differs(folder: Path, settings: dict[str, Any]) -> str:
    """Name the settings that differ from those of a folder, as part of a file name; empty where that is too much.

    A value says enough by itself, as that of a plan does, or follows the last part of its key.
    """
    try:
        kept = yaml.safe_load(read_file(folder / CONFIG))
        unequal = differences(_without_looks(settings), _without_looks(kept))
    except (OSError, ValueError, RecursionError, AttributeError, yaml.YAMLError):
        return ""
    parts = []
    for key, (value, _) in unequal.items():
        if key in PLACES:
            continue
        word = "" if key in SPEAKING or isinstance(value, dict) else key.rpartition(".")[2]
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append(f"{word} {Path(text).name if key == 'decoder.name' else text}")
    name = re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(parts)).strip("-.")
    return name if len(name) <= MOST_LETTERS else ""


def _is_ours(folder: Path, settings: dict[str, Any], cache_id: str) -> bool:
    """Whether a folder is free, or holds a run of the same settings on the same cache."""
    try:
        manifests = (folder / MANIFESTS).glob("[!.]*.json")  # no drafts
        found = {Manifest.from_json(read_file(path).decode()).id for path in manifests}
        taken = folder / CONFIG
        kept = yaml.safe_load(read_file(taken)) if taken.exists() else settings
        kept, settings = _without_looks(without_absolute_paths(kept)), _without_looks(settings)
        return _as_yaml(kept) == _as_yaml(settings) and found <= {cache_id}
    except (OSError, ValueError, RecursionError, CacheError, yaml.YAMLError):
        return False  # something else, or damaged: left alone


def without_absolute_paths(value: Any, key: str = "") -> Any:
    """Return plain values with every absolute path relative to the working folder, as paths of a config are read."""
    if isinstance(value, dict):
        return {name: without_absolute_paths(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [without_absolute_paths(item, key) for item in value]
    is_path = isinstance(value, str) and len(value) > 1 and Path(value).is_absolute() and key not in WORDING
    return os.path.relpath(value) if is_path and (key in PATH_KEYS or _exists(value)) else value


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False


def describe_cache(cache: LatentCache) -> dict[str, Any]:
    """Describe a cache, for a record of results."""
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


def describe_program() -> dict[str, Any]:
    """Describe commit, versions and what computes products, for a record of results."""
    versions = {package: version(package) for package in PACKAGES}
    return {"commit": _commit(), "versions": versions, "products": describe_products()}


def _commit() -> str:
    """Commit of the checkout this code runs from; empty when installed from a wheel."""
    if not (Path(__file__).parents[2] / ".git").exists():  # a wheel may lie inside somebody else's checkout
        return ""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def command_line() -> str:
    """Return this process's command line, the program by its name alone and absolute paths as seen from here."""
    words = (word.rpartition("=") for word in sys.argv[1:])
    shown = (f"{key}{equals}{without_absolute_paths(value, 'name')}" for key, equals, value in words)
    return " ".join([Path(sys.argv[0]).name, *shown])


# A finished run, read back from its folder, which may come from anybody: values are checked and names are no paths.

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError)


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """What a run folder says of its heads and of the latents they read."""

    folder: Path
    scores: RunScores
    spec: ExtractionSpec
    decoder: DecoderSpec
    heads: Mapping[str, tuple[Path, ...]]
    """Head to the folders of its seeds, all inside the run folder."""

    @property
    def best(self) -> str:
        """The head with the best selection score."""
        return best_result(self.scores.heads.values()).name

    def require_head(self, saved: SavedHead[FittedModule], name: str) -> None:
        """Refuse a head in another head's folder, or one that was fitted on another cache than the scores are of."""
        found = {"name": saved.record["name"], "cache": _latents(saved).get("cache", self.scores.cache["id"])}
        self._require_same(found, {"name": name, "cache": self.scores.cache["id"]}, what="head")

    def require_latents(self, decoder: Decoder, heads: Sequence[SavedHead[FittedModule]]) -> None:
        """Refuse latents that are not like those that the scores and each of the heads are of, and changed code."""
        require_own(self.scores.header.own, folder=self.folder)
        described = decoder.description
        now = {
            "decoder": {key: getattr(described, key) for key in DECODER_KEYS},
            "plan": parse_plan(self.spec.plan).text,
            "template": {**self.spec.template.to_dict(), "window": described.window},
        }
        scored = {
            "decoder": {key: self.scores.header.decoder[key] for key in DECODER_KEYS},
            "plan": self.scores.cache["plan"],
            "template": self.scores.cache["template"],
        }
        for fitted_on in (scored, *(_latents(saved) for saved in heads)):
            if fitted_on:
                self._require_same(now, {key: fitted_on[key] for key in now}, what="latents")

    def _require_same(self, found: dict[str, Any], wanted: dict[str, Any], *, what: str) -> None:
        unequal = differences(found, wanted)
        if unequal and what == "head":
            listing = "; ".join(f"{key} is {a!r}, its scores are of {b!r}" for key, (a, b) in unequal.items())
            raise CacheIdentityError(
                f"a head of {str(self.folder)!r} is not the one that was scored: {listing}. Run it again: icecore run "
                f"{self.folder / CONFIG}."
            )
        if unequal:
            listing = "; ".join(f"{key} is {a!r}, the run has {b!r}" for key, (a, b) in unequal.items())
            raise CacheIdentityError(
                f"the heads of {str(self.folder)!r} were fitted on something else: {listing}. Score with the decoder "
                "and the config.yaml of the run, or run it again."
            )


def read_finished(folder: Path) -> FinishedRun:
    """Read a run folder back.

    Raises:
        HeadError: No finished run there, one of an earlier version, or one that names what is no head of a run.
        IcecoreError: Settings that are outside their tables.
    """
    try:
        values = json.loads(read_file(folder / "scores.json"))
        settings = read_file(folder / CONFIG)
        config = yaml.safe_load(settings)
        schema = values["schema"]
        if schema == SCORES_SCHEMA:
            _require_unchanged(values, settings)
            _import_own(values, config["extraction"], folder)
            scores = read_run(values)
            heads = {name: _head_folders(folder, name, result.seeds) for name, result in scores.heads.items()}
            spec, decoder = read_spec(config["extraction"]), _read_decoder(config["decoder"])
            _require_described(scores)
            base = recorded_folder(config, folder)
            return FinishedRun(folder, scores, _near_spans(spec, folder, base), _near(decoder, folder, base), heads)
    except UNREADABLE as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise HeadError(
            f"folder {str(folder)!r} holds no finished run ({reason}); allowed: a folder made by `icecore run`, as "
            "runs/demo."
        ) from error
    raise HeadError(
        f"folder {str(folder)!r} holds a run of another version (schema {schema}, this one reads {SCORES_SCHEMA}); run "
        f"it again: icecore run {folder / CONFIG}."
    )


def _import_own(values: Mapping[str, Any], extraction: Mapping[str, Any], folder: Path) -> None:
    """Import what users added, as the run recorded it; a name that stands elsewhere alone is refused."""
    own = values.get("own", {})
    names = (*extraction["poolings"], *extraction["words"]["poolings"], extraction["plan"], *values["heads"])
    require_recorded(own, names)
    import_own(own, folder=folder)


def _require_unchanged(values: Mapping[str, Any], settings: bytes) -> None:
    """Refuse scores or settings of which a byte that counts is not as the run wrote it."""
    for name, is_sealed in (
        ("scores.json", values.get("sha256") == seal_scores(values)),
        (CONFIG, values.get("config_sha256") == digest_bytes(settings)),
    ):
        if not is_sealed:
            raise ValueError(f"{name} was changed after the run had ended, or is older than its seal; run it again")


def read_config(folder: Path) -> RunConfig:
    """Read the configuration of a run back, which cannot ask for code to be run; HeadError for a folder without one."""
    try:
        values = yaml.safe_load(read_file(folder / CONFIG))
        parts = {
            "decoder": read_recorded_decoder({**values["decoder"], "trust_remote_code": False}),
            "extraction": read_spec(values["extraction"]),
            "task": TaskSpec(**values["task"]),
            "pretraining": PretrainingSpec(**values["pretraining"]),
        }
        return RunConfig(**{**_tuples(values), **parts})
    except UNREADABLE as error:
        raise HeadError(
            f"folder {str(folder)!r} holds no {CONFIG} of a run ({first_line(error)}); allowed: a folder made by "
            "`icecore run`, as runs/demo."
        ) from error


def read_spec(values: dict[str, Any]) -> ExtractionSpec:
    """Read the `extraction` of a run's config.yaml back; an unknown key is a `TypeError`."""
    template, words = (_tuples(values[name]) for name in ("template", "words"))
    parts = {
        "template": InputTemplate(**template),
        "words": as_given(WordSpec(**words), frozenset(words)),
        "reba": RebaOptions(**values.get("reba", {})),
    }
    return as_given(ExtractionSpec(**{**_tuples(values), **parts}), frozenset(values))


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(item) if isinstance(item, list) else item for key, item in values.items()}


def _read_decoder(values: dict[str, Any]) -> DecoderSpec:
    spec = read_recorded_decoder(values)
    for key in ("name", "device", "revision", "adapter"):
        value = getattr(spec, key)
        if not isinstance(value, str) and (value is not None or key in ("name", "device")):
            raise TypeError(f"decoder.{key} is {value!r}, which is no text")
    return spec


def _head_folders(folder: Path, name: str, seeds: Sequence[Mapping[str, Any]]) -> tuple[Path, ...]:
    """Find the folders of a head's seeds; other names, and seeds that are no numbers, are refused."""
    if not find_head(name):  # so that no name leads out of the folder
        raise ValueError(f"it names a head {name!r}, which this version does not know")
    numbers = [seed["seed"] for seed in seeds]
    if any(type(number) is not int for number in numbers):
        raise ValueError(f"the seeds of head {name!r} are {numbers}, which are not all whole numbers")
    place = folder / "heads" / name
    return tuple(place / f"seed_{number}" for number in numbers) or (place,)  # a head without seeds has one


def _require_described(scores: RunScores) -> None:
    """Refuse scores without what heads are compared with, before a decoder is loaded."""
    if scores.header.kind not in KINDS or not scores.heads:
        raise ValueError(f"it has {len(scores.heads)} heads for tasks of {scores.header.kind!r}")
    for part, keys in ((scores.cache, ("id", "plan", "template")), (scores.header.decoder, DECODER_KEYS)):
        missing = [key for key in keys if key not in part]
        if missing:
            raise KeyError(f"{', '.join(missing)} is missing")
    for result in scores.heads.values():
        if not isinstance(result.chosen.get("layer", ""), str):
            raise TypeError(f"the chosen layer is {result.chosen['layer']!r}")


def recorded_folder(config: Mapping[str, Any], folder: Path) -> str:
    """Return the run folder as seen from the working folder of the run, which recorded paths are relative to."""
    return str(Path(config["runs"]) / folder.resolve().name)


def _near(spec: DecoderSpec, folder: Path, base: str) -> DecoderSpec:
    adapter = spec.adapter and find_recorded(spec.adapter, folder, base)
    if spec.merge:
        near = {part: find_recorded(part.name, folder, base) for part in spec.merge}
        return replace(spec, merge=tuple(replace(part, name=name) for part, name in near.items()))
    return replace(spec, name=find_recorded(spec.name, folder, base), adapter=adapter)


def _near_spans(spec: ExtractionSpec, folder: Path, base: str) -> ExtractionSpec:
    template = replace(spec.template, spans=find_recorded(spec.template.spans, folder, base))
    return replace(spec, template=template)


def find_recorded(name: str, folder: Path, base: str) -> str:
    """Find a recorded path from here, or else from the run folder; any other name stays as it is."""
    plain = split_random(name)[0]
    if not name or Path(name).is_absolute() or Path(plain).expanduser().exists():
        return name
    from_folder = str(folder.resolve() / os.path.relpath(plain, base))
    return from_folder + name.removeprefix(plain) if Path(from_folder).exists() else name


def _latents(saved: SavedHead[FittedModule]) -> dict[str, Any]:
    """What a head was fitted on; early heads do not say."""
    found: dict[str, Any] = saved.record.get("latents", {})
    return found


# Caches that are there already: finding that of a configuration, and making a configuration say what one holds.


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
        plan=identity["plan"],
        template=forget_defaults(InputTemplate.from_dict(template)),
        layers=tuple(cache.layers),
        reba=RebaOptions(**identity.get("reba", {})),
        storage_dtype=identity["storage_dtype"],
        batch_tokens=config.extraction.batch_tokens,
        **words,
        words=forget_defaults(WordSpec(cache.poolings, identity["words"]["shift"], identity["words"]["on_lost"]))
        if cache.is_words
        else config.extraction.words,
    )
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
