"""The index of shards: what all hold, and where every array of each is; docs/cache_format.md is the contract."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from extract.digest import canonical_json, digest_json, digest_text
from extract.errors import CacheError, IcecoreError, first_line
from extract.files import write_file
from extract.store.layout import ArrayPlace, array_shapes
from extract.store.manifest import Manifest, of_all_texts

INDEX = "index.json"
INDEX_SCHEMA = 1
NONSENSE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, IcecoreError)
"""What a field of the wrong kind raises."""
Layout = dict[str, ArrayPlace]


@dataclass(frozen=True)
class Shard:
    """One shard: a whole cache file of one window of texts."""

    window: int  # which window of the texts
    file: str  # name beside the index
    n_rows: int
    n_words: int  # 0 for whole texts
    n_bytes: int  # of the file
    sha256: str  # of the file
    text_digest: str  # as in its identity: the digests of its texts, in the order they were given
    n_tokens: int
    n_truncated: int
    layout: Layout  # where its arrays are, by HDF5 path


@dataclass(frozen=True)
class ShardIndex:
    """What a folder of shards holds.

    Attributes:
        identity: That of every shard, without what depends on its texts.
        provenance: That of the first shard.
        window_texts: Texts of a window, repeats included; the last has fewer.
        shards: Those that are there, by window.
        is_complete: Whether they hold all texts.
    """

    identity: dict[str, Any]
    provenance: dict[str, Any]
    window_texts: int
    shards: tuple[Shard, ...] = ()
    is_complete: bool = False

    @property
    def n_rows(self) -> int:
        """Rows of all shards."""
        return sum(shard.n_rows for shard in self.shards)

    @property
    def manifest(self) -> Manifest:
        """The manifest of all shards together; its text digest is over those of the shards."""
        text_digest = digest_text("".join(shard.text_digest for shard in self.shards))
        return self._manifest(self.n_rows, sum(shard.n_words for shard in self.shards), text_digest)

    def manifest_of(self, shard: Shard) -> Manifest:
        """Return the manifest that one shard has."""
        return self._manifest(shard.n_rows, shard.n_words, shard.text_digest)

    def _manifest(self, n_rows: int, n_words: int, text_digest: str) -> Manifest:
        of_texts: dict[str, Any] = {"n_rows": n_rows, "text_digest": text_digest}
        if "words" in self.identity:
            of_texts["words"] = {**self.identity["words"], "n_words": n_words}
        return Manifest({**self.identity, **of_texts}, self.provenance)

    def find(self, window: int) -> Shard | None:
        """Return the shard of a window, if it is listed."""
        return next((shard for shard in self.shards if shard.window == window), None)

    def with_shard(self, shard: Shard) -> "ShardIndex":
        """List a shard, in place of another of its window; further ones may follow."""
        layout = next((each.layout for each in self.shards if each.layout == shard.layout), shard.layout)
        kept = self.without(shard.window)
        shards = sorted([*kept.shards, replace(shard, layout=layout)], key=lambda each: each.window)
        return replace(kept, shards=tuple(shards))

    def without(self, window: int) -> "ShardIndex":
        """Take the shard of a window from the list."""
        kept = tuple(shard for shard in self.shards if shard.window != window)
        return replace(self, shards=kept, is_complete=False)

    def write(self, folder: Path) -> None:
        """Write the index into a folder in one step; raises as `replacing_file`."""
        write_file(folder / INDEX, self.to_json())

    def to_json(self) -> str:
        """Return the index as JSON text, with its own digest."""
        layouts: list[Layout] = []
        shards, first_row = [], 0
        for shard in self.shards:
            if shard.layout not in layouts:
                layouts.append(shard.layout)
            shards.append({**vars(shard), "first_row": first_row, "layout": layouts.index(shard.layout)})
            first_row += shard.n_rows
        value = {
            "icecore_index": INDEX_SCHEMA,
            "is_complete": self.is_complete,
            "n_rows": self.n_rows,
            "window_texts": self.window_texts,
            "identity": self.identity,
            "provenance": self.provenance,
            "layouts": [
                {name: [place.offset, place.dtype.str, list(place.shape)] for name, place in layout.items()}
                for layout in layouts
            ],
            "shards": shards,
        }
        text = canonical_json(value)  # written once for both: it is long, and there is one for every shard
        return f'{text[:-1]},"digest":"{digest_text(text)}"}}'


def parse_index(text: str | bytes, *, where: str) -> ShardIndex:
    """Read an index back from the text of `ShardIndex.to_json`; CacheError names the file `where`."""
    try:
        value = json.loads(text)
        schema = value["icecore_index"]
    except (ValueError, KeyError, TypeError) as error:
        raise CacheError(
            f"{where!r} is no index of shards ({type(error).__name__}); give the {INDEX} that an extraction into "
            "shards wrote, or the folder it is in."
        ) from error
    if schema != INDEX_SCHEMA:
        raise CacheError(f"index {where!r} has schema {schema}; this version reads schema {INDEX_SCHEMA}.")
    if digest_json({key: each for key, each in value.items() if key != "digest"}) != value.get("digest"):
        raise CacheError(
            f"index {where!r} is damaged: it does not match its digest; copy it again, or delete it and extract again."
        )
    try:
        return _read_index(value)
    except NONSENSE as error:
        raise _nonsense(where, error) from error


def _read_index(value: dict[str, Any]) -> ShardIndex:
    layouts = [
        {name: ArrayPlace(offset, tuple(shape), np.dtype(dtype)) for name, (offset, dtype, shape) in layout.items()}
        for layout in value["layouts"]
    ]
    shards = []
    for each in value["shards"]:
        own = {key: item for key, item in each.items() if key != "first_row"}
        shards.append(Shard(**{**own, "layout": layouts[each["layout"]]}))
        if each["file"] != shard_file(each["window"]):  # perhaps one outside the folder
            raise ValueError(f"the shard of window {each['window']} is {each['file']!r}")
    return ShardIndex(
        value["identity"], value["provenance"], value["window_texts"], tuple(shards), value["is_complete"]
    )


def require_arrays(index: ShardIndex, *, where: str) -> None:
    """Refuse an index, which may be a stranger's, whose arrays are not those of its identity: `CacheError`."""
    known: dict[tuple[int, int, int], int] = {}  # bytes that a layout needs
    try:
        for shard in index.shards:
            key = id(shard.layout), shard.n_rows, shard.n_words
            if key not in known:
                known[key] = _end_of(index.manifest_of(shard), shard.layout)
            if known[key] > shard.n_bytes:
                raise ValueError(f"arrays of {shard.file} end at byte {known[key]} of {shard.n_bytes}")
    except NONSENSE as error:
        raise _nonsense(where, error) from error


def _nonsense(where: str, error: Exception) -> CacheError:
    return CacheError(f"index {where!r} says what no index does ({first_line(error)}); delete it and extract again.")


def _end_of(manifest: Manifest, layout: Layout) -> int:
    """Return the byte at which the arrays of a layout end, which must be those that the manifest says."""
    for name, (shape, dtype) in array_shapes(manifest).items():
        place = layout[name]
        if place.shape != shape or place.dtype != dtype or type(place.offset) is not int or place.offset < 0:
            raise ValueError(f"array {name} is {place}")
    return max(place.offset + place.n_bytes for place in layout.values())


def shard_file(window: int) -> str:
    """Name the file of the shard of a window."""
    return f"shard-{window:06d}.h5"


def shared_identity(identity: dict[str, Any]) -> dict[str, Any]:
    """Return what the shards of one extraction have in common: an identity without what depends on the texts."""
    shared = of_all_texts(identity)
    if "words" in identity:
        shared["words"] = {key: each for key, each in identity["words"].items() if key != "n_words"}
    return shared
