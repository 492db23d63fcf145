"""The digest of a user's code: what a function or class runs, so that an edit of it is noticed.

It is taken of the compiled code and of what that refers to, not of a file. So it is the digest of what runs, also in a
notebook whose cell was run again, or where a file was edited after its import.
"""

import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import unwrap
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from extract.digest import digest_bytes, digest_json
from extract.moved import first_place
from extract.names import Later

OURS = ("extract", "probes", "icecore", "builtins")
STDLIB = sys.stdlib_module_names - {"__main__"}
PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))
UNCOUNTED = (
    "__module__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__annotations__",
    "__annotate_func__",
    "__annotations_cache__",
    "__firstlineno__",
    "__static_attributes__",
    "__slotnames__",
)
"""Attributes of a class that do not decide what it does."""
Seen = dict[int, Any]
"""Objects by their `id`, in the order they were met; held, so that no other object gets their number."""


def digest_code(thing: Any) -> str:
    """Digest what a function, class or object of a user does: its code, defaults and what it refers to.

    Functions and classes of installed packages count by their names, those of this library by the one that they had
    first (`extract.moved`), and values by their content. Two versions of Python compile the same source to other code,
    and so to another digest.
    """
    return digest_json(list(_parts(thing, {})))


def is_users(module: str) -> bool:
    """Whether a module is written by the user: it lies neither in this library nor among installed packages."""
    if module.partition(".")[0] in OURS:
        return False
    if module == "__main__":  # in a notebook its file is that of the kernel
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:  # made in memory, or built into Python
        return module not in sys.builtin_module_names
    paths = sysconfig.get_paths()
    return not any(file.startswith(paths[key] + os.sep) for key in ("stdlib", "platstdlib", "purelib", "platlib"))


def _parts(thing: Any, seen: Seen) -> Iterator[str]:
    """Give the parts of a thing that decide what it does, in a fixed order; one seen before by its number."""
    if isinstance(thing, PLAIN):
        yield repr(thing)
    elif id(thing) in seen:
        yield f"again {[*seen].index(id(thing))}"
    else:
        seen[id(thing)] = thing
        yield first_place(type(thing).__module__, type(thing).__qualname__)[1]
        yield from next((give for kinds, give in _GIVERS if isinstance(thing, kinds)), _of_object)(thing, seen)


def _of_code(code: CodeType, seen: Seen) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_flags))
    for constant in code.co_consts:
        yield from _parts(constant, seen)


def _of_items(items: Iterable[Any], seen: Seen) -> Iterator[str]:
    for item in items:
        yield from _parts(item, seen)


def _of_mapping(mapping: Mapping[Any, Any], seen: Seen) -> Iterator[str]:
    yield from _of_items([part for item in mapping.items() for part in item], seen)


def _of_function(function: FunctionType, seen: Seen) -> Iterator[str]:
    if not is_users(function.__module__ or "__main__"):
        yield ".".join(first_place(function.__module__, function.__qualname__))
        return
    inner: Any = unwrap(function)
    cells = [_content(cell) for cell in inner.__closure__ or ()]
    yield from _of_items([inner.__code__, inner.__defaults__, inner.__kwdefaults__, cells], seen)
    names = _names(inner.__code__)
    for name in names:
        if name in inner.__globals__:
            yield name
            yield from _of_global(inner.__globals__[name], names, seen)


def _of_class(cls: type, seen: Seen) -> Iterator[str]:
    if not is_users(cls.__module__):
        yield ".".join(first_place(cls.__module__, cls.__qualname__))
        return
    for name, value in sorted(vars(cls).items()):
        inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        if name not in UNCOUNTED and isinstance(inner, (FunctionType, type, tuple, list, dict, set, frozenset, *PLAIN)):
            yield name
            yield from _parts(inner, seen)
    yield from _of_items(cls.__bases__, seen)


def _of_object(thing: Any, seen: Seen) -> Iterator[str]:
    """Give the parts of an object that is no plain value, collection, function or class."""
    name = getattr(thing, "__qualname__", "") or getattr(thing, "__name__", "")
    if name and callable(thing):
        yield ".".join(first_place(str(getattr(thing, "__module__", "")), name))
    elif hasattr(thing, "state_dict"):
        plain = {key: value for key, value in vars(thing).items() if isinstance(value, PLAIN)}
        yield from _of_items([type(thing), plain, dict(thing.state_dict())], seen)
    elif hasattr(thing, "detach") or hasattr(thing, "tobytes"):
        array = thing.detach().cpu().numpy() if hasattr(thing, "detach") else thing
        yield f"{getattr(array, 'shape', '')} {getattr(array, 'dtype', '')} {digest_bytes(array.tobytes())}"
    elif not hasattr(thing, "__dict__") or type(thing).__module__.partition(".")[0] in STDLIB:
        yield "" if " at 0x" in repr(thing) else repr(thing)  # such as a path, a pattern, a logger, a torch.dtype
    elif isinstance(thing, Later):
        yield from _of_items([Later, {"place": thing.first_place, "bound": thing.bound}], seen)
    else:
        kept = [field.name for field in fields(thing)] if is_dataclass(thing) else [*vars(thing)]  # no cached values
        yield from _of_items([type(thing), {name: getattr(thing, name) for name in kept}], seen)


def _of_global(value: Any, names: Collection[str], seen: Seen) -> Iterator[str]:
    """Give the parts of a global that code refers to; of a user's module, what the code may take from it."""
    if not isinstance(value, ModuleType):
        yield from _parts(value, seen)
    elif not is_users(value.__name__) or id(value) in seen:
        yield value.__name__
    else:
        seen[id(value)] = value
        for name in sorted(set(names) & set(vars(value))):
            yield from _of_global(vars(value)[name], names, seen)


_GIVERS: tuple[tuple[Any, Callable[[Any, Seen], Iterator[str]]], ...] = (
    (CodeType, _of_code),
    (tuple | list, _of_items),
    (set | frozenset, lambda items, _: iter(sorted(repr(item) for item in items))),
    (Mapping, _of_mapping),
    (partial, lambda part, seen: _of_items((part.func, part.args, part.keywords), seen)),
    (MethodType, lambda method, seen: _of_items((method.__func__, method.__self__), seen)),
    (FunctionType, _of_function),
    (type, _of_class),
    (ModuleType, lambda module, _: iter([module.__name__])),
)
"""What gives the parts of a kind of thing; the first that fits."""


def _names(code: CodeType) -> tuple[str, ...]:
    inner = (name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant))
    return tuple(dict.fromkeys((*code.co_names, *inner)))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None
