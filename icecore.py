"""icecore: the public names of `extract` and `probes` in one place, loaded when they are used.

Example:
    >>> import icecore
    >>> icecore.ExtractionSpec(plan="backward").plan
    'backward'
"""

from typing import TYPE_CHECKING, Any

import extract
import probes

# ruff: noqa: PLC0414
if TYPE_CHECKING:  # the tables of `extract` and `probes` as a type checker sees them
    from extract import Decoder as Decoder
    from extract import DecoderSpec as DecoderSpec
    from extract import ExtractionSpec as ExtractionSpec
    from extract import IcecoreError as IcecoreError
    from extract import InputTemplate as InputTemplate
    from extract import JoinedText as JoinedText
    from extract import LatentCache as LatentCache
    from extract import MeanCache as MeanCache
    from extract import MergePart as MergePart
    from extract import RayWorkers as RayWorkers
    from extract import RebaOptions as RebaOptions
    from extract import ShardedCache as ShardedCache
    from extract import WordSpec as WordSpec
    from extract import allow_code as allow_code
    from extract import compare_weights as compare_weights
    from extract import extract_latents as extract_latents
    from extract import extract_shards as extract_shards
    from extract import extract_shards_on_ray as extract_shards_on_ray
    from extract import join_words as join_words
    from extract import load_decoder as load_decoder
    from extract import open_cache as open_cache
    from extract import parse_plan as parse_plan
    from extract import register_mask as register_mask
    from extract import register_pooling as register_pooling
    from extract import register_word_pooling as register_word_pooling
    from extract import stream_texts as stream_texts
    from probes import Comparison as Comparison
    from probes import CosineLinear as CosineLinear
    from probes import EpochOptions as EpochOptions
    from probes import HeadEntry as HeadEntry
    from probes import LoadedRun as LoadedRun
    from probes import LogisticProbe as LogisticProbe
    from probes import PairScorer as PairScorer
    from probes import PretrainingSpec as PretrainingSpec
    from probes import RunConfig as RunConfig
    from probes import StudyOptions as StudyOptions
    from probes import TaskSpec as TaskSpec
    from probes import as_mteb_encoder as as_mteb_encoder
    from probes import centres_of_gravity as centres_of_gravity
    from probes import compare as compare
    from probes import compare_at_layers as compare_at_layers
    from probes import compare_layers as compare_layers
    from probes import cosine_with_gold as cosine_with_gold
    from probes import expected_validation as expected_validation
    from probes import export_sentence_transformer as export_sentence_transformer
    from probes import fill_task as fill_task
    from probes import layers_across as layers_across
    from probes import load_head as load_head
    from probes import load_run as load_run
    from probes import load_scorer as load_scorer
    from probes import load_sentence_transformer as load_sentence_transformer
    from probes import load_task as load_task
    from probes import measure_geometry as measure_geometry
    from probes import pair_head as pair_head
    from probes import paired_tests as paired_tests
    from probes import push_run as push_run
    from probes import rank_systems as rank_systems
    from probes import register_head as register_head
    from probes import results as results
    from probes import run as run
    from probes import run_mteb as run_mteb
    from probes import similarity_of_layers as similarity_of_layers
    from probes import stage_run as stage_run
    from probes import token_head as token_head
    from probes import write_report as write_report

__all__ = sorted([*extract.__all__, *probes.__all__])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    home = extract if name in extract.__all__ else probes if name in probes.__all__ else None
    if home is None:
        raise AttributeError(f"module 'icecore' has no attribute {name!r}; allowed: {', '.join(__all__)}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return __all__
