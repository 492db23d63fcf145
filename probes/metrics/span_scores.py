"""Precision, recall and F1 of spans, by type and over all."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from probes.metrics.spans import SpanCounts


@dataclass(frozen=True)
class SpanScore:
    """One row of the table of conlleval; shares are 0 to 1, and 0 where there is nothing to divide by."""

    type: str
    precision: float
    recall: float
    f1: float
    n_correct: int
    n_predicted: int
    n_gold: int
    """The support."""


@dataclass(frozen=True)
class SpanScores:
    """What conlleval prints for one split."""

    micro: SpanScore
    """Over all spans; its type is `all`."""
    by_type: tuple[SpanScore, ...]
    accuracy: float
    """Share of words with the right tag, O among them."""
    n_words: int
    is_strict: bool

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self)


def score_spans(counts: SpanCounts) -> SpanScores:
    """Turn the counts of one split into scores.

    Args:
        counts: From `count_spans` or `count_tag_spans`.

    Returns:
        Micro-averaged scores, those of each type that occurs, and the accuracy.

    Example:
        >>> from probes.metrics.spans import count_tag_spans
        >>> scores = score_spans(count_tag_spans([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "B-PER"]]))
        >>> scores.micro.f1, [(row.type, row.recall) for row in scores.by_type]
        (0.5, [('LOC', 0.0), ('PER', 1.0)])
    """
    totals = np.stack([counts.n_correct.sum(0), counts.n_predicted.sum(0), counts.n_gold.sum(0)], axis=1)
    rows = tuple(
        _score(kind, *(int(n) for n in row)) for kind, row in zip(counts.types, totals, strict=True) if row.any()
    )
    n_words = int(counts.n_words.sum())
    accuracy = float(counts.n_words_right.sum() / n_words) if n_words else 0.0
    return SpanScores(_score("all", *(int(n) for n in totals.sum(0))), rows, accuracy, n_words, counts.is_strict)


def _score(kind: str, n_correct: int, n_predicted: int, n_gold: int) -> SpanScore:
    precision = n_correct / n_predicted if n_predicted else 0.0
    recall = n_correct / n_gold if n_gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if n_correct else 0.0
    return SpanScore(kind, precision, recall, f1, n_correct, n_predicted, n_gold)


def f1_of_counts(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """F1 of counts `(..., 3)` of correct, predicted and gold spans; 0 where there are none."""
    n_correct, n_predicted, n_gold = np.moveaxis(counts, -1, 0)
    return np.asarray(2 * n_correct / np.maximum(n_predicted + n_gold, 1))
