"""Options of a head as they stand in a config: checked against the head's own signature."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from extract.errors import ConfigError, HeadError, IcecoreError, unknown_name
from probes.fitting.trainer import FitOptions
from probes.heads.registry import head_entry
from probes.networks.autoencoder import LayerAutoencoder
from probes.networks.losses import COMPARING, MIN_BATCH
from probes.networks.pair_head import PairHead
from probes.networks.widths import Widths, check_widths

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
        HeadError: A batch of one under a loss that compares rows.

    Example:
        >>> resolve_options("siamese-cosine", {"bottleneck": 64, "patience": 3}).arguments
        {'bottleneck': 64}
    """
    entry = head_entry(name)
    own = {key: value for key, value in options.items() if key not in DATA_OPTIONS}
    arguments, fit = sort_options(name, entry.head, own, defaults=entry.options, others=DATA_OPTIONS)
    own_defaults = _defaults(entry.head)
    loss = arguments.get("loss", own_defaults["loss"].default if "loss" in own_defaults else None)
    if loss in COMPARING and fit.batch_size < MIN_BATCH:
        raise HeadError(
            f"option batch_size of head {name!r} is {fit.batch_size}, but the loss {loss!r} compares rows with each "
            f"other; allowed: at least {MIN_BATCH}, 32 or more for log-variance."
        )
    layers, pooling = options.get("layers", "all"), options.get("pooling")
    names = list(layers) if isinstance(layers, list | tuple) else [layers]
    if not names or not all(isinstance(item, str) and item for item in names):
        raise ConfigError(f"option layers of head {name!r} is {layers!r}; allowed: a layer name or a list of them.")
    if not isinstance(pooling, str | None) or pooling == "":
        raise ConfigError(f"option pooling of head {name!r} is {pooling!r}; allowed: the name of a pooling.")
    return HeadOptions(arguments=arguments, fit=fit, pooling=pooling, layers=tuple(names))


def option_names(build: type[PairHead] | type[LayerAutoencoder]) -> tuple[str, ...]:
    """Name the options a module takes in a config: its own, those of fitting it, and what it reads.

    Example:
        >>> option_names(head_entry("layer-cosine").head)
        ('pooling', 'layers')
    """
    fitting = tuple(item.name for item in fields(FitOptions))
    if not issubclass(build, PairHead):
        return (*_defaults(build), *fitting)
    return (*_defaults(build), *(fitting if build.is_trained else ()), *DATA_OPTIONS)


def _defaults(build: Callable[..., object]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(build).parameters
    return {key: value for key, value in parameters.items() if value.default is not inspect.Parameter.empty}


def sort_options(
    name: str, build: Callable[..., object], options: Mapping[str, Any], *, defaults: FitOptions,
    others: Sequence[str] = (),
) -> tuple[dict[str, Any], FitOptions]:  # fmt: skip
    """Check options against a module's own signature and sort those of fitting out.

    Args:
        name: What messages call the module.
        build: Its class.
        options: Options by name.
        defaults: How it is fitted unless told otherwise.
        others: Further options, for messages.

    Returns:
        Keyword arguments of the module, and how it is fitted.

    Raises:
        UnknownNameError: An unknown option, or a value that stands in no table of the module.
        ConfigError: A value of the wrong kind, or one the module cannot be built with.
    """
    parameters = _defaults(build)
    fitting = {item.name: getattr(defaults, item.name) for item in fields(FitOptions)}
    arguments: dict[str, Any] = {}
    fit: dict[str, Any] = {}
    for key, value in options.items():
        if key in fitting:
            fit[key] = _coerce(name, key, value, fitting[key])
        elif key not in parameters:
            raise unknown_name(f"{name} option", key, [*parameters, *fitting, *others])
        elif parameters[key].annotation == Widths:
            arguments[key] = check_widths(value)  # read by the module itself
        elif value is None and parameters[key].default is None:
            arguments[key] = None
        else:
            arguments[key] = _coerce(name, key, value, parameters[key].default)
    _try_building(name, build, arguments)
    return arguments, replace(defaults, **fit)


def _try_building(name: str, build: Callable[..., object], arguments: dict[str, Any]) -> None:
    """Build the module without memory or randomness, so that a bad value is told before anything is extracted."""
    sizes = arguments.get("bottleneck")
    n_layers = len(sizes) if isinstance(sizes, list | tuple) else 2  # the true number is known with the cache
    try:
        with torch.device("meta"):
            build(max(n_layers, 1), 4096, **arguments)
    except IcecoreError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:  # torch answers a size beyond 64 bits with a TypeError
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(f"head {name!r} cannot be built with {arguments}: {reason}.") from error


def _coerce(head: str, key: str, value: Any, default: Any) -> Any:
    """Bring a value to the kind of its default; YAML reads `1e-3` as a text, so a number may come as one.

    Where the default is None, another option's value stands in for it, and the value is a number or None.
    """
    kind = float if default is None else type(default)
    least = 0 if kind is int and default == 0 else 1
    if kind is bool or isinstance(value, bool):
        if isinstance(value, bool) and kind is bool:
            return value
    elif kind in (int, float):
        try:
            number = float(value)
            if (kind is float and 0 <= number < math.inf) or (number.is_integer() and number >= least):
                return kind(number)
        except (TypeError, ValueError):
            pass
    elif isinstance(value, kind):
        return value
    nouns = {
        bool: "true or false", int: f"a whole number of at least {least}", float: "a number of at least 0",
        str: "a text",
    }  # fmt: skip
    noun = nouns.get(kind, kind.__name__) + (", or null" if default is None else "")
    raise ConfigError(f"option {key} of head {head!r} is {value!r}; allowed: {noun}.")
