"""Extraction: a frozen decoder under a mask plan, pooled at every layer into an HDF5 cache.

`extract` knows decoders and nothing of heads. Importing it loads no torch; names are resolved when they are used.
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "extract.registry": ("allow_code",),
    "extract.decoders.decoder": ("Decoder", "compare_weights", "load_decoder"),
    "extract.decoders.decoder_spec": ("DecoderSpec", "MergePart"),
    "extract.errors": ("IcecoreError",),
    "extract.inputs.batches": ("stream_texts",),
    "extract.inputs.joined_text": ("JoinedText", "join_words"),
    "extract.inputs.template": ("InputTemplate",),
    "extract.masks.mask_plan": ("parse_plan", "register_mask"),
    "extract.poolings.pooling_table": ("RebaOptions", "register_pooling", "register_word_pooling"),
    "extract.run.extraction": ("extract_latents",),
    "extract.run.extraction_spec": ("ExtractionSpec", "WordSpec"),
    "extract.run.ray": ("RayWorkers", "extract_shards_on_ray"),
    "extract.run.shards": ("extract_shards",),
    "extract.store.cache": ("LatentCache", "MeanCache", "ShardedCache", "ViewCache", "open_cache"),
}
"""Module to its public names; `icecore` lists them for type checkers."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

import_module("extract.moved").find_moved()
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'extract' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
