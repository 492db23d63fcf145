"""What a cache is: its identity (which decides reuse) and its provenance (which only informs)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from extract.errors import CacheError, CacheIdentityError, IcecoreError
from extract.files import digest_json
from extract.records import from_plain, to_plain

SCHEMA = 1
DECODER_IDENTITY = (
    "revision",
    "adapter",
    "family",
    "n_layers",
    "width",
    "dtype",
    "attention",
    "weight_digest",
    "tokenizer_digest",
)
DECODER_OPTIONS = ("merge", "quantization", "bidirectional", "config_digest", "code_digest")
OF_TEXTS = ("n_rows", "text_digest")
"""What differs between caches of other texts; of words also `words.n_words`."""
STORAGE_DTYPES = {"float32": "float32", "float16": "float16", "bfloat16": "uint16"}
"""Name of a storage dtype to the dtype of its arrays in a file."""
Plain = dict[str, Any]
"""Plain values by name, as JSON holds them."""


@dataclass(frozen=True)
class WordIdentity:
    """The part of an identity that is there for words alone."""

    poolings: tuple[str, ...]
    shift: bool
    on_lost: Literal["error", "count"]
    n_words: int


@dataclass(frozen=True, kw_only=True)
class CacheIdentity:
    """What decides the latents of a cache. Fields that are None are left out of the plain identity and of its id."""

    decoder: Plain
    """What decides numbers of the description of the decoder."""
    plan: str
    architecture: str
    template: Plain
    poolings: tuple[str, ...]
    """Poolings of whole texts; empty where words are stored."""
    layers: tuple[str, ...]
    storage_dtype: str
    n_rows: int
    text_digest: str
    versions: dict[str, str]
    words: WordIdentity | None = None
    rules: dict[str, int] | None = None
    """Versions of the rules of a plan whose meaning has changed since the first caches."""
    widths: dict[str, int] | None = None
    """Widths of taps that differ from that of the decoder."""
    placeholder: Plain | None = None
    """Seed and digest of the placeholder that the plan prepends."""
    reba: Plain | None = None
    """Options of ReBA poolings."""
    own: dict[str, str] | None = None
    """Digests of a user's code."""
    chat: str | None = None
    """Digest of the chat template."""
    views: tuple[Plain, ...] | None = None
    """Names and plain identities of the views that are read as one; plan, template and so on are those of the first."""

    def __post_init__(self) -> None:
        """Leave out what decides no numbers of the decoder."""
        # Only a merge has the field `merge`, and so on: the identities of other decoders stay what they were.
        # Sliding windows of a bidirectional checkpoint differ from those of the same weights without its flag.
        options = [key for key in DECODER_OPTIONS if key in self.decoder]
        object.__setattr__(self, "decoder", {key: self.decoder[key] for key in (*DECODER_IDENTITY, *options)})

    def like(self, other: "CacheIdentity") -> "CacheIdentity":
        """Return this identity without the digest of a configuration where the other, of an early cache, has none."""
        unknown = {"config_digest"} - other.decoder.keys()
        return replace(self, decoder={key: value for key, value in self.decoder.items() if key not in unknown})

    def to_plain(self) -> Plain:
        """Return the identity as the plain values that its id is the digest of."""
        values: Plain = {"schema": SCHEMA, **to_plain(self)}
        return {key: value for key, value in values.items() if value is not None}

    @classmethod
    def from_plain(cls, values: Plain) -> "CacheIdentity":
        """Read an identity back from `to_plain`; `UsageError` or `KeyError` where a field is missing or wrong."""
        identity: CacheIdentity = from_plain(cls, {key: item for key, item in values.items() if key != "schema"})
        return identity


@dataclass(frozen=True)
class Manifest:
    """The identity and provenance of one cache."""

    identity: CacheIdentity
    """Equal identities hold equal latents."""
    provenance: Plain = field(default_factory=dict)
    """Informs only: names, batching, device, time, remarks."""

    @property
    def words(self) -> WordIdentity | None:
        """The identity's settings of words; None where the latents are those of whole texts."""
        return self.identity.words

    @property
    def n_rows(self) -> int:
        """Rows: one a text, or several for a text that is read in windows."""
        return self.identity.n_rows

    @property
    def n_words(self) -> int:
        """Words over all texts; 0 for whole texts."""
        return 0 if self.words is None else self.words.n_words

    @property
    def n_latents(self) -> int:
        """Latents of every layer: of words where there are words, else of rows."""
        return self.n_rows if self.words is None else self.n_words

    @property
    def layers(self) -> tuple[str, ...]:
        """Layer names, bottom up."""
        return self.identity.layers

    @property
    def storage_dtype(self) -> str:
        """One of `STORAGE_DTYPES`."""
        return self.identity.storage_dtype

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names of the poolings that are stored: of words where there are words, else of texts."""
        return (self.words or self.identity).poolings

    def width(self, layer: str) -> int:
        """Return the width of a layer: that of the decoder, unless it is a tap of another one."""
        return (self.identity.widths or {}).get(layer) or int(self.identity.decoder["width"])

    @cached_property
    def id(self) -> str:
        """SHA-256 of the identity, hexadecimal."""
        return digest_json(self.identity.to_plain())

    @property
    def short_id(self) -> str:
        """The first 12 digits of the identity, used in file names."""
        return self.id[:12]

    def to_json(self) -> str:
        """Return identity and provenance as JSON text."""
        values = {"identity": self.identity.to_plain(), "provenance": self.provenance}
        return json.dumps(values, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Read a manifest back from the text of `to_json`."""
        try:
            value = json.loads(text)
            return cls(CacheIdentity.from_plain(dict(value["identity"])), dict(value["provenance"]))
        except (ValueError, KeyError, TypeError, RecursionError, IcecoreError) as error:
            raise CacheError(f"the manifest of this file cannot be read ({error}); extract the cache again.") from error


SHARED = ("decoder", "layers", "widths", "n_rows", "text_digest", "versions")
"""Fields of an identity in which views must not differ."""


def view_identity(views: Mapping[str, CacheIdentity]) -> CacheIdentity:
    """Return the identity of views that are read as one, by name; refuse views that differ in what they must share."""
    if not views:
        raise CacheError("there are no views to read; give at least one.")
    first = next(iter(views.values()))
    for name, view in views.items():
        alike = (first.like(view), view.like(first))
        expected, actual = ({key: getattr(one, key) for key in SHARED} for one in alike)
        require_same(to_plain(actual), to_plain(expected), where=f"of the view {name!r}")
        poolings = (view.words or view).poolings
        if len(poolings) != 1:
            raise CacheError(
                f"the view {name!r} has the poolings {', '.join(poolings)}; allowed: one. Make a view of each."
            )
        if (view.words is None) != (first.words is None):
            raise CacheError(f"the view {name!r} and the first one are of words and of whole texts; take views alike.")
    names = tuple(views)
    parts = tuple({"name": name, **view.to_plain()} for name, view in views.items())
    words = None if first.words is None else replace(first.words, poolings=names)
    own = {key: digest for view in views.values() for key, digest in (view.own or {}).items()}
    return replace(first, poolings=() if words else names, words=words, own=own or None, views=parts)


def view_parts(identity: CacheIdentity) -> dict[str, CacheIdentity]:
    """Return the identity of each view by name; none of another cache."""
    return {
        str(part["name"]): CacheIdentity.from_plain({key: value for key, value in part.items() if key != "name"})
        for part in identity.views or ()
    }


def describe_views(identity: CacheIdentity) -> Plain:
    """Describe the views of a cache by name, for records: plan, template and pooling; nothing for another cache."""
    return {
        name: {"plan": view.plan, "template": view.template, "pooling": (view.words or view).poolings[0]}
        for name, view in view_parts(identity).items()
    }


def of_all_texts(identity: CacheIdentity) -> Plain:
    """Return the plain identity without what differs between caches of other texts."""
    return {key: value for key, value in identity.to_plain().items() if key not in OF_TEXTS}


def flatten(values: Plain, prefix: str = "", *, keeps_empty: bool = False) -> Plain:
    """Flatten nested dictionaries to dotted names; one that is empty has none, or is a value where it is kept.

    Example:
        >>> flatten({"a": {"b": 1}, "c": 2})
        {'a.b': 1, 'c': 2}
    """
    flat: Plain = {}
    for key, value in values.items():
        if isinstance(value, dict) and (value or not keeps_empty):
            flat.update(flatten(value, f"{prefix}{key}.", keeps_empty=keeps_empty))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differences(actual: Plain, expected: Plain) -> dict[str, tuple[Any, Any]]:
    """List the fields in which plain values differ: dotted name to (actual, expected); a missing one is None.

    Example:
        >>> differences({"plan": "causal"}, {"plan": "backward"})
        {'plan': ('causal', 'backward')}
    """
    a, b = flatten(actual), flatten(expected)
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def require_same(actual: Plain, expected: Plain, *, where: str) -> None:
    """Refuse a plain identity that differs from the expected one, naming every differing field of the cache `where`."""
    unequal = differences(actual, expected)
    if unequal:
        listing = "; ".join(f"{key} is {_shorten(a)}, expected {_shorten(b)}" for key, (a, b) in unequal.items())
        raise CacheIdentityError(
            f"cache {where} holds something else: {listing}. Read it with what it was made from, or extract again."
        )


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
