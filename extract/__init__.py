"""Extraction: a frozen decoder under a mask plan, pooled at every layer into an HDF5 cache.

`extract` knows decoders and nothing of heads. Importing it loads no torch; names are resolved when they are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extract.decoders.decoder import Decoder as Decoder
    from extract.decoders.loading import load_decoder as load_decoder
    from extract.decoders.merge import compare_weights as compare_weights
    from extract.decoders.spec import DecoderSpec as DecoderSpec
    from extract.decoders.spec import MergePart as MergePart
    from extract.errors import IcecoreError as IcecoreError
    from extract.inputs.joined import JoinedText as JoinedText
    from extract.inputs.joined import join_words as join_words
    from extract.inputs.streams import stream_texts as stream_texts
    from extract.inputs.template import InputTemplate as InputTemplate
    from extract.masks.kinds import register_mask as register_mask
    from extract.masks.plan import parse_plan as parse_plan
    from extract.own.gate import allow_code as allow_code
    from extract.poolings.reba_options import RebaOptions as RebaOptions
    from extract.poolings.table import register_pooling as register_pooling
    from extract.poolings.table import register_word_pooling as register_word_pooling
    from extract.run.on_ray.shards import extract_shards_on_ray as extract_shards_on_ray
    from extract.run.on_ray.workers import RayWorkers as RayWorkers
    from extract.run.runner import extract_latents as extract_latents
    from extract.run.shards import extract_shards as extract_shards
    from extract.run.spec import ExtractionSpec as ExtractionSpec
    from extract.run.spec import WordSpec as WordSpec
    from extract.store.cache import LatentCache as LatentCache
    from extract.store.mean import MeanCache as MeanCache
    from extract.store.shards.cache import ShardedCache as ShardedCache
    from extract.store.shards.cache import open_cache as open_cache

_HOMES = {
    "Decoder": "extract.decoders.decoder",
    "DecoderSpec": "extract.decoders.spec",
    "ExtractionSpec": "extract.run.spec",
    "IcecoreError": "extract.errors",
    "InputTemplate": "extract.inputs.template",
    "JoinedText": "extract.inputs.joined",
    "LatentCache": "extract.store.cache",
    "MergePart": "extract.decoders.spec",
    "MeanCache": "extract.store.mean",
    "RayWorkers": "extract.run.on_ray.workers",
    "RebaOptions": "extract.poolings.reba_options",
    "ShardedCache": "extract.store.shards.cache",
    "WordSpec": "extract.run.spec",
    "allow_code": "extract.own.gate",
    "compare_weights": "extract.decoders.merge",
    "extract_latents": "extract.run.runner",
    "extract_shards": "extract.run.shards",
    "extract_shards_on_ray": "extract.run.on_ray.shards",
    "join_words": "extract.inputs.joined",
    "load_decoder": "extract.decoders.loading",
    "open_cache": "extract.store.shards.cache",
    "parse_plan": "extract.masks.plan",
    "register_mask": "extract.masks.kinds",
    "register_pooling": "extract.poolings.table",
    "register_word_pooling": "extract.poolings.table",
    "stream_texts": "extract.inputs.streams",
}

import_module("extract.moved").find_moved()
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'extract' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
