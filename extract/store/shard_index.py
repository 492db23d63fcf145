"""The index of shards: what all shards hold, and where the arrays of each are; docs/cache_format.md is the contract."""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from extract.errors import CacheError, IcecoreError, first_line
from extract.files import canonical_json, digest_json, digest_text, write_file
from extract.store.format import ArrayPlace, Layout, array_shapes
from extract.store.manifest import CacheIdentity, Manifest, Plain, of_all_texts

INDEX = "index.json"
"""Name of the file, beside the shards."""
INDEX_SCHEMA = 1
NONSENSE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, IcecoreError)
"""What a field of the wrong kind raises."""


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
    """What a folder of shards holds."""

    identity: Plain  # of every shard, without what depends on its texts
    provenance: Plain  # of the first shard
    window_texts: int  # texts of a window, repeats included; the last has fewer
    shards: tuple[Shard, ...] = ()  # those that are there, by window
    is_complete: bool = False  # whether they hold all texts

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
        words = {"words": {**self.identity["words"], "n_words": n_words}} if "words" in self.identity else {}
        identity = {**self.identity, "n_rows": n_rows, "text_digest": text_digest, **words}
        return Manifest(CacheIdentity.from_plain(identity), self.provenance)

    def find(self, window: int) -> Shard | None:
        """Return the shard of a window, if it is listed."""
        return next((shard for shard in self.shards if shard.window == window), None)

    def with_shard(self, shard: Shard) -> "ShardIndex":
        """List a shard, in place of another of its window; further ones may follow."""
        layout = next((other.layout for other in self.shards if other.layout == shard.layout), shard.layout)
        others = self.without(shard.window)
        shards = sorted([*others.shards, replace(shard, layout=layout)], key=lambda listed: listed.window)
        return replace(others, shards=tuple(shards))

    def without(self, window: int) -> "ShardIndex":
        """Take the shard of a window from the list."""
        shards = tuple(shard for shard in self.shards if shard.window != window)
        return replace(self, shards=shards, is_complete=False)

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
                {name: [array.offset, array.dtype.str, list(array.shape)] for name, array in layout.items()}
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
    if digest_json({key: item for key, item in value.items() if key != "digest"}) != value.get("digest"):
        raise CacheError(
            f"index {where!r} is damaged: it does not match its digest; copy it again, or delete it and extract again."
        )
    try:
        return _read_index(value)
    except NONSENSE as error:
        raise _nonsense(where, error) from error


def _read_index(value: Plain) -> ShardIndex:
    layouts = [
        {name: ArrayPlace(offset, tuple(shape), np.dtype(dtype)) for name, (offset, dtype, shape) in layout.items()}
        for layout in value["layouts"]
    ]
    shards = []
    for item in value["shards"]:
        item.pop("first_row", None)  # for readers in other programs
        for field in fields(Shard):
            if field.name != "layout" and type(item[field.name]) is not field.type:
                raise TypeError(f"{field.name} of a shard is {item[field.name]!r}")
        shards.append(Shard(**{**item, "layout": layouts[item["layout"]]}))
        if item["file"] != shard_file(item["window"]):  # perhaps one outside the folder
            raise ValueError(f"the shard of window {item['window']} is {item['file']!r}")
    return ShardIndex(
        value["identity"], value["provenance"], value["window_texts"], tuple(shards), value["is_complete"]
    )


def require_arrays(index: ShardIndex, *, where: str) -> None:
    """Refuse an index, which may be a stranger's, whose arrays are not those of its identity: `CacheError`."""
    ends: dict[tuple[int, int, int], int] = {}  # bytes that a layout needs
    try:
        for shard in index.shards:
            key = id(shard.layout), shard.n_rows, shard.n_words
            if key not in ends:
                ends[key] = _end_of(index.manifest_of(shard), shard.layout)
            if ends[key] > shard.n_bytes:
                raise ValueError(f"arrays of {shard.file} end at byte {ends[key]} of {shard.n_bytes}")
    except NONSENSE as error:
        raise _nonsense(where, error) from error


def _nonsense(where: str, error: Exception) -> CacheError:
    return CacheError(f"index {where!r} is not valid ({first_line(error)}); delete it and extract again.")


def _end_of(manifest: Manifest, layout: Layout) -> int:
    """Return the byte at which the arrays of a layout end, which must be those of the manifest."""
    for name, expected in array_shapes(manifest).items():
        array = layout[name]
        if type(array.offset) is not int or array.offset < 0 or replace(array, offset=0) != expected:
            raise ValueError(f"array {name} is {array}")
    return max(array.offset + array.n_bytes for array in layout.values())


def shard_file(window: int) -> str:
    """Name the file of the shard of a window."""
    return f"shard-{window:06d}.h5"


def shared_identity(identity: CacheIdentity) -> Plain:
    """Return what the shards of one extraction have in common: the plain identity without what depends on the texts."""
    shared = of_all_texts(identity)
    if identity.words is not None:
        del shared["words"]["n_words"]
    return shared
