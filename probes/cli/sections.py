"""What a YAML file may hold before its keys are looked at: sections that are mappings, and no leave to run code."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from extract.errors import ConfigError, UsageError
from probes.cli.config_file import is_file, load_config_file, load_yaml, shorten
from probes.cli.keys import SECTIONS
from probes.runs.config import RunConfig

TRUST = "decoder.trust_remote_code"
OBJECTS = ("class_path", "init_args", "dict_kwargs", "__orig__", "__path__")
"""Keys by which a parser is told to make an object, or to keep notes of its own."""


def check_sections(values: dict[Any, Any], file: str) -> None:
    """Refuse the content of a YAML file of which a section is a list, a number, a boolean or a text.

    The parser would drop some of them for the defaults, without a word. Empty options are defaults.
    """
    for key, value in _unfit_sections(values):
        raise ConfigError(
            f"section {key!r} of {file!r} is {shorten(value)}; allowed: `key: value` a line, indented below "
            f"`{key.rpartition('.')[2]}:`, or leave the section out for its defaults."
        )


def check_arguments(pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse a section on the command line that is neither a mapping nor, where the parser reads one, a file."""
    for key, text in pairs:
        if not (key in SECTIONS or key.rpartition(".")[0] == "heads"):
            continue
        if not SECTIONS.get(key, True) and is_file(text):
            check_sections(_nest(key, load_config_file(text)), text)
            continue
        for section, value in _unfit_sections(_nest(key, load_yaml(text, where=f"--{key}"))):
            raise ConfigError(
                f"section {section!r} is {shorten(value)} on the command line; allowed: its keys one by one, as "
                f"--{section}.KEY VALUE, or together, as --{section} '{{KEY: VALUE}}'."
            )


def _nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    found: dict[str, Any] = value
    return found


def _unfit_sections(values: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, is_free in SECTIONS.items():
        place: Any = values
        *parents, last = key.split(".")
        for part in parents:
            place = place.get(part) if isinstance(place, dict) else None
        if isinstance(place, dict) and last in place and not _is_section(place[last], is_free and bool(parents)):
            yield key, place[last]
    heads = values.get("heads")
    named = heads.items() if isinstance(heads, dict) else ()
    yield from ((f"heads.{name}", options) for name, options in named if not _is_section(options, True))


def _is_section(value: Any, may_be_empty: bool) -> bool:
    return isinstance(value, dict) or (value is None and may_be_empty)


def refuse_objects(values: Any, section: str) -> None:
    """Refuse keys that would make a parser build objects, at any depth: the values of a config are plain."""
    if isinstance(values, dict):
        for key, value in values.items():
            name = f"{section}.{key}".removeprefix(".")
            if key in OBJECTS:
                raise UsageError(f"unknown key {name!r}; allowed: plain values, none of which names code to run.")
            refuse_objects(value, name)
    elif isinstance(values, list | tuple | set):
        for value in values:
            refuse_objects(value, section)


def check_names(options: Mapping[str, Any]) -> None:
    """Refuse options and heads whose names are no texts; `options` are those of heads and tasks, by section."""
    heads = {f"heads.{name}": of_head for name, of_head in options.get("heads", {}).items()}
    for section, values in {**options, **heads}.items():
        for name in values or ():
            if not isinstance(name, str):
                noun = "heads" if section == "heads" else "options"
                raise ConfigError(f"{section} has the key {name!r}; allowed: names of {noun}, which are texts.")


def refuse_trust_from_files(config: RunConfig, pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse to run code of a checkpoint because a file says so: a config may come from a stranger's run folder."""
    said = [value for key, value in pairs if key == TRUST]
    if config.decoder.trust_remote_code and not any(value.lower() == "true" for value in said):
        raise ConfigError(
            f"{TRUST} is true in a file; allowed: on the command line alone. If you trust the authors of "
            f"{config.decoder.name!r}, add: --{TRUST} true."
        )
