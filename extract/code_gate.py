"""The gate to code that files name: a module is imported if the user allows it by name, and only as it was recorded.

A config, run folder, cache, index or saved head may come from anybody, with any record of a module. So nothing in a
file opens the gate.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from extract.errors import CodeError, CodeWarning
from extract.files import digest_bytes, digest_json

_ALLOWED: ContextVar[tuple[str, ...]] = ContextVar("allowed code", default=())


@contextmanager
def allow_code(names: str | Iterable[str]) -> Iterator[None]:
    """Allow files to name the code of some modules, within a `with` block.

    Code is looked up when a file is read, so read it within the block. Code that was registered in this process is
    always allowed.

    Args:
        names: A module, as `my_parts`, or one name in it, as `my_parts:pool`; or several.

    Example:
        >>> with allow_code("my_parts"):
        ...     pass  # run = icecore.load_run("runs/mine")
    """
    added = (names,) if isinstance(names, str) else tuple(names)
    token = _ALLOWED.set(tuple(dict.fromkeys((*_ALLOWED.get(), *added))))
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def allowed_code() -> tuple[str, ...]:
    """List the allowed names, to allow them in another process."""
    return _ALLOWED.get()


def import_code(module: str, label: str, *, name: str = "", record: Mapping[str, str] | None = None) -> ModuleType:
    """Import a module that a file names: the only place that does."""
    allowed = _ALLOWED.get()
    if module not in allowed and name not in allowed:
        modules = [*(entry for entry in allowed if ":" not in entry), module]
        raise CodeError(
            f"{label} is code of the module {module!r}, which no file may import by itself; if you trust that module, "
            f"add --allow-code {','.join(modules)}, or in Python allow_code={modules!r}."
        )
    if record is not None and module not in sys.modules:
        source = record.get("source", "")
        if not source:
            warnings.warn(
                f"{label} was recorded without a digest of the source of {module!r}, which is imported unchecked.",
                CodeWarning,
                stacklevel=3,
            )
        elif not (now := digest_source(module)):
            raise ModuleNotFoundError(f"no files of {module!r} on the Python path")
        elif now != source:
            raise CodeError(
                f"{label} is code of the module {module!r}, whose source is not the one that was recorded, so it is "
                "not imported; put that version on PYTHONPATH, or run the config again with this one."
            )
    return import_module(module)


def digest_source(module: str) -> str:
    """Digest the files of a module and of the packages above it, without importing any; empty where one is missing."""
    try:
        files = [(spec.name, Path(spec.origin or "") if spec.has_location else None) for spec in _specs(module)]
        return digest_json([[name, digest_bytes(file.read_bytes()) if file else ""] for name, file in files])
    except (ImportError, OSError, ValueError):
        return ""


def _specs(module: str) -> Iterator[ModuleSpec]:
    """Find a module from its first package on; `importlib.util.find_spec` would import those above it."""
    first, *inner = module.split(".")
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    spec = next((spec for find in finders if find and (spec := find(first, None))), None)
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            raise ImportError(module)
        yield spec
        # By its last name: with the whole one, a package without a file looks for its parent among those imported.
        spec = PathFinder.find_spec(name, [*spec.submodule_search_locations])
    if spec is None:
        raise ImportError(module)
    yield spec
