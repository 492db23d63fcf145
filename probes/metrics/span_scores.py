"""Scores made of counts: precision, recall and F1 by type, accuracy, and intervals; higher is always better."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from extract.errors import TaskError
from probes.metrics.bootstrap import SeedSummary
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


def summarise_span_f1(
    counts: Int[np.ndarray, "S N 3"],
    *,
    documents: Sequence[str] | None = None,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> SeedSummary:
    """Mean and spread of the micro F1 over seeds, with a bootstrap interval over sentences or documents.

    Sentences (or documents) are drawn with replacement, the same for every seed, and the mean over seeds is taken in
    each resample (percentile interval): the interval speaks of the sampling of the text, `std` of the seeds.

    Args:
        counts: `SpanCounts.by_sentence` of `S` seeds.
        documents: The document of each sentence, to draw whole documents; None draws sentences.
        n_resamples: Bootstrap resamples.
        confidence: Confidence level, 0 to 1.
        seed: Seed of the resampling; equal seeds draw equal resamples, so two layers can be compared.

    Returns:
        The summary; a resample without any span scores 0, as conlleval has it.

    Raises:
        TaskError: If `documents` has another length, or there is only one to draw from.

    Example:
        >>> counts = np.array([[[1, 1, 1], [0, 1, 1], [1, 1, 2]]])
        >>> summary = summarise_span_f1(counts, n_resamples=50)
        >>> round(summary.mean, 4), summary.low <= summary.mean <= summary.high
        (0.5714, True)
    """
    return _summarise(
        counts, _f1, documents=documents, n_resamples=n_resamples, confidence=confidence, seed=seed
    )  # fmt: skip


def summarise_accuracy(
    right: Bool[np.ndarray, "S W"],
    *,
    offsets: Int[np.ndarray, " N_1"],
    documents: Sequence[str] | None = None,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> SeedSummary:
    """Mean and spread of the accuracy of words over seeds, with a bootstrap interval over sentences or documents.

    Args:
        right: For `S` seeds, whether each word has the right tag; False for a word without a prediction.
        offsets: Where each sentence starts; the last entry is the number of words.
        documents: As for `summarise_span_f1`, as are the rest.
        n_resamples: Bootstrap resamples.
        confidence: Confidence level, 0 to 1.
        seed: Seed of the resampling.

    Returns:
        The summary.

    Raises:
        TaskError: As `summarise_span_f1`.

    Example:
        >>> summarise_accuracy(np.array([[True, False, True, True]]), offsets=np.array([0, 2, 4]), n_resamples=50).mean
        0.75
    """
    sums = np.concatenate([np.zeros((len(right), 1), np.int64), right.cumsum(axis=1)], axis=1)
    n_right = np.diff(sums[:, offsets], axis=1)
    counts = np.stack([n_right, np.broadcast_to(np.diff(offsets), n_right.shape)], axis=2)
    return _summarise(
        counts, _accuracy, documents=documents, n_resamples=n_resamples, confidence=confidence, seed=seed
    )  # fmt: skip


def _f1(sums: NDArray[np.floating]) -> NDArray[np.floating]:
    n_correct, n_predicted, n_gold = np.moveaxis(sums, -1, 0)
    return np.asarray(2 * n_correct / np.maximum(n_predicted + n_gold, 1))


def _accuracy(sums: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1))


def _summarise(
    counts: Int[np.ndarray, "S N C"],
    statistic: Callable[[NDArray[np.floating]], NDArray[np.floating]],
    *,
    documents: Sequence[str] | None,
    n_resamples: int,
    confidence: float,
    seed: int,
) -> SeedSummary:
    grouped = _group(counts, documents)
    rng = np.random.default_rng(seed)
    means = []
    for start in range(0, n_resamples, 100):  # in batches, so that memory does not grow with the resamples
        weights = _draw_weights(rng, min(100, n_resamples - start), grouped.shape[1])
        means.append(statistic(np.einsum("rg,sgc->src", weights, grouped, optimize=True)).mean(axis=0))
    tail = (1 - confidence) / 2
    low, high = (float(end) for end in np.quantile(np.concatenate(means), [tail, 1 - tail]))
    values = tuple(float(value) for value in statistic(grouped.sum(axis=1)))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return SeedSummary(float(np.mean(values)), spread, low, high, confidence, values)


def _group(counts: Int[np.ndarray, "S N C"], documents: Sequence[str] | None) -> Float[np.ndarray, "S G C"]:
    groups = np.arange(counts.shape[1])
    unit = "sentence"
    if documents is not None:
        if len(documents) != counts.shape[1]:
            raise TaskError(f"{len(documents)} document names for {counts.shape[1]} sentences: give one a sentence.")
        groups = np.unique(np.asarray(documents, dtype=object).astype(str), return_inverse=True)[1]
        unit = "document"
    n_groups = int(groups.max(initial=-1)) + 1
    if n_groups < 2:
        raise TaskError(f"{n_groups} {unit} cannot be resampled: an interval needs at least 2.")
    columns = np.moveaxis(counts, 1, 2).reshape(-1, counts.shape[1])
    sums = np.stack([np.bincount(groups, weights=column, minlength=n_groups) for column in columns])
    return np.moveaxis(sums.reshape(counts.shape[0], counts.shape[2], n_groups), 2, 1)


def _draw_weights(rng: np.random.Generator, n_resamples: int, n_groups: int) -> Float[np.ndarray, "R G"]:
    """Say how often each group is drawn in each resample."""
    drawn = rng.integers(n_groups, size=(n_resamples, n_groups)) + n_groups * np.arange(n_resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=n_resamples * n_groups).reshape(n_resamples, n_groups).astype(float)
