"""What the result of a token head says of its fits, of the words it read, and of its protocol."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from extract.inputs.alignment import WORD_CUT, WORD_LOST, WORD_SHARED
from extract.store.cache import LatentCache
from probes.fitting.protocols import LBW, LBW_TOKENS, MAGNET
from probes.heads.result import Curve
from probes.heads.words.options import TokenOptions
from probes.latents.word_latents import WordLatents


def selection(options: TokenOptions, *, n_layers: int) -> str:
    """Say what is chosen, and on which split."""
    chosen = [
        *(["epoch"] if options.keep == "best" else []),
        *(["layer"] if n_layers > 1 else []),
    ]
    return f"validation ({' and '.join(chosen)})" if chosen else "nothing to choose"


def token_curves(curve: Float[np.ndarray, "S P"], metric: str) -> tuple[Curve, ...]:
    """Make the curve of the validation scores of every layer with every seed; none without a validation split."""
    if not curve.size:
        return ()
    spread = curve.std(0, ddof=1) if len(curve) > 1 else np.zeros(curve.shape[1])
    rows = tuple(tuple(row) for row in curve.tolist())
    return (Curve("", "validation", metric, tuple(curve.mean(0).tolist()), tuple(spread.tolist()), rows),)


def departures(protocol: str, cache: LatentCache, pooling: str) -> tuple[str, ...]:
    """Say where a run departs from the protocol it names, because of what the cache holds.

    Args:
        protocol: The protocol.
        cache: The word cache.
        pooling: The word pooling that a head reads.

    Returns:
        One line each; none where the protocol is kept, or leaves it open.
    """
    words, template = cache.identity["words"], cache.identity["template"]
    found = []
    if protocol == MAGNET:
        if not words["shift"]:
            found.append("tokens are not shifted by one, as MAGNET shifts them")
        if pooling != "mean":
            found.append(f"a word is the {pooling} of its tokens, and not their mean, as with MAGNET")
    if protocol == LBW and (template["max_tokens"], template["on_long"]) != (LBW_TOKENS, "truncate"):
        found.append(f"sentences are not cut to {LBW_TOKENS} tokens, as the released code cuts them")
    return tuple(found)


def describe_seed(record: dict[str, Any], probe: int) -> dict[str, Any]:
    """Describe one seed: per epoch the chosen layer's score until it is done, and the best so far of any layer."""
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
