"""Spans counted by the rules of conlleval, for whole splits at once, and their scores; tags are IOB2 or IOB1."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from extract.errors import TaskError
from probes.metrics.tags import split_tag

NO_PREDICTION = -1
"""Label id of a word that got no prediction, such as one cut off: no span there, and never the right tag."""


@dataclass(frozen=True, eq=False)
class SpanLabels:
    """Labels as numbers; index -1 is `NO_PREDICTION`."""

    labels: tuple[str, ...]
    types: tuple[str, ...]
    """Sorted."""
    type_ids: Int[np.ndarray, " K_1"]
    """Index into `types` of each label, -1 for O."""
    begins: Bool[np.ndarray, " K_1"]
    """True for the labels with a B."""


@dataclass(frozen=True, eq=False)
class SpanCounts:
    """What every score is made of: counts of each sentence and each type `Y` of span."""

    types: tuple[str, ...]
    n_correct: Int[np.ndarray, "N Y"]
    n_predicted: Int[np.ndarray, "N Y"]
    n_gold: Int[np.ndarray, "N Y"]
    n_words: Int[np.ndarray, " N"]
    n_words_right: Int[np.ndarray, " N"]
    """Words with the right tag, O among them."""
    is_strict: bool

    def by_sentence(self) -> Int[np.ndarray, "N 3"]:
        """Add up the types: correct, predicted and gold spans of each sentence."""
        return np.stack([self.n_correct.sum(1), self.n_predicted.sum(1), self.n_gold.sum(1)], axis=1)


def index_labels(labels: Sequence[str]) -> SpanLabels:
    """Prepare the labels of a task, each given once, for counting; an id is a position among them."""
    kinds = [split_tag(label)[1] for label in labels]
    for label, kind in zip(labels, kinds, strict=True):
        if label != "O" and not (label.startswith(("B-", "I-")) and kind):
            raise TaskError(
                f"label {label!r} is not O, nor a B or I with a hyphen and a type: convert the tags with `to_iob2`, or "
                "score by accuracy."
            )
    types = tuple(sorted(set(kinds) - {""}))
    ids = [types.index(kind) if kind else -1 for kind in kinds]
    begins = [label.startswith("B-") for label in labels]
    return SpanLabels(tuple(labels), types, np.array([*ids, -1]), np.array([*begins, False]))


def find_spans(
    ids: Int[np.ndarray, " W"], offsets: Int[np.ndarray, " N_1"], *, labels: SpanLabels, strict: bool = False
) -> Int[np.ndarray, "M 3"]:
    """Find every span of many sentences at once: its start, end (not included) and type, by start.

    `ids` are labels of the words of one sentence after the other, which start at `offsets`; the last offset is the
    number of words. An I after O or after another type starts a span, as for conlleval; `strict` drops the spans that
    start with an I, as seqeval's strict mode for IOB2 does.
    """
    types, begins = labels.type_ids[ids], labels.begins[ids]
    is_first = np.zeros(len(ids) + 1, dtype=bool)
    is_first[offsets[:-1]] = True
    before = np.concatenate([[-1], types[:-1]])[: len(types)]
    before = np.where(is_first[:-1], -1, before)
    is_inside = types >= 0
    is_start = is_inside & (begins | (types != before))
    goes_on = is_inside & ~is_start
    is_last = is_inside & ~np.append(goes_on[1:], False)[: len(types)]
    starts = np.flatnonzero(is_start)
    spans = np.stack([starts, np.flatnonzero(is_last) + 1, types[starts]], axis=1)
    return spans[begins[starts]] if strict else spans


def count_spans(
    gold: Int[np.ndarray, " W"],
    predicted: Int[np.ndarray, " W"],
    *,
    offsets: Int[np.ndarray, " N_1"],
    labels: SpanLabels,
    strict: bool = False,
) -> SpanCounts:
    """Count correct, predicted and gold spans of each sentence, by type, as `conlleval` of CoNLL-2000 does.

    A predicted span is correct if a gold span has the same start, end and type. Arguments are as for `find_spans`;
    `strict` holds for the gold spans too, and a word without a prediction is `NO_PREDICTION`.
    """
    n_rows = len(offsets) - 1
    if not len(gold) == len(predicted) == int(offsets[-1]):
        raise TaskError(
            f"{len(gold)} gold and {len(predicted)} predicted tags for {int(offsets[-1])} words: give one of each for "
            "every word."
        )
    rows = np.repeat(np.arange(n_rows), np.diff(offsets))

    def count(spans: Int[np.ndarray, "M 3"]) -> Int[np.ndarray, "N Y"]:
        n_types = len(labels.types)
        cells = rows[spans[:, 0]] * n_types + spans[:, 2]
        return np.bincount(cells, minlength=n_rows * n_types).reshape(n_rows, n_types)

    found = [find_spans(ids, offsets, labels=labels, strict=strict) for ids in (gold, predicted)]
    ends = np.zeros((2, len(gold)), dtype=np.int64)
    for end, spans in zip(ends, found, strict=True):
        end[spans[:, 0]] = spans[:, 1]
    starts = found[1][:, 0]
    is_correct = (ends[0] == ends[1])[starts] & (labels.type_ids[gold] == labels.type_ids[predicted])[starts]
    right = np.bincount(rows[gold == predicted], minlength=n_rows)
    return SpanCounts(
        labels.types, count(found[1][is_correct]), count(found[1]), count(found[0]), np.diff(offsets), right, strict
    )


def count_tag_spans(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str | None]], *, strict: bool = False
) -> SpanCounts:
    """Count spans of sentences whose tags are strings; None is a word without a prediction, an error."""
    if len(gold) != len(predicted):
        raise TaskError(f"{len(gold)} gold and {len(predicted)} predicted sentences: give as many of each.")
    for row, (right, guess) in enumerate(zip(gold, predicted, strict=True)):
        if len(right) != len(guess):
            raise TaskError(
                f"sentence {row} (from 0) has {len(right)} gold and {len(guess)} predicted tags: give one of each for "
                "every word."
            )
    names = dict.fromkeys(tag for tags in (*gold, *predicted) for tag in tags if tag is not None)
    labels = index_labels(list(names))
    ids: dict[str | None, int] = {name: index for index, name in enumerate(names)}
    ids[None] = NO_PREDICTION
    flat = [np.array([ids[tag] for tags in side for tag in tags], dtype=np.int64) for side in (gold, predicted)]
    offsets = np.cumsum([0, *(len(tags) for tags in gold)])
    return count_spans(flat[0], flat[1], offsets=offsets, labels=labels, strict=strict)


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


def score_spans(counts: SpanCounts) -> SpanScores:
    """Turn the counts of one split into micro-averaged scores, those of each type that occurs, and the accuracy."""
    totals = np.stack([counts.n_correct.sum(0), counts.n_predicted.sum(0), counts.n_gold.sum(0)], axis=1)
    rows = tuple(_score(kind, *row) for kind, row in zip(counts.types, totals.tolist(), strict=True) if any(row))
    n_words = int(counts.n_words.sum())
    accuracy = float(counts.n_words_right.sum() / n_words) if n_words else 0.0
    return SpanScores(_score("all", *totals.sum(0).tolist()), rows, accuracy, n_words, counts.is_strict)


def _score(kind: str, n_correct: int, n_predicted: int, n_gold: int) -> SpanScore:
    precision = n_correct / n_predicted if n_predicted else 0.0
    recall = n_correct / n_gold if n_gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if n_correct else 0.0
    return SpanScore(kind, precision, recall, f1, n_correct, n_predicted, n_gold)


def f1_of_counts(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """F1 of counts `(..., 3)` of correct, predicted and gold spans; 0 where there are none."""
    n_correct, n_predicted, n_gold = np.moveaxis(counts, -1, 0)
    return np.asarray(2 * n_correct / np.maximum(n_predicted + n_gold, 1))
