"""What users add by name, such as a pooling of their own, and a digest of the code that it runs.

A name like `my_module:my_function` is imported when it is first used, where the user allows it (`extract.own.gate`); an
installed package may list names as entry points, in the group `icecore.poolings` for poolings.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from extract.errors import CodeError, InputError, UnknownNameError, first_line
from extract.own.code import OURS, STDLIB, digest_code
from extract.own.gate import digest_source, import_code

PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""A module and a name in it."""


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
        raise InputError(f"the name of a {noun} is {name!r}; allowed: {form}, such as 'my-own'.")
    if name in shipped and (noun, name) not in ADDED:
        raise InputError(f"the {noun} {name!r} is there already; give yours another name.")
    ADDED[noun, name] = Own(thing, _module_of(thing))


def find_own(noun: str, name: str, *, known: Collection[str], add: Callable[[str, Any], object]) -> None:
    """Import and `add` what an unknown name stands for: `module:attribute`, or an entry point of `icecore.{noun}s`.

    Raises:
        CodeError: The user did not allow the module.
        UnknownNameError: The module cannot be imported, or has no such attribute.
    """
    if name in known:
        return
    if PLACE.fullmatch(name):
        module, _, attribute = name.partition(":")
        add(name, _attribute(noun, name, module, attribute))
        return
    for point in entry_points(group=f"icecore.{noun.replace(' ', '_')}s", name=name):
        thing = _attribute(noun, name, point.module, point.attr)
        if name not in known:  # loading it may have added it
            add(name, thing)


def require_recorded(described: Mapping[str, Mapping[str, str]], texts: Iterable[str]) -> None:
    """Refuse a `module:name` in what a run folder names, its plan too, that is not among what it recorded.

    Looking such a name up would import its module, without the checks of `import_own`.

    Raises:
        ValueError: There is one; names it.
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
            f"the {noun} {name!r} cannot be imported ({first_line(error)}); the module must be installed, or lie in a "
            f"folder of PYTHONPATH: PYTHONPATH=. icecore ..."
        ) from error


def first_sentence(thing: Any) -> str:
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
            **({"source": source} if (source := _source_of(own.module)) else {}),
        }
        for noun, name in dict.fromkeys(names)
        if (own := ADDED.get((noun, name)))
    }


def _source_of(module: str) -> str:
    return "" if module == "__main__" else digest_source(module)


def digest_own(noun: str, names: Iterable[str]) -> dict[str, str]:
    """Digest the code of those names that users added; empty where there are none."""
    return {f"{noun} {name}": digest_code(ADDED[noun, name].thing) for name in names if (noun, name) in ADDED}


def import_own(described: Mapping[str, Mapping[str, str]], *, folder: Path) -> None:
    """Import the modules of what users added, as `describe_own` recorded it in a run folder, where it is not here yet.

    Modules that lie in the run folder itself, or belong to Python, are not imported: it may come from anybody.

    Raises:
        CodeError: The user did not allow a module, or it is not the one that was recorded.
        InputError: A module that cannot be imported, or does not add the name; says what to do.
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
            if any(place.is_relative_to(folder.resolve()) for place in _places(module.partition(".")[0])):
                raise ImportError("it lies in the run folder, whose code is not run")
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


def _places(package: str) -> list[Path]:
    """Find where the code of a module or package lies, without importing it."""
    found = find_spec(package)
    if found is None:
        return []
    places = [*filter(None, [found.origin]), *(found.submodule_search_locations or ())]
    return [Path(place).resolve() for place in places]


def require_own(described: Mapping[str, Mapping[str, str]], *, folder: Path) -> None:
    """Refuse what users added where its code is not that of a run: `InputError` names it."""
    for key, own in described.items():
        noun, _, name = key.rpartition(" ")
        if digest_own(noun, [name]) != {key: own["sha256"]}:
            raise InputError(
                f"the {noun} {name!r} has other code than when {str(folder)!r} was made; run it again with the new."
            )


def _module_of(thing: Any) -> str:
    while isinstance(thing, partial):
        thing = thing.func
    for candidate in (thing, *(thing if isinstance(thing, tuple) else ()), getattr(thing, "build", None)):
        module = getattr(candidate, "__module__", "") or ""
        if module and module.partition(".")[0] not in OURS:
            return module
    return "__main__"
