"""Tables of names that import nothing: each object is named as `module:attribute` and imported when it is first used.

Such a table can be listed, searched and completed without torch:

    POOLINGS = {"last": (later("extract.poolings.pooling:pool_last"), "the last real token"), ...}

An object that is at hand, such as one that a user registers, can be in the same table as it is.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from extract.errors import ConfigError
from extract.moved import first_place

EXTRAS = {"mteb": "mteb", "ray": "ray", "sentence_transformers": "sentence-transformers"}
"""Package to the extra that brings it."""


@dataclass(frozen=True)
class Later:
    """An object by its place; see `later`."""

    place: str
    """`module:attribute`."""
    bound: tuple[Any, ...] = ()
    """First arguments of every call."""

    @cached_property
    def value(self) -> Any:
        """The object itself, imported at the first use."""
        module, _, name = self.place.partition(":")
        return getattr(import_module(module), name)

    @property
    def first_place(self) -> str:
        """The place where the object was first, which digests hold."""
        module, _, name = self.place.partition(":")
        return ":".join(first_place(module, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object."""
        return self.value(*map(resolve, self.bound), *args, **kwargs)


def later(place: str, *bound: Any) -> Any:
    """Name a function or class as `module:attribute`; the result can be called like it, which imports it.

    `bound` are first arguments of every call, which may come later themselves.

    Example:
        >>> later("math:pow", 2)(5)
        32.0
    """
    return Later(place, bound)


def resolve(named: Any) -> Any:
    """Return the object that `later` names; any other object as it is."""
    return named.value if isinstance(named, Later) else named


def require_extra(package: str) -> Any:
    """Import a package of an extra; ConfigError, which says how to install it, where it is missing."""
    try:
        return import_module(package)
    except ImportError as error:
        extra = EXTRAS[package]
        raise ConfigError(
            f"the extra package {extra} is needed for this and cannot be imported ({error}); install it with: "
            f"pip install '{extra}', or from the checkout: pip install '.[{extra}]'."
        ) from error


def option_names(source: Any) -> tuple[str, ...]:
    """Name the parameters that have a default, of a class, an instance of one, or what `later` names.

    What `later` names is read from its source, not imported: fields of a dataclass, or the parameters of a constructor.

    Example:
        >>> option_names(later("extract.decoders.spec:DecoderSpec"))[:2]
        ('name', 'revision')
    """
    if isinstance(source, Later):
        return tuple(_options_in_source(*source.place.split(":")))
    parameters = inspect.signature(source if callable(source) else type(source)).parameters
    return tuple(name for name, each in parameters.items() if each.default is not inspect.Parameter.empty)


def parameter_names(function: Any) -> tuple[str, ...]:
    """Name all parameters of a function; of one that `later` names without importing it."""
    if not isinstance(function, Later):
        return tuple(inspect.signature(function).parameters)
    module, _, name = function.place.partition(":")
    found = (each for each in _parse(module).body if isinstance(each, ast.FunctionDef) and each.name == name)
    own = next(found).args
    return tuple(each.arg for each in (*own.posonlyargs, *own.args, *own.kwonlyargs))


@cache
def _parse(module: str) -> ast.Module:
    top, *inner = module.split(".")
    spec = find_spec(top)  # that of an inner module would import the packages around it
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"there is no package {top!r}")
    path = Path(spec.submodule_search_locations[0], *inner)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _options_in_source(module: str, name: str) -> dict[str, None]:
    """Read the options of a class; none of a name that is no class of the module's own package."""
    found: dict[str, None] = {}
    for node in _parse(module).body:
        if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]:
            is_ours = node.module.partition(".")[0] == module.partition(".")[0]
            return _options_in_source(node.module, name) if is_ours else {}
        if not isinstance(node, ast.ClassDef) or node.name != name:
            continue
        for base in node.bases:
            found |= _options_in_source(module, ast.unparse(base))
        own = next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
        if own is not None:
            return dict.fromkeys(_with_default(own.args))
        if any("dataclass" in ast.unparse(each) for each in node.decorator_list):
            found |= dict.fromkeys(_fields(node))
    return found


def _with_default(arguments: ast.arguments) -> Iterator[str]:
    given = [*arguments.posonlyargs, *arguments.args]
    yield from (each.arg for each in given[len(given) - len(arguments.defaults) :])
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    yield from (each.arg for each, value in named if value is not None)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    found = (each for each in node.body if isinstance(each, ast.AnnAssign) and each.value is not None)
    yield from (ast.unparse(each.target) for each in found if "ClassVar" not in ast.unparse(each.annotation))
