"""icecore: the public names of `extract` and `probes` in one place, loaded when they are used.

Example:
    >>> import icecore
    >>> icecore.ExtractionSpec(plan="backward").plan
    'backward'
"""

from typing import TYPE_CHECKING, Any

import extract
import probes

if TYPE_CHECKING:
    from extract import (
        Decoder,
        DecoderSpec,
        ExtractionSpec,
        IcecoreError,
        InputTemplate,
        JoinedText,
        LatentCache,
        MeanCache,
        MergePart,
        RayWorkers,
        RebaOptions,
        ShardedCache,
        WordSpec,
        allow_code,
        compare_weights,
        extract_latents,
        extract_shards,
        extract_shards_on_ray,
        join_words,
        load_decoder,
        open_cache,
        register_mask,
        register_pooling,
        register_word_pooling,
        stream_texts,
    )  # fmt: skip
    from probes import (
        Comparison,
        HeadEntry,
        LoadedRun,
        LogisticProbe,
        RunConfig,
        StudyOptions,
        centres_of_gravity,
        compare,
        compare_at_layers,
        compare_layers,
        cosine_with_gold,
        expected_validation,
        layers_across,
        load_head,
        load_run,
        load_scorer,
        load_task,
        measure_geometry,
        pair_head,
        paired_tests,
        rank_systems,
        register_head,
        results,
        run,
        similarity_of_layers,
        token_head,
        write_report,
    )  # fmt: skip

__all__ = [
    "Comparison", "Decoder", "DecoderSpec", "ExtractionSpec", "HeadEntry", "IcecoreError", "InputTemplate",
    "JoinedText", "LatentCache", "LoadedRun", "LogisticProbe", "MeanCache", "MergePart", "RayWorkers",
    "RebaOptions", "RunConfig", "ShardedCache", "StudyOptions", "WordSpec", "allow_code", "centres_of_gravity",
    "compare", "compare_at_layers", "compare_layers", "compare_weights", "cosine_with_gold", "expected_validation",
    "extract_latents", "extract_shards", "extract_shards_on_ray", "join_words", "layers_across", "load_decoder",
    "load_head", "load_run", "load_scorer", "load_task", "measure_geometry", "open_cache", "pair_head",
    "paired_tests", "rank_systems", "register_head", "register_mask", "register_pooling", "register_word_pooling",
    "results", "run", "similarity_of_layers", "stream_texts", "token_head", "write_report",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = extract if name in extract.__all__ else probes if name in probes.__all__ else None
    if home is None:
        raise AttributeError(f"module 'icecore' has no attribute {name!r}; allowed: {', '.join(sorted(__all__))}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
