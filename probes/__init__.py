"""Probing: light heads on cached latents, statistics on them, and a report of what each layer contributes.

`probes` knows caches; a decoder is loaded only through `extract`, when a run must fill a missing cache.
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "probes.adaptation.abilities": ("AbilityScores", "compare_abilities", "load_abilities"),
    "probes.adaptation.adapt": ("adapt",),
    "probes.adaptation.adapt_config": ("AdaptConfig",),
    "probes.adaptation.infilling": ("DrawnSpans",),
    "probes.adaptation.measuring": ("AbilityOptions", "measure_abilities"),
    "probes.data.task_table": ("load_task",),
    "probes.export.mteb": ("as_mteb_encoder", "fill_task", "run_mteb"),
    "probes.export.sentence_transformers": (
        "PairScorer",
        "export_sentence_transformer",
        "load_sentence_transformer",
        "push_run",
        "stage_run",
    ),
    "probes.fitting.fit_options": ("EpochOptions",),
    "probes.heads.layer_head": ("load_head",),
    "probes.heads.head_table": ("HeadEntry", "pair_head", "register_head", "token_head"),
    "probes.layers.geometry": ("cosine_with_gold", "measure_geometry", "similarity_of_layers"),
    "probes.layers.study": ("StudyOptions",),
    "probes.logistic.estimator": ("LogisticProbe",),
    "probes.networks.pair_networks": ("CosineLinear",),
    "probes.report.comparison_figures": ("draw_measure", "draw_similarity"),
    "probes.report.layer_figures": ("draw_alone", "draw_view"),
    "probes.report.sweep_figures": ("draw_layer_maps",),
    "probes.report.sweep_frames": ("layer_scores", "points_frame"),
    "probes.runs.compare": ("Comparison", "compare", "paired_tests", "write_report"),
    "probes.runs.layer_studies": ("LayerStudy", "compare_at_layers", "compare_layers"),
    "probes.runs.predict": ("LoadedRun", "load_run", "load_scorer"),
    "probes.runs.probe": ("Encoder", "Probe"),
    "probes.runs.results": ("centres_of_gravity", "expected_validation", "layers_across", "rank_systems", "results"),
    "probes.runs.run": ("run",),
    "probes.runs.run_config": ("PretrainingSpec", "RunConfig", "TaskSpec"),
    "probes.runs.sweep_run": ("sweep",),
}
"""Module to its public names; `icecore` lists them for type checkers."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

import_module("extract.moved").find_moved()
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'probes' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
