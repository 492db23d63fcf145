"""Spans counted by the rules of conlleval, for whole splits at once; tags are IOB2 or IOB1 (B, I and O)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

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
    """Prepare the labels of a task for counting.

    Args:
        labels: Each once; an id is a position here.

    Returns:
        The labels with their types.

    Raises:
        TaskError: If a label is neither O nor a B or I with a type.

    Example:
        >>> index_labels(["O", "B-PER", "I-PER", "B-LOC"]).types
        ('LOC', 'PER')
    """
    for label in labels:
        prefix, kind = split_tag(label)
        if label != "O" and (prefix not in ("B", "I") or not kind):
            raise TaskError(
                f"label {label!r} is not O, nor a B or I with a hyphen and a type: convert the tags with `to_iob2`, or "
                "score by accuracy."
            )
    types = tuple(sorted({split_tag(label)[1] for label in labels if label != "O"}))
    ids = [types.index(split_tag(label)[1]) if label != "O" else -1 for label in labels]
    begins = [label.startswith("B-") for label in labels]
    return SpanLabels(tuple(labels), types, np.array([*ids, -1]), np.array([*begins, False]))


def find_spans(
    ids: Int[np.ndarray, " W"], offsets: Int[np.ndarray, " N_1"], *, labels: SpanLabels, strict: bool = False
) -> Int[np.ndarray, "M 3"]:
    """Find every span of many sentences at once.

    Args:
        ids: Label id of each word, the sentences one after the other.
        offsets: Where each sentence starts in `ids`; the last entry is the number of words.
        labels: What the ids mean.
        strict: False reads as conlleval does: an I after O or after another type starts a span. True drops the spans
            that start with an I, as seqeval's strict mode for IOB2 does.

    Returns:
        Start, end (not included) and type of each span, by start; positions count over all sentences.

    Example:
        >>> labels = index_labels(["O", "B-PER", "I-PER"])
        >>> find_spans(np.array([2, 2, 0, 1]), np.array([0, 1, 4]), labels=labels).tolist()
        [[0, 1, 0], [1, 2, 0], [3, 4, 0]]
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
    """Count correct, predicted and gold spans of each sentence, by type.

    A predicted span is correct if a gold span has the same start, end and type.

    Args:
        gold: Label ids, the sentences one after the other.
        predicted: As many ids; `NO_PREDICTION` for a word without one.
        offsets: As for `find_spans`.
        labels: What the ids mean.
        strict: As for `find_spans`; holds for the gold spans too.

    Returns:
        The counts.

    Raises:
        TaskError: If the lengths do not match.

    Source:
        `conlleval` of the CoNLL-2000 shared task.
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
    """Count spans of sentences whose tags are strings.

    Args:
        gold: The tags of each sentence.
        predicted: As many; None for a word without a prediction, which counts as an error.
        strict: As for `find_spans`.

    Returns:
        The counts; the types are those of either side.

    Raises:
        TaskError: If the lengths do not match, or a tag is neither O nor a B or I with a type.

    Example:
        >>> counts = count_tag_spans([["B-PER", "I-PER", "O"]], [["I-PER", "I-PER", "B-LOC"]])
        >>> counts.types, counts.by_sentence().tolist()
        (('LOC', 'PER'), [[1, 2, 1]])
    """
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
