"""The folder of a run: writing its settings, describing what made it, reading it back, and its stamp."""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import yaml

from extract import registry
from extract.decoders.decoder_spec import DecoderSpec, MergePart, read_recorded_decoder, split_random
from extract.decoders.fetch import list_decoder_files
from extract.errors import CacheError, ConfigError, HeadError, IcecoreError, first_line, looked_in, printable
from extract.files import digest_json, read_file, refuse_links, write_file
from extract.inputs.template import DEFAULTS, InputTemplate
from extract.poolings.pooling_table import RebaOptions
from extract.records import Values, as_given, given, load_yaml, to_plain
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.store.manifest import Manifest, Plain, describe_views, differences, flatten
from probes.data.task import ROW, Task
from probes.heads.head_table import HeadOptions, find_head
from probes.heads.result import HeadResult
from probes.report.document import best_result
from probes.report.predictions import digest_code, package_versions
from probes.report.scores import (
    SCORES_SCHEMA,
    BaselineScores,
    CacheInfo,
    RunScores,
    ViewInfo,
    check_scores,
    label_of,
    plans_read,
    read_baselines,
    read_result,
    read_run,
    seal_scores,
)
from probes.runs.grid import Grid, load_tasks
from probes.runs.run_config import (
    ConfigPaths,
    PretrainingSpec,
    RunConfig,
    TaskSpec,
    exists,
    from_run,
    load_run_task,
    recorded_place,
)

if TYPE_CHECKING:
    from extract.store.cache import LatentCache


Checkpoint = TypeVar("Checkpoint", DecoderSpec, MergePart)
CONFIG, SCORES, MANIFESTS = "config.yaml", "scores.json", "manifests"
CHANGED = "was changed after the run had ended, or is older than its seal; run it again"
UNNAMED_KEYS = ("caches", "runs")
"""Settings that do not say what a run is of, so no folder is named after them."""
SELF_EVIDENT_KEYS = ("extraction.plan", "decoder.name", "task.name", "protocol")
"""Settings whose values say what they are of."""
MAX_SUFFIX = 60
"""Most characters of the settings that a folder is named after."""
PATH_KEYS = ("caches", "runs", "name", "adapter", "spans")
"""Settings that are paths, whether the file exists or not."""
TEXT_KEYS = ("instruction", "document_instruction", "task", "suffix", "joiner", "system", "answer")
"""Settings that are texts, even one that begins with a slash."""
DISPLAY_KEYS = ("figures", "loggers")
"""Settings of how a report looks; a run with others goes to the same folder."""
PACKAGES = ("icecore", "torch", "transformers", "lightning", "scipy", "numpy")
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a damaged or hand-made file may raise."""


def open_folder(
    runs: str,
    name: str,
    settings: Values,
    cache: "LatentCache | None" = None,
    *,
    sources: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Open the folder of a run and write its settings to config.yaml, each with its source as a comment.

    Nothing is overwritten: a run of other settings or of another cache has a folder of its own, named after what
    differs. The manifest of the cache is written to `manifests/`. No absolute path is written.
    """
    portable = without_absolute_paths(settings)
    folder = choose_folder(runs, name, settings, cache.manifest.id if cache else "")
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


def name_sweep(config: RunConfig, grid: Grid, **search: object) -> tuple[str, Plain]:
    """Name the folder of a sweep, or of a `search`, and add the settings that the configuration does not hold."""
    what = SEARCH if search else SWEEP
    settings, template = grid.settings(**search), config.extraction.template
    typed = {key: getattr(template, key) for key in given(template) if getattr(template, key) == DEFAULTS[key]}
    if typed and isinstance(section := settings.get("sweep"), dict):  # which no template of a point decides
        section["typed"] = typed
    return f"{config.name.removesuffix(f'-{what}')}-{what}", {**config.to_dict(), **settings}


def choose_folder(runs: str, name: str, settings: Values, cache_id: str) -> Path:
    """Name the folder of a run of these settings on this cache; it may be there already, or not."""
    portable = without_absolute_paths(settings)
    plain, content = Path(runs) / name, _without_display(settings)
    digest = digest_json(content)[:8]
    early = plain.with_name(f"{plain.name}-{digest}")  # the second choice of early versions
    by_settings = plain.with_name(f"{plain.name}-{_describe_differences(plain, portable)}".rstrip("-"))
    shared = [plain, *[early] * early.exists(), by_settings, plain.with_name(f"{by_settings.name}-{digest}")]
    unique = plain.with_name(f"{plain.name}-{digest_json([content, cache_id])[:8]}")
    return next((path for path in shared if _is_same_run(path, portable, cache_id)), unique)


def _is_same_run(folder: Path, settings: Values, cache_id: str) -> bool:
    """Whether a folder is free, or holds a run of the same settings on the same cache."""
    try:
        manifests = (folder / MANIFESTS).glob("[!.]*.json")  # no drafts
        cache_ids = {Manifest.from_json(read_file(path).decode()).id for path in manifests}
        config = folder / CONFIG
        recorded = load_yaml(read_file(config)) if config.exists() else settings
        recorded = _without_display(without_absolute_paths(recorded))
        return _as_yaml(recorded) == _as_yaml(_without_display(settings)) and cache_ids <= {cache_id}
    except (*UNREADABLE, CacheError, ConfigError):
        return False  # something else, or damaged: left alone


def _describe_differences(folder: Path, settings: Values) -> str:
    """Name the settings that differ from those of a folder, as part of a file name; empty where that is too long."""
    try:
        recorded = load_yaml(read_file(folder / CONFIG))
        unequal = differences(_without_display(settings), _without_display(recorded))
    except (*UNREADABLE, ConfigError):
        return ""
    parts = []
    for key, (value, _) in unequal.items():
        if key not in UNNAMED_KEYS:
            word = "" if key in SELF_EVIDENT_KEYS or isinstance(value, dict) else key.rpartition(".")[2]
            text = value if isinstance(value, str) else json.dumps(value)
            parts.append(f"{word} {Path(text).name if key == 'decoder.name' else text}")
    name = re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(parts)).strip("-.")
    return name if len(name) <= MAX_SUFFIX else ""


def _without_display(settings: Values) -> Plain:
    shown = {key: value for key, value in settings.items() if key not in DISPLAY_KEYS}
    if isinstance(extraction := shown.get("extraction"), Mapping):  # of texts beside the cache, the same run
        shown["extraction"] = {key: value for key, value in extraction.items() if key != "store_texts"}
    return shown


def _as_yaml(settings: object) -> str:
    return str(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def _with_sources(settings: Plain, sources: Mapping[str, str]) -> str:
    """Write settings with the source of each as a comment; sources of other keys follow at the end."""
    text = _as_yaml(settings)
    lines, rest = text.split("\n"), {key: " ".join(printable(source).split()) for key, source in sources.items()}
    for key, number in _lines_of_keys(yaml.compose(text)):
        if key in rest:
            lines[number] += f"  # {rest.pop(key)}"
    rest = {key: source for key, source in rest.items() if key not in flatten(settings)}
    commented = "\n".join([*lines, *(f"# {key}: {source}\n" for key, source in sorted(rest.items()))])
    return commented if yaml.safe_load(commented) == yaml.safe_load(text) else text


def _lines_of_keys(node: yaml.Node | None, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Pair the dotted keys of a document with the numbers of their lines."""
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        key, line = f"{prefix}{name.value}", name.start_mark.line
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _lines_of_keys(value, f"{key}.")
        elif value.start_mark.line > line or value.end_mark.line == line:
            yield key, line


def without_absolute_paths(value: Any, key: str = "") -> Any:
    """Return plain values with every absolute path relative to the working folder, as paths of a config are read."""
    if isinstance(value, dict):
        return {name: without_absolute_paths(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [without_absolute_paths(item, key) for item in value]
    is_path = isinstance(value, str) and len(value) > 1 and Path(value).is_absolute() and key not in TEXT_KEYS
    return os.path.relpath(value) if is_path and (key in PATH_KEYS or exists(value)) else value


def describe_cache(cache: "LatentCache") -> CacheInfo:
    """Describe a cache for scores.json."""
    described: CacheInfo = {
        "file": cache.path.name,
        "id": cache.manifest.id,
        "plan": cache.identity.plan,
        "template": cache.identity.template,
        "poolings": list(cache.poolings),
        "storage_dtype": cache.storage_dtype,
        "n_rows": len(cache),
        "n_truncated": int(cache.is_truncated.sum()),
        "certificate": cache.certificate,
    }
    if views := describe_views(cache.identity):
        n_tokens = cache.view_tokens()
        listed = {name: {**view, "n_tokens": n_tokens[name]} for name, view in views.items()}
        described["views"] = cast("Mapping[str, ViewInfo]", listed)
    return described


def describe_program() -> Values:
    """Describe commit, versions and what computes products for scores.json."""
    from extract.linear import describe_products

    versions, commit = {package: version(package) for package in PACKAGES}, ""
    if (Path(__file__).parents[2] / ".git").exists():  # a wheel may be inside somebody else's checkout
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
        with suppress(OSError, subprocess.SubprocessError):
            commit = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return {"commit": commit, "versions": versions, "products": describe_products()}


def command_line() -> str:
    """Return this process's command line as a shell reads it, the program by its name, absolute paths relative."""
    words = (word.rpartition("=") for word in sys.argv[1:])
    arguments = (f"{key}{equals}{without_absolute_paths(value, 'name')}" for key, equals, value in words)
    return shlex.join([Path(sys.argv[0]).name, *arguments])


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The folder of a finished run, sweep or search; each file is read and checked once, when it is first needed.

    It may come from anybody, so names in it are no paths and nothing in it is run.
    """

    path: Path

    @cached_property
    def values(self) -> Values:
        """The content of scores.json; HeadError unless this version wrote it, and nothing changed it afterwards."""
        try:
            values: Values = json.loads(read_file(self.path / SCORES))
            if values["what"] == OF_ABILITIES:
                raise ValueError("it holds what icecore infill measured, which icecore compare alone reads")
            if (values["schema"], values["what"] in ("run", SWEEP, SEARCH)) != (SCORES_SCHEMA, True):
                raise ValueError(
                    f"schema {values['schema']} of a {values['what']}, this version reads schema {SCORES_SCHEMA}; run "
                    "its config again"
                )
            if values.get("sha256") != seal_scores(values):
                raise ValueError(f"{SCORES} {CHANGED}")
            check_scores(values)
            return values
        except UNREADABLE as error:
            raise no_run(self.path, error) from error

    @cached_property
    def settings(self) -> Values:
        """The content of config.yaml."""
        try:
            return dict(load_yaml(read_file(self.path / CONFIG), where="it").items())
        except (*UNREADABLE, ConfigError) as error:
            raise HeadError(
                f"{str(self.path / CONFIG)!r} cannot be read ({first_line(error)}); run its config again."
            ) from error

    @cached_property
    def config(self) -> RunConfig:
        """The configuration of a run or sweep, its paths found from it; it cannot ask for code to be run."""
        try:
            place = recorded_place(self.path, self.settings["runs"])
            paths = ConfigPaths(self.path, place, str(self.path / CONFIG))
            known = {item.name for item in fields(RunConfig)} if "plans" in self.settings else self.settings.keys()
            values = paths.read({key: value for key, value in self.settings.items() if key in known})
            parts = {
                "decoder": read_recorded_decoder({**values["decoder"], "trust_remote_code": False}),
                "extraction": read_spec(values["extraction"]),
                "task": TaskSpec(**values["task"]),
                "pretraining": PretrainingSpec(**values["pretraining"]),
            }
            return RunConfig(**{**_tuples(values), **parts, "missing": paths.missing})
        except UNREADABLE as error:
            raise HeadError(
                f"{str(self.path / CONFIG)!r} is not the config of a run ({first_line(error)}); allowed: that of a "
                "folder made by `icecore run`."
            ) from error

    @cached_property
    def options(self) -> Mapping[str, HeadOptions]:
        """The options of every head that was scored; HeadError where config.yaml has none for one."""
        options = self.config.resolve_heads()
        if missing := [name for name in self.heads if name not in options]:
            raise HeadError(
                f"{str(self.path / CONFIG)!r} has no head {missing[0]!r}, which {SCORES} has; run its config again."
            )
        return options

    @property
    def n_blocks(self) -> int:
        """Blocks of the decoder."""
        if "n_layers" not in self.values["decoder"]:
            raise HeadError(f"run {self.values['name']!r} does not state its decoder.n_layers; run its config again.")
        return int(self.values["decoder"]["n_layers"])

    @cached_property
    def blocks_by_decoder(self) -> Mapping[str, int]:
        """Blocks of every decoder of a run or sweep, by its name."""
        decoders = [self.values["decoder"], *(row.get("decoder") or {} for row in self.values.get("plans", ()))]
        return {decoder["name"]: int(decoder["n_layers"]) for decoder in decoders if "n_layers" in decoder}

    @cached_property
    def results(self) -> tuple[tuple[str, HeadResult], ...]:
        """The plan and the result of every head: of a run, or of every plan of a sweep or search."""
        return tuple((where["plan"], result) for where, result in self.systems)

    @cached_property
    def systems(self) -> tuple[tuple[Mapping[str, str], HeadResult], ...]:
        """The result of every head with its `plan`, `task` and `decoder`; of a sweep over axes `plan` is the point."""
        values = self.values
        plans = values["plans"] if "plans" in values else [{"plan": values["cache"]["plan"], "heads": values["heads"]}]
        systems = []
        for row in plans:
            decoder = row.get("decoder") or values["decoder"]
            plan = label_of(row.get("point", {})) or row["plan"]
            where = {"plan": plan, "task": row.get("task") or values["task"]["name"], "decoder": decoder["name"]}
            for name, record in row["heads"].items():
                result = read_result(name, record)
                read = plan if "plans" in values else " and ".join(plans_read(values["cache"], result.pooling))
                systems.append(({**where, "plan": read}, result))
        return tuple(systems)

    @cached_property
    def baselines(self) -> Mapping[str, BaselineScores]:
        """The baselines of a run, sweep or search; none in folders of earlier versions."""
        return read_baselines(self.values)

    @cached_property
    def scores(self) -> RunScores:
        """The scores of a run."""
        return read_run(self.values)

    @property
    def best(self) -> str:
        """The head with the best selection score."""
        return best_result(self.scores.heads.values()).name

    @cached_property
    def heads(self) -> Mapping[str, tuple[Path, ...]]:
        """Head to the folders of its seeds, all inside the run folder; a head without seeds has one."""
        folders = {}
        for name, result in self.scores.heads.items():
            if not find_head(name):  # so that no name leads out of the folder
                raise ValueError(f"it names a head {name!r}, which this version does not know")
            head = self.path / "heads" / name
            folders[name] = tuple(head / f"seed_{seed['seed']}" for seed in result.seeds) or (head,)
        return folders

    @cached_property
    def spec(self) -> ExtractionSpec:
        """What the run extracted; a file of spans is found from here or from the run folder."""
        spec = read_spec(self.settings["extraction"], self.settings.get("views", {}))
        views: dict[str, dict[str, object] | None] = {
            name: {**(spec.views[name] or {}), "template": replace(view.template, spans=self.find(view.template.spans))}
            for name, view in spec.readings.items()
            if name
        }
        return replace(spec, template=replace(spec.template, spans=self.find(spec.template.spans)), views=views)

    @cached_property
    def decoder(self) -> DecoderSpec:
        """The decoder of the run, found from here or from the run folder."""
        spec = read_recorded_decoder(self.settings["decoder"])
        for key in ("name", "device", "revision"):
            value = getattr(spec, key)
            if not isinstance(value, str) and (value is not None or key in ("name", "device")):
                raise TypeError(f"decoder.{key} is {value!r}, which is no text")
        if spec.merge:
            return replace(spec, merge=tuple(map(self._found, spec.merge)))
        return self._found(spec)

    def _found(self, decoder: Checkpoint) -> Checkpoint:
        """Find the paths of a decoder, or of a part of a merge."""
        adapters = tuple(map(self.find, decoder.adapters))
        return replace(decoder, name=self.find(decoder.name), adapter=adapters or decoder.adapter)

    def find(self, name: str) -> str:
        """Find a recorded path from here, or else from the run folder; any other name stays as it is."""
        plain = split_random(name)[0]
        if not name or Path(plain).is_absolute():
            return name
        path = from_run(self.path, self.settings["runs"], plain)
        is_there = exists(str(path)) and path.resolve() != Path(plain).resolve()
        return str(path) + name.removeprefix(plain) if is_there else name

    def cache(self, caches: str | Path = "") -> "LatentCache":
        """Find the cache that a run read, by what it holds.

        It is in the folder `caches`, or else where the run says, seen from where it was made or from the working
        folder, or in the run folder itself, as in one that was pushed.
        """
        from extract.store.cache import find_cache

        if self.values["what"] != "run":
            raise HeadError(
                f"{str(self.path)!r} is a {self.values['what']}, which reads a cache for each plan; name the caches "
                "themselves."
            )
        try:
            [path] = (self.path / MANIFESTS).glob("[!.]*.json")
            manifest = Manifest.from_json(read_file(path).decode())
            recorded = self.settings["caches"]
            near = Path(os.path.relpath(from_run(self.path, self.settings["runs"], recorded)))
            pushed = self.path / "caches"
            folders = [Path(caches)] if caches else [near, Path(recorded), *([pushed] if pushed.is_dir() else [])]
            places = {str(folder.resolve()): folder for folder in folders}
        except (*UNREADABLE, CacheError, HeadError) as error:
            raise HeadError(
                f"{str(self.path)!r} does not say which cache it read ({first_line(error)}); name the cache."
            ) from error
        for folder in places.values():
            if (cache := find_cache(folder, manifest.identity)) is not None:
                return cache
        raise CacheError(
            f"the cache {path.stem!r} of the run {str(self.path)!r} is not in "
            f"{' nor in '.join(map(repr, places))}; say where it is with --caches FOLDER, or extract it again: icecore "
            f"extract {self.path / CONFIG}."
        )


def no_run(path: Path, error: Exception) -> HeadError:
    """Say that a folder cannot be read."""
    return HeadError(
        f"folder {str(path)!r} holds no finished run ({first_line(error)}); allowed: a folder made by `icecore run` or "
        f"`icecore sweep`, as runs/demo{'' if path.exists() else looked_in(path)}."
    )


def read_spec(values: Values, views: Values = MappingProxyType({})) -> ExtractionSpec:
    """Read the `extraction` of a run's config.yaml, and its `views`; an unknown key is a `TypeError`."""
    template, words = (_tuples(values[name]) for name in ("template", "words"))
    parts = {
        "template": InputTemplate(**template),
        "words": as_given(WordSpec(**words), frozenset(words)),
        "reba": RebaOptions(**values.get("reba", {})),
        "views": dict(views),
    }
    return as_given(ExtractionSpec(**{**_tuples(values), **parts}), frozenset(values))


def _tuples(values: Values) -> Plain:
    return {key: tuple(item) if isinstance(item, list) else item for key, item in values.items()}


# --- The stamp of a finished run: digests of what decided it, and the state of its files; loads no torch ---
#
# `icecore run` and `icecore sweep` find what is finished by its stamp instead of computing it again. Whatever is not
# known without computing (code of the user's own, a decoder at the hub, pretraining, latents that were handed over)
# leaves no stamp, and any difference counts as a change: then the run goes the whole way, where every part decides by
# itself what is reused. A checkpoint that a sweep fetched and removed again is known by its commit or step.


OF_ABILITIES = "abilities"
"""What the record of `icecore infill` is of."""
STAMP, SWEEP, SEARCH = "stamp.json", "sweep", "search"
SCHEMA = 1
DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that decide which device `auto` stands for."""
COMMIT = re.compile("[0-9a-f]{40}|step[-_]?[0-9]+")
"""A revision that stays what it is: a commit, or a step of a training."""
States = dict[str, list[int]]
"""Path to size and times of a file, which change when it is written, replaced or copied."""


@dataclass(frozen=True)
class Inputs:
    """What decides a run besides its rows, as digests, so that what has changed can be named."""

    config: str
    code: str
    """The source of this library."""
    packages: str
    """Versions of Python and of the packages that this library needs."""
    machine: str
    """What computes."""
    decoder: str
    """State of the files of the decoder and of its adapters."""


def describe_inputs(
    config: RunConfig, grid: Grid | None = None, *, test: str = "", removes: bool = False, **search: object
) -> Inputs | None:
    """Digest what decides a run, or a sweep or search over the points of a grid; None where it is not known.

    With `removes`, decoders at the hub whose revision is a commit or a step are known by it.
    """
    configs = [point.config for point in grid.points] if grid else [config]
    decoders = {digest_json(to_plain(one.decoder)): one.decoder for one in configs}
    files = [_decoder_files(decoder, removes=removes) for decoder in decoders.values()]
    if any(listed is None for listed in files) or registry.ADDED or any(one.pretraining.corpus for one in configs):
        return None
    settings = {**name_sweep(config, grid, **search)[1], "test": test} if grid else config.to_dict()
    templates = [view.template.to_dict() for one in configs for view in one.extraction.readings.values()]
    settings["template"] = [json.loads(text) for text in dict.fromkeys(json.dumps(part) for part in templates)]
    for key in ("caches", "runs", "name"):  # where it goes; the state of what is there is compared by itself
        del settings[key]
    devices = [*sorted(map(str, Path("/dev").glob("nvidia[0-9]*"))), *map(os.environ.get, DEVICE_VARIABLES)]
    return Inputs(
        config=digest_json(without_absolute_paths(to_plain(settings))),
        code=digest_code(),
        packages=digest_json(list(package_versions())),
        machine=digest_json([sys.platform, platform.machine(), *devices]),
        decoder=digest_json(_states((path for listed in files for path in listed or ()), Path("/"))),
    )


def write_stamp(
    folder: Path, inputs: Inputs, *, tasks: Iterable[Task], caches: Sequence["LatentCache"], cache_id: str | None = None
) -> None:
    """Write the stamp of a run that has just ended; its folder is that of the cache `cache_id`, or of the first."""
    values = {
        "schema": SCHEMA,
        "inputs": asdict(inputs),
        "rows": _digest_rows(tasks),
        "cache": caches[0].manifest.id if cache_id is None else cache_id,
        "caches": _states((path for cache in caches for path in cache.files), folder),
        "files": _states(_files_of(folder), folder),
    }
    write_file(folder / STAMP, json.dumps(values, indent=1) + "\n")


def find_finished(
    config: RunConfig, grid: Grid | None = None, *, test: str = "", removes: bool = False, **search: object
) -> RunFolder | None:
    """Find the folder of a finished run of a configuration, or of a sweep or search, of which nothing has changed."""
    try:
        paths = sorted(path for path in Path(config.runs).iterdir() if path.name.startswith(config.name))
    except OSError:
        return None
    stamps = [(path, stamp) for path in paths if (stamp := _read_stamp(path / STAMP))]
    inputs = describe_inputs(config, grid, test=test, removes=removes, **search) if stamps else None
    stamps = [
        (folder, stamp)
        for folder, stamp in stamps
        if inputs is not None and stamp["inputs"] == asdict(inputs) and _is_untouched(folder, stamp)
    ]
    if not stamps:
        return None
    tasks = list(load_tasks(grid).values()) if grid else [load_run_task(config)]
    name, settings = name_sweep(config, grid, **search) if grid else (config.name, config.to_dict())
    if not grid:
        settings["task"]["options"] = {**config.task.options, **tasks[0].inferred_options()}
    rows = _digest_rows(tasks)
    for folder, stamp in stamps:
        if stamp["rows"] == rows and choose_folder(config.runs, name, settings, stamp["cache"]) == folder:
            run = RunFolder(folder)
            try:
                run.values if grid else run.scores  # noqa: B018 - read and checked
            except IcecoreError:
                return None
            return run
    return None


def _read_stamp(path: Path) -> Values | None:
    """Read a stamp; None where it cannot be read, or is of another version."""
    try:
        stamp = json.loads(read_file(path))
        kinds = {"inputs": dict, "rows": str, "cache": str, "caches": dict, "files": dict}
        is_whole = all(isinstance(stamp[key], kind) for key, kind in kinds.items())
        return stamp if is_whole and stamp["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError, IcecoreError):
        return None


def _is_untouched(folder: Path, stamp: Values) -> bool:
    """Whether the caches and every file of a run are as they were when it ended, and none came."""
    try:
        caches = [folder / name for name in stamp["caches"]]
        return bool(_states(_files_of(folder), folder) == stamp["files"] and _states(caches, folder) == stamp["caches"])
    except (OSError, ValueError):
        return False


def _files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != STAMP)


def _states(files: Iterable[Path], start: Path) -> States:
    states = {}
    for path in files:
        state = path.stat()
        states[os.path.relpath(path, start)] = [state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    return states


def _decoder_files(spec: DecoderSpec, *, removes: bool = False) -> list[Path] | None:
    """List the files of a decoder and of its adapters; None where they are not known."""
    names = [part.name for part in spec.merge] or [spec.name]
    try:
        listed = [list_decoder_files(name) for name in names]
    except IcecoreError:  # no such decoder, which costs its own points
        return None
    is_at_hub = not spec.merge and "/" in spec.name and not exists(spec.name)
    if removes and is_at_hub and COMMIT.fullmatch(spec.revision or ""):
        listed = [[]]
    for adapter in (*spec.adapters, *(adapter for part in spec.merge for adapter in part.adapters)):
        folder = Path(adapter).expanduser()
        listed.append(_files_of(folder) or None if folder.is_dir() else None)
    files = [path for paths in listed for path in paths or ()]
    return None if any(paths is None for paths in listed) else files


def _digest_rows(tasks: Iterable[Task]) -> str:
    """Digest all that a run reads of its tasks."""
    parts = []
    for task in {id(task): task for task in tasks}.values():
        undigested = (ROW, *task.origin_columns)
        places = [list(rows[name]) for rows in task.splits.values() for name in undigested if name in rows.column_names]
        parts.append([task.describe().to_plain(), task.inferred_options(), places])
    return digest_json(json.loads(json.dumps(parts)))
