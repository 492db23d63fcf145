"""Packages of the extras, imported when they are needed."""

from importlib import import_module
from typing import Any

from extract.errors import ConfigError

EXTRAS = {"sentence_transformers": "sentence-transformers", "mteb": "mteb"}
"""Package to the extra that brings it."""


def require_extra(package: str) -> Any:
    """Import a package of an extra; ConfigError, which says how to install it, where it is missing."""
    try:
        return import_module(package)
    except ImportError as error:
        extra = EXTRAS[package]
        raise ConfigError(
            f"the extra package {extra} is needed for this and cannot be imported ({error}); install it with: "
            f"pip install 'icecore[{extra}]'."
        ) from error
