"""What each layer gives a learned mix: its weight, what it scores alone, and what is lost without it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from probes.heads.words.judging import Judge
from probes.latents.word_latents import WordLatents
from probes.metrics.spans import NO_PREDICTION
from probes.networks.token_heads import TokenMix


def describe_mix(heads: Sequence[TokenMix], data: WordLatents, judge: Judge | None) -> dict[str, Any]:
    """Describe a mix, the mean over seeds.

    Weights are of layer-normed layers, and still no measure of what a layer knows: two alike share one weight. So the
    scores stand beside them.

    Args:
        heads: The mix of every seed.
        data: The words.
        judge: Of the validation split; None leaves the scores out.

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
        **found, "split": "validation", "whole": float(whole), "alone": alone.tolist(),
        "without": (whole - without).tolist(),
    }  # fmt: skip


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
