"""Finding a cache that already holds what is wanted."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from extract.errors import CacheError, CacheIncompleteError, CacheWarning, IcecoreError, first_line
from extract.store.cache import LatentCache
from extract.store.manifest import Manifest, flatten
from extract.store.mean import MeanCache, mean_parts
from extract.store.shards.cache import open_cache
from extract.store.shards.index import INDEX


def cache_path(folder: Path, manifest: Manifest) -> Path:
    """Name a cache by its decoder, plan and identity."""
    name = str(manifest.provenance["decoder"]["name"]).replace("/", "--").replace("*", "x")
    plan = re.sub(r"[^a-z0-9-]+", "_", str(manifest.identity["plan"])).strip("_")[:60]
    return folder / f"{name}-{plan}-{manifest.short_id}.h5"


def find_cache(folder: Path, identity: dict[str, Any]) -> LatentCache | None:
    """Find a whole cache in a folder that holds what is wanted, one with the file name of `cache_path` first.

    It may hold further poolings, word poolings or layers, which are left out of what is returned. It is compared with
    its checksums before that. What is the mean of several is found where each of them is.
    """
    parts = mean_parts(identity)
    if parts:
        found = [find_cache(folder, part) for part in parts]
        whole = [cache for cache in found if cache is not None]
        return MeanCache(whole, identity=identity) if len(whole) == len(parts) else None
    wanted = Manifest(identity)
    for cache in whole_caches(folder, first=wanted.short_id):
        if cache.manifest.id == wanted.id or _covers(cache.identity, identity):
            with passing_over(cache.path):
                cache.verify()
                return cache.shown_as(identity)
    return None


def whole_caches(folder: Path, *, first: str = "") -> Iterator[LatentCache]:
    """Open the whole caches of a folder, those with `first` in their name first; shards are in folders of their own.

    Half-done ones are skipped; whatever else cannot be read is passed over with a one-line warning.
    """
    for path in sorted(_files(folder), key=lambda p: (first not in p.name, p.name)):
        with passing_over(path), suppress(CacheIncompleteError):
            yield open_cache(path)


@contextmanager
def passing_over(path: Path) -> Iterator[None]:
    """Turn the error of a cache that cannot be read into a one-line warning."""
    try:
        yield
    except IcecoreError as error:
        warnings.warn(f"{path.name} in the caches folder is passed over: {error}", CacheWarning, stacklevel=3)


def _files(folder: Path) -> list[Path]:
    try:
        return [*folder.glob("*.h5"), *(path.parent for path in folder.glob(f"*/{INDEX}"))]
    except (OSError, ValueError) as error:
        raise CacheError(f"the caches folder {str(folder)!r} cannot be read ({first_line(error)}).") from error


def _covers(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    one, other = flatten(found), flatten(wanted)
    open_axes = [axis for axis in ("poolings", "layers", "words.poolings") if axis in other]
    for key in one.keys() - other.keys():
        if key.startswith(("own.pooling ", "own.word pooling ", "widths.", "reba.")):  # of what is not wanted
            del one[key]
    return one.keys() == other.keys() and all(
        set(one[key]) >= set(other[key]) if key in open_axes else one[key] == other[key] for key in one
    )
