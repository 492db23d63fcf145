"""Baselines without a decoder, counted again by hand and by scikit-learn."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import ndcg_score
from sklearn.metrics.pairwise import cosine_similarity

from probes.data.class_task import ClassTask, NumberTask
from probes.data.pair_task import PairTask
from probes.data.task import Task
from probes.data.task_table import load_task
from probes.data.word_task import WordTask
from probes.heads.baselines import BASELINES, _rank_documents
from probes.heads.class_heads import majority_scores
from probes.metrics.prediction_metrics import pearson, score_classes


def baselines_of(task: Task) -> dict[str, Mapping[str, Any]]:
    """Predict a task by every baseline: name to split to predictions."""
    return {name: baseline.predictions for name, baseline in BASELINES[task.kind](task).items()}


def test_pairs_are_compared_by_their_words() -> None:
    task = load_task("sts-sample")
    assert isinstance(task, PairTask)
    scored = baselines_of(task)
    assert list(scored) == ["bag-of-words", "word-overlap"]
    texts = [text for name in task.text_columns for text in task.rows("train")[name]]
    vectors = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b").fit(texts)
    for split, rows in task.splits.items():
        one, other = (vectors.transform(rows[name]) for name in task.text_columns)
        np.testing.assert_allclose(scored["bag-of-words"][split], 5 * np.diag(cosine_similarity(one, other)), atol=1e-9)
        assert float(pearson(scored["word-overlap"][split], task.gold01(split))) > 0.1
    shouted = [text.upper() for text in task.rows("test")["sentence1"]]
    same = task.replaced(
        splits=type(task.splits)(
            {
                "train": task.rows("train"),
                "test": task.rows("test").remove_columns("sentence2").add_column("sentence2", shouted),
            }
        )
    )
    assert all(np.allclose(each["test"], 5.0) for each in baselines_of(same).values())


def test_classes_have_a_majority_and_a_bag_of_words() -> None:
    task = load_task("class-sample")
    assert isinstance(task, ClassTask)
    scored = baselines_of(task)
    for split, score in majority_scores(task).items():
        assert len(set(scored["majority"][split].tolist())) == 1
        assert score_classes(scored["majority"][split], task.labels(split), metric=task.metric) == score
    assert np.mean(scored["bag-of-words"]["train"] == task.labels("train")) == 1.0
    right = np.mean(scored["bag-of-words"]["test"] == task.labels("test"))
    assert np.mean(scored["majority"]["test"] == task.labels("test")) < right < 1


def test_numbers_are_predicted_from_words_that_train_shows() -> None:
    task = load_task("number-sample")
    assert isinstance(task, NumberTask)
    words = {"good": 5.0, "fine": 3.0, "poor": 1.0}
    rows = {
        split: [{"text": f"It was {word} {k}.", "number": n} for k in range(4) for word, n in words.items()]
        for split in ("train", "test")
    }
    columns = {split: {key: [row[key] for row in part] for key in ("text", "number")} for split, part in rows.items()}
    made = task.replaced(splits=NumberTask.hold(columns))
    scored = baselines_of(made)
    assert list(scored) == ["bag-of-words"]
    assert pearson(scored["bag-of-words"]["test"], made.numbers("test")) > 0.99


def test_words_get_their_usual_tag() -> None:
    task = load_task("words-sample", tags="pos")
    assert isinstance(task, WordTask)
    known = {tag for tags in task.rows("train")["tags"] for tag in tags}
    names = [tag for tag in task.labels if tag in known]
    train = [
        pair
        for rows in zip(task.rows("train")["words"], task.rows("train")["tags"], strict=True)
        for pair in zip(*rows, strict=True)
    ]
    most = Counter(tag for _, tag in train).most_common(1)[0][0]
    by_word: dict[str, Counter[str]] = {}
    for word, tag in train:
        by_word.setdefault(word, Counter())[tag] += 1
    wanted = [
        by_word[word].most_common(1)[0][0] if word in by_word else most
        for words in task.rows("test")["words"]
        for word in words
    ]
    assert [names[place] for place in baselines_of(task)["majority"]["test"]] == wanted


def test_without_train_words_are_weighted_on_validation_and_nothing_is_fitted() -> None:
    task = load_task("sts-sample")
    assert isinstance(task, PairTask)
    parts = {split: task.rows(split) for split in ("validation", "test")}
    [first, _] = BASELINES["pairs"](task.replaced(splits=type(task.splits)(parts))).values()
    assert first.note == "cosine of the tf-idf of words, weighted on validation"
    words = load_task("words-sample")
    assert baselines_of(words.replaced(splits=type(words.splits)({"test": words.rows("test")}))) == {}


def test_texts_without_words_have_no_bag_of_words() -> None:
    task = load_task("class-sample")
    columns = {split: {**rows[:], "text": ["?!"] * len(rows)} for split, rows in task.splits.items()}
    made = task.replaced(splits=ClassTask.hold(columns))
    assert list(baselines_of(made)) == ["majority"]


ZERO_SHOT = ("retrieval", "reranking", "clustering", "pair-class", "bitext", "odd")


@pytest.mark.parametrize("name", ZERO_SHOT)
def test_nothing_of_test_is_fitted(name: str) -> None:
    """Predictions for validation stay as they are when test has other texts."""
    task: Any = load_task(f"{name}-sample")
    [whole] = baselines_of(task).values()
    [rest] = baselines_of(task.without_test()).values()
    np.testing.assert_array_equal(whole["validation"], rest["validation"])
    assert len(whole["test"]) == len(task.rows("test"))


def test_documents_are_ranked_by_the_cosine_of_their_tf_idf() -> None:
    task: Any = load_task("retrieval-sample")
    vectors = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b").fit(task.corpus)
    similarities = cosine_similarity(vectors.transform(task.rows("test")["query"]), vectors.transform(task.corpus))
    expected = []
    for row, documents, grades in zip(
        similarities, task.rows("test")["documents"], task.rows("test")["grades"], strict=True
    ):
        relevance = np.zeros(len(row))
        relevance[documents] = grades
        expected.append(ndcg_score(relevance[None], row[None], k=10, ignore_ties=True))
    [found] = baselines_of(task).values()
    np.testing.assert_allclose(found["test"], expected, atol=0.02)


def test_the_own_document_of_a_query_comes_last() -> None:
    similarities = np.array([[0.5, 0.9, 0.5], [0.1, 0.2, 0.3]])
    assert _rank_documents(similarities, np.array([1, -1]), 3).tolist() == [[0, 2, 1], [2, 1, 0]]
    assert _rank_documents(similarities, np.array([1, -1]), 1).tolist() == [[0], [2]]


def test_candidates_translations_pairs_and_the_odd_one_are_told_by_their_words() -> None:
    for name in ("reranking-sample", "pair-class-sample", "bitext-sample", "odd-sample"):
        task: Any = load_task(name)
        [found] = baselines_of(task).values()
        assert len(found["test"]) == len(task.rows("test"))
        assert np.isfinite(found["test"]).all()
    bitext: Any = load_task("bitext-sample")
    same = {split: {"text1": rows["text1"], "text2": rows["text1"]} for split, rows in bitext.splits.items()}
    [found] = baselines_of(bitext.replaced(splits=type(bitext).hold(same))).values()
    assert set(found["test"]) == {1.0}
