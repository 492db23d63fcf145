"""Probing: light heads on cached latents, statistics on them, and a report of what each layer contributes.

`probes` knows caches; a decoder is loaded only through `extract`, when a run must fill a missing cache.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.export.hub import push_run as push_run
    from probes.export.hub import stage_run as stage_run
    from probes.export.mteb_run import as_mteb_encoder as as_mteb_encoder
    from probes.export.mteb_run import fill_task as fill_task
    from probes.export.mteb_run import run_mteb as run_mteb
    from probes.export.pair_scorer import PairScorer as PairScorer
    from probes.export.sentence_folder import export_sentence_transformer as export_sentence_transformer
    from probes.export.sentence_folder import load_sentence_transformer as load_sentence_transformer
    from probes.fitting.epochs import EpochOptions as EpochOptions
    from probes.geometry.geometry import cosine_with_gold as cosine_with_gold
    from probes.geometry.geometry import measure_geometry as measure_geometry
    from probes.geometry.similarity import similarity_of_layers as similarity_of_layers
    from probes.heads.entries import HeadEntry as HeadEntry
    from probes.heads.registry import pair_head as pair_head
    from probes.heads.registry import register_head as register_head
    from probes.heads.registry import token_head as token_head
    from probes.heads.saved import load_head as load_head
    from probes.layers.study import StudyOptions as StudyOptions
    from probes.logistic.estimator import LogisticProbe as LogisticProbe
    from probes.networks.cosine_heads import CosineLinear as CosineLinear
    from probes.runs.across import centres_of_gravity as centres_of_gravity
    from probes.runs.across import layers_across as layers_across
    from probes.runs.across import rank_systems as rank_systems
    from probes.runs.comparison import Comparison as Comparison
    from probes.runs.comparison import compare as compare
    from probes.runs.config import PretrainingSpec as PretrainingSpec
    from probes.runs.config import RunConfig as RunConfig
    from probes.runs.config import TaskSpec as TaskSpec
    from probes.runs.layers import compare_at_layers as compare_at_layers
    from probes.runs.layers import compare_layers as compare_layers
    from probes.runs.loaded import LoadedRun as LoadedRun
    from probes.runs.loaded import load_run as load_run
    from probes.runs.pages.reports import write_report as write_report
    from probes.runs.paired_tests import paired_tests as paired_tests
    from probes.runs.results import expected_validation as expected_validation
    from probes.runs.results import results as results
    from probes.runs.run import run as run
    from probes.runs.scorer import load_scorer as load_scorer
    from probes.tasks.table import load_task as load_task

_HOMES = {
    "Comparison": "probes.runs.comparison",
    "CosineLinear": "probes.networks.cosine_heads",
    "EpochOptions": "probes.fitting.epochs",
    "HeadEntry": "probes.heads.entries",
    "LoadedRun": "probes.runs.loaded",
    "LogisticProbe": "probes.logistic.estimator",
    "PairScorer": "probes.export.pair_scorer",
    "PretrainingSpec": "probes.runs.config",
    "RunConfig": "probes.runs.config",
    "StudyOptions": "probes.layers.study",
    "TaskSpec": "probes.runs.config",
    "as_mteb_encoder": "probes.export.mteb_run",
    "centres_of_gravity": "probes.runs.across",
    "compare": "probes.runs.comparison",
    "compare_at_layers": "probes.runs.layers",
    "compare_layers": "probes.runs.layers",
    "cosine_with_gold": "probes.geometry.geometry",
    "expected_validation": "probes.runs.results",
    "export_sentence_transformer": "probes.export.sentence_folder",
    "fill_task": "probes.export.mteb_run",
    "layers_across": "probes.runs.across",
    "load_head": "probes.heads.saved",
    "load_run": "probes.runs.loaded",
    "load_scorer": "probes.runs.scorer",
    "load_sentence_transformer": "probes.export.sentence_folder",
    "load_task": "probes.tasks.table",
    "measure_geometry": "probes.geometry.geometry",
    "pair_head": "probes.heads.registry",
    "paired_tests": "probes.runs.paired_tests",
    "push_run": "probes.export.hub",
    "rank_systems": "probes.runs.across",
    "register_head": "probes.heads.registry",
    "results": "probes.runs.results",
    "run": "probes.runs.run",
    "run_mteb": "probes.export.mteb_run",
    "similarity_of_layers": "probes.geometry.similarity",
    "stage_run": "probes.export.hub",
    "token_head": "probes.heads.registry",
    "write_report": "probes.runs.pages.reports",
}

import_module("extract.moved").find_moved()
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'probes' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
