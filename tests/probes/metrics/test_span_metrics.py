from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.errors import TaskError
from probes.metrics.prediction_metrics import (
    NO_PREDICTION,
    count_spans,
    count_tag_spans,
    find_spans,
    index_labels,
    read_spans,
    score_spans,
)
from tests.probes.metrics.conlleval_oracle import conlleval

TAGS = ["O", "B-PER", "I-PER", "B-creative-work", "I-creative-work"]
tags = st.sampled_from([*TAGS, "B-LOC", "I-LOC"])
corpora = st.lists(st.lists(st.tuples(tags, tags), max_size=8), max_size=5)


def agrees(gold: list[list[str]], predicted: list[list[str]]) -> None:
    """Compare the counts of every type, and the accuracy, with the plain state machine."""
    counts = count_tag_spans(gold, predicted)
    expected = conlleval(gold, predicted)
    found = {
        kind: tuple(int(n[:, index].sum()) for n in (counts.n_correct, counts.n_predicted, counts.n_gold))
        for index, kind in enumerate(counts.types)
    }
    wanted = {kind: (expected.correct[kind], expected.guessed[kind], expected.gold[kind]) for kind in counts.types}
    assert found == wanted
    assert sum(expected.gold.values()) == sum(expected.gold[kind] for kind in counts.types)
    scores = score_spans(counts)
    assert scores.micro.f1 == pytest.approx(expected.f1())
    assert (scores.n_words, counts.n_words_right.sum()) == (expected.n_words, expected.n_words_right)


def test_a_small_example_counted_by_hand() -> None:
    lines = """
        O      O      | B-PER  B-PER | B-LOC  I-LOC | O      I-ORG | B-ORG  B-ORG
        B-PER  B-PER  | O      O     | I-LOC  I-LOC | B-PER  I-PER | I-ORG  O
        I-PER  I-PER  | B-PER  I-PER | O      O     | O      O     | B-ORG  B-ORG
        O      O      | I-PER  I-PER | B-LOC  B-ORG | B-PER  O     | I-ORG  I-ORG
    """
    rows = [[pair.split() for pair in line.split("|")] for line in lines.strip().splitlines()]
    gold = [[row[column][0] for row in rows] for column in range(5)]
    predicted = [[row[column][1] for row in rows] for column in range(5)]
    # sentence 1: PER 1-3 right. 2: PER 0 right, and an I after O starts PER 2-4, right. 3: LOC 0-2 right though it
    # starts with an I; LOC 3 is taken for ORG. 4: I-ORG and then I-PER are two spans, PER 1 right; PER 3 missed.
    # 5: ORG 0-2 cut short, ORG 2-4 right.
    scores = score_spans(count_tag_spans(gold, predicted))
    table = {row.type: (row.n_correct, row.n_predicted, row.n_gold) for row in scores.by_type}
    assert table == {"LOC": (1, 1, 2), "ORG": (1, 4, 2), "PER": (4, 4, 5)}
    assert (scores.micro.n_correct, scores.micro.n_predicted, scores.micro.n_gold) == (6, 9, 9)
    assert scores.micro.precision == scores.micro.recall == scores.micro.f1 == pytest.approx(6 / 9)
    by_type = {row.type: row for row in scores.by_type}
    assert by_type["PER"].f1 == pytest.approx(8 / 9)
    assert (by_type["ORG"].precision, by_type["ORG"].recall) == (0.25, 0.5)
    assert scores.n_words == 20
    assert scores.accuracy == pytest.approx(13 / 20)
    strict = score_spans(count_tag_spans(gold, predicted, strict=True))
    # Without the four spans that start with an I: PER 2-4, LOC 0-2, ORG and PER of sentence 4.
    assert {row.type: (row.n_correct, row.n_predicted) for row in strict.by_type} == {
        "LOC": (0, 0),
        "ORG": (1, 3),
        "PER": (2, 2),
    }
    assert strict.micro.f1 == pytest.approx(2 * 3 / (5 + 9))
    assert (strict.is_strict, scores.is_strict) == (True, False)


def test_every_pair_of_short_sentences_is_counted_as_conlleval_does() -> None:
    for n_words in (1, 2, 3):
        pairs = list(product(product(TAGS, repeat=n_words), repeat=2))
        agrees([list(gold) for gold, _ in pairs], [list(guess) for _, guess in pairs])
    for gold, guess in product(product(TAGS, repeat=2), repeat=2):  # each alone: no sum hides a difference
        agrees([list(gold)], [list(guess)])


@given(corpora)
def test_random_corpora_are_counted_as_conlleval_does(corpus: list[list[tuple[str, str]]]) -> None:
    agrees([[gold for gold, _ in row] for row in corpus], [[guess for _, guess in row] for row in corpus])


@given(corpora)
def test_many_sentences_at_once_count_as_each_alone(corpus: list[list[tuple[str, str]]]) -> None:
    gold, guess = ([[pair[side] for pair in row] for row in corpus] for side in (0, 1))
    together = count_tag_spans(gold, guess).by_sentence().tolist()
    assert together == [count_tag_spans([a], [b]).by_sentence()[0].tolist() for a, b in zip(gold, guess, strict=True)]


@given(st.lists(st.lists(tags, max_size=8), max_size=4))
def test_spans_are_those_of_the_plain_reader(sentences: list[list[str]]) -> None:
    names = sorted({tag for row in sentences for tag in row})
    labels = index_labels(names)
    ids = np.array([names.index(tag) for row in sentences for tag in row], dtype=np.int64)
    offsets = np.cumsum([0, *map(len, sentences)])
    found = find_spans(ids, offsets, labels=labels)
    expected = [
        (int(start) + span.start, int(start) + span.end, span.type)
        for start, row in zip(offsets, sentences, strict=False)
        for span in read_spans(row)
    ]
    assert [(int(a), int(b), labels.types[k]) for a, b, k in found] == expected


@given(st.lists(st.lists(tags, min_size=1, max_size=8), min_size=1, max_size=4))
def test_gold_against_itself_is_perfect(sentences: list[list[str]]) -> None:
    scores = score_spans(count_tag_spans(sentences, sentences))
    assert scores.accuracy == 1.0
    assert scores.micro.f1 == (1.0 if any(tag != "O" for row in sentences for tag in row) else 0.0)


def test_strict_and_plain_differ_only_where_a_span_starts_with_an_i() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"]]
    assert count_tag_spans(gold, gold, strict=True).by_sentence().tolist() == [[2, 2, 2]]
    illegal = [["I-PER", "I-PER", "O", "B-LOC"]]
    assert count_tag_spans(gold, illegal).by_sentence().tolist() == [[2, 2, 2]]
    assert count_tag_spans(gold, illegal, strict=True).by_sentence().tolist() == [[1, 1, 2]]
    # B-PER I-LOC: strict keeps the one-word person, and the place that follows is no span.
    assert count_tag_spans([["B-PER", "O"]], [["B-PER", "I-LOC"]], strict=True).by_sentence().tolist() == [[1, 1, 1]]


def test_a_word_without_a_prediction_is_an_error() -> None:
    counts = count_tag_spans([["B-PER", "I-PER", "O"], ["O", "O"]], [["B-PER", None, None], ["O", None]])
    assert counts.by_sentence().tolist() == [[0, 1, 1], [0, 0, 0]]
    assert counts.n_words_right.tolist() == [1, 1]
    assert NO_PREDICTION == -1


def test_a_span_never_crosses_the_end_of_a_sentence() -> None:
    counts = count_tag_spans([["B-PER"], ["I-PER"]], [["B-PER"], ["I-PER"]])
    assert counts.by_sentence().tolist() == [[1, 1, 1], [1, 1, 1]]


def test_lengths_that_do_not_match() -> None:
    with pytest.raises(TaskError, match="2 gold and 1 predicted sentences"):
        count_tag_spans([["O"], ["O"]], [["O"]])
    with pytest.raises(TaskError, match=r"sentence 1 \(from 0\) has 2 gold and 1 predicted tags"):
        count_tag_spans([["O"], ["O", "O"]], [["O"], ["O"]])
    labels = index_labels(["O", "B-A"])
    with pytest.raises(TaskError, match="3 gold and 3 predicted tags for 2 words"):
        count_spans(np.zeros(3, int), np.zeros(3, int), offsets=np.array([0, 2]), labels=labels)


@pytest.mark.parametrize("label", ["NN", "S-PER", "E-PER", "B", "B-"])
def test_labels_of_another_scheme_are_refused(label: str) -> None:
    with pytest.raises(TaskError, match=f"label '{label}' is not O, nor a B or I"):
        index_labels(["O", label])


def test_a_corpus_without_spans_or_words() -> None:
    scores = score_spans(count_tag_spans([["O", "O"], []], [["O", "O"], []]))
    assert (scores.micro.f1, scores.by_type, scores.accuracy) == (0.0, (), 1.0)
    assert score_spans(count_tag_spans([], [])).accuracy == 0.0
