"""From scores of tags to tags: the best of each word, or what obeys IOB2; no training, nothing learned."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from probes.metrics.spans import NO_PREDICTION, SpanLabels, index_labels

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
    known = index_labels(labels)
    twin = np.arange(len(labels) + 1)
    twin[-1] = NO_PREDICTION
    for index, label in enumerate(labels):
        if label.startswith("I-") and f"B-{label[2:]}" in labels:
            twin[index] = list(labels).index(f"B-{label[2:]}")
    types = known.type_ids[ids]
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
    known = index_labels(labels)
    is_missing = np.isnan(scores).any(axis=1)
    ids = np.full(len(scores), NO_PREDICTION, dtype=np.int64)
    is_first = np.zeros(len(scores) + 1, dtype=bool)
    is_first[offsets] = True
    is_first[1:] |= is_missing
    is_first[:-1] |= is_missing
    bounds = np.flatnonzero(is_first)
    starts, ends = bounds[:-1], bounds[1:]
    has_words = ~is_missing[starts]
    _viterbi(scores.astype(np.float64), starts[has_words], ends[has_words], known, ids)
    return ids


def _viterbi(
    scores: NDArray[np.float64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    known: SpanLabels,
    ids: NDArray[np.int64],
) -> None:
    """Write the best legal path of every run of words into `ids`: all runs at once, a step a word of the longest.

    An I has at most two predecessors, the B and the I of its type, so a step costs the number of labels.
    """
    types, begins = known.type_ids[:-1], known.begins[:-1]
    inner = np.flatnonzero((types >= 0) & ~begins)
    twin = [next((int(k) for k in np.flatnonzero(begins & (types == types[i]))), int(i)) for i in inner]
    before = np.sort(np.stack([inner, np.array(twin, dtype=np.int64)]), axis=0)  # of equals the first is kept
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
