"""`icecore inspect`: what a cache is, from what, how complete, how large, and what was certified."""

import json
from types import SimpleNamespace

import numpy as np
from rich.console import Console

from extract.errors import CacheError
from extract.store.cache import LatentCache
from extract.store.dtypes import STORAGE_DTYPES
from extract.store.manifest import flatten
from extract.store.shards.cache import ShardedCache, open_cache
from probes.cli.screen import show

NO_CHECKSUMS = "none: written by an earlier version, so damage on the disk goes unnoticed"


def inspect_command(found: SimpleNamespace) -> int:
    """Say what a cache is and how complete; works on half-done caches."""
    cache = open_cache(found.file, allow_partial=True)
    if found.verify:
        _verify(cache)
    if found.json:
        value = {**json.loads(cache.manifest.to_json()), "certificate": cache.certificate, "n_done": cache.n_done}
        Console().print_json(json.dumps(value), ensure_ascii=True)  # no control character reaches the screen
        return 0
    show("\n".join([*_describe(cache), *["verified     every finished row is as it was written"] * found.verify]))
    return 0


def _verify(cache: LatentCache) -> None:
    if not cache.has_checksums:
        raise CacheError(
            f"cache {str(cache.path)!r} cannot be verified: it was written by an earlier version and carries no "
            "checksums; extract it again to have them."
        )
    cache.verify()


def _describe(cache: LatentCache) -> list[str]:
    """Describe a cache: what it is, how complete, sizes, certificate, then every field of its identity."""
    state = "complete" if cache.is_complete else "half done: run the same extraction again to go on"
    decoder = cache.manifest.provenance["decoder"]
    itemsize, n_places = np.dtype(STORAGE_DTYPES[cache.storage_dtype]).itemsize, cache.n_words or len(cache)
    layer_bytes = {layer: n_places * cache.width_of([layer]) * itemsize for layer in cache.layers}
    lines = [
        f"cache        {cache.path}",
        f"state        {cache.n_done:,} of {len(cache):,} rows, {state}",
        f"decoder      {decoder['name']} ({decoder['family']}, {decoder['n_layers']} blocks, width {decoder['width']})",
        f"latents      {', '.join(cache.poolings)} x {len(cache.layers)} layers "
        f"({cache.layers[0]} ... {cache.layers[-1]}), {cache.storage_dtype}",
        f"size         {cache.n_bytes / 1e6:,.1f} MB on disk, "
        f"{len(cache.poolings) * sum(layer_bytes.values()) / 1e6:,.1f} MB of latents, "
        f"{layer_bytes[cache.layers[0]] / 1e6:,.2f} MB per layer and pooling",
        f"checksums    {_checksums_text(cache)}",
        f"certificate  {_certificate_text(cache)}",
    ]
    if cache.is_complete:
        tokens = cache.n_tokens
        lines.append(
            f"tokens       {int(tokens.sum()):,} in all, {int(tokens.min())} to {int(tokens.max())} per text, "
            f"{int(cache.is_truncated.sum()):,} texts truncated"
        )
    if cache.is_complete and cache.is_words:
        counts = cache.word_report()
        lines.append(
            f"words        {counts['n_words']:,} in all: {counts['n_shared']:,} begin inside a token of the word "
            f"before, {counts['n_cut']:,} truncated, {counts['n_lost']:,} without a token; "
            f"{counts['n_windows']:,} texts read in windows"
        )
    lines.append(f"identity     {cache.manifest.id}")
    lines += [f"  {key:28} {value}" for key, value in flatten(cache.identity).items() if key != "layers"]
    return lines


def _checksums_text(cache: LatentCache) -> str:
    if isinstance(cache, ShardedCache):
        return f"SHA-256 of each of {cache.n_shards:,} shards (--verify)"
    return "CRC-32 per array and block of rows (--verify)" if cache.has_checksums else NO_CHECKSUMS


def _certificate_text(cache: LatentCache) -> str:
    certificate = cache.certificate
    if not certificate:
        return "none yet (written when the extraction ends)"
    drift = certificate["batch_invariance"]
    return (
        f"influence as planned at {certificate['influence']['n_layers']} layers; "
        f"batch drift right {drift['right']:.1e}, left {drift['left']:.1e} (allowed {drift['allowed']:g}); "
        "weights bit-identical"
    )
