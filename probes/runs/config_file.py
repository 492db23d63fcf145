"""Reading a run's configuration: YAML files and keys on the command line become one plain mapping, then one record.

Nothing that a file names is imported or called: `from_plain` builds the records of the library, and no others.
"""

import ast
import inspect
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args, get_origin

import yaml

from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError, UsageError
from extract.inputs.template import TEMPLATES, InputTemplate
from extract.poolings.pooling_table import split_poolings
from extract.records import (
    GIVEN,
    default_of,
    from_plain,
    given,
    load_yaml,
    record_hints,
    to_plain,
    unknown_key,
    with_numbers,
)
from extract.registry import PLACE, allow_code
from extract.run.extraction_spec import names_of_code
from probes.data.task_table import TASKS
from probes.fitting.fit_options import find_protocol
from probes.runs.run_config import NAME_BYTES, TYPED, ConfigPaths, RunConfig, home_of

if TYPE_CHECKING:
    from probes.data.bare_file import BareFile


MOST_BYTES = 1 << 20
TRUST = "decoder.trust_remote_code"
OBJECTS = ("class_path", "init_args", "dict_kwargs", "__orig__", "__path__")
"""Keys by which other programs make objects of a file; unknown here, at any depth."""
Pairs = list[tuple[str, str | None]]
"""Keys of a configuration on the command line in order, each with its value; None where that is missing."""


# --- The keys ---


@dataclass(frozen=True)
class Key:
    """One key of a configuration."""

    name: str
    """Dotted name."""
    hint: object
    """Its type."""
    default: object
    """Its default; None where it is made again each time."""
    help: str
    """The docstring of its field."""

    @property
    def values(self) -> tuple[str, ...]:
        """The only values allowed; none where any is."""
        return tuple(get_args(self.hint)) if get_origin(self.hint) is Literal else ()


@cache
def list_keys(spec: type = RunConfig, prefix: str = "") -> tuple[Key, ...]:
    """List the keys that hold values, of nested dataclasses too."""
    keys: list[Key] = []
    texts, hints = _docstrings(spec), record_hints(spec)
    for field in fields(spec):
        if not field.metadata.get("is_key", True):
            continue
        hint, name = hints[field.name], f"{prefix}{field.name}"
        if is_dataclass(hint):
            keys += list_keys(hint, f"{name}.")  # type: ignore[arg-type]
        else:
            default = None if field.default is MISSING else field.default
            keys.append(Key(name, hint, default, texts.get(field.name, "")))
    return tuple(keys)


@cache
def sections_of(spec: type, prefix: str = "") -> dict[str, bool]:
    """Return the sections by dotted name, and whether their keys are free: those of heads, tasks and corpora."""
    sections: dict[str, bool] = {}
    for field in fields(spec):
        hint, name = record_hints(spec)[field.name], f"{prefix}{field.name}"
        if not field.metadata.get("is_key", True):
            continue
        if get_origin(hint) is dict:
            sections[name] = True
        elif is_dataclass(hint):
            sections |= {name: False, **sections_of(hint, f"{name}.")}  # type: ignore[arg-type]
    return sections


SECTIONS = sections_of(RunConfig)
"""Sections of a run."""


def _docstrings(spec: type) -> dict[str, str]:
    """Read the docstring below each field of a dataclass."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(spec))).body
    body = node.body if isinstance(node, ast.ClassDef) else []
    texts = {}
    for item, below in pairwise(body):
        if isinstance(item, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            texts[ast.unparse(item.target)] = " ".join(str(below.value.value).split())
    return texts


# --- Files ---


SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods")


def load_config_file(name: str) -> dict[str, object]:
    """Read a YAML file that holds a mapping; `ConfigError` if it cannot be used."""
    path = Path(name)
    if path.suffix.lower() in SPREADSHEETS:
        raise ConfigError(f"{name!r} is a spreadsheet, which is not read; save it as CSV in UTF-8 and give that file.")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"config file {name!r} has {path.stat().st_size:,} bytes; allowed: {MOST_BYTES:,}.")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"config file {name!r} cannot be read ({error}); give a YAML file in UTF-8.") from error
    values = load_yaml(text, where=f"config file {name!r}")
    if not isinstance(values, dict):
        raise ConfigError(
            f"config file {name!r} is {_shorten(values)}; allowed: keys with values, as in configs/demo.yaml."
        )
    return values


def _is_file(name: str) -> bool:
    """Whether there is such a file; not for a text that is no name of a file."""
    try:
        return Path(name).is_file()
    except OSError:
        return False


def require_file(name: str) -> str:
    """Return the name of a file that is there, or the path of a shipped config; `ConfigError` for another."""
    if _is_file(name):
        return name
    shipped = shipped_configs()
    plain = name.removeprefix("configs/").removesuffix(".yaml")
    if plain in shipped:
        return str(shipped[plain])
    names = [*map(str, Path("configs").rglob("*.yaml")), *(f"configs/{key}.yaml" for key in shipped), *shipped]
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    where = "" if Path(name).is_absolute() else f" (looked for in {str(Path.cwd())!r})"
    raise ConfigError(
        f"there is no config file {name!r}.{guess} Give a YAML file{where}, the name of a shipped config "
        "(icecore list configs), or data (.csv, .tsv, .jsonl, .parquet, .conll)."
    )


def _shorten(value: object) -> str:
    """Write a value in at most 60 characters."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


# --- Data files ---

ROLES = ("text", "label", "score")
"""Options that name columns of a file of data."""
HEADS_OF = {
    "pairs": ("layer-cosine", "cosine-mlp"),
    "classes": ("logistic-probe",),
    "numbers": ("ridge-probe",),
    "words": ("token-logistic",),
}
"""Heads that are fitted where a file of data names none, by kind of task."""


def config_of_data(data: "BareFile") -> dict[str, Any]:
    """Write the configuration that a data file alone stands for."""
    stem = "".join(letter for letter in data.path.name.partition(".")[0] if letter.isprintable())
    name = stem.encode()[:NAME_BYTES].decode(errors="ignore") or "data"
    heads: dict[str, Any] = {head: {} for head in HEADS_OF[TASKS[data.task].kind]}
    return {"name": name, "task": {"name": data.task, "options": data.options}, "heads": heads}


def dump_config(data: "BareFile", path: Path, config: "RunConfig | None" = None) -> str:
    """Write YAML for a path, with what was found and the command that runs it as comments.

    It is what the file of data alone stands for, or a configuration that was made of it.
    """
    lines = [f"# icecore run {path}", *textwrap.wrap(str(data), 100, initial_indent="# ", subsequent_indent="# ")]
    values = config_of_data(data)
    if config is not None:
        given: dict[str, Any] = given_values(config)
        values = {"name": config.name, **{key: given[key] for key in given if key not in ("caches", "runs")}}
        for key, place in values["decoder"].items():
            if key in ("name", "adapter") and isinstance(place, str) and Path(place).exists():
                values["decoder"][key] = os.path.relpath(place, path.parent)
    values["task"]["options"] = {**values["task"]["options"], "files": os.path.relpath(data.path, path.parent)}
    values = {key: part for key, part in values.items() if part != {}}
    text: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=1000)
    return "\n".join([*lines, text])


def read_data(file: str, roles: Mapping[str, str]) -> "BareFile | None":
    """Find out what a file of data holds; None for the name of another file, beside which no columns may be named."""
    if Path(file).suffix.lower() not in ("", ".yaml", ".yml"):
        from probes.data.bare_file import Roles, is_bare_file, read_bare_file

        if is_bare_file(file):
            return read_bare_file(require_file(file), Roles(**roles))
    if roles:
        raise UsageError(f"--{next(iter(roles))} does nothing without a file of data, as icecore run reviews.csv.")
    return None


# --- Reading ---


def require_typed(typed: Pairs, options: Iterable[str]) -> None:
    """Refuse an unknown key of the command line, and one without a value; `options` are no keys and are suggested."""
    _Layers(RunConfig, options).require_values(typed)


def read_config(
    typed: Pairs,
    *,
    file: str = "",
    data: "BareFile | None" = None,
    options: Iterable[str] = (),
    checks_heads: bool = True,
) -> RunConfig:
    """Read a configuration: a YAML file or one of data, if any, and the keys on the command line, which win.

    Without `checks_heads` no torch is loaded, and the values of heads' options are checked by its `check_heads`.
    """
    layers, missing, sweep = _Layers(RunConfig, options), dict[str, str](), dict[str, object]()
    if data is not None:
        layers.add("", config_of_data(data), str(data.path))
    pairs = [*([("config", file)] if file else []), *layers.require_values(typed)]
    if ("config", "") in pairs:
        raise UsageError("--config is empty; allowed: a YAML file, as --config configs/demo.yaml.")
    for key, text in pairs:
        section = "" if key == "config" else key
        if key == "config" or (SECTIONS.get(key) is False and _is_file(text)):
            name = text if section else require_file(text)
            values = spell_out(section, load_config_file(name))
            if not section:
                sweep |= read_sweep(values.pop("sweep", None) or {})
            paths = ConfigPaths(*home_of(name, values), text)
            layers.add(section, paths.read(values, section), text)
            missing |= paths.missing
        else:
            layers.add_typed(key, text)
            missing = {name: why for name, why in missing.items() if not f"{name}.".startswith(f"{key}.")}
    with allow_code(_typed_code(pairs, ("extraction", "views", "heads"))):
        values = {**layers.values, "sources": layers.sources, "missing": missing} if layers.values else {}
        values["sweep"] = sweep
        values["has_checked_heads"] = checks_heads
        config: RunConfig = from_plain(RunConfig, values)
    _require_typed_trust(config.decoder, pairs)
    return config


Spec = TypeVar("Spec")


def read_record(spec: type[Spec], typed: Pairs, *, file: str, options: Iterable[str], code: Sequence[str]) -> Spec:
    """Read a record with a field `decoder` from a YAML file and the keys on the command line, which win.

    `code` are the sections whose typed values may name the user's own code.
    """
    layers = _Layers(spec, options)
    pairs = layers.require_values(typed)
    if file:
        name = require_file(file)
        layers.add("", ConfigPaths(Path(name).parent, Path(), file).read(load_config_file(name)), file)
    for key, text in pairs:
        layers.add_typed(key, text)
    with allow_code(_typed_code(pairs, code)):
        record: Any = from_plain(spec, layers.values)
    _require_typed_trust(record.decoder, pairs)
    return cast("Spec", record)


def _require_typed_trust(decoder: DecoderSpec, pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse to run a checkpoint's code unless it was allowed on the command line."""
    if decoder.trust_remote_code and not any(key == TRUST and text.lower() == "true" for key, text in pairs):
        raise ConfigError(
            f"{TRUST} is true in a file; allowed: on the command line alone. If you trust the authors of "
            f"{decoder.name!r}, add: --{TRUST} true."
        )


NAMED = ("task", "decoder", "extraction.template")
"""Sections that may be given as a name alone, as `task: stsb`."""


def spell_out(section: str, values: Any) -> Any:
    """Write a section, or the whole where it has no name, with its names alone as the sections that they stand for."""
    if section in NAMED and isinstance(values, str) and values:
        return {"name": values}
    if section == "heads" and values and isinstance(values, str | list):
        names = [values] if isinstance(values, str) else values
        return {name: {} for name in names} if all(isinstance(name, str) for name in names) else values
    if isinstance(values, dict) and section in ("", "extraction"):
        return {key: spell_out(f"{section}.{key}".removeprefix("."), value) for key, value in values.items()}
    return values


def name_key(dotted: str, *, option: str = "") -> str:
    """Find the key or section whose name is or ends in these parts, nearest to the top; `option` is how it is typed."""
    names = dict.fromkeys([*SECTIONS, *(key.name for key in list_keys())])
    matches = [name for name in names if f".{name}".endswith(f".{dotted}")]
    matches = [name for name in matches if name.count(".") == min(match.count(".") for match in matches)]
    if len(matches) > 1:
        spelled = " or ".join(match.replace(".", "__") if option else match for match in matches)
        raise UsageError(f"option {option or dotted!r} is one of several sections; write {spelled}.")
    if not matches:
        raise unknown_key(option or dotted, [name.rpartition(".")[2] for name in names])
    return matches[0]


def nest_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Write options as a configuration: each has the name of a key, or of a section, as `plan` or `template`.

    Of several keys with one name, that nearest to the top is meant; `decoder__dtype` and the like name the others.
    """
    values: dict[str, Any] = {}
    keys = {name_key(option.replace("__", "."), option=option): value for option, value in options.items()}
    for key in sorted(keys, key=lambda key: key.count(".")):  # sections before their keys
        section = values
        *parents, last = key.split(".")
        for parent in parents:
            inner = section.setdefault(parent, {})
            if isinstance(inner, str | Path):
                inner = section[parent] = {"name": str(inner)}
            if not isinstance(inner, dict):
                raise UsageError(
                    f"{parent} is a {type(inner).__name__}, so {last} cannot be set beside it; set it in there."
                )
            section = inner
        value = keys[key]
        section[last] = {**value} if isinstance(value, Mapping) else value
    return values


ConfigSource = RunConfig | Mapping[str, Any] | str | Path
"""What a run may be given as: its record, a mapping of values, or a file of YAML or of data."""


def as_config(source: ConfigSource, *, report: Callable[[str], None] = lambda _: None) -> RunConfig:
    """Read a configuration from what stands for it; `report` receives what a file of data was taken for."""
    if isinstance(source, RunConfig):
        return source
    if isinstance(source, Mapping):
        unnamed = ("sources", "has_checked_heads", "sweep")
        source = {**source}
        sweep = read_sweep(source.pop("sweep", {}))
        hints = {key: hint for key, hint in record_hints(RunConfig).items() if key not in unnamed}
        for key in source:
            if key not in hints:
                raise unknown_key(str(key), hints)
        plain = {key for key, hint in hints.items() if not (is_dataclass(hint) or key == "heads")}
        return RunConfig(
            **{key: from_plain(hints[key], value, key) if key in plain else value for key, value in source.items()},
            sweep=sweep,
        )
    if not isinstance(source, str | Path):
        raise ConfigError(
            f"the configuration is a {type(source).__name__}; allowed: a RunConfig, a mapping of its values, or the "
            "path of a YAML file or of a file of data."
        )
    data = read_data(str(source), {})
    if data is not None:
        report(str(data))
    return read_config([], file="" if data else str(source), data=data)


SWEEP_KEYS = ("over", "points", "plans", "ratios", "reference", "choose_on", "choose_by", "search", "budget", "typed")
"""Keys of the section `sweep` of a file."""


def read_sweep(values: object) -> dict[str, object]:
    """Check the section `sweep` of a file: its keys, and that nothing in it names code to run."""
    if not isinstance(values, dict):
        raise ConfigError(f"section 'sweep' is {_shorten(values)}; allowed: the keys {', '.join(SWEEP_KEYS)}.")
    for key in values:
        if key not in SWEEP_KEYS:
            raise unknown_key(f"sweep.{key}", [f"sweep.{name}" for name in SWEEP_KEYS])
    _refuse_objects(values, "sweep")
    return values


def with_settings(config: RunConfig, settings: Mapping[str, object], source: str) -> RunConfig:
    """Return a configuration with other values for some keys and sections, as if its file had them.

    What was not given before is decided again: by the new template, protocol and task. The name of another task leaves
    the options of the old one out, other poolings those of the heads, and another decoder a merge. Of a section, only
    the keys that are named change.
    """
    layers, plain = _Layers(RunConfig, ()), given_values(config)
    if isinstance(extracted := plain.get("extraction"), dict):
        extracted.pop("views", None)  # a key of the whole configuration
    layers.add("", plain)
    name_before = (layers.values.get("task") or {}).get("name")
    for key, value in settings.items():
        layers.put(key, value, source)
    values = layers.values
    task, decoder, extraction = (values.setdefault(name, {}) for name in ("task", "decoder", "extraction"))
    changed = {key.partition(".")[0] for key in settings}
    if "task" in changed and task.get("name") != name_before and not _names(settings, "task", "options"):
        task.pop("options", None)
    is_named = _names(settings, "decoder", "name") or isinstance(settings.get("decoder"), str)
    if is_named and not _names(settings, "decoder", "merge"):
        decoder.pop("merge", None)
    if "extraction" in changed and not any(key == "heads" or key.endswith(".pooling") for key in settings):
        _drop_missing_poolings(values.get("heads") or {}, extraction)
    kept = {
        key: origin
        for key, origin in config.sources.items()
        if not any(f"{key}.".startswith(f"{name}.") for name in settings)
    }
    hidden = {"sources": {**kept, **dict.fromkeys(settings, source)}, "missing": config.missing}
    known = [*names_of_code(config.extraction), *filter(PLACE.fullmatch, config.heads)]
    with allow_code(known):  # of a record that was read before
        record: RunConfig = from_plain(RunConfig, {**values, **hidden, "has_checked_heads": config.has_checked_heads})
    if record.decoder.trust_remote_code and not config.decoder.trust_remote_code:
        raise ConfigError(
            f"{TRUST} is true in {source}; allowed: on the command line alone, for all that it names. If you trust the "
            f"authors of {record.decoder.name!r}, add: --{TRUST} true, or in Python trust_remote_code to the decoder "
            "of the whole."
        )
    return record


def _names(settings: Mapping[str, object], section: str, key: str) -> bool:
    """Whether settings give a key of a section, or one inside it."""
    whole = settings.get(section)
    in_section = isinstance(whole, Mapping) and key in whole
    return in_section or any(f"{name}.".startswith(f"{section}.{key}.") for name in settings)


def _drop_missing_poolings(heads: Mapping[str, dict[str, object] | None], extraction: Mapping[str, object]) -> None:
    """Let heads read the first pooling where theirs is not extracted."""
    words = extraction.get("words", {})
    given = (extraction.get("poolings", ()), words.get("poolings", ()) if isinstance(words, Mapping) else ())
    poolings = {name for part in given for name in from_plain(tuple[str, ...], part, "extraction.poolings")}
    for options in filter(None, heads.values()) if poolings else ():
        if options.get("pooling") and not set(split_poolings(str(options["pooling"]))) <= poolings:
            del options["pooling"]


def given_values(config: RunConfig) -> dict[str, object]:
    """Write what was given of a configuration as plain values: nothing that a default, protocol or template decided."""

    def changed(record: Any, *without: str) -> dict[str, object]:
        keys = (item for item in fields(record) if item.metadata.get("is_key", True) and item.name not in without)
        return {key.name: value for key in keys if (value := getattr(record, key.name)) != default_of(key)}

    rest = changed(config, "decoder", "extraction")
    decoder = changed(config.decoder, *["name"] * bool(config.decoder.merge))
    decided = find_protocol(config.protocol).extraction.get(config.task.kind, {})
    extraction = _given_of(config.extraction, decided)
    values: dict[str, object] = to_plain({**rest, "decoder": decoder, "extraction": extraction})
    return values


def _given_of(record: object, decided: Mapping[str, object]) -> dict[str, object]:
    """Write the fields of a record that were given, without those that have the value which a protocol decided."""
    template = TEMPLATES[record.name].fields if isinstance(record, InputTemplate) and record.name in TEMPLATES else {}
    values: dict[str, object] = {}
    kind: type = type(record)
    for name in record_hints(kind):
        value, other = getattr(record, name), decided.get(name)
        if is_dataclass(value) and GIVEN in vars(value):
            values |= {name: part} if (part := _given_of(value, other if isinstance(other, Mapping) else {})) else {}
        elif name in given(record) and value not in (other, template.get(name)):
            values[name] = value
    return values


def _typed_code(pairs: Iterable[tuple[str, str]], sections: Sequence[str]) -> list[str]:
    """List the code that the command line itself names in sections, as `my_parts:pool`: it is the user's own."""
    typed = [pair for pair in pairs if pair[0].partition(".")[0] in sections and not _is_file(pair[1])]
    texts = [text for key, value in typed for text in (key.removeprefix("heads."), value)]
    return [name for text in texts for name in PLACE.findall(text)]


class _Layers:
    """Plain values, of which later ones replace earlier ones key by key, and the source of each."""

    def __init__(self, spec: type, options: Iterable[str]) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.sections = sections_of(spec)
        self.free = tuple(name for name, is_free in self.sections.items() if is_free)
        self.keys = ["config", *self.sections, *(key.name for key in list_keys(spec))]
        self.options = options

    def add(self, section: str, values: Any, file: str = "") -> None:
        """Merge a section, or the whole where it has no name; `file` is empty where it was typed."""
        _refuse_objects(values, section)
        values = spell_out(section, values)
        if section and not (isinstance(values, dict) or (values is None and self.sections[section] and "." in section)):
            raise _unfit_section(section, values, file)
        if self.sections.get(section):
            self._replace_free(section, values or {}, file)
            return
        for key, value in values.items():
            name = f"{section}.{key}".removeprefix(".")
            if name in self.sections:
                self.add(name, value, file)
            else:
                self._put(name, value, file)

    def add_typed(self, name: str, text: str) -> None:
        """Merge one key of the command line."""
        free = next((section for section in self.free if name.startswith(f"{section}.")), "")
        if name in self.sections:
            self.add(name, load_yaml(text, where=f"--{name}"))
        elif not free:
            _refuse_objects(load_yaml(text, where=f"--{name}") if any(key in text for key in OBJECTS) else None, name)
            self._put(name, text, "")
        else:
            self._put_free(free, name, with_numbers(load_yaml(text, where=f"--{name}")))

    def put(self, name: str, value: object, source: str) -> None:
        """Merge one key or section whose value is plain, or the text of one."""
        free = next((section for section in self.free if name.startswith(f"{section}.")), "")
        if isinstance(value, str) and (free or name in self.sections):
            value = with_numbers(load_yaml(value, where=name))
        if name in self.sections:
            self.add(name, value, source)
        elif free:
            self._put_free(free, name, value)
        else:
            _refuse_objects(value, name)
            self._put(name, value, source)

    def require_known(self, name: str) -> None:
        """Refuse an unknown key."""
        if name not in self.keys and not name.startswith(tuple(f"{section}." for section in self.free)):
            raise unknown_key(name, [*self.keys, *self.options])

    def require_values(self, typed: Pairs) -> list[tuple[str, str]]:
        """Refuse an unknown key of the command line, and one without a value."""
        for key, _ in typed:
            self.require_known(key)
        for key, value in typed:
            if value is None:
                raise UsageError(f"--{key} lacks its value; allowed: --{key} VALUE, or --{key}=VALUE.")
        return [(key, value) for key, value in typed if value is not None]

    def _put(self, name: str, value: object, file: str) -> None:
        self.require_known(name)
        parents, last = self._parents(name)
        parents[last] = value
        self.sources[name] = Path(file).name or TYPED

    def _replace_free(self, section: str, values: dict[Any, Any], file: str) -> None:
        groups = {f"heads.{name}": options for name, options in values.items()} if section == "heads" else {}
        for name, options in groups.items():
            if not isinstance(options, dict | None):
                raise _unfit_section(name, options, file)
        for name, options in {section: values, **groups}.items():
            for key in options or ():
                if not isinstance(key, str):
                    noun = "heads" if name == "heads" else "options"
                    raise ConfigError(f"{name} has the key {key!r}; allowed: names of {noun}, which are texts.")
        parents, last = self._parents(section)
        parents[last] = with_numbers(values)
        self.sources = {key: source for key, source in self.sources.items() if not f"{key}.".startswith(f"{section}.")}
        self.sources[section] = Path(file).name or TYPED

    def _put_free(self, section: str, name: str, value: object) -> None:
        _refuse_objects({name.rpartition(".")[2]: value}, name.rpartition(".")[0])
        if name.rpartition(".")[0] == "heads" and not isinstance(value, dict | None):
            raise _unfit_section(name, value, "")
        parents, last = self._parents(section)
        options = parents.setdefault(last, {"layer-cosine": {}} if section == "heads" else {})
        *groups, last = name.removeprefix(f"{section}.").split(".")
        for group in groups:
            if not isinstance(options.get(group), dict):  # a single value in the file gives way
                options[group] = {}
            options = options[group]
        options[last] = value
        self.sources[name] = TYPED

    def _parents(self, name: str) -> tuple[dict[str, Any], str]:
        """Return the mapping that holds a key, and the last part of its name."""
        values = self.values
        *parents, last = name.split(".")
        for part in parents:
            values = values.setdefault(part, {})
        return values, last


def _unfit_section(section: str, value: object, file: str) -> ConfigError:
    if file:
        return ConfigError(
            f"section {section!r} of {file!r} is {_shorten(value)}; allowed: `key: value` a line, indented below "
            f"`{section.rpartition('.')[2]}:`, or leave the section out for its defaults."
        )
    return ConfigError(
        f"section {section!r} is {_shorten(value)} on the command line; allowed: its keys one by one, as "
        f"--{section}.KEY VALUE, or together, as --{section} '{{KEY: VALUE}}'."
    )


def _refuse_objects(values: object, section: str) -> None:
    """Refuse keys that would make another program build objects, at any depth: the values of a config are plain."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            name = f"{section}.{key}".removeprefix(".")
            if key in OBJECTS:
                raise UsageError(f"unknown key {name!r}; allowed: plain values, none of which names code to run.")
            _refuse_objects(value, name)
    elif isinstance(values, list | tuple | set):
        for item in values:
            _refuse_objects(item, section)


# --- Shipped configs ---


PACKAGE = Path(__file__).parents[1]


def shipped(name: str) -> Path:
    """Return the path of a shipped file or folder."""
    inside = PACKAGE / name
    return inside if inside.exists() else PACKAGE.parent / name


def shipped_configs() -> dict[str, Path]:
    """Find the shipped configs by name, as `demo` or `freeze/siamese`."""
    folder = shipped("configs")
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
