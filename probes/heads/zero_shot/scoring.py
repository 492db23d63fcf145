"""Scoring new rows with heads without fitting: pairs of texts; other kinds are scored as whole tasks only."""

from collections.abc import Sequence
from typing import Any, NoReturn

from extract.decoders.decoder import Decoder
from extract.errors import HeadError
from extract.run.spec import ExtractionSpec
from probes.heads.scoring import Heads, KindScoring, score_texts

ALIKE_SCORING = KindScoring(
    score_texts, lambda pair, above: {"above": float(above), "text1": pair[0], "text2": pair[1]}, n_texts=lambda _: 2
)
"""How far the similarity of a pair is above the threshold: above 0 is alike."""


def no_scoring(kind: str) -> KindScoring:
    """Refuse single rows of a kind, which mean nothing without the others."""

    def refuse(heads: Heads, rows: Sequence[Any], decoder: Decoder, spec: ExtractionSpec) -> NoReturn:
        del rows, decoder, spec
        raise HeadError(
            f"head {heads[0].record['name']!r} of a run on {kind} predicts nothing of single rows; write them as a "
            "task and run it, or take their latents with `icecore embed`."
        )

    return KindScoring(refuse, lambda *_: {})
