"""Probing: light heads on cached latents, statistics on them, and a report of what each layer contributes.

`probes` knows caches; a decoder is loaded only through `extract`, when a run must fill a missing cache.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.adapt.abilities import AbilityScores as AbilityScores
    from probes.adapt.abilities import compare_abilities as compare_abilities
    from probes.adapt.abilities import load_abilities as load_abilities
    from probes.adapt.adapt import adapt as adapt
    from probes.adapt.adapt_config import AdaptConfig as AdaptConfig
    from probes.adapt.infilling import DrawnSpans as DrawnSpans
    from probes.adapt.measuring import AbilityOptions as AbilityOptions
    from probes.adapt.measuring import measure_abilities as measure_abilities
    from probes.data.task_table import load_task as load_task
    from probes.export.hub_export import push_run as push_run
    from probes.export.hub_export import stage_run as stage_run
    from probes.export.mteb import as_mteb_encoder as as_mteb_encoder
    from probes.export.mteb import fill_task as fill_task
    from probes.export.mteb import run_mteb as run_mteb
    from probes.export.sentence_transformers import PairScorer as PairScorer
    from probes.export.sentence_transformers import export_sentence_transformer as export_sentence_transformer
    from probes.export.sentence_transformers import load_sentence_transformer as load_sentence_transformer
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
    from probes.report.decoder_figures import draw_measure as draw_measure
    from probes.report.decoder_figures import draw_similarity as draw_similarity
    from probes.report.layer_figures import draw_alone as draw_alone
    from probes.report.layer_figures import draw_view as draw_view
    from probes.runs.compare import Comparison as Comparison
    from probes.runs.compare import compare as compare
    from probes.runs.compare import paired_tests as paired_tests
    from probes.runs.encoder import Encoder as Encoder
    from probes.runs.layer_studies import LayerStudy as LayerStudy
    from probes.runs.layer_studies import compare_at_layers as compare_at_layers
    from probes.runs.layer_studies import compare_layers as compare_layers
    from probes.runs.predict import LoadedRun as LoadedRun
    from probes.runs.predict import load_run as load_run
    from probes.runs.predict import load_scorer as load_scorer
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
    from probes.runs.run_pages import write_report as write_report

_NAMES = {
    "probes.adapt.abilities": ("AbilityScores", "compare_abilities", "load_abilities"),
    "probes.adapt.adapt": ("adapt",),
    "probes.adapt.adapt_config": ("AdaptConfig",),
    "probes.adapt.infilling": ("DrawnSpans",),
    "probes.adapt.measuring": ("AbilityOptions", "measure_abilities"),
    "probes.data.task_table": ("load_task",),
    "probes.export.hub_export": ("push_run", "stage_run"),
    "probes.export.mteb": ("as_mteb_encoder", "fill_task", "run_mteb"),
    "probes.export.sentence_transformers": ("PairScorer", "export_sentence_transformer", "load_sentence_transformer"),
    "probes.fitting.fit_options": ("EpochOptions",),
    "probes.heads.layer_head": ("load_head",),
    "probes.heads.head_table": ("HeadEntry", "pair_head", "register_head", "token_head"),
    "probes.layers.geometry": ("cosine_with_gold", "measure_geometry", "similarity_of_layers"),
    "probes.layers.study": ("StudyOptions",),
    "probes.logistic.estimator": ("LogisticProbe",),
    "probes.networks.pair_networks": ("CosineLinear",),
    "probes.report.decoder_figures": ("draw_measure", "draw_similarity"),
    "probes.report.layer_figures": ("draw_alone", "draw_view"),
    "probes.runs.compare": ("Comparison", "compare", "paired_tests"),
    "probes.runs.encoder": ("Encoder",),
    "probes.runs.layer_studies": ("LayerStudy", "compare_at_layers", "compare_layers"),
    "probes.runs.predict": ("LoadedRun", "load_run", "load_scorer"),
    "probes.runs.probe": ("Probe",),
    "probes.runs.results": ("centres_of_gravity", "expected_validation", "layers_across", "rank_systems", "results"),
    "probes.runs.run": ("run",),
    "probes.runs.run_config": ("PretrainingSpec", "RunConfig", "TaskSpec"),
    "probes.runs.run_pages": ("write_report",),
}
"""Module to its public names."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

import_module("extract.moved").find_moved()
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'probes' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
