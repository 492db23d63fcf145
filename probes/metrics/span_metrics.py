"""Spans counted by the rules of conlleval, for whole splits at once, and their scores; tags are IOB2 or IOB1."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from extract.errors import TaskError, unknown_name
from probes.metrics.class_metrics import NO_PREDICTION

Scheme = Literal["IOB1", "IOB2", "IO", "BIOES", "BILOU"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)


class Span(NamedTuple):
    """Words `start` to `end` (exclusive) of one `type`."""

    start: int
    end: int
    type: str


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into prefix and type at its first hyphen, since types may hold more; the type of `O` is empty."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def read_spans(tags: Sequence[str]) -> list[Span]:
    """Read the spans of one sentence in any scheme, by the rules of `conlleval` of the CoNLL-2000 shared task.

    A span starts at B, S or U, after O, after E, S or L, and where the type changes; so an I after O starts one.
    """
    spans: list[Span] = []
    start, before, kind_before = 0, "O", ""
    for index, tag in enumerate((*tags, "O")):
        prefix, kind = split_tag(tag)
        is_new = prefix in ("B", "S", "U") or before in ("E", "S", "L") or kind != kind_before
        if before != "O" and (prefix == "O" or is_new):
            spans.append(Span(start, index, kind_before))
        if prefix != "O" and (before == "O" or is_new):
            start = index
        before, kind_before = prefix, kind
    return spans


def write_spans(spans: Iterable[Span], n_words: int, *, scheme: str = "IOB2") -> list[str]:
    """Write spans, in order and without overlap, as the tags of one sentence, in one of the five schemes.

    IO does not separate two spans of one type that touch.
    """
    if scheme not in SCHEMES:
        raise unknown_name("tagging scheme", scheme, SCHEMES)
    last, single = {"BIOES": ("E", "S"), "BILOU": ("L", "U")}.get(scheme, ("I", "B"))
    tags = ["O"] * n_words
    for span in spans:
        kind = span.type
        tags[span.start : span.end] = [f"I-{kind}"] * (span.end - span.start)
        touches = span.start > 0 and tags[span.start - 1][1:] == f"-{kind}"
        if scheme == "IO" or (scheme == "IOB1" and not touches):
            continue
        if span.end - span.start == 1:
            tags[span.start] = f"{single}-{kind}"
        else:
            tags[span.start], tags[span.end - 1] = f"B-{kind}", f"{last}-{kind}"
    return tags


def convert_tags(tags: Sequence[str], scheme: str = "IOB2") -> list[str]:
    """Write the tags of one sentence, of any scheme, in another; tags that break theirs are read as by `read_spans`."""
    return write_spans(read_spans(tags), len(tags), scheme=scheme)


def is_span_tag(tag: str) -> bool:
    """Return whether a label is `O`, or one of the letters B, I, E, S, L, U with a hyphen and a type."""
    prefix, kind = split_tag(tag)
    return tag == "O" or (prefix in tuple("BIESLU") and bool(kind))


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
    """Counts of spans of each sentence and type `Y`, and of words."""

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

    A predicted span is correct if a gold span has the same start, end and type. `strict` holds for the gold spans too.
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

    gold_spans, spans = (find_spans(ids, offsets, labels=labels, strict=strict) for ids in (gold, predicted))
    ends = np.zeros((2, len(gold)), dtype=np.int64)
    ends[0, gold_spans[:, 0]], ends[1, spans[:, 0]] = gold_spans[:, 1], spans[:, 1]
    starts = spans[:, 0]
    is_correct = (ends[0] == ends[1])[starts] & (labels.type_ids[gold] == labels.type_ids[predicted])[starts]
    right = np.bincount(rows[gold == predicted], minlength=n_rows)
    return SpanCounts(
        labels.types, count(spans[is_correct]), count(spans), count(gold_spans), np.diff(offsets), right, strict
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
    """The table of conlleval for one split."""

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


DECODINGS = {
    "plain": "the best tag of each word by itself",
    "repaired": "the same, with an I that begins a span turned into a B",
    "legal": "the best of the sequences of tags that obey IOB2",
}


def decode_tags(
    scores: Float[np.ndarray, "W K"], offsets: Int[np.ndarray, " N_1"], *, labels: Sequence[str], way: str
) -> Int[np.ndarray, " W"]:
    """Turn the scores of tags into tags in one of `DECODINGS`, arguments as for `decode_legal`; takes linear time."""
    if way == "legal":
        return decode_legal(scores, offsets, labels=labels)
    is_missing = np.isnan(scores).any(axis=1)
    best = np.where(is_missing, NO_PREDICTION, np.where(is_missing[:, None], 0, scores).argmax(axis=1))
    return repair_labels(best, offsets, labels=labels) if way == "repaired" else best


def repair_labels(
    ids: Int[np.ndarray, " W"], offsets: Int[np.ndarray, " N_1"], *, labels: Sequence[str]
) -> Int[np.ndarray, " W"]:
    """Turn each I that starts a span into a B of its type; an I whose B is not among the labels stays.

    By the rules of conlleval nothing changes but the accuracy; the strict score becomes that of conlleval. Ids and
    offsets are as for `find_spans`.
    """
    index = index_labels(labels)
    twin = np.arange(len(labels) + 1)
    twin[-1] = NO_PREDICTION
    for label_id, label in enumerate(labels):
        if label.startswith("I-") and f"B-{label[2:]}" in labels:
            twin[label_id] = list(labels).index(f"B-{label[2:]}")
    types = index.type_ids[ids]
    before = np.concatenate([[-1], types[:-1]])[: len(types)]
    before[offsets[:-1][offsets[:-1] < len(types)]] = -1
    return np.where(types != before, twin[ids], ids)


def decode_legal(
    scores: Float[np.ndarray, "W K"], offsets: Int[np.ndarray, " N_1"], *, labels: Sequence[str]
) -> Int[np.ndarray, " W"]:
    """Find the tags with the highest sum of scores among those that obey IOB2 (Viterbi, 1967, hard constraints).

    I-x may follow only B-x or I-x; every other step costs nothing. Where the best tag of each word already makes a
    legal sentence, those are the tags. Scores are logits or log-probabilities; a row with NaN is a word without a
    prediction, which no span crosses, and gets `NO_PREDICTION`. At least one label must be O or a B.
    """
    index = index_labels(labels)
    is_missing = np.isnan(scores).any(axis=1)
    ids = np.full(len(scores), NO_PREDICTION, dtype=np.int64)
    is_first = np.zeros(len(scores) + 1, dtype=bool)
    is_first[offsets] = True
    is_first[1:] |= is_missing
    is_first[:-1] |= is_missing
    bounds = np.flatnonzero(is_first)
    starts, ends = bounds[:-1], bounds[1:]
    has_words = ~is_missing[starts]
    _viterbi(scores.astype(np.float64), starts[has_words], ends[has_words], index, ids)
    return ids


def _viterbi(
    scores: NDArray[np.float64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    index: SpanLabels,
    ids: NDArray[np.int64],
) -> None:
    """Write the best legal path of every run of words into `ids`: all runs at once, a step a word of the longest.

    An I has at most two predecessors, the B and the I of its type, so a step costs the number of labels.
    """
    types, begins = index.type_ids[:-1], index.begins[:-1]
    inner = np.flatnonzero((types >= 0) & ~begins)
    twin = [next((int(k) for k in np.flatnonzero(begins & (types == types[i]))), int(i)) for i in inner]
    before = np.sort(np.stack([inner, np.array(twin, dtype=np.int64)]), axis=0)  # the first of equal scores wins
    order = np.argsort(starts - ends, kind="stable")  # the longest first, so that those that go on are a beginning
    starts, lengths = starts[order], (ends - starts)[order]
    came_from = np.zeros(scores.shape, dtype=np.int16)
    best = scores[starts]
    best[:, inner] = -np.inf
    for step in range(1, lengths.max(initial=0)):
        n_left = int(np.searchsorted(-lengths, -step))
        last, at = best[:n_left], starts[:n_left] + step
        top = last.argmax(axis=1)[:, None]
        came, paths = np.repeat(top, scores.shape[1], axis=1), np.take_along_axis(last, top, 1) + scores[at]
        pair = last[:, before]
        came[:, inner] = np.where(pair[:, 1] > pair[:, 0], before[1], before[0])
        paths[:, inner] = pair.max(axis=1) + scores[at][:, inner]
        came_from[at], best[:n_left] = came, paths
    ids[starts + lengths - 1] = best.argmax(axis=1)
    for step in range(lengths.max(initial=0) - 1, 0, -1):
        at = starts[: int(np.searchsorted(-lengths, -step))] + step
        ids[at - 1] = came_from[at, ids[at]]
