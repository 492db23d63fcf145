from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from probes.metrics.prediction_metrics import (
    NO_PREDICTION,
    convert_tags,
    count_spans,
    decode_legal,
    index_labels,
    repair_labels,
)

LABELS = ["I-PER", "O", "B-LOC", "I-LOC", "B-PER"]

id_sentences = st.lists(st.lists(st.integers(0, len(LABELS) - 1), max_size=6), max_size=5)


def flatten(sentences: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.array([i for row in sentences for i in row], dtype=np.int64), np.cumsum([0, *map(len, sentences)])


def is_legal(ids: NDArray[np.int64], offsets: NDArray[np.int64]) -> bool:
    names = [LABELS[i] for i in ids]
    rows = [names[a:b] for a, b in pairwise(offsets)]
    return all(convert_tags(row) == row for row in rows)


@given(id_sentences)
def test_repaired_labels_are_iob2_with_the_same_spans(sentences: list[list[int]]) -> None:
    ids, offsets = flatten(sentences)
    repaired = repair_labels(ids, offsets, labels=LABELS)
    names = [LABELS[i] for i in repaired]
    assert [names[a:b] for a, b in pairwise(offsets)] == [convert_tags([LABELS[i] for i in row]) for row in sentences]


@given(id_sentences, st.integers(0, 1000))
def test_repair_leaves_conlleval_alone_and_lifts_strict_to_it(sentences: list[list[int]], seed: int) -> None:
    ids, offsets = flatten(sentences)
    gold = np.random.default_rng(seed).integers(0, len(LABELS), len(ids))
    gold = repair_labels(gold, offsets, labels=LABELS)
    labels = index_labels(LABELS)
    repaired = repair_labels(ids, offsets, labels=LABELS)
    plain = count_spans(gold, ids, offsets=offsets, labels=labels).by_sentence()
    np.testing.assert_array_equal(count_spans(gold, repaired, offsets=offsets, labels=labels).by_sentence(), plain)
    strict = count_spans(gold, repaired, offsets=offsets, labels=labels, strict=True).by_sentence()
    np.testing.assert_array_equal(strict, plain)


def test_repair_without_the_b_label_or_a_prediction() -> None:
    assert repair_labels(np.array([1, 0]), np.array([0, 2]), labels=["O", "I-PER"]).tolist() == [1, 0]
    ids = np.array([0, NO_PREDICTION, 0])
    assert repair_labels(ids, np.array([0, 3]), labels=["I-PER", "B-PER"]).tolist() == [1, NO_PREDICTION, 1]


def best_by_brute_force(scores: NDArray[np.float64]) -> float:
    """Try every path."""
    legal = [
        path
        for path in product(range(len(LABELS)), repeat=len(scores))
        if is_legal(np.array(path, dtype=np.int64), np.array([0, len(scores)]))
    ]
    return max(float(sum(scores[step, label] for step, label in enumerate(path))) for path in legal)


@pytest.mark.parametrize("seed", range(15))
def test_the_legal_path_is_the_best_there_is(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, size=6)
    offsets = np.cumsum([0, *lengths])
    scores = rng.normal(size=(int(offsets[-1]), len(LABELS)))
    ids = decode_legal(scores, offsets, labels=LABELS)
    assert is_legal(ids, offsets)
    for start, end in pairwise(offsets):
        total = scores[np.arange(start, end), ids[start:end]].sum()
        if end > start:
            assert total == pytest.approx(best_by_brute_force(scores[start:end]))


def test_sentences_decoded_together_are_decoded_as_alone() -> None:
    rng = np.random.default_rng(0)
    lengths = np.tile(np.arange(1, 101), 3)
    offsets = np.cumsum([0, *rng.permutation(lengths)])
    labels = ["O", *(f"{mark}-{kind}" for kind in "abcdefghijklmnopqr" for mark in "BI")]
    scores = rng.normal(size=(int(offsets[-1]), len(labels)))
    whole = decode_legal(scores, offsets, labels=labels)
    alone = [decode_legal(scores[a:b], np.array([0, b - a]), labels=labels) for a, b in pairwise(offsets)]
    np.testing.assert_array_equal(whole, np.concatenate(alone))


@given(id_sentences)
def test_a_legal_best_tag_of_each_word_is_kept(sentences: list[list[int]]) -> None:
    ids, offsets = flatten(sentences)
    legal = repair_labels(ids, offsets, labels=LABELS)
    scores = np.random.default_rng(0).random((len(ids), len(LABELS))).astype(np.float32)
    scores[np.arange(len(ids)), legal] += 1
    np.testing.assert_array_equal(decode_legal(scores, offsets, labels=LABELS), legal)


def test_no_span_crosses_a_word_without_a_prediction() -> None:
    scores = np.full((3, len(LABELS)), -1.0)
    scores[:, LABELS.index("I-PER")] = 5.0
    scores[:, LABELS.index("B-PER")] = 4.0
    assert decode_legal(scores, np.array([0, 3]), labels=LABELS).tolist() == [4, 0, 0]
    scores[1] = np.nan
    assert decode_legal(scores, np.array([0, 3]), labels=LABELS).tolist() == [4, NO_PREDICTION, 4]
    scores[:] = np.nan
    assert decode_legal(scores, np.array([0, 3]), labels=LABELS).tolist() == [NO_PREDICTION] * 3


def test_a_very_long_sentence_and_none_at_all() -> None:
    scores = np.random.default_rng(0).normal(size=(20_000, len(LABELS)))
    offsets = np.array([0, len(scores)])
    assert is_legal(decode_legal(scores, offsets, labels=LABELS), offsets)
    assert decode_legal(np.zeros((0, 5)), np.array([0]), labels=LABELS).shape == (0,)
