"""The way out to other tools: sentence-transformers, mteb, and the hub.

The packages of the extras are imported when a function needs them.
"""

from importlib import import_module
from typing import Any

from probes import _NAMES

_HOMES = dict(sorted((name, home) for home, names in _NAMES.items() if home.startswith(__name__) for name in names))

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'probes.export' has no attribute {name!r}; allowed: {', '.join(_HOMES)}")
    return getattr(import_module(_HOMES[name]), name)
