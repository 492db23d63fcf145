"""How long to fuzz: a few examples by default, as many as `ICECORE_FUZZ` says in `make fuzz`."""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LONG = int(os.environ.get("ICECORE_FUZZ", "0"))

TEXTS = st.sampled_from(
    ["", " ", "a\0b", "x" * 300, "../up", "\ud800", "~", "nan", "1e999", "0x1", "\u202e", "*", "/dev/null"]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    TEXTS,
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.text(max_size=5), inner, max_size=2)
)
"""Plain values of every kind that a YAML or JSON file can hold, mostly wrong ones."""

PIECES = [b"\0", b"\xff\xfe", b'"', b"\n", b"[", b"{", b": ", b"- ", b"\t", b",", b"*a", b"&a "]


def bounded(n_examples: int) -> Callable[[Any], Any]:
    """Run a property on so many examples, the same ones each time, or on as many as are asked for, fresh ones."""
    return settings(
        max_examples=LONG or n_examples,
        derandomize=not LONG,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Flip, cut, repeat or insert bytes at one to three places."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(found) - 1, 0)))
        how = draw(st.sampled_from(["flip", "cut", "repeat", "insert", "end"]))
        if how == "flip" and found:
            found[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del found[place : place + draw(st.integers(1, 40))]
        elif how == "repeat":
            found[place:place] = found[place : place + draw(st.integers(1, 40))]
        elif how == "insert":
            found[place:place] = draw(st.sampled_from(PIECES))
        else:
            del found[place:]
    return bytes(found)
