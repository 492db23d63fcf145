"""Records from plain values: what an annotation says is built, and nothing that a value names."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from extract.errors import ConfigError
from extract.records import (
    complete,
    forget_defaults,
    from_json,
    from_plain,
    given,
    remembers_given,
    to_plain,
    with_numbers,
)


@remembers_given
@dataclass(frozen=True)
class Inner:
    """A nested record."""

    size: int = 1
    share: float | None = None
    names: tuple[str, ...] = ("a",)

    def __post_init__(self) -> None:
        """Refuse nothing."""


@remembers_given
@dataclass(frozen=True)
class Outer:
    """A record of every kind of field."""

    name: str = "x"
    kind: Literal["on", "off"] = "on"
    is_on: bool = False
    inner: Inner = field(default_factory=Inner)
    parts: tuple[Inner, ...] = ()
    where: str | dict[str, str | int] | None = None
    free: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse nothing."""


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int, "12", 12),
        (float, "1e-3", 1e-3),
        (float, 3, 3.0),
        (bool, "yes", True),
        (bool, "off", False),
        (str, "null", "null"),
        (str, "1e-3", "1e-3"),
        (str, date(2026, 1, 31), "2026-01-31"),
        (str | None, "null", None),
        (str | None, "a: b", "a: b"),
        (str | None, "[a", "[a"),
        (int | None, "~", None),
        (tuple[str, ...], "4, block_08,-1", ("4", "block_08", "-1")),
        (tuple[str, ...], [4, "all"], ("4", "all")),
        (tuple[int, ...], "0,2", (0, 2)),
        (tuple[int, ...], 3, (3,)),
        (Literal["on", "off"], "on", "on"),
        (str | dict[str, str | int] | None, "{a: 1}", {"a": 1}),
        (str | dict[str, str | int] | None, "auto", "auto"),
        (dict[str, Any], {"a": "1e-3"}, {"a": "1e-3"}),
        (Inner | None, {"size": 5}, Inner(5)),
        (Inner | None, None, None),
    ],
)
def test_a_value_is_what_its_annotation_says(hint: Any, value: Any, expected: Any) -> None:
    assert from_plain(hint, value, "key") == expected
    assert type(from_plain(hint, value, "key")) is type(expected)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, "1.5", "key is '1.5'; allowed: a whole number"),
        (int, True, "key is True; allowed: a whole number"),
        (int, None, "key is null; give a value"),
        (bool, 1, "key is 1; allowed: true or false"),
        (str, 5, "key is 5; allowed: a text"),
        (float, "much", "key is 'much'; allowed: a number"),
        (tuple[int, ...], "1,x", "key is '1,x'; allowed: a list"),
        (Literal["on", "off"], "onn", "unknown key 'onn': did you mean 'on'"),
        (Outer, {"nam": 1}, "unknown key 'key.nam'. Did you mean 'key.name'"),
        (Outer, {"inner": {"siz": 1}}, "unknown key 'key.inner.siz'"),
        (Outer, {"inner": 5}, "key.inner is 5; allowed: keys with values"),
        (Outer, {"parts": ["os.system"]}, "key.parts holds 'os.system'; allowed: parts with the keys size, share"),
    ],
)
def test_any_other_value_is_refused_by_name(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_plain(hint, value, "key")
    assert str(error.value).startswith(message)


def test_records_go_to_plain_values_and_back() -> None:
    record = Outer("y", "off", True, Inner(3, 0.5, ("b", "c")), (Inner(),), {"m": 1}, {"a": {"b": [1]}})
    assert from_plain(Outer, to_plain(record)) == record


def test_a_record_knows_what_was_given() -> None:
    record = from_plain(Outer, {"kind": "on", "inner": {"size": 1}})
    assert record == Outer()
    assert given(record) == {"kind", "inner"}
    assert given(record.inner) == {"size"}
    assert given(Outer("x")) == {"name"}
    assert given(from_plain(Inner, to_plain(Inner()))) == {"size", "share", "names"}
    assert given(replace(Inner(size=1), names=("b",))) == {"names"}
    assert given(forget_defaults(Inner(1, 0.5))) == {"share"}


def test_only_what_was_not_given_is_completed() -> None:
    record = Outer(kind="on", inner=Inner(size=1))
    made = complete(record, {"kind": "off", "name": "y", "inner": {"size": 5, "share": 0.5}})
    assert made == Outer("y", "on", inner=Inner(1, 0.5))
    assert record == Outer()
    assert complete(made, {"name": "z", "inner": {"share": 0.1}}) == made
    assert complete(record, {}) is record


def test_numbers_that_yaml_takes_for_texts() -> None:
    assert with_numbers({"a": ["1e-3", "x", {"b": "-2E5"}], "c": "1.0.0"}) == {
        "a": [1e-3, "x", {"b": -2e5}],
        "c": "1.0.0",
    }


@dataclass(frozen=True)
class Point:
    """A record in a file."""

    x: float
    tags: tuple[str, ...]
    note: str = ""


class Info(TypedDict):
    """Plain values in a file."""

    points: Mapping[str, Point]
    sizes: Sequence[int]
    share: float | None
    is_on: NotRequired[bool]
    free: object


POINT = {"x": 1, "tags": ["a"]}
INFO = {"points": {"p": POINT}, "sizes": [1], "share": None, "free": {"deep": [None]}}


def test_json_is_read_by_annotations() -> None:
    info: Info = from_json(Info, {**INFO, "later": 7})
    assert info == {**INFO, "points": {"p": Point(1.0, ("a",))}, "later": 7}
    assert type(info["points"]["p"].x) is float
    assert info["share"] is None
    assert math.isnan(from_json(Point, {**POINT, "x": None, "unknown": 7}).x)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"points": {"p": {**POINT, "x": True}}}, "`points.p.x` is True, not a number or null"),
        ({"points": {"p": {**POINT, "x": 10**400}}}, "`points.p.x` is a number of 1329 bits, not a number or null"),
        ({"points": {"p": {**POINT, "tags": "a"}}}, "`points.p.tags` is 'a', not a list"),
        ({"points": {"p": {**POINT, "note": None}}}, "`points.p.note` is None, not a text"),
        ({"points": {"p": [1]}}, r"`points.p` is \[1\], not a mapping"),
        ({"points": [POINT]}, "`points` is .*, not a mapping"),
        ({"sizes": [1, 2.0]}, r"`sizes\[1\]` is 2.0, not a whole number"),
        ({"sizes": [2**63]}, r"`sizes\[0\]` is a number of 64 bits, not a whole number"),
        ({"share": "1"}, "`share` is '1', not a number or null"),
        ({"is_on": 1}, "`is_on` is 1, not true or false"),
    ],
)
def test_json_of_another_kind_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        from_json(Info, {**INFO, **changes})


@pytest.mark.parametrize("key", ["points", "free", "points.p.x"])
def test_a_key_that_json_lacks_is_named(key: str) -> None:
    values: dict[str, Any] = {**INFO, "points": {"p": {**POINT}}}
    inner = values["points"]["p"] if "." in key else values
    del inner[key.rpartition(".")[2]]
    with pytest.raises(KeyError, match=key):
        from_json(Info, values)
