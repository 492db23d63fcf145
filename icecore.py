"""icecore: the public names of `extract` and `probes` in one place, loaded when they are used.

Example:
    >>> import icecore
    >>> icecore.ExtractionSpec(plan="backward").plan
    'backward'
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

for _name in ("extract", "probes"):  # before a stranger's file is run
    _spec = find_spec(_name)
    _where = Path(_spec.origin).resolve() if _spec and _spec.origin else None
    if _where != Path(__file__).resolve().parent / _name / "__init__.py":
        _other = _where or (_spec and _spec.submodule_search_locations and next(iter(_spec.submodule_search_locations)))
        _told = (
            f"{str(_other)!r} hides the package {_name!r} of icecore; rename it, or start Python in another folder."
            if _other
            else f"the package {_name!r} of icecore is missing beside {__file__!r}; install icecore again."
        )
        if Path(sys.argv[0]).stem == "icecore":  # the command says it without a traceback
            sys.exit(f"icecore: {_told}")
        raise ImportError(_told)

import extract  # noqa: E402
import probes  # noqa: E402

# ruff: noqa: PLC0414
if TYPE_CHECKING:  # the tables of `extract` and `probes` as a type checker sees them
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
    from extract.masks.mask_plan import parse_plan as parse_plan
    from extract.masks.mask_plan import register_mask as register_mask
    from extract.poolings.pooling_table import RebaOptions as RebaOptions
    from extract.poolings.pooling_table import register_pooling as register_pooling
    from extract.poolings.pooling_table import register_word_pooling as register_word_pooling
    from extract.registry import allow_code as allow_code
    from extract.run.extraction import extract_latents as extract_latents
    from extract.run.extraction_spec import ExtractionSpec as ExtractionSpec
    from extract.run.extraction_spec import WordSpec as WordSpec
    from extract.run.ray import RayWorkers as RayWorkers
    from extract.run.ray import extract_shards_on_ray as extract_shards_on_ray
    from extract.run.shards import extract_shards as extract_shards
    from extract.store.cache import LatentCache as LatentCache
    from extract.store.cache import MeanCache as MeanCache
    from extract.store.cache import ShardedCache as ShardedCache
    from extract.store.cache import ViewCache as ViewCache
    from extract.store.cache import open_cache as open_cache
    from probes.adaptation.abilities import AbilityScores as AbilityScores
    from probes.adaptation.abilities import compare_abilities as compare_abilities
    from probes.adaptation.abilities import load_abilities as load_abilities
    from probes.adaptation.adapt import adapt as adapt
    from probes.adaptation.adapt_config import AdaptConfig as AdaptConfig
    from probes.adaptation.infilling import DrawnSpans as DrawnSpans
    from probes.adaptation.measuring import AbilityOptions as AbilityOptions
    from probes.adaptation.measuring import measure_abilities as measure_abilities
    from probes.data.task_table import load_task as load_task
    from probes.export.mteb import as_mteb_encoder as as_mteb_encoder
    from probes.export.mteb import fill_task as fill_task
    from probes.export.mteb import run_mteb as run_mteb
    from probes.export.sentence_transformers import PairScorer as PairScorer
    from probes.export.sentence_transformers import export_sentence_transformer as export_sentence_transformer
    from probes.export.sentence_transformers import load_sentence_transformer as load_sentence_transformer
    from probes.export.sentence_transformers import push_run as push_run
    from probes.export.sentence_transformers import stage_run as stage_run
    from probes.fitting.fit_options import EpochOptions as EpochOptions
    from probes.heads.head_table import HeadEntry as HeadEntry
    from probes.heads.head_table import pair_head as pair_head
    from probes.heads.head_table import register_head as register_head
    from probes.heads.head_table import token_head as token_head
    from probes.heads.layer_head import load_head as load_head
    from probes.layers.geometry import cosine_with_gold as cosine_with_gold
    from probes.layers.geometry import measure_geometry as measure_geometry
    from probes.layers.geometry import similarity_of_layers as similarity_of_layers
    from probes.layers.study import StudyOptions as StudyOptions
    from probes.logistic.estimator import LogisticProbe as LogisticProbe
    from probes.networks.pair_networks import CosineLinear as CosineLinear
    from probes.report.comparison_figures import draw_measure as draw_measure
    from probes.report.comparison_figures import draw_similarity as draw_similarity
    from probes.report.layer_figures import draw_alone as draw_alone
    from probes.report.layer_figures import draw_view as draw_view
    from probes.report.sweep_figures import draw_layer_maps as draw_layer_maps
    from probes.report.sweep_frames import layer_scores as layer_scores
    from probes.report.sweep_frames import points_frame as points_frame
    from probes.runs.compare import Comparison as Comparison
    from probes.runs.compare import compare as compare
    from probes.runs.compare import paired_tests as paired_tests
    from probes.runs.compare import write_report as write_report
    from probes.runs.layer_studies import LayerStudy as LayerStudy
    from probes.runs.layer_studies import compare_at_layers as compare_at_layers
    from probes.runs.layer_studies import compare_layers as compare_layers
    from probes.runs.predict import LoadedRun as LoadedRun
    from probes.runs.predict import load_run as load_run
    from probes.runs.predict import load_scorer as load_scorer
    from probes.runs.probe import Encoder as Encoder
    from probes.runs.probe import Probe as Probe
    from probes.runs.results import centres_of_gravity as centres_of_gravity
    from probes.runs.results import expected_validation as expected_validation
    from probes.runs.results import layers_across as layers_across
    from probes.runs.results import rank_systems as rank_systems
    from probes.runs.results import results as results
    from probes.runs.run import run as run
    from probes.runs.run_config import PretrainingSpec as PretrainingSpec
    from probes.runs.run_config import RunConfig as RunConfig
    from probes.runs.run_config import TaskSpec as TaskSpec
    from probes.runs.sweep_run import sweep as sweep

__all__ = sorted([*extract.__all__, *probes.__all__])  # noqa: PLE0605


def main() -> int:
    """Run the command `icecore`, and return its exit code."""
    from probes.cli import main

    return main.main()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("icecore")
    home = extract if name in extract.__all__ else probes if name in probes.__all__ else None
    if home is None:
        raise AttributeError(f"module 'icecore' has no attribute {name!r}; allowed: {', '.join(__all__)}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return __all__


if __name__ == "__main__":
    sys.exit(main())
