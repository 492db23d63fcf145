"""A run for every ratio of a merge of two checkpoints, as BidirLM's merge curves; the ratio is chosen on validation."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError
from probes.runs.run import run
from probes.runs.run_config import RunConfig
from probes.runs.watcher import SILENT, Watcher

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = ("ratio", "run", "head", "split", "metric", "score", "low", "high", "layer", "is_chosen")


def merge_at(spec: DecoderSpec, ratio: float) -> DecoderSpec:
    """Return a merge of two checkpoints with another ratio: the weight of the second; `ConfigError` for any other.

    Example:
        >>> from extract.decoders.decoder_spec import MergePart
        >>> merge_at(DecoderSpec(merge=(MergePart("base", 0.5), MergePart("adapted", 0.5))), 0.75).name
        '0.25*base+0.75*adapted'
    """
    if len(spec.merge) != 2:
        raise ConfigError(
            f"decoder.merge has {len(spec.merge)} parts, and ratios are between two; set decoder.merge: "
            "[{name: A, weight: 0.5}, {name: B, weight: 0.5}]."
        )
    first, second = spec.merge
    weight = round(1 - ratio, 12)  # 0.1, and not 0.09999999999999998
    return replace(spec, merge=(replace(first, weight=weight), replace(second, weight=ratio)))


def run_ratios(
    config: RunConfig, ratios: Sequence[float], *, watcher: Watcher = SILENT, command: str = ""
) -> "tuple[Path, pd.DataFrame]":
    """Run a configuration at every ratio of its merge; ratios that were run before are found and not run again.

    Every ratio is a run with a folder of its own, `NAME-ratio-RATIO`, that reads test as any run does.

    Returns:
        The folder for what compares them, and a row per ratio, head and split, with the columns of `COLUMNS`:
        `is_chosen` marks the ratio with the head's best selection score, on validation as a rule.

    Raises:
        ConfigError: No merge of two checkpoints, or no ratio; and as `run`.
    """
    import pandas as pd

    decoders = {ratio: merge_at(config.decoder, ratio) for ratio in dict.fromkeys(ratios)}
    if not decoders:
        raise ConfigError("there is no ratio; give some with ',' between them, as 0,0.25,0.5,0.75,1.")
    rows = []
    selection: dict[str, dict[float, float]] = {}
    for ratio, decoder in decoders.items():
        at_ratio = replace(config, name=f"{config.name}-ratio-{ratio:g}", decoder=decoder)
        result = run(at_ratio, watcher=watcher, command=command)
        for head, scored in result.record.heads.items():
            score = scored.selection_score
            selection.setdefault(head, {})[ratio] = score if math.isfinite(score) else -math.inf
            for split, by_metric in scored.summary.items():
                summary = by_metric[scored.metric]
                scores = (summary.mean, summary.low, summary.high)
                layer = str(scored.chosen.get("layer", "all layers"))
                rows.append((ratio, result.folder.name, head, split, scored.metric, *scores, layer))
    frame = pd.DataFrame(rows, columns=list(COLUMNS[:-1]))
    chosen = {head: max(scores, key=scores.__getitem__) for head, scores in selection.items()}
    frame["is_chosen"] = frame["ratio"] == frame["head"].map(chosen)
    return Path(config.runs) / f"{config.name}-ratios", frame
