"""Extraction: a frozen decoder under a mask plan, pooled at every layer into an HDF5 cache.

`extract` knows decoders and nothing of heads. Importing it loads no torch; names are resolved when they are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extract.cache import LatentCache
    from extract.decoder import Decoder
    from extract.errors import IcecoreError
    from extract.joined import JoinedText, join_words
    from extract.loading import load_decoder
    from extract.runner import extract_latents
    from extract.spec import DecoderSpec, ExtractionSpec, WordSpec
    from extract.template import InputTemplate

_HOMES = {
    "Decoder": "extract.decoder",
    "DecoderSpec": "extract.spec",
    "ExtractionSpec": "extract.spec",
    "IcecoreError": "extract.errors",
    "InputTemplate": "extract.template",
    "JoinedText": "extract.joined",
    "LatentCache": "extract.cache",
    "WordSpec": "extract.spec",
    "extract_latents": "extract.runner",
    "join_words": "extract.joined",
    "load_decoder": "extract.loading",
}

__all__ = [
    "Decoder",
    "DecoderSpec",
    "ExtractionSpec",
    "IcecoreError",
    "InputTemplate",
    "JoinedText",
    "LatentCache",
    "WordSpec",
    "extract_latents",
    "join_words",
    "load_decoder",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'extract' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
