"""Tables of names that import nothing: each object is named as `module:attribute` and imported when it is first used.

Such a table can be listed, searched and completed without torch:

    POOLINGS = {"last": (later("extract.poolings.poolings:pool_last"), "the last real token"), ...}

An object that exists already, such as one that a user registers, can be in the same table as it is. What users add is
noted here by its name, with a digest of the code that it runs, so that an edit of it is noticed.
"""

import ast
import inspect
import os
import re
import sys
import sysconfig
import warnings
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property, partial, partialmethod
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from inspect import unwrap
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import (
    CellType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

from extract.errors import CodeError, CodeWarning, ConfigError, InputError, UnknownNameError, first_line
from extract.files import digest_bytes, digest_json
from extract.moved import first_place

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


EXTRAS = {"mteb": "mteb", "ray": "ray", "sentence_transformers": "sentence-transformers"}
"""Package to the extra that brings it."""


@dataclass(frozen=True)
class Later:
    """An object by its module and name; see `later`."""

    place: str
    """`module:attribute`, or `module:Class.method`."""
    bound: tuple[object, ...] = ()
    """First arguments of every call."""

    @cached_property
    def value(self) -> Any:
        """The object itself, imported at the first use."""
        module, _, name = self.place.partition(":")
        return attrgetter(name)(import_module(module))

    @property
    def first_place(self) -> str:
        """Module and name under which the object was first recorded, which digests hold."""
        module, _, name = self.place.partition(":")
        return ":".join(first_place(module, name))

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the object."""
        return self.value(*map(resolve, self.bound), *args, **kwargs)


def later(place: str, *bound: object) -> Any:
    """Name a function or class as `module:attribute`; the result can be called like it, which imports it.

    `bound` are first arguments of every call, which may come later themselves.

    Example:
        >>> later("math:pow", 2)(5)
        32.0
    """
    return Later(place, bound)


def resolve(named: object) -> Any:
    """Return the object that `later` names; any other object as it is."""
    return named.value if isinstance(named, Later) else named


def require_extra(package: str) -> ModuleType:
    """Import a package of an extra; ConfigError, which says how to install it, where it is missing."""
    try:
        return import_module(package)
    except ImportError as error:
        extra = EXTRAS[package]
        raise ConfigError(
            f"the extra package {extra} is needed for this and cannot be imported ({error}); install it with: "
            f"pip install '{extra}', or from the checkout: pip install '.[{extra}]'."
        ) from error


def option_names(source: object) -> tuple[str, ...]:
    """Name the parameters that have a default, of a class, an instance of one, or what `later` names.

    What `later` names is read from its source, not imported: fields of a dataclass, or the parameters of a constructor.

    Example:
        >>> option_names(later("extract.decoders.decoder_spec:DecoderSpec"))[:2]
        ('name', 'revision')
    """
    if isinstance(source, Later):
        return tuple(_options_in_source(*source.place.split(":")))
    parameters = inspect.signature(source if callable(source) else type(source)).parameters
    return tuple(name for name, value in parameters.items() if value.default is not inspect.Parameter.empty)


def parameter_names(function: Any) -> tuple[str, ...]:
    """Name all parameters of a function; of one that `later` names without importing it."""
    if not isinstance(function, Later):
        return tuple(inspect.signature(function).parameters)
    module, _, name = function.place.partition(":")
    nodes = (node for node in _parse(module).body if isinstance(node, ast.FunctionDef) and node.name == name)
    arguments = next(nodes).args
    return tuple(arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


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
    """Read the options of a class, in order; none of a class outside the module's own package."""
    options: dict[str, None] = {}
    for node in _parse(module).body:
        if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]:
            is_ours = node.module.partition(".")[0] == module.partition(".")[0]
            return _options_in_source(node.module, name) if is_ours else {}
        if not isinstance(node, ast.ClassDef) or node.name != name:
            continue
        for base in node.bases:
            options |= _options_in_source(module, ast.unparse(base))
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                arguments = inner.args
                positional = [*arguments.posonlyargs, *arguments.args]
                named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
                optional = positional[len(positional) - len(arguments.defaults) :]
                return dict.fromkeys(
                    arg.arg for arg in (*optional, *(arg for arg, value in named if value is not None))
                )
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            items = [item for item in node.body if isinstance(item, ast.AnnAssign) and item.value is not None]
            options |= {
                ast.unparse(item.target): None for item in items if "ClassVar" not in ast.unparse(item.annotation)
            }
    return options


OURS = ("extract", "probes", "icecore", "builtins")
STDLIB = sys.stdlib_module_names - {"__main__"}
PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))
PACKAGES = {"site-packages", "dist-packages"}
"""Folders of installed packages, also those of a user, or beneath a virtual environment."""
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
    "__dataclass_params__",
    "_abc_impl",
    "_new_member_",
)
"""Attributes of a class that do not decide what it does."""
OF_PYTHON = (
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
    type(vars(namedtuple("Pair", "one"))["one"]),
)
"""Types of attributes that Python puts into a class: for its slots, the fields of a named tuple, an enumeration."""
METHOD = ("__func__", "fget", "fset", "fdel")
"""Where the methods and properties of a class have their functions."""
CALLED = ("__wrapped__", "func", "pyfunc", "fget", "fset", "fdel")
"""Where an object of a package has the function that it calls: a cached function or property, or `numpy.vectorize`."""
Seen = dict[int, object]
"""Objects by their `id`, in the order they were met; held, so that no other object gets their number."""


def digest_code(thing: object) -> str:
    """Digest what a function, class or object of a user does: its code, defaults and what it refers to.

    Functions and classes of installed packages count by their names, those of this library by the one that they had
    first (`extract.moved`), and values by their content. Two versions of Python compile the same source to other code,
    and so to another digest.
    """
    return digest_json(list(_parts(thing, {})))


def is_users(module: str) -> bool:
    """Whether a module is written by the user: it is neither of this library nor an installed package."""
    if module.partition(".")[0] in OURS:
        return False
    if module == "__main__":  # in a notebook its file is that of the kernel
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:  # made in memory, or built into Python
        return module not in sys.builtin_module_names
    return not (file.startswith(_installed()) or PACKAGES & {*Path(file).parts})


@cache
def _installed() -> tuple[str, ...]:
    """Folders of Python's own modules and of installed packages."""
    paths = sysconfig.get_paths()
    return tuple(paths[key] + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib"))


def _parts(thing: object, seen: Seen) -> Iterator[str]:
    """Yield the parts of a thing that decide what it does, in a fixed order; a repeated one by its number."""
    if isinstance(thing, PLAIN):
        yield repr(thing)
    elif id(thing) in seen:
        yield f"again {[*seen].index(id(thing))}"
    else:
        seen[id(thing)] = thing
        yield first_place(type(thing).__module__, type(thing).__qualname__)[1]
        yield from _inner_parts(thing, seen)


def _inner_parts(thing: object, seen: Seen) -> Iterator[str]:
    match thing:
        case CodeType():
            yield thing.co_code.hex()
            yield repr((thing.co_names, thing.co_varnames, thing.co_freevars, thing.co_argcount, thing.co_flags))
            yield from _of_items(thing.co_consts, seen)
        case tuple() | list():
            yield from _of_items(thing, seen)
        case set() | frozenset():
            yield from sorted(repr(item) for item in thing)
        case Mapping():
            yield from _of_items(chain(*thing.items()), seen)
        case partial() | partialmethod():
            yield from _of_items((thing.func, thing.args, thing.keywords), seen)
        case MethodType():
            yield from _of_items((thing.__func__, thing.__self__), seen)
        case FunctionType():
            yield from _of_function(thing, seen)
        case type():
            yield from _of_class(thing, seen)
        case ModuleType():
            yield thing.__name__
        case _:
            yield from _of_object(thing, seen)


def _of_items(items: Iterable[object], seen: Seen) -> Iterator[str]:
    for item in items:
        yield from _parts(item, seen)


def _of_function(function: FunctionType, seen: Seen) -> Iterator[str]:
    inner: Any = unwrap(function, stop=is_code_of_user)  # through decorators of packages, such as torch.no_grad
    if not is_users(function.__module__ or "__main__") and (_is_in_place(function) or not is_code_of_user(inner)):
        yield ".".join(first_place(function.__module__, function.__qualname__))
        return
    cells = [_content(cell) for cell in inner.__closure__ or ()]
    yield from _of_items([inner.__code__, inner.__defaults__, inner.__kwdefaults__, cells], seen)
    names = _names(inner.__code__)
    for name in names:
        if name in inner.__globals__:
            yield name
            yield from _of_global(inner.__globals__[name], names, seen)


def _is_in_place(function: FunctionType) -> bool:
    """Whether a function is what its name says, and not a user's wrapper of that; a local one is taken to be."""
    try:
        named = attrgetter(function.__qualname__)(sys.modules[function.__module__])
        return getattr(named, "__func__", named) is function  # a class method is bound to its class
    except (AttributeError, KeyError):
        return "<locals>" in function.__qualname__


def is_code_of_user(thing: object) -> bool:
    """Whether the user wrote a function, whatever name a decorator gave it, or the class of an object."""
    if isinstance(thing, FunctionType):
        return is_users(thing.__globals__.get("__name__") or "__main__")
    if isinstance(thing, (partial, MethodType)):
        return is_code_of_user(thing.func if isinstance(thing, partial) else thing.__func__)
    if isinstance(thing, type):
        return is_users(thing.__module__)
    # Functions that Cython and its like compile are objects of classes that are in no file.
    is_python = not callable(thing) or isinstance(type(thing).__call__, FunctionType)
    return is_python and is_users(type(thing).__module__)


def _of_class(cls: type, seen: Seen) -> Iterator[str]:
    if not is_users(cls.__module__):
        yield ".".join(first_place(cls.__module__, cls.__qualname__))
        return
    members = getattr(cls, "__members__", ())  # of an enumeration, which lists them once more
    for name, value in sorted(vars(cls).items()):
        is_listed = name in members and not isinstance(value, PLAIN)
        if name not in UNCOUNTED and not is_listed and not isinstance(value, OF_PYTHON):
            yield name
            yield from _of_items(_functions(value, METHOD) or [value], seen)
    yield from _of_items(cls.__bases__, seen)


def _functions(thing: object, names: Iterable[str]) -> list[object]:
    return [function for name in names if (function := getattr(thing, name, None)) is not None]


def _of_object(thing: Any, seen: Seen) -> Iterator[str]:
    """Yield the parts of an object that is no plain value, collection, function or class."""
    package, is_of_user = type(thing).__module__.partition(".")[0], is_code_of_user(thing)
    name = getattr(thing, "__qualname__", "") or getattr(thing, "__name__", "")
    if hasattr(thing, "state_dict"):
        yield from _of_items([type(thing), _plain_settings(thing), dict(thing.state_dict())], seen)
        if hasattr(thing, "modules"):
            yield from _of_modules(thing, seen)
    elif hasattr(thing, "detach") or hasattr(thing, "tobytes"):
        yield from _of_array(thing, seen)
    elif package == "pandas" and (hasattr(thing, "to_records") or hasattr(thing, "to_frame")):
        frame = thing if hasattr(thing, "to_records") else thing.to_frame()
        yield from _of_items([[*map(str, frame.columns)], [*map(str, frame.dtypes)], frame.index.to_numpy()], seen)
        yield from _of_items((frame.iloc[:, k].to_numpy() for k in range(frame.shape[1])), seen)
    elif not is_of_user and (called := [part for part in _functions(thing, CALLED) if is_code_of_user(part)]):
        yield from _of_items(called, seen)
    elif name and callable(thing) and not is_of_user:
        yield ".".join(first_place(str(getattr(thing, "__module__", "")), name))
    elif isinstance(thing, Later):
        yield from _of_items([Later, {"place": thing.first_place, "bound": thing.bound}], seen)
    elif is_of_user or (hasattr(thing, "__dict__") and package not in STDLIB):
        # Of a dataclass, its fields: no cached values.
        names = [field.name for field in fields(thing)] if is_dataclass(thing) else _attributes(thing)
        values = {name: getattr(thing, name) for name in names}
        yield from _of_items([type(thing), values], seen)
        if not (values or is_of_user or " at 0x" in repr(thing)):  # such as a time of pandas
            yield repr(thing)
    else:
        yield "" if " at 0x" in repr(thing) else repr(thing)  # such as a path, a pattern, a logger, a torch.dtype


def _attributes(thing: object) -> list[str]:
    """Name the attributes of an object, those in the `__slots__` of a user's classes first."""
    classes = [vars(cls) for cls in type(thing).__mro__ if is_users(cls.__module__)]
    slots = [name for cls in classes for name, value in cls.items() if isinstance(value, MemberDescriptorType)]
    return [*(name for name in slots if hasattr(thing, name)), *getattr(thing, "__dict__", ())]


def _plain_settings(thing: object) -> dict[str, object]:
    return {key: value for key, value in vars(thing).items() if isinstance(value, PLAIN)}


def _of_modules(module: Any, seen: Seen) -> Iterator[str]:
    """Yield what a module of torch computes with beside its settings and weights: inner modules and other values."""
    of_torch = vars(import_module("torch.nn").Module())
    for part in module.modules():
        if part is not module:
            settings = {name: value for name, value in _plain_settings(part).items() if name != "training"}
            yield from _of_items([type(part), settings], seen)
        kept = [name for name in vars(part) if isinstance(getattr(type(part), name, None), cached_property)]
        others = [(name, value) for name, value in vars(part).items() if name not in (*of_torch, *kept)]
        yield from _of_items(chain(*(item for item in others if not isinstance(item[1], PLAIN))), seen)
    saved = module.state_dict()
    yield from _of_items(chain(*(item for item in module.named_buffers() if item[0] not in saved)), seen)


def _of_array(thing: Any, seen: Seen) -> Iterator[str]:
    """Yield the parts of a tensor or array, or of a buffer of bytes."""
    array = thing
    if hasattr(thing, "detach"):
        array = thing.detach().cpu()
        if str(thing.dtype).startswith(("torch.bfloat16", "torch.float8")):  # which NumPy lacks
            yield str(thing.dtype)
            array = array.unsqueeze(-1).view(import_module("torch").uint8)
        array = array.numpy()
    shape_and_dtype = f"{getattr(array, 'shape', '')} {getattr(array, 'dtype', '')}"
    if getattr(getattr(array, "dtype", None), "hasobject", False):  # its bytes are addresses
        yield shape_and_dtype
        yield from _of_items([array.tolist()], seen)
    else:
        yield f"{shape_and_dtype} {digest_bytes(array.tobytes())}"


def _of_global(value: object, names: Collection[str], seen: Seen) -> Iterator[str]:
    """Yield the parts of a global that code refers to; of a user's module, the names that the code may take from it."""
    if not isinstance(value, ModuleType):
        yield from _parts(value, seen)
    elif not is_users(value.__name__) or id(value) in seen:
        yield value.__name__
    else:
        seen[id(value)] = value
        for name in sorted(set(names) & set(vars(value))):
            yield from _of_global(vars(value)[name], names, seen)


def _names(code: CodeType) -> tuple[str, ...]:
    inner = (name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant))
    return tuple(dict.fromkeys((*code.co_names, *inner)))


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


PLACE = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""A module and a name in it."""


class Own(NamedTuple):
    """One thing that a user added."""

    thing: Any
    module: str


ADDED: dict[tuple[str, str], Own] = {}
"""Noun and name to what was added in this process."""


def add_own(noun: str, name: str, thing: object, *, shipped: Collection[str], form: str = r"[\w.:-]+") -> None:
    """Note what a user adds under a name, a function or the row of a table; the same name again replaces it.

    `shipped` are names of the library, which cannot be replaced, and `form` is the pattern of allowed names:
    `InputError` for others.
    """
    if not re.fullmatch(form, name):
        raise InputError(f"the name of a {noun} is {name!r}; allowed: {form}, such as 'my-own'.")
    if name in shipped and (noun, name) not in ADDED:
        raise InputError(f"the {noun} {name!r} is there already; give yours another name.")
    ADDED[noun, name] = Own(thing, _module_of(thing))


def find_own(noun: str, name: str, *, known: Collection[str], add: Callable[[str, Any], object]) -> None:
    """Import and `add` what an unknown name stands for: `module:attribute`, or an entry point of `icecore.{noun}s`."""
    if name in known:
        return
    if PLACE.fullmatch(name):
        module, _, attribute = name.partition(":")
        add(name, _attribute(noun, name, module, attribute))
        return
    from importlib.metadata import entry_points

    for point in entry_points(group=f"icecore.{noun.replace(' ', '_')}s", name=name):
        thing = _attribute(noun, name, point.module, point.attr)
        if name not in known:  # loading it may have added it
            add(name, thing)


def require_recorded(described: Mapping[str, Mapping[str, str]], texts: Iterable[str]) -> None:
    """Refuse a `module:name` in what a run folder names, its plan too, that is not among what it recorded.

    Looking such a name up would import its module, without the checks of `import_own`.
    """
    recorded = {key.rpartition(" ")[2] for key in described}
    for text in texts:
        for name in PLACE.findall(text):
            if name not in recorded:
                raise ValueError(f"it names {name!r}, which is not among the code that it recorded")


def _attribute(noun: str, name: str, module: str, attribute: str) -> Any:
    try:
        return getattr(import_code(module, f"the {noun} {name!r}", name=name), attribute)
    except CodeError:
        raise
    except Exception as error:
        raise UnknownNameError(
            f"the {noun} {name!r} cannot be imported ({first_line(error)}); the module must be installed, or in a "
            f"folder of PYTHONPATH: PYTHONPATH=. icecore ..."
        ) from error


def first_sentence(thing: object) -> str:
    """Describe what a user added by the first line of its docstring."""
    text = (getattr(thing, "__doc__", "") or "").strip() or "registered by you"
    return text.splitlines()[0].rstrip(".")


def describe_own(names: Iterable[tuple[str, str]]) -> dict[str, dict[str, str]]:
    """Describe those of some nouns and names that users added, by `noun name`.

    Each has its module, the digest of its code, and where the module has files, `source`: that of them.
    """
    return {
        f"{noun} {name}": {
            "module": own.module,
            "sha256": digest_code(own.thing),
            **({"source": source} if own.module != "__main__" and (source := digest_source(own.module)) else {}),
        }
        for noun, name in dict.fromkeys(names)
        if (own := ADDED.get((noun, name)))
    }


def digest_own(noun: str, names: Iterable[str]) -> dict[str, str]:
    """Digest the code of those names that users added; empty where there are none."""
    return {f"{noun} {name}": digest_code(ADDED[noun, name].thing) for name in names if (noun, name) in ADDED}


def import_own(described: Mapping[str, Mapping[str, str]], *, folder: Path) -> None:
    """Import the modules of what users added, as `describe_own` recorded it in a run folder, where it is not here yet.

    Modules in the run folder itself, or of Python, are not imported: the folder may come from anybody. `CodeError` if
    the user did not allow a module, or it is not the recorded one; `InputError` where it does not add the name.
    """
    for key, own in described.items():
        noun, _, name = key.rpartition(" ")
        module, reason = own["module"], "adds no such name when it is imported"
        if (noun, name) in ADDED:
            continue
        try:
            if PLACE.fullmatch(name) and name.partition(":")[0] != module:
                raise ImportError("it cannot be what its name says")
            if module == "__main__":
                raise ImportError("it was defined in a notebook or script")
            if module.partition(".")[0] in STDLIB:
                raise ImportError("it belongs to Python")
            if any(path.is_relative_to(folder.resolve()) for path in _code_paths(module.partition(".")[0])):
                raise ImportError("it is in the run folder, whose code is not run")
            import_code(module, f"the {noun} {name!r} of {str(folder)!r}", record=own)
        except CodeError:
            raise
        except Exception as error:
            reason = f"cannot be imported ({first_line(error)})"
        if (noun, name) not in ADDED and (not PLACE.fullmatch(name) or "cannot" in reason):
            raise InputError(
                f"the run {str(folder)!r} uses the {noun} {name!r} of your module {module!r}, which {reason}; put it "
                "on PYTHONPATH, or import what adds it first."
            )


def _code_paths(package: str) -> list[Path]:
    """Find the paths of the code of a module or package, without importing it."""
    spec = find_spec(package)
    if spec is None:
        return []
    return [Path(path).resolve() for path in (*filter(None, [spec.origin]), *(spec.submodule_search_locations or ()))]


def require_own(described: Mapping[str, Mapping[str, str]], *, folder: Path) -> None:
    """Refuse what users added where its code is not that of a run: `InputError` names it."""
    for key, own in described.items():
        noun, _, name = key.rpartition(" ")
        if digest_own(noun, [name]) != {key: own["sha256"]}:
            raise InputError(
                f"the {noun} {name!r} has other code than when {str(folder)!r} was made; run it again with the new."
            )


def _module_of(thing: object) -> str:
    while isinstance(thing, partial):
        thing = thing.func
    inner = thing if isinstance(thing, tuple) else ()
    evaluate = getattr(thing, "evaluate", None)  # of a head, whose module may be of the library
    for candidate in (thing, *inner, getattr(thing, "build", None), getattr(evaluate, "__self__", evaluate)):
        module = getattr(candidate, "__module__", "") or ""
        if module and module.partition(".")[0] not in OURS:
            return module
    return "__main__"
