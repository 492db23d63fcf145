"""Probing: light heads on cached latents, statistics on them, and a report of what each layer contributes.

`probes` knows caches; a decoder is loaded only through `extract`, when a run must fill a missing cache.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.heads.entries import HeadEntry
    from probes.heads.registry import pair_head, register_head, token_head
    from probes.heads.saved import load_head
    from probes.layers.study import StudyOptions
    from probes.logistic.estimator import LogisticProbe
    from probes.runs.comparison import Comparison, compare
    from probes.runs.config import RunConfig
    from probes.runs.layers import compare_layers
    from probes.runs.loaded import LoadedRun, load_run
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
    "compare": "probes.runs.comparison",
    "compare_layers": "probes.runs.layers",
    "expected_validation": "probes.runs.results",
    "load_head": "probes.heads.saved",
    "load_run": "probes.runs.loaded",
    "load_scorer": "probes.runs.scorer",
    "load_task": "probes.tasks.table",
    "pair_head": "probes.heads.registry",
    "paired_tests": "probes.runs.paired_tests",
    "register_head": "probes.heads.registry",
    "results": "probes.runs.results",
    "run": "probes.runs.run",
    "token_head": "probes.heads.registry",
}

__all__ = [
    "Comparison", "HeadEntry", "LoadedRun", "LogisticProbe", "RunConfig", "StudyOptions", "compare", "compare_layers",
    "expected_validation", "load_head", "load_run", "load_scorer", "load_task", "pair_head", "paired_tests",
    "register_head", "results", "run", "token_head",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'probes' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
