"""Finding a cache that already holds what is wanted."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.errors import IcecoreError
from extract.store.cache import LatentCache
from extract.store.manifest import Manifest, flatten


@dataclass(frozen=True)
class CoveringCache:
    """A cache found by identity."""

    path: Path
    is_exact: bool


def cache_path(folder: Path, manifest: Manifest) -> Path:
    """Name a cache by its decoder, plan and identity."""
    name = str(manifest.provenance["decoder"]["name"]).replace("/", "--")
    plan = re.sub(r"[^a-z0-9-]+", "_", str(manifest.identity["plan"])).strip("_")[:60]
    return folder / f"{name}-{plan}-{manifest.short_id}.h5"


def find_cache(folder: Path, identity: dict[str, Any]) -> CoveringCache | None:
    """Find a whole cache in a folder that holds what is wanted, or more.

    A cache covers another when it differs only in holding further poolings, word poolings or layers.

    Args:
        folder: Folder of caches.
        identity: The wanted identity.

    Returns:
        The cache, an exact one first; None when there is none.
    """
    wanted = Manifest(identity)
    for path in sorted(folder.glob("*.h5"), key=lambda p: (wanted.short_id not in p.name, p.name)):
        try:
            cache = LatentCache(path)
        except IcecoreError:  # half done, foreign or damaged: not what is wanted
            continue
        if cache.manifest.id == wanted.id:
            return CoveringCache(path, is_exact=True)
        if _covers(cache.identity, identity):
            return CoveringCache(path, is_exact=False)
    return None


def _covers(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    one, other = flatten(found), flatten(wanted)
    open_axes = [axis for axis in ("poolings", "layers", "words.poolings") if axis in other]
    return one.keys() == other.keys() and all(
        set(one[key]) >= set(other[key]) if key in open_axes else one[key] == other[key] for key in one
    )
