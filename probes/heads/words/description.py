"""What the result of a token head says of its fits, of the words it read, and of its protocol."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from extract.inputs.alignment import WORD_CUT, WORD_LOST, WORD_SHARED
from extract.masks.plan import parse_plan
from extract.store.cache import LatentCache
from probes.fitting.protocols import LBW, LBW_TOKENS, MAGNET
from probes.heads.result import Curve
from probes.heads.words.judging import Judge
from probes.heads.words.options import ReadingOptions
from probes.latents.word_latents import WordLatents
from probes.metrics.spans import NO_PREDICTION
from probes.networks.token_heads import TokenMix


def selection(options: ReadingOptions, *, n_layers: int, n_ways: int) -> str:
    """Say what is chosen, and on which split."""
    chosen = ["epoch"] * options.chooses_epoch + ["layer"] * (n_layers > 1) + ["decoding"] * (n_ways > 1)
    listed = " and ".join(filter(None, [", ".join(chosen[:-1]), *chosen[-1:]]))
    return f"validation ({listed})" if chosen else "nothing to choose"


def token_curves(curve: Float[np.ndarray, "S P"], metric: str) -> tuple[Curve, ...]:
    """Make the curve of the validation scores of every layer with every seed; none without a validation split."""
    if not curve.size:
        return ()
    spread = curve.std(0, ddof=1) if len(curve) > 1 else np.zeros(curve.shape[1])
    rows = tuple(tuple(row) for row in curve.tolist())
    return (Curve("", "validation", metric, tuple(curve.mean(0).tolist()), tuple(spread.tolist()), rows),)


def departures(protocol: str, cache: LatentCache, pooling: str) -> tuple[str, ...]:
    """Say, one line each, where a run departs from the protocol it names because of what its word cache holds."""
    words, template = cache.identity["words"], cache.identity["template"]
    found = []
    if protocol == MAGNET:
        if parse_plan(cache.identity["plan"]).is_untouched:
            found.append("every block is causal, and no word sees what follows it, as it does with MAGNET")
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


def describe_mix(heads: Sequence[TokenMix], data: WordLatents, judge: Judge | None) -> dict[str, Any]:
    """Describe a mix, the mean over seeds.

    Weights are of layer-normed layers, and still no measure of what a layer knows: two alike share one weight. So the
    scores, of plain tags, stand beside them, where there is a judge of validation.

    Returns:
        `layers`, `weights` (they sum to 1), `gamma`, and, on validation, `whole` (the score of the mix), `alone` (of
        each layer put in place of the mix) and `without` (the score lost when the other layers share its weight).
    """
    with torch.no_grad():
        weights = np.mean([head.weights().numpy() for head in heads], axis=0)
        gamma = float(np.mean([float(head.gamma) for head in heads]))
    found: dict[str, Any] = {"layers": list(data.layers), "weights": weights.tolist(), "gamma": gamma}
    if judge is None:
        return found
    scores = np.mean([_score_layers(head, data, judge) for head in heads], axis=0)
    whole, alone, without = scores[0], scores[1 : 1 + len(weights)], scores[1 + len(weights) :]
    return {
        **found,
        "split": "validation",
        "whole": float(whole),
        "alone": alone.tolist(),
        "without": (whole - without).tolist(),
    }


def _score_layers(head: TokenMix, data: WordLatents, judge: Judge) -> list[float]:
    """Score the mix, then every layer in its place, then the mix without every layer."""
    n_words = data.split("validation").n_words
    ids = np.full((1 + 2 * head.n_layers, n_words), NO_PREDICTION, dtype=np.int64)
    with torch.no_grad():
        weights = head.weights().unsqueeze(1).unsqueeze(1)
    others = (1 - weights).clamp(min=1e-6)
    for batch in data.loader("validation", prepare=head.preparation()):
        with torch.no_grad():
            parts = head.parts(batch.latents)
            whole = (weights * parts).sum(0, keepdim=True)
            logits = torch.cat([whole, parts, (whole - weights * parts) / others]) + head.bias
        ids[:, batch.words.numpy()] = logits.argmax(-1).numpy()
    return [judge.score(row) for row in ids]
