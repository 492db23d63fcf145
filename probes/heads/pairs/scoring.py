"""Scoring new pairs of texts with the pair heads of a run."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from extract.decoders.decoder import Decoder
from extract.run.spec import ExtractionSpec
from probes.heads.scoring import Heads, KindScoring, embed_once, read_channels
from probes.metrics.calibration import read_calibration


def score_pairs(
    heads: Heads, pairs: Sequence[Sequence[str]], decoder: Decoder, spec: ExtractionSpec
) -> Float[np.ndarray, " N"]:
    """Score pairs, in any order within a pair, in the units of the task's gold: calibrated, the mean over seeds."""
    latents, places = embed_once((text for pair in pairs for text in pair), decoder, spec)
    left, right = ([places[pair[k]] for pair in pairs] for k in (0, 1))
    scores = []
    for saved in heads:
        read = read_channels(latents, saved.record, layers=spec.layers, poolings=spec.poolings)
        with torch.no_grad():
            predicted = saved.head(read[:, left], read[:, right])
        scores.append(read_calibration(saved.record["calibration"])(predicted.numpy()))
    return np.asarray(np.mean(scores, axis=0))


PAIRS_SCORING = KindScoring(
    score_pairs,
    fields=lambda pair, score: {"score": float(score), "text1": pair[0], "text2": pair[1]},
    n_texts=lambda _: 2,
)
