"""Probing: light heads on cached latents, statistics on them, and a report of what each layer contributes.

`probes` knows caches; a decoder is loaded only through `extract`, when a run must fill a missing cache.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.geometry.geometry import cosine_with_gold, measure_geometry
    from probes.geometry.similarity import similarity_of_layers
    from probes.heads.entries import HeadEntry
    from probes.heads.registry import pair_head, register_head, token_head
    from probes.heads.saved import load_head
    from probes.layers.study import StudyOptions
    from probes.logistic.estimator import LogisticProbe
    from probes.runs.across import centres_of_gravity, layers_across, rank_systems
    from probes.runs.comparison import Comparison, compare
    from probes.runs.config import RunConfig
    from probes.runs.layers import compare_at_layers, compare_layers
    from probes.runs.loaded import LoadedRun, load_run
    from probes.runs.pages.reports import write_report
    from probes.runs.paired_tests import paired_tests
    from probes.runs.results import expected_validation, results
    from probes.runs.run import run
    from probes.runs.scorer import load_scorer
    from probes.tasks.table import load_task

_HOMES = {
    "Comparison": "probes.runs.comparison",
    "HeadEntry": "probes.heads.entries",
    "LoadedRun": "probes.runs.loaded",
    "LogisticProbe": "probes.logistic.estimator",
    "RunConfig": "probes.runs.config",
    "StudyOptions": "probes.layers.study",
    "centres_of_gravity": "probes.runs.across",
    "compare": "probes.runs.comparison",
    "compare_at_layers": "probes.runs.layers",
    "compare_layers": "probes.runs.layers",
    "cosine_with_gold": "probes.geometry.geometry",
    "expected_validation": "probes.runs.results",
    "layers_across": "probes.runs.across",
    "load_head": "probes.heads.saved",
    "load_run": "probes.runs.loaded",
    "load_scorer": "probes.runs.scorer",
    "load_task": "probes.tasks.table",
    "measure_geometry": "probes.geometry.geometry",
    "pair_head": "probes.heads.registry",
    "paired_tests": "probes.runs.paired_tests",
    "rank_systems": "probes.runs.across",
    "register_head": "probes.heads.registry",
    "results": "probes.runs.results",
    "run": "probes.runs.run",
    "similarity_of_layers": "probes.geometry.similarity",
    "token_head": "probes.heads.registry",
    "write_report": "probes.runs.pages.reports",
}

import_module("extract.moved").find_moved()
__all__ = [
    "Comparison", "HeadEntry", "LoadedRun", "LogisticProbe", "RunConfig", "StudyOptions", "centres_of_gravity",
    "compare", "compare_at_layers", "compare_layers", "cosine_with_gold", "expected_validation", "layers_across",
    "load_head", "load_run", "load_scorer", "load_task", "measure_geometry", "pair_head", "paired_tests",
    "rank_systems", "register_head", "results", "run", "similarity_of_layers", "token_head", "write_report",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'probes' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
