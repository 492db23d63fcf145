"""What a YAML file may hold before its keys are looked at: sections that are mappings, and no leave to run code."""

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any, get_origin, get_type_hints

from extract.errors import ConfigError
from probes.cli.config_file import is_file, load_config_file, load_yaml, shorten
from probes.runs.config import RunConfig

TRUST = "decoder.trust_remote_code"


def _list_sections(spec: type, prefix: str = "") -> Iterator[tuple[str, bool]]:
    for name, hint in get_type_hints(spec).items():
        if get_origin(hint) is dict:
            yield f"{prefix}{name}", True
        elif isinstance(hint, type) and is_dataclass(hint):
            yield f"{prefix}{name}", False
            yield from _list_sections(hint, f"{prefix}{name}.")


SECTIONS = dict(_list_sections(RunConfig))
"""Sections by dotted name, and whether their keys are those of a head or task; others may be files."""


def check_sections(values: dict[Any, Any], file: str) -> None:
    """Refuse the content of a YAML file of which a section is a list, a number, a boolean or a text.

    The parser would drop some of them for the defaults, without a word. Empty options are defaults.
    """
    for key, value in _unfit_sections(values):
        raise ConfigError(
            f"section {key!r} of {file!r} is {shorten(value)}; allowed: `key: value` a line, indented below "
            f"`{key.rpartition('.')[2]}:`, or leave the section out for its defaults."
        )


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse a section on the command line that is neither a mapping nor, where the parser reads one, a file."""
    for argument, following in zip(arguments, [*arguments, "--"][1:], strict=True):
        key, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not (key in SECTIONS or key.rpartition(".")[0] == "heads"):
            continue
        if not equals and following.startswith("--"):
            continue  # the parser says that there is no value
        text = text if equals else following
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


def refuse_trust_from_files(config: RunConfig, arguments: Sequence[str]) -> None:
    """Refuse to run code of a checkpoint because a file says so: a config may come from a stranger's run folder."""
    option = f"--{TRUST}"
    said = [
        argument.partition("=")[2] or following
        for argument, following in zip(arguments, [*arguments, ""][1:], strict=True)
        if argument.partition("=")[0] == option
    ]
    if config.decoder.trust_remote_code and not any(value.lower() == "true" for value in said):
        raise ConfigError(
            f"{TRUST} is true in a file; allowed: on the command line alone. If you trust the authors of "
            f"{config.decoder.name!r}, add: {option} true."
        )
