"""What users add by name, such as a pooling of their own, and a digest of the code that it runs.

A name like `my_module:my_function` is imported when it is first used; an installed package may list names as entry
points, in the group `icecore.poolings` for poolings. The digest is of the compiled code, not of a file, so it is that
of what runs, also in a notebook whose cell was run again.
"""

import os
import re
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from inspect import unwrap
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from extract.digest import digest_bytes, digest_json
from extract.errors import InputError, UnknownNameError, first_line

PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""A module and a name in it."""
STDLIB = sys.stdlib_module_names - {"__main__"}
OURS = ("extract", "probes", "icecore")
UNCOUNTED = (
    "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate_func__",
    "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__slotnames__",
)  # fmt: skip
"""Attributes of a class that do not decide what it does."""
PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))


class Own(NamedTuple):
    """One thing that a user added."""

    thing: Any
    module: str


ADDED: dict[tuple[str, str], Own] = {}
"""Noun and name to what was added in this process."""


def add_own(noun: str, name: str, thing: Any, *, shipped: Collection[str], form: str = r"[\w.:-]+") -> None:
    """Note what a user adds under a name; again under the same name replaces it, as when a notebook cell is run again.

    Args:
        noun: What it is, such as `pooling`.
        name: Its name.
        thing: The function, or the row of a table.
        shipped: Names that the library has, which cannot be replaced.
        form: Pattern of allowed names.

    Raises:
        InputError: A name of another form or of the library's.
    """
    if not re.fullmatch(form, name):
        raise InputError(f"the name of a {noun} is {name!r}; allowed: {form}, such as 'my-{noun.split()[-1]}'.")
    if name in shipped and (noun, name) not in ADDED:
        raise InputError(f"the {noun} {name!r} is there already; give yours another name.")
    ADDED[noun, name] = Own(thing, _module_of(thing))


def find_own(noun: str, name: str, *, known: Collection[str], add: Callable[[str, Any], object]) -> None:
    """Import and `add` what an unknown name stands for: `module:attribute`, or an entry point of `icecore.{noun}s`.

    Raises:
        UnknownNameError: The module cannot be imported, or has no such attribute.
    """
    if name in known:
        return
    if PLACE.fullmatch(name):
        module, _, attribute = name.partition(":")
        add(name, _attribute(noun, name, module, attribute))
        return
    for point in entry_points(group=f"icecore.{noun.replace(' ', '_')}s", name=name):
        thing = point.load()
        if name not in known:  # loading it may have added it
            add(name, thing)


def _attribute(noun: str, name: str, module: str, attribute: str) -> Any:
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:
        raise UnknownNameError(
            f"the {noun} {name!r} cannot be imported ({first_line(error)}); the module must be installed, or lie in a "
            f"folder of PYTHONPATH: PYTHONPATH=. icecore ..."
        ) from error


def describe_own(names: Iterable[tuple[str, str]]) -> dict[str, dict[str, str]]:
    """Describe those of some nouns and names that users added: module and digest of their code by `noun name`."""
    return {
        f"{noun} {name}": {"module": own.module, "sha256": digest_code(own.thing)}
        for noun, name in dict.fromkeys(names)
        if (own := ADDED.get((noun, name)))
    }


def digest_own(noun: str, names: Iterable[str]) -> dict[str, str]:
    """Digest the code of those names that users added; empty where there are none."""
    return {key: own["sha256"] for key, own in describe_own((noun, name) for name in names).items()}


def import_own(described: Mapping[str, Mapping[str, str]], *, folder: Path) -> None:
    """Import the modules of what users added, as `describe_own` recorded it in a run folder, where it is not here yet.

    Modules that lie in the run folder itself are not imported: it may come from anybody.

    Raises:
        InputError: A module that cannot be imported, or does not add the name; says what to do.
    """
    for key, own in described.items():
        noun, _, name = key.rpartition(" ")
        module, reason = own["module"], "adds no such name when it is imported"
        if (noun, name) in ADDED:
            continue
        try:
            if module == "__main__":
                raise ImportError("it was defined in a notebook or script")
            found = find_spec(module.partition(".")[0])
            if found is not None and found.origin and Path(found.origin).resolve().is_relative_to(folder.resolve()):
                raise ImportError("it lies in the run folder, whose code is not run")
            import_module(module)
        except Exception as error:
            reason = f"cannot be imported ({first_line(error)})"
        if (noun, name) not in ADDED and (not PLACE.fullmatch(name) or "cannot" in reason):
            raise InputError(
                f"the run {str(folder)!r} uses the {noun} {name!r} of your module {module!r}, which {reason}; put it on "
                "PYTHONPATH, or import what adds it first."
            )


def require_own(described: Mapping[str, Mapping[str, str]], *, folder: Path) -> None:
    """Refuse what users added where its code is not that of a run: `InputError` names it."""
    for key, own in described.items():
        noun, _, name = key.rpartition(" ")
        if digest_own(noun, [name]) != {key: own["sha256"]}:
            raise InputError(
                f"the {noun} {name!r} has other code than when {str(folder)!r} was made; run it again with the new code."
            )


def digest_code(thing: Any) -> str:
    """Digest what a function or class runs: its code, defaults and what it refers to, as far as users wrote it.

    Functions and classes of installed packages count by their names, values by their content. Two versions of Python
    compile the same source to other code, and so to another digest.
    """
    seen: dict[int, int] = {}
    return digest_json(list(_parts(thing, seen)))


def _parts(thing: Any, seen: dict[int, int]) -> Iterable[str]:
    """Give the parts of a thing that decide what it does, in a fixed order; one seen before by its number."""
    if isinstance(thing, PLAIN):
        yield repr(thing)
        return
    if id(thing) in seen:
        yield f"again {seen[id(thing)]}"
        return
    seen[id(thing)] = len(seen)
    yield type(thing).__qualname__
    if isinstance(thing, CodeType):
        yield thing.co_code.hex()
        yield repr((thing.co_names, thing.co_varnames, thing.co_freevars, thing.co_argcount, thing.co_flags))
        for constant in thing.co_consts:
            yield from _parts(constant, seen)
    elif isinstance(thing, tuple | list):
        for item in thing:
            yield from _parts(item, seen)
    elif isinstance(thing, set | frozenset):
        yield from sorted(repr(item) for item in thing)
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield repr(key)
            yield from _parts(value, seen)
    elif isinstance(thing, partial):
        yield from _parts((thing.func, thing.args, thing.keywords), seen)
    elif isinstance(thing, MethodType):
        yield from _parts((thing.__func__, thing.__self__), seen)
    elif isinstance(thing, FunctionType | type) and not _is_users(thing.__module__ or "__main__"):
        yield f"{thing.__module__}.{thing.__qualname__}"
    elif isinstance(thing, FunctionType):
        function = unwrap(thing)
        cells = [_content(cell) for cell in function.__closure__ or ()]
        yield from _parts([function.__code__, function.__defaults__, function.__kwdefaults__, cells], seen)
        for name in _names(function.__code__):
            if name in function.__globals__:
                yield name
                yield from _refer(function.__globals__[name], _names(function.__code__), seen)
    elif isinstance(thing, type):
        yield repr([base.__qualname__ for base in thing.__mro__])
        for name, value in sorted(vars(thing).items()):
            if name not in UNCOUNTED:
                yield name
                inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
                if isinstance(inner, (FunctionType, type, tuple, list, dict, set, frozenset, *PLAIN)):
                    yield from _parts(inner, seen)
        yield from (part for base in thing.__bases__ for part in _parts(base, seen))
    else:
        yield from _value_parts(thing, seen)


def _value_parts(thing: Any, seen: dict[int, int]) -> Iterable[str]:
    """Give the parts of an object that is no plain value, collection, function or class."""
    name = getattr(thing, "__qualname__", "") or getattr(thing, "__name__", "")
    if isinstance(thing, ModuleType) or (name and callable(thing)):
        yield f"{getattr(thing, '__module__', '')}.{name}"
    elif hasattr(thing, "state_dict"):
        plain = {key: value for key, value in vars(thing).items() if isinstance(value, PLAIN)}
        yield from _parts([type(thing), plain, dict(thing.state_dict())], seen)
    elif hasattr(thing, "detach") or hasattr(thing, "tobytes"):
        array = thing.detach().cpu().numpy() if hasattr(thing, "detach") else thing
        yield f"{getattr(array, 'shape', '')} {getattr(array, 'dtype', '')} {digest_bytes(array.tobytes())}"
    elif not hasattr(thing, "__dict__") or type(thing).__module__.partition(".")[0] in STDLIB:
        yield "" if " at 0x" in repr(thing) else repr(thing)  # such as a path, a pattern, a logger, a torch.dtype
    else:
        yield from _parts([type(thing), vars(thing)], seen)


def _refer(value: Any, names: Collection[str], seen: dict[int, int]) -> Iterable[str]:
    """Give the parts of a global that code refers to; of a user's module, what the code may take from it."""
    if not isinstance(value, ModuleType):
        yield from _parts(value, seen)
    elif not _is_users(value.__name__) or id(value) in seen:
        yield value.__name__
    else:
        seen[id(value)] = len(seen)
        for name in sorted(set(names) & set(vars(value))):
            yield from _refer(vars(value)[name], names, seen)


def _names(code: CodeType) -> tuple[str, ...]:
    inner = (name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant))
    return tuple(dict.fromkeys((*code.co_names, *inner)))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _module_of(thing: Any) -> str:
    while isinstance(thing, partial):
        thing = thing.func
    for candidate in (thing, *(thing if isinstance(thing, tuple) else ()), getattr(thing, "build", None)):
        module = getattr(candidate, "__module__", "") or ""
        if module and not _is_ours(module):
            return module
    return "__main__"


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in (*OURS, "builtins")


def _is_users(module: str) -> bool:
    """Whether a module is written by the user: it lies neither in this library nor among installed packages."""
    if _is_ours(module):
        return False
    if module == "__main__":  # in a notebook its file is that of the kernel
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    paths = sysconfig.get_paths()
    installed = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    if file is None:  # made in memory, or built into Python
        return module not in sys.builtin_module_names
    return not any(file.startswith(folder + os.sep) for folder in installed)
