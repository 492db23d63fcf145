"""The way out to other tools: sentence-transformers, mteb, and the hub.

The packages of the extras are imported when a function needs them.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "PairScorer": "probes.export.sentence_transformers",
    "as_mteb_encoder": "probes.export.mteb",
    "export_sentence_transformer": "probes.export.sentence_transformers",
    "fill_task": "probes.export.mteb",
    "load_sentence_transformer": "probes.export.sentence_transformers",
    "push_run": "probes.export.sentence_transformers",
    "run_mteb": "probes.export.mteb",
    "stage_run": "probes.export.sentence_transformers",
}

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'probes.export' has no attribute {name!r}; allowed: {', '.join(_HOMES)}")
    return getattr(import_module(_HOMES[name]), name)
