"""Reading a run's configuration: a YAML file, and any key of it on the command line."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args, get_origin

import yaml

from extract.errors import ConfigError, IcecoreError, UsageError, first_line, unknown_name
from extract.own.gate import allow_code
from extract.own.names import PLACE
from probes.cli.arguments import Argument, Command, Pairs, read_command, require_value
from probes.cli.config_file import is_file, load_config_file, load_yaml, shorten
from probes.cli.keys import SECTIONS, list_keys
from probes.cli.sections import (
    OBJECTS,
    check_arguments,
    check_names,
    check_sections,
    refuse_objects,
    refuse_trust_from_files,
)
from probes.runs.config import RunConfig

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

# Options of heads and tasks never reach the parser, which would make objects of them: the head or task itself checks
# them. They are merged key by key into what the file says.
FREE_FORM = ("heads", "task.options", "pretraining.options", "pretraining.autoencoder")

NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")


def read_arguments(command: Command, argv: Sequence[str]) -> SimpleNamespace:
    """Read the arguments of a command and its configuration, which is `config` of the result; see `read_config`."""
    found, pairs = read_command(command, argv)
    found.config = read_config(pairs, file=found.config, options=command.options)
    return found


def read_config(given: Pairs, *, file: str = "", options: Iterable[Argument] = ()) -> RunConfig:
    """Read a configuration: a YAML file, if any, and the keys on the command line, which win.

    Args:
        given: The keys, with their values; the key `config` names a further file.
        file: The file.
        options: Options of the command, which messages list beside the keys.

    Raises:
        UsageError: A key is unknown, or its value of a wrong kind.
        IcecoreError: The configuration cannot be used.
    """
    given = [*([("config", file)] if file else []), *given]
    if ("config", "") in given:
        raise UsageError("--config is empty; allowed: a YAML file, as --config configs/demo.yaml.")
    files = {name: load_config_file(_require_file(name)) for key, name in given if key == "config" and name}
    for name, values in files.items():
        check_sections(values, name)
    known = ["config", *SECTIONS, *(each.name for each in list_keys())]
    for key in [*(key for key, _ in given), *(key for values in files.values() for key in _keys_in(values))]:
        if key not in known and not key.startswith(tuple(f"{name}." for name in FREE_FORM)):
            raise _unknown_key(key, [*known, *(each.name.lstrip("-") for each in options)])
    pairs = [(key, require_value(f"--{key}", value)) for key, value in given]
    check_arguments(pairs)
    free: dict[str, Any] = {}
    parsed = [_as_parsed(key, value, files, free) for key, value in pairs if not _is_free(key)]
    _merge_free(free, [(key, load_yaml(value, where=f"--{key}")) for key, value in pairs if _is_free(key)])
    free = {name: _with_numbers(options) for name, options in free.items()}
    check_names(free)
    for key, value in pairs:
        if "*" in value and "&" in value:
            load_yaml(value, where=f"--{key}")
    parser = _build_parser()
    try:
        read = parser.parse_args([f"--{key}={value}" for key, value in parsed if key])
        with allow_code(_typed_code(pairs)):
            made = parser.instantiate(read)
            parts = {key: getattr(made, key) for key in RunConfig.__dataclass_fields__}
            for name, options_of in free.items():
                section, _, key = name.partition(".")
                parts[section] = replace(parts[section], **{key: options_of}) if key else options_of
            config = RunConfig(**parts)
    except IcecoreError:
        raise
    except Exception as error:  # the parser raises a dozen unrelated types, all about these values
        raise _explain(error) from error
    refuse_trust_from_files(config, pairs)
    return config


def _typed_code(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """List the code that the command line itself names, as `my_parts:pool`: it is the user's own."""
    texts = [
        text
        for key, value in pairs if key.partition(".")[0] in ("extraction", "heads") and not is_file(value)
        for text in (key.removeprefix("heads."), value)
    ]  # fmt: skip
    return [name for text in texts for name in PLACE.findall(text)]


def _as_parsed(key: str, text: str, files: Mapping[str, Any], free: dict[str, Any]) -> tuple[str, str]:
    """Write a value as the parser reads it: a file as its content, a list even where it was written as one value.

    What belongs to heads and tasks moves to `free`; the key is empty where that is all.
    """
    if key == "config":
        refuse_objects(files[text], "")
        return key, yaml.safe_dump(_with_lists(_move_free(files[text], free)))
    if key in SECTIONS:
        value = load_config_file(text) if is_file(text) else load_yaml(text, where=f"--{key}")
        refuse_objects(value, key)
        value = _move_free(value, free, f"{key}.")
        return "" if key in FREE_FORM else key, yaml.safe_dump(_with_lists(value, f"{key}."))
    if any(word in text for word in OBJECTS):
        refuse_objects(load_yaml(text, where=f"--{key}"), key)
    if _item_of(key) is None:
        return key, text
    return key, yaml.safe_dump(_as_list(load_yaml(text, where=f"--{key}"), _item_of(key)), default_flow_style=True)


def _move_free(values: Any, free: dict[str, Any], prefix: str = "") -> Any:
    """Move the options of heads and tasks out of a section; the rest is returned."""
    if prefix.removesuffix(".") in FREE_FORM:
        free[prefix.removesuffix(".")] = values or {}  # a key left empty in YAML is null
        return {}
    if not isinstance(values, dict):
        return values
    names = {key: f"{prefix}{key}" for key in values}
    rest = {key: value for key, value in values.items() if names[key] not in FREE_FORM}
    for key in values.keys() - rest.keys():
        _move_free(values[key], free, f"{names[key]}.")
    return {
        key: _move_free(value, free, f"{names[key]}.") if names[key] in SECTIONS else value
        for key, value in rest.items()
    }


def _with_lists(values: Any, prefix: str = "") -> Any:
    if not isinstance(values, dict) or prefix.removesuffix(".") in FREE_FORM:
        return values
    return {
        key: _with_lists(value, f"{prefix}{key}.") if _item_of(f"{prefix}{key}") is None
        else _as_list(value, _item_of(f"{prefix}{key}"))
        for key, value in values.items()
    }  # fmt: skip


def _item_of(key: str) -> type | None:
    """Return the type of the items of a key that holds a list; None for any other."""
    hints = {each.name: each.hint for each in list_keys()}
    return get_args(hints[key])[0] if get_origin(hints.get(key)) is tuple else None


def _as_list(value: Any, item: type | None) -> Any:
    """Read `a, b` or a single value as a list; a number where a text is wanted as its text."""
    if value is None:
        return value
    parts = [load_yaml(part, where="a list") for part in value.split(",")] if isinstance(value, str) else value
    parts = parts if isinstance(parts, list | tuple) else [parts]
    misfits = [part for part in parts if is_dataclass(item) and not isinstance(part, dict)]
    if misfits:  # the parser would take a text for the name of a class, and import it
        raise UsageError(f"decoder.merge holds {shorten(misfits[0])}; allowed: parts as {{name: NAME, weight: 0.5}}.")
    return [str(part) if item is str and type(part) is int else part for part in parts]


def _is_free(key: str) -> bool:
    return key.startswith(tuple(f"{name}." for name in FREE_FORM))


def _require_file(name: str) -> str:
    if not is_file(name):
        known = sorted(str(path) for path in Path("configs").rglob("*.yaml")) if Path("configs").is_dir() else []
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"there is no config file {name!r}.{guess} Give a YAML file, as configs/demo.yaml.")
    return name


@cache
def _build_parser() -> "ArgumentParser":
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(RunConfig)
    return parser


def _merge_free(free: dict[str, Any], pairs: Iterable[tuple[str, Any]]) -> None:
    for key, value in pairs:
        name = next(name for name in FREE_FORM if key.startswith(f"{name}."))
        options = free.setdefault(name, {"layer-cosine": {}} if name == "heads" else {})
        *parents, last = key.removeprefix(f"{name}.").split(".")
        for part in parents:
            if not isinstance(options.get(part), dict):  # a single value in the file gives way
                options[part] = {}
            options = options[part]
        refuse_objects({last: value}, key.rpartition(".")[0])
        options[last] = value


def _with_numbers(value: Any) -> Any:
    """Read numbers as 1e-3, which YAML takes for texts."""
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


def _keys_in(values: Any, prefix: str = "") -> Iterator[str]:
    """Name the keys of a file, down to those of heads and tasks, whose options are their own."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name in SECTIONS and name not in FREE_FORM:
            yield from _keys_in(value, f"{name}.")
        else:
            yield name


def _explain(error: Exception) -> UsageError:
    """Turn what the parser says of a value into a sentence of ours."""
    text = " ".join(str(error).split())
    found = re.search(r'key "([\w.-]+)": .*?(?:Got|Given) value: (.*)', text)
    keys = {each.name: each for each in list_keys()}
    if not found or found[1] not in keys:
        return UsageError(f"the configuration cannot be used: {text.rstrip('.') or first_line(error)}.")
    key, value = keys[found[1]], found[2]
    if key.values:
        return UsageError(str(unknown_name(key.name, value, key.values)))
    return UsageError(f"{key.name} is {value[:60]!r}; allowed: {key.noun}. See icecore run --help.")


def _unknown_key(key: str, known: Iterable[str]) -> UsageError:
    names = sorted(set(known))
    near = get_close_matches(key, names, n=1, cutoff=0.5)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return UsageError(f"unknown key {key!r}.{guess} Allowed: {', '.join(names)}.")
