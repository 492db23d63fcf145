"""Metrics of predictions: correlations with a gold score, classes, and spans of words."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike, NDArray

from extract.errors import TaskError, require_name
from extract.records import Values


def pearson(predicted: NDArray[np.floating], gold: NDArray[np.floating]) -> Float[np.ndarray, "*S"]:
    """Pearson correlation along the last axis, one corpus per leading index; NaN where either side is constant."""
    a, b = _centre(predicted), _centre(gold)
    # divided one after the other, because the product of two tiny norms would underflow
    with np.errstate(invalid="ignore", divide="ignore"):
        a = a / np.sqrt((a * a).sum(-1, keepdims=True))
        b = b / np.sqrt((b * b).sum(-1, keepdims=True))
    return np.asarray((a * b).sum(-1).clip(-1.0, 1.0))


def _centre(values: NDArray[np.floating]) -> NDArray[np.float64]:
    wide = np.asarray(values, np.float64)
    centred: NDArray[np.float64] = wide - wide.mean(-1, keepdims=True)
    # rounding in the mean must not make a constant vary
    return np.where(np.ptp(wide, axis=-1, keepdims=True) == 0, 0.0, centred)


def spearman(predicted: NDArray[np.floating], gold: NDArray[np.floating]) -> Float[np.ndarray, "*S"]:
    """Spearman rank correlation along the last axis, ties sharing their mean rank; shapes and NaN as in `pearson`."""
    from scipy.stats import rankdata  # half a second, which reading a finished run saves

    return pearson(rankdata(predicted, axis=-1), rankdata(gold, axis=-1))


def correlations(predicted: NDArray[np.floating], gold: NDArray[np.floating]) -> dict[str, float]:
    """Pearson and Spearman of one corpus, as plain values."""
    return {name: float(correlate(predicted, gold)) for name, correlate in CORRELATIONS.items()}


CORRELATIONS: dict[str, Callable[[NDArray[np.floating], NDArray[np.floating]], NDArray[np.floating]]] = {
    "pearson": pearson,
    "spearman": spearman,
}


CALIBRATIONS = {
    "linear": "a straight line by least squares, kept inside the score range",
    "isotonic": "the best curve that never falls (needs a few hundred validation rows)",
}
ANCHOR_WEIGHT = 1e6  # rows that the anchor counts for: the isotonic curve goes through it


@dataclass(frozen=True)
class LinearCalibration:
    """`score = slope * prediction + intercept`, kept inside the score range from `low` to `high`."""

    slope: float
    intercept: float
    low: float
    high: float

    def __call__(self, predicted: NDArray[np.floating]) -> Float[np.ndarray, " N"]:
        """Turn `(N,)` predictions into scores."""
        return np.clip(self.slope * np.asarray(predicted, np.float64) + self.intercept, self.low, self.high)


@dataclass(frozen=True)
class IsotonicCalibration:
    """A curve that never falls, straight between its knots (rising predictions) and level outside them."""

    predictions: tuple[float, ...]
    scores: tuple[float, ...]

    def __call__(self, predicted: NDArray[np.floating]) -> Float[np.ndarray, " N"]:
        """Turn `(N,)` predictions into scores."""
        return np.interp(np.asarray(predicted, np.float64), self.predictions, self.scores)


Calibration = LinearCalibration | IsotonicCalibration


def fit_calibration(
    kind: str,
    predicted: Float[np.ndarray, " N"],
    gold: Float[np.ndarray, " N"],
    *,
    score_range: tuple[float, float],
    identical: float | None = None,
) -> Calibration:
    """Fit a calibration from `CALIBRATIONS` on validation rows; constant predictions give the mean gold.

    Predictions have any scale; the gold is in its own units, within the score range. `identical` is the prediction for
    a text paired with itself, which then gets the highest score, unless a line is fitted to constant predictions.
    """
    require_name("calibration", kind, CALIBRATIONS)
    fit: Callable[..., Calibration] = fit_linear if kind == "linear" else fit_isotonic
    return fit(predicted, gold, score_range=score_range, identical=identical)


def fit_linear(
    predicted: Float[np.ndarray, " N"],
    gold: Float[np.ndarray, " N"],
    *,
    score_range: tuple[float, float],
    identical: float | None = None,
) -> LinearCalibration:
    """Fit a straight line by least squares, through the anchor (`identical`, highest score) where there is one.

    Predictions at or above the anchor get the highest score whatever the slope, so an anchored line is fitted on the
    rows below it alone; it never falls there, because no gold is above the highest score. Constant predictions give the
    mean gold whatever the anchor.
    """
    low, high = score_range
    x, y = np.asarray(predicted, np.float64), np.asarray(gold, np.float64)
    if np.ptp(x) == 0:
        return LinearCalibration(0.0, float(np.mean(y)), low, high)
    if identical is not None:
        reach, drop = (x - identical)[x < identical], (y - high)[x < identical]
        slope = float(np.dot(reach, drop) / np.dot(reach, reach)) if len(reach) else 0.0
        return LinearCalibration(slope, high - slope * identical, low, high)
    from scipy.stats import linregress

    line = linregress(x, y)
    return LinearCalibration(float(line.slope), float(line.intercept), low, high)


def fit_isotonic(
    predicted: Float[np.ndarray, " N"],
    gold: Float[np.ndarray, " N"],
    *,
    score_range: tuple[float, float],
    identical: float | None = None,
) -> IsotonicCalibration:
    """Fit the curve that never falls with the least squared error, through the anchor where there is one."""
    from sklearn.isotonic import IsotonicRegression  # slow to import

    low, high = score_range
    x, y = np.asarray(predicted, np.float64), np.asarray(gold, np.float64)
    weight = np.ones(len(x))
    if identical is not None:
        x, y, weight = np.append(x, identical), np.append(y, high), np.append(weight, ANCHOR_WEIGHT)
    curve = IsotonicRegression(y_min=low, y_max=high, out_of_bounds="clip").fit(x, y, sample_weight=weight)
    return IsotonicCalibration(tuple(curve.X_thresholds_.tolist()), tuple(curve.y_thresholds_.tolist()))


def read_calibration(values: Values) -> Calibration:
    """Read a calibration from its plain values."""
    if "slope" in values:
        return LinearCalibration(**values)
    return IsotonicCalibration(tuple(values["predictions"]), tuple(values["scores"]))


# Accuracy and F1 of class predictions, for many predictions of one gold at once, and metrics of rankings.


NO_PREDICTION = -1
"""Class of a row, or of a word that was cut off, without a prediction: it is in no span, and never right."""


@dataclass(frozen=True)
class ClassCounts:
    """Rows `(..., K)` of each class that are predicted correctly, predicted, and gold."""

    hits: NDArray[np.float64]
    """Rows of the class that were predicted as such."""
    n_predicted: NDArray[np.float64]
    n_gold: NDArray[np.float64]


def count_classes(predicted: NDArray[np.integer], gold: Int[np.ndarray, " N"], *, n_classes: int) -> ClassCounts:
    """Count hits, predictions and gold rows per class; one set of `(..., N)` predictions per leading index."""
    shape = predicted.shape[:-1]
    flat = predicted.reshape(prod(shape), predicted.shape[-1]).astype(np.int64)
    cells = flat + n_classes * np.arange(len(flat))[:, None]
    bins = len(flat) * n_classes
    hits = np.bincount(cells[flat == gold], minlength=bins).reshape(*shape, n_classes)
    n_predicted = np.bincount(cells.ravel(), minlength=bins).reshape(*shape, n_classes)
    n_gold = np.broadcast_to(np.bincount(gold, minlength=n_classes), hits.shape)
    return ClassCounts(hits.astype(np.float64), n_predicted.astype(np.float64), n_gold.astype(np.float64))


def count_by_unit(
    predicted: NDArray[np.integer], gold: Int[np.ndarray, " N"], units: Int[np.ndarray, " N"]
) -> Float[np.ndarray, "S U C"]:
    """Count hits, predictions and gold rows of each unit and class, side by side: `C` is three times the classes."""
    n_classes, n_units = _n_classes(predicted, gold), int(units.max(initial=-1)) + 1
    cells = n_classes * units  # a class of a unit is counted as a class of its own
    counts = count_classes(predicted + cells, gold + cells, n_classes=n_units * n_classes)
    tables = (counts.hits, counts.n_predicted, counts.n_gold)
    return np.concatenate([table.reshape(len(predicted), n_units, n_classes) for table in tables], axis=-1)


def _n_classes(*sides: NDArray[np.integer]) -> int:
    return 1 + max((int(side.max()) for side in sides if side.size), default=0)


def _f1_per_class(counts: ClassCounts) -> NDArray[np.float64]:
    """F1 of each class; 0 for a class that is neither gold nor predicted."""
    return _divide(2 * counts.hits, counts.n_predicted + counts.n_gold, empty=0.0)


def _divide(above: ArrayLike, below: ArrayLike, *, empty: float = np.nan) -> NDArray[np.float64]:
    top, bottom = np.asarray(above, np.float64), np.asarray(below, np.float64)
    quotient: NDArray[np.float64] = np.divide(top, bottom, out=np.full(top.shape, empty), where=bottom > 0)
    return quotient


CLASS_METRICS: dict[str, Callable[[ClassCounts], NDArray[np.float64]]] = {
    "f1-weighted": lambda n: _divide((_f1_per_class(n) * n.n_gold).sum(-1), n.n_gold.sum(-1)),
    "f1-micro": lambda n: _divide(2 * n.hits.sum(-1), (n.n_predicted + n.n_gold).sum(-1)),
    "f1-macro": lambda n: _divide(_f1_per_class(n).sum(-1), (n.n_predicted + n.n_gold > 0).sum(-1)),
    "accuracy": lambda n: _divide(n.hits.sum(-1), n.n_gold.sum(-1)),
}
"""F1 as scikit-learn averages it: macro over the classes that are gold or predicted, weighted by gold rows."""


def class_metric(name: str) -> Callable[[ClassCounts], NDArray[np.float64]]:
    """Look up a class metric: a function of counts `(..., K)` to scores `(...)`."""
    require_name("metric", name, CLASS_METRICS)
    return CLASS_METRICS[name]


def score_classes(
    predicted: NDArray[np.integer], gold: Int[np.ndarray, " N"], *, metric: str
) -> Float[np.ndarray, "*S"]:
    """Score predictions of one corpus, or of a whole surface of them (layers, C, plans), against the same gold.

    Classes count from 0, one set of `(..., N)` predictions per leading index. The `(...)` scores are in [0, 1], and NaN
    where there are no rows; an unknown metric is refused with those of `CLASS_METRICS`.
    """
    compute = class_metric(metric)
    return np.asarray(compute(count_classes(predicted, gold, n_classes=_n_classes(predicted, gold))))


def discounted_gain(ranked: NDArray[np.floating], depth: int) -> Float[np.ndarray, "*Q"]:
    """Add up the grades of the first documents, each divided by log2 of its rank plus 1 (Järvelin and Kekäläinen 2002).

    Documents are in rank order; a grade of 0 or below is not relevant, here and in the metrics below.

    Example:
        >>> float(discounted_gain(np.array([2.0, 0.0, 1.0]), 10))
        2.5
    """
    gains = np.maximum(ranked[..., :depth], 0.0)
    return np.asarray((gains / np.log2(np.arange(2, gains.shape[-1] + 2))).sum(-1))


def ndcg(ranked: NDArray[np.floating], ideal: NDArray[np.floating], depth: int) -> Float[np.ndarray, "*Q"]:
    """Divide the discounted gain by that of the best ranking; `ideal` are all grades, the highest first, then 0."""
    return np.asarray(discounted_gain(ranked, depth) / discounted_gain(ideal, depth))


def recall(ranked: NDArray[np.floating], n_relevant: Int[np.ndarray, " Q"], depth: int) -> Float[np.ndarray, "*Q"]:
    """Return the share of the relevant documents that is among the first."""
    return np.asarray((ranked[..., :depth] > 0).sum(-1) / n_relevant)


def average_precision(ranked: NDArray[np.floating], n_relevant: Int[np.ndarray, " Q"]) -> Float[np.ndarray, "*Q"]:
    """Average, over the relevant documents, the precision at their ranks; those not ranked count as 0."""
    is_hit = ranked > 0
    precision = is_hit.cumsum(-1) / np.arange(1, ranked.shape[-1] + 1)
    return np.asarray((precision * is_hit).sum(-1) / n_relevant)


def reciprocal_rank(ranked: NDArray[np.floating]) -> Float[np.ndarray, "*Q"]:
    """Divide 1 by the rank of the first relevant document; 0 where there is none."""
    is_hit = ranked > 0
    return np.asarray(np.where(is_hit.any(-1), 1.0 / (is_hit.argmax(-1) + 1), 0.0))


# Spans counted by the rules of conlleval, for whole splits at once, and their scores; tags are IOB2 or IOB1.


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
    require_name("tagging scheme", scheme, SCHEMES)
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
