"""Options of a head as they stand in a config: checked against the head's own signature."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from extract.errors import ConfigError, IcecoreError, unknown_name
from probes.fit import FitOptions
from probes.heads.base import PairHead
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
        UnknownNameError: An unknown head or option, or a value that stands in no table of the head.
        ConfigError: A value of the wrong kind, or one the head cannot be built with.

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
    _try_building(name, entry.head, arguments)
    layers = options.get("layers", "all")
    if not isinstance(layers, str | list | tuple):
        raise ConfigError(f"option layers of head {name!r} is {layers!r}; allowed: a layer name or a list of them.")
    pooling = options.get("pooling")
    if not isinstance(pooling, str | None):
        raise ConfigError(f"option pooling of head {name!r} is {pooling!r}; allowed: the name of a pooling.")
    return HeadOptions(
        arguments=arguments,
        fit=replace(entry.options, **fit),
        pooling=pooling,
        layers=(layers,) if isinstance(layers, str) else tuple(layers),
    )


def _try_building(name: str, head: type[PairHead], arguments: dict[str, Any]) -> None:
    """Build the head without memory or randomness, so that a bad value is told before anything is extracted."""
    try:
        with torch.device("meta"):
            head(1, 1, **arguments)
    except IcecoreError:
        raise
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"head {name!r} cannot be built with {arguments}: {error}.") from error


def _coerce(head: str, key: str, value: Any, default: Any) -> Any:
    """Bring a value to the kind of its default; YAML reads `1e-3` as a text, so a number may come as one."""
    kind = type(default)
    if kind is bool or isinstance(value, bool):
        if isinstance(value, bool) and kind is bool:
            return value
    elif kind in (int, float):
        try:
            number = float(value)
            if (kind is float and 0 <= number < math.inf) or (number.is_integer() and number >= 1):
                return kind(number)
        except (TypeError, ValueError):
            pass
    elif isinstance(value, kind):
        return value
    nouns = {bool: "true or false", int: "a whole number of at least 1", float: "a number of at least 0", str: "a text"}
    raise ConfigError(f"option {key} of head {head!r} is {value!r}; allowed: {nouns.get(kind, kind.__name__)}.")
