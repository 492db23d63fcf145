"""Tags that break IOB2 repaired after the fact: no training, nothing learned."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from probes.metrics.spans import NO_PREDICTION, SpanLabels, index_labels


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
    for positions in _runs_by_length(offsets, is_missing):
        ids[positions] = _viterbi(scores[positions].astype(np.float64), known)
    return ids


def _runs_by_length(offsets: Int[np.ndarray, " N_1"], is_missing: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Gather the unbroken runs of words by their length, one matrix of positions (runs x words) a length."""
    n_words = len(is_missing)
    is_first = np.zeros(n_words + 1, dtype=bool)
    is_first[offsets] = True
    is_first[1:] |= is_missing
    is_first[:-1] |= is_missing
    starts = np.flatnonzero(is_first)
    lengths, starts = np.diff(starts), starts[:-1]
    starts, lengths = starts[~is_missing[starts]], lengths[~is_missing[starts]]
    return [starts[lengths == n, None] + np.arange(n) for n in np.unique(lengths)]


def _viterbi(scores: NDArray[np.float64], known: SpanLabels) -> NDArray[np.int64]:
    """Best legal path of runs of one length: `(R, T, K)` scores to `(R, T)` ids."""
    n_labels = len(known.labels)
    types, begins = known.type_ids[:-1], known.begins[:-1]
    is_inner = (types >= 0) & ~begins
    may_follow = np.ones((n_labels, n_labels), dtype=bool)  # [earlier, later]
    may_follow[:, is_inner] = types[:, None] == types[None, is_inner]
    cost = np.where(may_follow, 0.0, -np.inf)
    best = scores[:, 0] + np.where(is_inner, -np.inf, 0.0)
    came_from = np.zeros(scores.shape, dtype=np.int16)
    for step in range(1, scores.shape[1]):
        paths = best[:, :, None] + cost
        came_from[:, step] = paths.argmax(axis=1)
        best = paths.max(axis=1) + scores[:, step]
    ids = np.empty(scores.shape[:2], dtype=np.int64)
    ids[:, -1] = best.argmax(axis=1)
    rows = np.arange(len(scores))
    for step in range(scores.shape[1] - 1, 0, -1):
        ids[:, step - 1] = came_from[rows, step, ids[:, step]]
    return ids
