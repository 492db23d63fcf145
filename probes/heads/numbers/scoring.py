"""Scoring new texts with the number heads of a run."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from extract.decoders.decoder import Decoder
from extract.run.embed import embed_texts
from extract.run.runner import unique_texts
from extract.run.spec import ExtractionSpec
from probes.heads.scoring import Heads, KindScoring, read_channels


def score_numbers(heads: Heads, rows: Sequence[str], decoder: Decoder, spec: ExtractionSpec) -> Float[np.ndarray, " N"]:
    """Predict the number of each text, in the units of the task's gold.

    Args:
        heads: The head.
        rows: `N` texts.
        decoder: The decoder.
        spec: What the head reads.

    Returns:
        `(N,)` numbers.

    Raises:
        InputError: An empty text.
    """
    texts = unique_texts(rows)
    spot = {text: i for i, text in enumerate(texts)}
    latents = embed_texts(decoder, texts, spec=spec)
    read = read_channels(latents, heads[0].record, layers=spec.layers, poolings=spec.poolings)
    return np.asarray(heads[0].head(read[0, [spot[text] for text in rows]]).numpy())


NUMBERS_SCORING = KindScoring(score_numbers, lambda row, number: {"number": float(number), "text": row})
