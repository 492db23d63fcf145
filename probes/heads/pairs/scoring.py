"""Scoring new pairs of texts with the pair heads of a run."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from extract.decoders.decoder import Decoder
from extract.run.embed import embed_texts
from extract.run.runner import unique_texts
from extract.run.spec import ExtractionSpec
from probes.heads.scoring import Heads, KindScoring, read_channels
from probes.metrics.calibration import read_calibration


def score_pairs(
    heads: Heads, pairs: Sequence[Sequence[str]], decoder: Decoder, spec: ExtractionSpec
) -> Float[np.ndarray, " N"]:
    """Score pairs in the units of the task's gold, calibrated on its validation split.

    Args:
        heads: The head of every seed.
        pairs: `N` pairs of texts, in any order within a pair.
        decoder: The decoder.
        spec: What the heads read.

    Returns:
        `(N,)` scores, the mean over seeds.

    Raises:
        InputError: An empty text.
    """
    texts = unique_texts(text for pair in pairs for text in pair)
    spot = {text: i for i, text in enumerate(texts)}
    left, right = ([spot[pair[k]] for pair in pairs] for k in (0, 1))
    latents = embed_texts(decoder, texts, spec=spec)
    scores = []
    for saved in heads:
        read = read_channels(latents, saved.record, layers=spec.layers, poolings=spec.poolings)
        with torch.no_grad():
            predicted = saved.head(read[:, left], read[:, right])
        scores.append(read_calibration(saved.record["calibration"])(predicted.numpy()))
    return np.asarray(np.mean(scores, axis=0))


PAIRS_SCORING = KindScoring(
    score_pairs, fields=lambda pair, score: {"score": float(score), "text1": pair[0], "text2": pair[1]},
    n_texts=lambda _: 2,
)  # fmt: skip
