"""A whole cache put together from rows that other caches hold: nothing is computed, latents are copied bit by bit."""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from extract.errors import CacheError
from extract.inputs.joined_text import digest_texts
from extract.store.cache import LatentCache, cache_path
from extract.store.format import create_store
from extract.store.items import keep_texts
from extract.store.manifest import Manifest, of_all_texts, require_same
from extract.store.writer import StoreWriter

ROWS_AT_A_TIME = 1024
OPEN = ("poolings", "layers")
"""Fields of an identity of which a part may hold more."""


@dataclass(frozen=True)
class CachePart:
    """A whole cache, and those of its texts whose latents are copied."""

    cache: LatentCache
    texts: Sequence[str]


def compose_cache(parts: Sequence[CachePart], *, manifest: Manifest, folder: Path) -> LatentCache:
    """Write the cache that an extraction of the texts of all parts, each in one of them, would have written.

    The certificate is that of the last part, with the identities of all parts.
    """
    expected = of_all_texts(manifest.identity)
    for part in parts:
        actual = of_all_texts(part.cache.identity)
        covered = {key: expected[key] for key in OPEN if set(actual[key]) >= set(expected[key])}
        if "widths" in actual:
            covered["widths"] = {key: width for key, width in actual["widths"].items() if key in manifest.layers}
        require_same({**actual, **covered}, expected, where=repr(str(part.cache.path)))
    n_texts = sum(len(part.texts) for part in parts)
    if n_texts != manifest.n_rows:
        raise CacheError(f"the parts hold {n_texts} texts, but the cache is to hold {manifest.n_rows}.")
    path = cache_path(folder, manifest)
    # Rows are in another order than an extraction's, which must never resume this store half done.
    # Under this name a draft that a kill leaves behind is swept away by the next extraction of the same store.
    draft = path.with_name(f".{path.name}.new-{os.getpid()}")
    create_store(draft, manifest)
    try:
        with closing(StoreWriter(draft)) as writer, writer.locked():
            first = 0
            for part in parts:
                first = _copy(writer, part, first, manifest)
            ids = [part.cache.manifest.id for part in parts]
            writer.write_certificate({**parts[-1].cache.certificate, "composed_of": ids})
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    if all(part.cache.keeps_texts for part in parts):
        keep_texts(path, [text for part in parts for text in part.texts])
    return LatentCache(path, expected=manifest.identity)


def _copy(writer: StoreWriter, part: CachePart, first: int, manifest: Manifest) -> int:
    """Copy the rows of a part to those from `first` on; return the row after them."""
    cache, rows_of_texts = part.cache, part.cache.rows_of(part.texts).numpy()
    poolings, layers = manifest.identity.poolings, manifest.layers
    for start in range(0, len(part.texts), ROWS_AT_A_TIME):
        rows = rows_of_texts[start : start + ROWS_AT_A_TIME]
        latents = [[_stored(cache, layer, pooling, rows) for pooling in poolings] for layer in layers]
        facts = {
            "digest": digest_texts(part.texts[start : start + ROWS_AT_A_TIME]),
            "n_tokens": cache.n_tokens[rows],
            "is_truncated": cache.is_truncated[rows].astype(np.uint8),
        }
        writer.write_rows(first, latents, rows=facts)
        first += len(rows)
    return first


def _stored(cache: LatentCache, layer: str, pooling: str, rows: NDArray[np.int64]) -> NDArray[np.generic]:
    view = cache.layer(layer, pooling)[torch.from_numpy(rows)]
    stored: NDArray[np.generic] = (view.view(torch.uint16) if cache.storage_dtype == "bfloat16" else view).numpy()
    return stored
