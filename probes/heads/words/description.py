"""What scores.json tells of the fits of a head of words, and of the words it read."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from extract.inputs.alignment import WORD_CUT, WORD_LOST, WORD_SHARED
from probes.heads.words.options import WordHeadOptions
from probes.latents.word_latents import WordLatents


def selection(resolved: WordHeadOptions, *, n_layers: int) -> str:
    """Say what is chosen, and on which split."""
    chosen = [
        *(["epoch"] if resolved.options.keep == "best" else []),
        *(["layer"] if n_layers > 1 else []),
    ]
    return f"validation ({' and '.join(chosen)})" if chosen else "nothing to choose"


def describe_curve(curve: Float[np.ndarray, "S P"]) -> dict[str, Any]:
    """Describe the validation scores of every layer with every seed; empty where there are none."""
    if not curve.size:
        return {}
    spread = curve.std(0, ddof=1) if len(curve) > 1 else np.zeros(curve.shape[1])
    return {"split": "validation", "mean": curve.mean(0).tolist(), "std": spread.tolist(), "values": curve.tolist()}


def describe_seed(record: dict[str, Any], probe: int) -> dict[str, Any]:
    """Tell of one seed; of the epochs, the chosen layer's score until it is done, and the best yet of any."""
    history = []
    best = -math.inf
    for step in record["history"]:
        told = {"train_loss": step["train_loss"]}
        scores = step.get("validation_scores", [])
        best = max([best, *(score for score in scores if score is not None)])
        if best > -math.inf:
            told["best_layer_score"] = best
        if scores and scores[probe] is not None:
            told["validation_score"] = scores[probe]
        history.append(told)
    best_epoch = record["best_epochs"][probe]
    return {"seed": record["seed"], "best_epoch": best_epoch, "seconds": record["seconds"], "history": history}


def coverage(data: WordLatents, split: str) -> dict[str, int]:
    """Count the words of a split, and those that something happened to in extraction."""
    flags = data.split(split).flags
    counts = {"n_cut": WORD_CUT, "n_lost": WORD_LOST, "n_shared": WORD_SHARED}
    return {"n_words": len(flags), **{key: int(np.count_nonzero(flags & bit)) for key, bit in counts.items()}}
