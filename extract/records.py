"""Frozen records: built from plain values and written as them, with a memory of the fields that were given.

A protocol or a template may decide a field that was not given, whatever its default is.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import date
from difflib import SequenceMatcher
from functools import cache, wraps
from inspect import signature
from numbers import Integral
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

import yaml

from extract.errors import ConfigError, UsageError, unknown_name

Record = TypeVar("Record")
GIVEN = "_given"
Values = Mapping[str, Any]
"""A JSON object."""
NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
"""Numbers that YAML 1.1 reads as texts, such as 1e-3."""
NULLS = ("null", "Null", "NULL", "~")
LARGEST = 2**63
MOST_VALUES = 20_000
"""Values in a document of YAML once its anchors are written out."""
JSON_KINDS: dict[object, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number or null",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
}
NOUNS: dict[object, str] = {int: "a whole number", float: "a number", bool: "true or false"}


def remembers_given(cls: type[Record]) -> type[Record]:
    """Let the records of a dataclass remember which fields were given; see `given`."""
    build = cls.__init__
    names = frozenset(field.name for field in _fields(cls))

    @wraps(build)
    def __init__(self: object, *args: object, **values: object) -> None:  # noqa: N807
        named = frozenset(signature(build).bind(self, *args, **values).arguments) - {"self"}
        if named == names:  # `dataclasses.replace` names every field
            named = frozenset(field.name for field in _fields(cls) if values.get(field.name) != default_of(field))
        object.__setattr__(self, GIVEN, named)
        build(self, *args, **values)

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


def given(record: object) -> frozenset[str]:
    """Return the fields that were given when a record was built."""
    names: frozenset[str] = vars(record).get(GIVEN, frozenset())
    return names


def as_given(record: Record, names: frozenset[str]) -> Record:
    """Return the record with other fields counted as given."""
    changed = copy(record)
    object.__setattr__(changed, GIVEN, names)
    return changed


def forget_defaults(record: Record) -> Record:
    """Return the record with only the fields counted as given that differ from their defaults."""
    names = [field.name for field in _fields(type(record)) if getattr(record, field.name) != default_of(field)]
    return as_given(record, frozenset(names))


def complete(record: Record, values: Mapping[str, object]) -> Record:
    """Return the record with values for fields that were not given; a mapping completes a nested record."""
    changes = {
        name: complete(getattr(record, name), value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if isinstance(value, Mapping) or name not in given(record)
    }
    return with_values(record, **changes) if changes else record


def with_values(record: Record, **values: object) -> Record:
    """Return the record with other values, also of what it computes once; it is checked, and its fields are given."""
    changed = copy(record)
    names = frozenset(field.name for field in _fields(type(record)))
    vars(changed).update(values, **{GIVEN: given(record) | names.intersection(values)})
    changed.__post_init__()  # type: ignore[attr-defined]
    return changed


def _fields(cls: type) -> "list[Field[object]]":
    return [field for field in fields(cls) if field.init]


def default_of(field: "Field[object]") -> object:
    """Return the default of a field; `MISSING` where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


class _Loader(yaml.SafeLoader):
    """Reads dates as texts, as other programs and JSON do."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(text: str | bytes, *, where: str = "a value") -> Any:
    """Load YAML of texts, numbers, truth values, lists and mappings; the one way in for files and values of others.

    Args:
        text: The document.
        where: What it is, for messages.

    Raises:
        ConfigError: It is no YAML, holds anything else, or much more than its text once its anchors are written out.
    """
    try:
        n_values = _count(yaml.compose(text, _Loader), {})
        if n_values > MOST_VALUES:
            raise ConfigError(
                f"{where} has {n_values:,} values with its anchors written out; allowed: {MOST_VALUES:,}."
            )
        values = yaml.load(text, _Loader)
        _require_plain(values, where)
        return values
    except RecursionError as error:
        raise ConfigError(f"{where} is nested too deeply, or an anchor holds itself; write it flat.") from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:  # PyYAML's own slips, too
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where} is not YAML ({reason}); see configs/demo.yaml.") from error


def _count(node: yaml.Node | None, sizes: dict[int, int]) -> int:
    """Count the values of a node with every alias written out; one that holds itself is a `RecursionError`."""
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise RecursionError
        return sizes[id(node)]
    sizes[id(node)] = 0
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        parts = list(node.value)
    elif isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    sizes[id(node)] = 1 + sum(_count(part, sizes) for part in parts)
    return sizes[id(node)]


def _require_plain(value: object, where: str) -> None:
    """Refuse what JSON has no form for: sets, bytes and dates, which a tag of YAML asks for, and huge numbers."""
    if isinstance(value, dict):
        for key, item in value.items():
            _require_plain(key, where)
            _require_plain(item, where)
    elif isinstance(value, list):
        for item in value:
            _require_plain(item, where)
    elif isinstance(value, int) and abs(value) >= LARGEST:
        raise ConfigError(f"{where} holds a number of {value.bit_length()} bits; allowed: 63.")
    elif not (value is None or isinstance(value, str | int | float)):
        raise ConfigError(
            f"{where} holds a value of type {type(value).__name__}; allowed: texts, numbers, true, false, null, lists "
            "and mappings, without tags."
        )


def from_plain(hint: object, value: object, name: str = "") -> Any:
    """Build a value of an annotation from plain values, as YAML, JSON and a command line hold them.

    Nothing that a value names is imported or called: only the annotation decides what is built. A text is read as YAML
    where the annotation is of another type, so that `1,2`, `[1, 2]` and `1e-3` may be typed.

    Args:
        hint: The annotation: a dataclass, `tuple[X, ...]`, `dict[X, Y]`, `Literal`, a union, or a plain type.
        value: The plain value.
        name: Dotted name of the value, for messages.

    Raises:
        UsageError: A key is unknown or missing, or a value of a wrong type.
        ConfigError: Null where the annotation has none.
    """
    record = next(
        (option for option in (hint, *get_args(hint)) if isinstance(option, type) and is_dataclass(option)), None
    )
    if record is not None and get_origin(hint) is not tuple and (value is not None or record is hint):
        return _record_from_plain(record, value, name)
    if value is None:
        if hint is Any or NoneType in get_args(hint):
            return None
        raise ConfigError(f"{name} is null; give a value, or leave the key out to have its default.")
    if get_origin(hint) is tuple:
        return _tuple_from_plain(hint, value, name)
    try:
        return _read(hint, value)
    except (ValueError, ConfigError):
        raise wrong_kind(hint, value, name) from None


def read_fields(record: object) -> None:
    """Read the fields of a new record that were given as plain values, such as the name of a section, in place."""
    kind: Any = type(record)
    for name, hint in record_hints(kind).items():
        value = getattr(record, name)
        is_section = isinstance(hint, type) and is_dataclass(hint) and not isinstance(value, hint)
        if value is not None and (is_section or (get_origin(hint) is tuple and not isinstance(value, tuple))):
            object.__setattr__(record, name, from_plain(hint, value, name))


def _record_from_plain(hint: type, value: object, name: str) -> object:
    if isinstance(value, hint):
        return value
    if isinstance(value, str | Path) and "name" in record_hints(hint):
        value = {"name": str(value)}
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {repr(value)[:60]}; allowed: keys with values, as {{KEY: VALUE}}.")
    hints, prefix = record_hints(hint), f"{name}." if name else ""
    for key in value:
        if key not in hints:
            raise unknown_key(f"{prefix}{key}", [f"{prefix}{name}" for name in hints])
    missing = [field.name for field in _fields(hint) if default_of(field) is MISSING and field.name not in value]
    if missing:
        raise UsageError(f"{name} lacks {missing[0]!r}; allowed: the keys {', '.join(hints)}.")
    values = {key: from_plain(hints[key], item, f"{prefix}{key}") for key, item in value.items()}
    record = hint(**values)
    # A file may name all fields, as that of a run does, and then all of them are given.
    return as_given(record, given(record) | frozenset(values)) if GIVEN in vars(record) else record


def _tuple_from_plain(hint: object, value: object, name: str) -> tuple[object, ...]:
    item, items = get_args(hint)[0], value
    if isinstance(value, str):
        items = load_yaml(value)
        items = [load_yaml(part) for part in items.split(",")] if isinstance(items, str) else items
    items = list(items) if isinstance(items, list | tuple) else [items]
    if is_dataclass(item):
        wrong = [value for value in items if not isinstance(value, Mapping)]
        if wrong:
            keys = ", ".join(record_hints(item))  # type: ignore[arg-type]
            raise UsageError(f"{name} holds {str(wrong[0])[:60]!r}; allowed: parts with the keys {keys}.")
        return tuple(from_plain(item, value, name) for value in items)
    items = [_own_type(part) for part in items]
    try:
        return tuple(_read(item, str(part) if item is str and type(part) is int else part) for part in items)
    except (ValueError, ConfigError):
        raise wrong_kind(hint, value if items[0] is None or len(items) > 1 else items[0], name) from None


def _read(hint: object, value: object) -> object:
    """Read one value of an annotation without nested records; `ValueError` where its type is wrong."""
    options, value = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,), _own_type(value)
    if isinstance(value, str) and not _is_choice(value, options):
        value = _read_text(value, options)
    elif type(value) is date:  # as PyYAML reads 2026-01-31
        value = str(value)
    for option in options:
        if option is object or (option is NoneType and value is None) or _is_choice(value, (option,)):
            return value
        if get_origin(option) is tuple and isinstance(value, list | tuple):
            return tuple(_read(get_args(option)[0], item) for item in value)
        if get_origin(option) is dict and isinstance(value, Mapping):
            key, item = get_args(option)
            return {_read(key, part): _read(item, inner) for part, inner in value.items()}
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if option in (int, bool, str) and type(value) is option:
            return value
    raise ValueError(value)


def _own_type(value: object) -> object:
    """Return a whole number of NumPy as one of Python, and a path as a text."""
    if isinstance(value, Path):
        return str(value)
    is_foreign = isinstance(value, Integral) and type(value).__module__ != "builtins"
    return int(value) if is_foreign else value  # type: ignore[call-overload]


def _read_text(text: str, options: tuple[object, ...]) -> object:
    """Read a text as YAML unless the annotation takes it as a text."""
    if str in options and not (NoneType in options and text in NULLS):
        kinds = {"{": dict, "[": tuple}
        is_nested = any(get_origin(option) is kinds.get(text.lstrip()[:1], str) for option in options)
        return load_yaml(text) if is_nested else text
    value = load_yaml(text)
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


def _is_choice(value: object, options: tuple[object, ...]) -> bool:
    """Whether a value is one that a `Literal` lists, or may be anything."""
    return any(
        option in (Any, object) or (get_origin(option) is Literal and value in get_args(option)) for option in options
    )


def wrong_kind(hint: object, value: object, name: str) -> UsageError:
    """Build the error for a value of a wrong kind."""
    for option in (hint, *get_args(hint)):
        if get_origin(option) is Literal:
            return UsageError(str(unknown_name(name, value, get_args(option))))
    text = repr(value[:60]) if isinstance(value, str) else repr(value)[:60]
    return UsageError(f"{name} is {text}; allowed: {noun_of(hint)}. See icecore run --help.")


def noun_of(hint: object) -> str:
    """Name the values of an annotation, for messages."""
    options = get_args(hint) or (hint,)
    noun = "a list, as [1,2] or 1,2" if get_origin(hint) is tuple else NOUNS.get(options[0], "a text")
    noun = "keys with values, as '{KEY: VALUE}'" if get_origin(hint) is dict else noun
    return f"{noun}, or null" if NoneType in options else noun


def unknown_key(key: str, allowed: Iterable[str]) -> UsageError:
    """Build the error for an unknown key: it names the nearest key, and those of the same section."""
    names = sorted(set(allowed))
    near = max(names, key=lambda name: (_likeness(key, name), -name.count(".")), default="")
    near = near if _likeness(key, near) >= 0.6 else ""
    guess = f" Did you mean {near!r}?" if near else ""
    section = (near or key).rpartition(".")[0]
    siblings = [name for name in names if name.rpartition(".")[0] == section] or names
    return UsageError(f"unknown key {key!r}.{guess} Allowed: {', '.join(siblings)}.")


def _likeness(key: str, name: str) -> float:
    """Return how alike an unknown key and a known one are, from 0 to 1; also where its section was left out."""
    whole, leaf = (SequenceMatcher(None, key, part).ratio() for part in (name, name.rpartition(".")[2]))
    return max(whole, leaf - 0.1 if leaf >= 0.8 and "." not in key else 0.0)


@cache
def record_hints(cls: type) -> dict[str, object]:
    """Return the annotations of a dataclass by field."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in _fields(cls)}


def with_numbers(value: object) -> Any:
    """Read numbers that YAML takes for texts, at any depth."""
    if isinstance(value, dict):
        return {key: with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


def to_plain(value: object) -> Any:
    """Return a record as mappings, lists and plain values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in _fields(type(value))}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, list | tuple) else value


def from_json(hint: Any, value: Any, where: str = "") -> Any:
    """Read a value of an annotation from JSON: null is the NaN of a `float`, and unknown keys of a mapping stay.

    Raises:
        TypeError: A value of another kind.
        KeyError: A key is missing.
    """
    kind, inner = get_origin(hint), get_args(hint)
    if NoneType in inner and value is not None:
        from_json(inner[0], value, where)
    if hint is object or NoneType in inner:
        return value
    if kind is Mapping:
        _require(value, dict, where)
        return {key: from_json(inner[1], item, f"{where}.{key}".lstrip(".")) for key, item in value.items()}
    if kind in (tuple, Sequence):
        _require(value, list, where)
        items = [from_json(inner[0], item, f"{where}[{number}]") for number, item in enumerate(value)]
        return tuple(items) if kind is tuple else items
    if hint in JSON_KINDS:
        _require(value, hint, where)
        return (math.nan if value is None else float(value)) if hint is float else value
    _require(value, dict, where)
    hints, required = _keys_of(hint)
    paths = {key: f"{where}.{key}".lstrip(".") for key in hints}
    for key in required:
        if key not in value:
            raise KeyError(paths[key])
    record = {key: from_json(hints[key], value[key], paths[key]) for key in hints if key in value}
    return {**value, **record} if is_typeddict(hint) else hint(**record)


@cache
def _keys_of(hint: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the annotations of a dataclass or a `TypedDict` by key, and the keys that have to be there."""
    if is_typeddict(hint):
        hints = get_type_hints(hint)
        return hints, tuple(key for key in hints if key in hint.__required_keys__)
    required = [field.name for field in fields(hint) if field.default is field.default_factory is MISSING]
    return record_hints(hint), tuple(required)


def _require(value: Any, kind: type, where: str) -> None:
    is_huge = isinstance(value, int) and abs(value) >= LARGEST
    if is_huge or not (type(value) is kind or (kind is float and type(value) in (int, NoneType))):
        text = f"a number of {value.bit_length()} bits" if is_huge else repr(value)
        raise TypeError(f"`{where}` is {text[:60]}, not {JSON_KINDS[kind]}")
