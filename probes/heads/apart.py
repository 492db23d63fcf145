"""Taking a head of a run apart, whatever kind of task it is for."""

from dataclasses import replace

import numpy as np

from probes.heads.layerwise import channels_read, only_channel
from probes.heads.options import HeadOptions
from probes.heads.parts import HeadParts, split_scorer
from probes.heads.registry import HEADS
from probes.heads.result import HeadResult
from probes.heads.setting import Setting, Watch


def take_apart(resolved: HeadOptions, setting: Setting, result: HeadResult, split: str, watch: Watch) -> HeadParts:
    """Take a head of a run apart, fitting what was not kept; what is fitted here stays in `setting.folder`.

    Args:
        resolved: The head and its options.
        setting: What all heads of the run share.
        result: What came of the head in the run.
        split: The split to predict.
        watch: Receives epochs.
    """
    entry = HEADS[resolved.name]
    return (entry.parts or fit_every_layer)(resolved, setting, result, split, watch)


def fit_every_layer(resolved: HeadOptions, setting: Setting, result: HeadResult, split: str, watch: Watch) -> HeadParts:
    """Fit a head of one layer on each layer by itself, its other choices being made on validation as ever."""
    channels = channels_read(resolved, setting)
    found = []
    for place, name in enumerate(channels.names):
        one = only_channel(channels, place)
        alone = replace(resolved, pooling=one.pooling, layers=one.layers)
        folder = setting.folder / "layers" / name.replace("/", "_")
        quick = replace(setting, folder=folder, n_resamples=2, has_details=False)
        found.append(HEADS[resolved.name].evaluate(alone, quick, watch).predictions[split])
    return HeadParts(
        channels.pooling,
        channels.names,
        split_scorer(setting.task, split, result.metric),
        np.stack(found)[None],
        None,
        "the head fitted on the layer alone, its other choices made as in the run",
    )
