"""Finding a cache that already holds what is wanted."""

import re
from pathlib import Path
from typing import Any

from extract.errors import IcecoreError
from extract.store.cache import LatentCache
from extract.store.manifest import Manifest, flatten


def cache_path(folder: Path, manifest: Manifest) -> Path:
    """Name a cache by its decoder, plan and identity."""
    name = str(manifest.provenance["decoder"]["name"]).replace("/", "--")
    plan = re.sub(r"[^a-z0-9-]+", "_", str(manifest.identity["plan"])).strip("_")[:60]
    return folder / f"{name}-{plan}-{manifest.short_id}.h5"


def find_cache(folder: Path, identity: dict[str, Any]) -> LatentCache | None:
    """Find a whole cache in a folder that holds what is wanted, one with the file name of `cache_path` first.

    It may hold further poolings, word poolings or layers.
    """
    wanted = Manifest(identity)
    for path in sorted(folder.glob("*.h5"), key=lambda p: (wanted.short_id not in p.name, p.name)):
        try:
            cache = LatentCache(path)
        except IcecoreError:  # half done, foreign or damaged: not what is wanted
            continue
        if cache.manifest.id == wanted.id or _covers(cache.identity, identity):
            return cache
    return None


def _covers(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    one, other = flatten(found), flatten(wanted)
    open_axes = [axis for axis in ("poolings", "layers", "words.poolings") if axis in other]
    return one.keys() == other.keys() and all(
        set(one[key]) >= set(other[key]) if key in open_axes else one[key] == other[key] for key in one
    )
