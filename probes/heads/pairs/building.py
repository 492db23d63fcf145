"""Trying out whether a network can be built with given options."""

from typing import Any

import torch

from extract.errors import ConfigError, IcecoreError


def try_building(name: str, network: type[Any], arguments: dict[str, Any]) -> None:
    """Build a network without memory or randomness, so that a bad value is refused before anything is extracted.

    Raises:
        ConfigError: It cannot be built; gives torch's reason.
    """
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
