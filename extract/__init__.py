"""Extraction: a frozen decoder under a mask plan, pooled at every layer into an HDF5 cache.

`extract` knows decoders and nothing of heads. Importing it loads no torch; names are resolved when they are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extract.code_gate import allow_code as allow_code
    from extract.decoders.decoder import Decoder as Decoder
    from extract.decoders.decoder import compare_weights as compare_weights
    from extract.decoders.decoder import load_decoder as load_decoder
    from extract.decoders.decoder_spec import DecoderSpec as DecoderSpec
    from extract.decoders.decoder_spec import MergePart as MergePart
    from extract.errors import IcecoreError as IcecoreError
    from extract.inputs.batches import stream_texts as stream_texts
    from extract.inputs.joined_text import JoinedText as JoinedText
    from extract.inputs.joined_text import join_words as join_words
    from extract.inputs.template import InputTemplate as InputTemplate
    from extract.masks.mask_kinds import register_mask as register_mask
    from extract.masks.mask_plan import parse_plan as parse_plan
    from extract.poolings.pooling_table import RebaOptions as RebaOptions
    from extract.poolings.pooling_table import register_pooling as register_pooling
    from extract.poolings.pooling_table import register_word_pooling as register_word_pooling
    from extract.run.extraction import extract_latents as extract_latents
    from extract.run.extraction_spec import ExtractionSpec as ExtractionSpec
    from extract.run.extraction_spec import WordSpec as WordSpec
    from extract.run.ray import RayWorkers as RayWorkers
    from extract.run.ray import extract_shards_on_ray as extract_shards_on_ray
    from extract.run.shards import extract_shards as extract_shards
    from extract.store.cache import LatentCache as LatentCache
    from extract.store.cache import MeanCache as MeanCache
    from extract.store.cache import ShardedCache as ShardedCache
    from extract.store.cache import open_cache as open_cache

_HOMES = {
    "Decoder": "extract.decoders.decoder",
    "DecoderSpec": "extract.decoders.decoder_spec",
    "ExtractionSpec": "extract.run.extraction_spec",
    "IcecoreError": "extract.errors",
    "InputTemplate": "extract.inputs.template",
    "JoinedText": "extract.inputs.joined_text",
    "LatentCache": "extract.store.cache",
    "MergePart": "extract.decoders.decoder_spec",
    "MeanCache": "extract.store.cache",
    "RayWorkers": "extract.run.ray",
    "RebaOptions": "extract.poolings.pooling_table",
    "ShardedCache": "extract.store.cache",
    "WordSpec": "extract.run.extraction_spec",
    "allow_code": "extract.code_gate",
    "compare_weights": "extract.decoders.decoder",
    "extract_latents": "extract.run.extraction",
    "extract_shards": "extract.run.shards",
    "extract_shards_on_ray": "extract.run.ray",
    "join_words": "extract.inputs.joined_text",
    "load_decoder": "extract.decoders.decoder",
    "open_cache": "extract.store.cache",
    "parse_plan": "extract.masks.mask_plan",
    "register_mask": "extract.masks.mask_kinds",
    "register_pooling": "extract.poolings.pooling_table",
    "register_word_pooling": "extract.poolings.pooling_table",
    "stream_texts": "extract.inputs.batches",
}

import_module("extract.moved").find_moved()
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'extract' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
