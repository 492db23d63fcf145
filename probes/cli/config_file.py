"""The text of a YAML configuration, checked before it is parsed: readable, a mapping, and of bounded size."""

from pathlib import Path
from typing import Any

import yaml

from extract.errors import ConfigError

MOST_BYTES = 1 << 20
MOST_VALUES = 20_000
"""Values in a configuration once its anchors are written out."""


def load_config_file(name: str) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; `ConfigError` if it cannot be used."""
    path = Path(name)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"config file {name!r} has {path.stat().st_size:,} bytes; allowed: {MOST_BYTES:,}.")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"config file {name!r} cannot be read ({error}); give a YAML file in UTF-8.") from error
    values = load_yaml(text, where=f"config file {name!r}")
    if not isinstance(values, dict):
        raise ConfigError(
            f"config file {name!r} holds {shorten(values)}; allowed: keys with values, as in configs/demo.yaml."
        )
    return values


def is_file(name: str) -> bool:
    """Whether there is such a file; not for a text that is no name of a file."""
    try:
        return Path(name).is_file()
    except OSError:
        return False


def shorten(value: Any) -> str:
    """Write a value in at most 60 characters."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def load_yaml(text: str, *, where: str) -> Any:
    """Load YAML whose anchors do not make it much larger than it is; `ConfigError` names `where` it was found."""
    try:
        n_values = _count(yaml.compose(text, yaml.SafeLoader), {})
        if n_values > MOST_VALUES:
            raise ConfigError(
                f"{where} has {n_values:,} values with its anchors written out; allowed: {MOST_VALUES:,}."
            )
        return yaml.safe_load(text)
    except RecursionError as error:
        raise ConfigError(f"{where} is nested too deeply, or an anchor holds itself; write it flat.") from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:  # PyYAML's own slips, too
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where} is not YAML ({reason}); see configs/demo.yaml.") from error


def _count(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Count the values of a node with every alias written out; one that holds itself is a `RecursionError`."""
    if id(node) in known:
        if not known[id(node)]:
            raise RecursionError
        return known[id(node)]
    known[id(node)] = 0
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        parts = list(node.value)
    elif isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    known[id(node)] = 1 + sum(_count(part, known) for part in parts)
    return known[id(node)]
