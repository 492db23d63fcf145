"""What each layer contributes to a head."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from probes.latents.pair_latents import PairLatents
from probes.metrics.correlation import pearson
from probes.networks.pair_head import PairHead, collect_similarities


def layer_contributions(head: PairHead, data: PairLatents, split: str = "validation") -> dict[str, Any]:
    """Measure every layer alone, and the head without it.

    Args:
        head: A fitted head.
        data: The pairs.
        split: Where it is measured; not the test split, which is read once.

    Returns:
        `layers`, `alone` (Pearson of each layer's own similarity, as the head computes it, with gold) and `without`
        (Pearson lost when all that the head makes of the layer is replaced by its mean over the split), as lists
        over layers.
    """
    similarities = collect_similarities(head, data, split)
    gold = data.split(split).gold.numpy()
    with torch.no_grad():
        whole = float(pearson(head.combine(similarities).numpy(), gold))
        losses = []
        for k in range(head.n_layers):
            muted = similarities.clone()
            of_layer = slice(k, None, head.n_layers)  # its cosine, and what else the head makes of it
            muted[of_layer] = similarities[of_layer].mean(1, keepdim=True)
            losses.append(whole - float(pearson(head.combine(muted).numpy(), gold)))
    cosines = similarities[: head.n_layers]
    alone = pearson(cosines.numpy(), np.broadcast_to(gold, tuple(cosines.shape)))
    return {"split": split, "layers": list(data.layers), "alone": alone.tolist(), "without": losses}


def average_contributions(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average the contributions of several seeds.

    Args:
        found: Results of `layer_contributions` on the same layers and split, at least one.

    Returns:
        The same, with means.
    """
    means = {key: np.mean([each[key] for each in found], axis=0).tolist() for key in ("alone", "without")}
    return {**found[0], **means}
