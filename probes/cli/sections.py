"""What a YAML file may hold before its keys are looked at: sections that are mappings, and no leave to run code."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import yaml

from extract.errors import ConfigError
from probes.runs.config import RunConfig

TRUST = "decoder.trust_remote_code"


def check_files(arguments: Sequence[str]) -> None:
    """Refuse YAML files among the arguments of a command in which a section is not a mapping."""
    for name in _file_names(arguments):
        if Path(name).is_file():  # the parser says so otherwise
            check_sections(yaml.safe_load(Path(name).read_text(encoding="utf-8")), name)


def check_sections(values: Any, file: str) -> None:
    """Refuse the content of a YAML file of which a section is a list, a number, a boolean or a text.

    The parser would drop some of them for the defaults, without a word. Empty options are defaults.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{file!r} holds {_shorten(values)}; allowed: keys with values, as in configs/demo.yaml.")
    heads = values.get("heads")
    named = [(f"heads.{key}", value, True) for key, value in heads.items()] if isinstance(heads, dict) else []
    for key, value, may_be_empty in (*_sections(RunConfig, values), *named):
        if isinstance(value, dict) or (value is None and may_be_empty):
            continue
        raise ConfigError(
            f"section {key!r} of {file!r} is {_shorten(value)}; allowed: `key: value` a line, indented below "
            f"`{key.rpartition('.')[2]}:`, or leave the section out for its defaults."
        )


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


def _sections(spec: type, values: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any, bool]]:
    """List the sections that are there: dotted name, value, and whether it may be empty."""
    for name, hint in get_type_hints(spec).items():
        if name not in values:
            continue
        if is_dataclass(hint) and isinstance(hint, type):
            yield f"{prefix}{name}", values[name], False
            if isinstance(values[name], dict):
                yield from _sections(hint, values[name], f"{prefix}{name}.")
        elif get_origin(hint) is dict:
            yield f"{prefix}{name}", values[name], bool(prefix)


def _file_names(arguments: Iterable[str]) -> Iterator[str]:
    rest = iter(arguments)
    for argument in rest:
        key, equals, value = argument.partition("=")
        if key == "--config":
            yield value if equals else next(rest, "")


def _shorten(value: Any) -> str:
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
