"""Rows whose gold is planted in some layers, without a cache."""

from collections.abc import Sequence

import numpy as np

from probes.layers.views import LayerRows, ProbeRows
from probes.metrics.bootstrap import class_scorer, correlation_scorer


def planted_rows(
    signals: Sequence[float],
    *,
    n: int = 300,
    width: int = 6,
    n_classes: int = 0,
    copies: Sequence[int] = (),
    seed: int = 0,
    shares: Sequence[float] = (),
    constant: Sequence[int] = (),
) -> LayerRows:
    """Plant gold in layers: `signals` is how strongly each holds it; layers of `copies` are the first of them again.

    `shares` are those of the classes, which are equal when empty. Layers of `constant` are alike in every row.
    """
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, n_classes, 2 * n) if n_classes else rng.normal(size=2 * n)
    if shares:
        gold = rng.choice(n_classes, 2 * n, p=shares)
    shown = np.eye(n_classes)[gold] if n_classes else gold[:, None]
    latents = rng.normal(size=(len(signals), 2 * n, width)).astype(np.float32)
    for layer, signal in zip(latents, signals, strict=True):
        layer[:, : shown.shape[1]] += (signal * shown).astype(np.float32)
    for copy in copies:
        latents[copy] = latents[copies[0]]
    latents[list(constant)] = 0.3

    def rows_of_split(part: slice) -> ProbeRows:
        return ProbeRows(lambda k: latents[k, part][None], lambda k: latents[k, part], gold[part], np.arange(n))

    scored = slice(n, None)
    scorer = (
        class_scorer(gold[scored], metric="accuracy")
        if n_classes
        else correlation_scorer(gold[scored], metric="pearson")
    )
    return LayerRows(
        tuple(f"block_{k + 1:02}" for k in range(len(signals))),
        rows_of_split(slice(n)),
        rows_of_split(scored),
        n_classes,
        (lambda outputs: outputs.argmax(-1)) if n_classes else (lambda outputs: outputs[..., 0]),
        scorer,
    )
