"""A fitted pair head with the interface of a cross-encoder of sentence-transformers; that package is not needed."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from extract.decoders.decoder import Decoder
from extract.errors import HeadError
from probes.runs.scorer import load_scorer


class PairScorer:
    """Scores pairs of texts with a head of a finished run, by the methods of `CrossEncoder`.

    Args:
        run: A run folder on pairs.
        head: Which head, for instance `siamese-cosine`; the best when empty.
        decoder: As for `load_scorer`.
        trust_remote_code: As for `load_scorer`.
        allow_code: As for `load_scorer`.

    Raises:
        HeadError: No finished run there, or one that is not on pairs.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        head: str = "",
        decoder: Decoder | str | None = None,
        trust_remote_code: bool = False,
        allow_code: str | Iterable[str] = (),
    ) -> None:
        self.scorer = load_scorer(
            run, head=head or None, decoder=decoder, trust_remote_code=trust_remote_code, allow_code=allow_code
        )
        if self.scorer.kind != "pairs":
            raise HeadError(f"the run {str(run)!r} is on {self.scorer.kind}; allowed: a run on pairs of texts.")

    def predict(
        self, sentences: Sequence[Sequence[str]] | Sequence[str], batch_size: int = 1024, **kwargs: Any
    ) -> Float[np.ndarray, " N"] | float:
        """Score pairs, in the units of the run's gold; a single pair gives a single number.

        Args:
            sentences: Pairs of texts, or one pair.
            batch_size: Pairs scored at a time; bounds memory.
            **kwargs: Arguments of `CrossEncoder.predict` that make no difference here.
        """
        del kwargs
        if len(sentences) == 2 and all(isinstance(each, str) for each in sentences):
            return float(self.scorer.score([tuple(sentences)])[0])
        starts = range(0, len(sentences), batch_size)
        self.scorer.require_rows(sentences)
        parts = [self.scorer.score([tuple(pair) for pair in sentences[k : k + batch_size]]) for k in starts]
        return np.concatenate(parts).astype(np.float32)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        *,
        return_documents: bool = False,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Rank documents by their score with a query, the highest first, as `corpus_id`, `score` and perhaps `text`."""
        scores = np.atleast_1d(self.predict([(query, document) for document in documents], **kwargs))
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [
            {"corpus_id": int(i), "score": float(scores[i]), **({"text": documents[i]} if return_documents else {})}
            for i in order
        ]
