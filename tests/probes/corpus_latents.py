"""Latents of single texts, for autoencoders: each layer lies near a plane of its own."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from extract.store.cache import LatentCache
from tests.probes.planted_latents import LAYERS, WIDTH, write_latents

N_TEXTS = 120


def draw_planes(
    *, n_texts: int = N_TEXTS, n_layers: int = len(LAYERS), width: int = WIDTH, noise: float = 0.3, seed: int = 0
) -> NDArray[np.float32]:
    """Draw `(L, N, D)` latents: layer `k` has `k + 2` strong directions, noise, and a mean and scale of its own."""
    rng = np.random.default_rng(seed)
    found = np.empty((n_layers, n_texts, width), np.float32)
    for k in range(n_layers):
        strong = rng.normal(size=(n_texts, k + 2)) @ rng.normal(size=(k + 2, width))
        found[k] = (k + 1) * (strong + noise * rng.normal(size=(n_texts, width))) + 10 * k
    return found


def write_corpus(path: Path, *, n_texts: int = N_TEXTS, seed: int = 0) -> LatentCache:
    """Write a whole cache of a corpus, with the poolings `mean` and `last`."""
    texts = [f"text {i} of corpus {seed}" for i in range(n_texts)]
    poolings = {name: draw_planes(n_texts=n_texts, seed=2 * seed + i) for i, name in enumerate(("mean", "last"))}
    return write_latents(path, texts, poolings)
