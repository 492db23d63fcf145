"""Options of a head as they stand in a config: checked against the head's own signature."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from extract.errors import ConfigError, unknown_name
from probes.fit import FitOptions
from probes.heads.registry import head_entry

DATA_OPTIONS = ("pooling", "layers")


@dataclass(frozen=True)
class HeadOptions:
    """What a config says of one head, sorted by who needs it.

    Attributes:
        arguments: Keyword arguments of the head.
        fit: How it is fitted.
        pooling: The pooling it reads; the first extracted one when None.
        layers: The layers it reads.
    """

    arguments: dict[str, Any]
    fit: FitOptions
    pooling: str | None
    layers: tuple[str, ...]


def resolve_options(name: str, options: Mapping[str, Any]) -> HeadOptions:
    """Check the options of a head and sort them.

    Args:
        name: A head from the registry.
        options: Options by name.

    Returns:
        The options, defaults filled in for fitting.

    Raises:
        UnknownNameError: An unknown head or option.
        ConfigError: A value of the wrong kind.

    Example:
        >>> resolve_options("siamese-cosine", {"bottleneck": 64, "patience": 3}).arguments
        {'bottleneck': 64}
    """
    entry = head_entry(name)
    parameters = {
        key: parameter.default
        for key, parameter in inspect.signature(entry.head).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    fitting = {item.name: getattr(entry.options, item.name) for item in fields(FitOptions)}
    known = {**parameters, **fitting}
    arguments: dict[str, Any] = {}
    fit: dict[str, Any] = {}
    for key, value in options.items():
        if key in DATA_OPTIONS:
            continue
        if key not in known:
            raise unknown_name(f"{name} option", key, [*known, *DATA_OPTIONS])
        (fit if key in fitting else arguments)[key] = _coerce(name, key, value, known[key])
    layers = options.get("layers", "all")
    return HeadOptions(
        arguments=arguments,
        fit=replace(entry.options, **fit),
        pooling=options.get("pooling"),
        layers=(layers,) if isinstance(layers, str) else tuple(layers),
    )


def _coerce(head: str, key: str, value: Any, default: Any) -> Any:
    """Bring a value to the kind of its default; YAML reads `1e-3` as a text, so a number may come as one."""
    kind = type(default)
    if kind is bool or isinstance(value, bool):
        if isinstance(value, bool) and kind is bool:
            return value
    elif kind in (int, float):
        try:
            number = float(value)
            if kind is float or number.is_integer():
                return kind(number)
        except (TypeError, ValueError):
            pass
    elif isinstance(value, kind):
        return value
    nouns = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    raise ConfigError(f"option {key} of head {head!r} is {value!r}; allowed: {nouns.get(kind, kind.__name__)}.")
