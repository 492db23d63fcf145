"""The options of every head as a config writes them: checked once, against the head's own signatures."""

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from extract.decoders.layers import split_layers
from extract.errors import ConfigError, IcecoreError, UnknownNameError, unknown_name
from extract.names import option_names, resolve
from probes.networks.widths import Widths, check_widths

DATA_OPTIONS = ("pooling", "layers")
"""Options that every head of a task has: the latents it reads."""
_NOUNS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list of numbers",
}


@dataclass(frozen=True)
class HeadOptions:
    """The options of one head, checked.

    Attributes:
        name: The head.
        own: One value per source of options (see `resolve_sources`), in order.
        pooling: The pooling it reads, or several joined by `+`; the first extracted one where empty.
        layers: The layers it reads.
    """

    name: str
    own: tuple[Any, ...]
    pooling: str
    layers: tuple[str, ...]

    def pooling_of(self, poolings: Sequence[str]) -> str:
        """Return the pooling that is read from a cache."""
        return self.pooling or poolings[0]


def split_data_options(name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """Separate a head's own options from the pooling (empty for the first extracted one) and the layers it reads."""
    own = {key: value for key, value in options.items() if key not in DATA_OPTIONS}
    layers, pooling = options.get("layers", "all"), options.get("pooling")
    try:
        names = split_layers(layers)
    except UnknownNameError:
        names = ()
    if not names:
        raise ConfigError(f"option layers of head {name!r} is {layers!r}; allowed: a layer, or a list of them.")
    if not isinstance(pooling, str | None) or pooling == "":
        raise ConfigError(f"option pooling of head {name!r} is {pooling!r}; allowed: the name of a pooling.")
    return own, pooling or "", names


def option_defaults(source: Any) -> dict[str, inspect.Parameter]:
    """List the options that a source declares, with their defaults; parameters without a default are no options.

    A source is a dataclass, an instance of one (its values are the defaults), or a class with a constructor.
    """
    parameters = inspect.signature(source if callable(source) else type(source)).parameters
    found = {key: each for key, each in parameters.items() if each.default is not inspect.Parameter.empty}
    if is_dataclass(source) and not isinstance(source, type):
        found = {item.name: found[item.name].replace(default=getattr(source, item.name)) for item in fields(source)}
    return found


def resolve_sources(
    name: str, sources: Sequence[Any], options: Mapping[str, Any], *, others: Sequence[str] = ()
) -> tuple[Any, ...]:
    """Check options against the sources that declare them; gives one value per source.

    A dataclass or an instance of one becomes a checked instance; a class with a constructor becomes a dictionary of
    those of its arguments that were given. Messages call the head `name`, and list `others` as further options.

    Raises:
        UnknownNameError: An option that no source declares.
        ConfigError: A value of the wrong kind.
        HeadError: A value that a dataclass refuses.
    """
    require_known(name, sources, options, others=others)
    sources = [resolve(source) for source in sources]
    declared = [option_defaults(source) for source in sources]
    given: list[dict[str, Any]] = [{} for _ in sources]
    for key, value in options.items():
        place = next(k for k, table in enumerate(declared) if key in table)
        is_checked = isinstance(sources[place], type) and is_dataclass(sources[place])  # checks its own ranges
        given[place][key] = coerce(name, key, value, declared[place][key], is_free=is_checked)
    return tuple(_build(source, values) for source, values in zip(sources, given, strict=True))


def require_known(name: str, sources: Sequence[Any], options: Mapping[str, Any], *, others: Sequence[str] = ()) -> None:
    """Refuse an option that no source declares, without importing the sources; arguments as of `resolve_sources`."""
    known = [*(option for source in sources for option in option_names(source)), *others]
    for key in options:
        if key not in known:
            raise unknown_name(f"{name} option", key, known)


def _build(source: Any, values: dict[str, Any]) -> Any:
    if not is_dataclass(source):
        return values
    return source(**values) if isinstance(source, type) else replace(source, **values)


def coerce(head: str, key: str, value: Any, parameter: inspect.Parameter, *, is_free: bool) -> Any:
    """Bring a value to the kind of its default; YAML reads `1e-3` as a text, so a number may come as one.

    Where the default is None, the option takes a number or None. Unless `is_free` (a range is checked elsewhere),
    numbers are at least 0, or 1 where the default is not 0.
    """
    default = parameter.default
    if parameter.annotation == Widths:
        return check_widths(value)
    if value is None and default is None:
        return None
    kind = float if default is None else type(default)
    least = 0 if kind is float or default == 0 else 1
    for found in _readings(value, kind):
        if is_free or kind not in (int, float) or least <= found < math.inf:
            return found
    noun = _NOUNS.get(kind, kind.__name__)
    noun += f" of at least {least:g}" * (kind in (int, float) and not is_free) + ", or null" * (default is None)
    raise ConfigError(f"option {key} of head {head!r} is {value!r}; allowed: {noun}.")


def _readings(value: Any, kind: type) -> Iterator[Any]:
    """Read a value as a kind; nothing where it cannot be read so."""
    try:
        if kind is tuple:
            items = value if isinstance(value, list | tuple) else [value]
            if not any(isinstance(item, bool) for item in items):
                yield tuple(float(item) for item in items)
        elif isinstance(value, bool) or kind is bool or kind is str:
            if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):  # to Python, True is an int
                yield value
        elif kind is float or float(value).is_integer():
            yield kind(float(value))
    except (TypeError, ValueError, OverflowError):
        return


def try_building(name: str, network: type[Any], arguments: dict[str, Any]) -> None:
    """Build a network without memory or randomness, so that a bad value is refused before anything is extracted."""
    import torch

    sizes = arguments.get("bottleneck")
    n_layers = len(sizes) if isinstance(sizes, list | tuple) else 2  # the true number is known with the cache
    try:
        with torch.device("meta"):
            network(max(n_layers, 1), 4096, **arguments)
    except IcecoreError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:  # torch answers a size beyond 64 bits with a TypeError
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(f"head {name!r} cannot be built with {arguments}: {reason}.") from error
