"""What a YAML file may hold before its keys are looked at: sections that are mappings, and no leave to run code."""

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any, get_origin, get_type_hints

from extract.errors import ConfigError
from probes.cli.config_file import shorten
from probes.runs.config import RunConfig

TRUST = "decoder.trust_remote_code"


def check_sections(values: dict[Any, Any], file: str) -> None:
    """Refuse the content of a YAML file of which a section is a list, a number, a boolean or a text.

    The parser would drop some of them for the defaults, without a word. Empty options are defaults.
    """
    heads = values.get("heads")
    named = [(f"heads.{key}", value, True) for key, value in heads.items()] if isinstance(heads, dict) else []
    for key, value, may_be_empty in (*_sections(RunConfig, values), *named):
        if isinstance(value, dict) or (value is None and may_be_empty):
            continue
        raise ConfigError(
            f"section {key!r} of {file!r} is {shorten(value)}; allowed: `key: value` a line, indented below "
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
