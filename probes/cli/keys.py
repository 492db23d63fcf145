"""The keys of a configuration, read from its dataclasses: name, kind of value, default, and what the docstring says."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from probes.runs.config import RunConfig

NOUNS = {int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class Key:
    """One key of a configuration.

    Attributes:
        name: Dotted name.
        hint: Its type.
        default: Its default; None where it is made again each time.
        help: The docstring of its field.
    """

    name: str
    hint: Any
    default: Any
    help: str

    @property
    def values(self) -> tuple[str, ...]:
        """The only values allowed; none where any is."""
        return tuple(get_args(self.hint)) if get_origin(self.hint) is Literal else ()

    @property
    def noun(self) -> str:
        """What its value is, for messages."""
        parts = get_args(self.hint) or (self.hint,)
        name = "a list, as [1,2] or 1,2" if get_origin(self.hint) is tuple else NOUNS.get(parts[0], "a text")
        name = "keys with values, as '{KEY: VALUE}'" if get_origin(self.hint) is dict else name
        return f"{name}, or null" if NoneType in parts else name


@cache
def list_keys(spec: type = RunConfig, prefix: str = "") -> tuple[Key, ...]:
    """List the keys that hold values, of nested dataclasses too."""
    found: list[Key] = []
    texts, hints = _docstrings(spec), get_type_hints(spec)
    for each in fields(spec):
        hint = hints[each.name]
        if is_dataclass(hint):
            found += list_keys(hint, f"{prefix}{each.name}.")  # type: ignore[arg-type]
        else:
            default = None if each.default is MISSING else each.default
            found.append(Key(f"{prefix}{each.name}", hint, default, texts.get(each.name, "")))
    return tuple(found)


def _list_sections(spec: type, prefix: str = "") -> Iterator[tuple[str, bool]]:
    for name, hint in get_type_hints(spec).items():
        if get_origin(hint) is dict:
            yield f"{prefix}{name}", True
        elif isinstance(hint, type) and is_dataclass(hint):
            yield f"{prefix}{name}", False
            yield from _list_sections(hint, f"{prefix}{name}.")


SECTIONS = dict(_list_sections(RunConfig))
"""Sections by dotted name, and whether their keys are those of a head or task; others may be files."""


def _docstrings(spec: type) -> dict[str, str]:
    """Read the docstring below each field of a dataclass."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(spec))).body
    body = node.body if isinstance(node, ast.ClassDef) else []
    found = {}
    for each, below in pairwise(body):
        if isinstance(each, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[ast.unparse(each.target)] = " ".join(str(below.value.value).split())
    return found
