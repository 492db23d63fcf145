"""Where the names of earlier versions are now.

The digest of a user's code contains the paths of the library's functions that it uses, and old notebooks and files
import them. So a name that moves keeps its first path there. `moved.txt` has a line for each pair of modules:

    extract.own.names extract.registry add_own find_own describe_parts=describe_own

These functions and classes of `extract.own.names` are now in `extract.registry`, the last under another name. Names
that are in no line (constants, say) are looked up in the new modules of an old one.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

TABLE = Path(__file__).with_name("moved.txt")
OURS = ("extract", "probes")


class Move(NamedTuple):
    """A function or class that moved; a function may have become `Class.method`."""

    old_module: str
    old_name: str
    module: str
    name: str


class Moves(NamedTuple):
    """The whole table."""

    modules: dict[str, list[str]]
    """Old module to new ones."""
    by_old: dict[tuple[str, str], Move]
    by_new: dict[tuple[str, str], Move]

    def has(self, module: str) -> bool:
        """Whether a module moved, or is a package of modules that did."""
        return any(old == module or old.startswith(f"{module}.") for old in self.modules)


def read_moves(text: str) -> Moves:
    """Read a table.

    Example:
        >>> read_moves("a.b a.c f new=g").by_new["a.c", "new"].old_name
        'g'
    """
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    modules: dict[str, list[str]] = {}
    moves = []
    for old, new, *names in lines:
        modules.setdefault(old, []).append(new)
        moves += [Move(old, name.rpartition("=")[2], new, name.partition("=")[0]) for name in names]
    by_old = {(move.old_module, move.old_name): move for move in moves}
    return Moves(modules, by_old, {(move.module, move.name): move for move in reversed(moves)})


@cache
def moves() -> Moves:
    """Read the table once."""
    return read_moves(TABLE.read_text(encoding="utf-8"))


def first_place(module: str, qualname: str) -> tuple[str, str]:
    """Return the module and the qualified name under which a function or class was first recorded.

    Example:
        >>> first_place("extract.errors", "ConfigError")
        ('extract.errors', 'ConfigError')
    """
    if module.partition(".")[0] not in OURS:
        return module, qualname
    top, *inner = qualname.split(".")
    if method := moves().by_new.get((module, qualname)):
        return method.old_module, method.old_name
    move = moves().by_new.get((module, top))
    return (module, qualname) if move is None else (move.old_module, ".".join([move.old_name, *inner]))


class MovedModule(ModuleType):
    """An old module, whose names are imported from the new ones when they are used."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):  # tools look such names up in every module
            for path, new_name in self._candidates(name):
                module = import_module(path)
                with suppress(AttributeError):
                    return attrgetter(new_name)(module)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def _candidates(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield modules and names to try, those of the nested modules of an old package last."""
        table = moves()
        old_modules = [self.__name__, *(old for old in table.modules if old.startswith(f"{self.__name__}."))]
        listed = (move for old in old_modules if (move := table.by_old.get((old, name))))
        yield from ((move.module, move.name) for move in listed)
        yield from ((new, name) for old in old_modules for new in table.modules.get(old, ()))


class MovedFinder(MetaPathFinder, Loader):
    """Finds old modules that no file has the name of."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find an old module; a file that was a package gets its former modules."""
        del target
        if not name.startswith(tuple(f"{package}." for package in OURS)) or not moves().has(name):
            return None
        real = PathFinder.find_spec(name, path)
        if real is None:
            return ModuleSpec(name, self, is_package=True)
        if real.submodule_search_locations is None:
            nested = (old for old in moves().modules if old.startswith(f"{name}."))
            sys.modules.update({old: MovedModule(old) for old in nested if old not in sys.modules})
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the module."""
        return MovedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing: an old module has no code."""


def find_moved() -> None:
    """Let imports of old modules be found."""
    if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedFinder())
