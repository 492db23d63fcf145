"""Baselines without a decoder, counted again by hand and by scikit-learn."""

from collections import Counter

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from extract.errors import UnknownNameError
from probes.data.class_task import ClassTask, NumberTask
from probes.data.pair_task import PairTask
from probes.data.task_table import load_task
from probes.data.word_task import WordTask
from probes.heads.class_heads import majority_scores
from probes.layers.shapley import baseline_predictions
from probes.metrics.class_metrics import score_classes
from probes.metrics.correlation import pearson


def test_pairs_are_compared_by_their_words() -> None:
    task = load_task("sts-sample")
    assert isinstance(task, PairTask)
    found = baseline_predictions(task)
    assert list(found) == ["bag-of-words", "word-overlap"]
    texts = [text for name in task.text_columns for text in task.rows("train")[name]]
    vectors = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b").fit(texts)
    for split, rows in task.splits.items():
        one, other = (vectors.transform(rows[name]) for name in task.text_columns)
        np.testing.assert_allclose(found["bag-of-words"][split], 5 * np.diag(cosine_similarity(one, other)), atol=1e-9)
        assert float(pearson(found["word-overlap"][split], task.gold01(split))) > 0.1
    shouted = [text.upper() for text in task.rows("test")["sentence1"]]
    same = task.replaced(
        splits=type(task.splits)(
            {
                "train": task.rows("train"),
                "test": task.rows("test").remove_columns("sentence2").add_column("sentence2", shouted),
            }
        )
    )
    assert all(np.allclose(each["test"], 5.0) for each in baseline_predictions(same).values())


def test_classes_have_a_majority_and_a_bag_of_words() -> None:
    task = load_task("class-sample")
    assert isinstance(task, ClassTask)
    found = baseline_predictions(task)
    for split, score in majority_scores(task).items():
        assert len(set(found["majority"][split].tolist())) == 1
        assert score_classes(found["majority"][split], task.labels(split), metric=task.metric) == score
    assert np.mean(found["bag-of-words"]["train"] == task.labels("train")) == 1.0
    right = np.mean(found["bag-of-words"]["test"] == task.labels("test"))
    assert np.mean(found["majority"]["test"] == task.labels("test")) < right < 1


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
    found = baseline_predictions(made)
    assert list(found) == ["bag-of-words"]
    assert pearson(found["bag-of-words"]["test"], made.numbers("test")) > 0.99


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
    assert [names[place] for place in baseline_predictions(task)["majority"]["test"]] == wanted


def test_a_baseline_needs_train() -> None:
    task = load_task("sts-sample")
    with pytest.raises(UnknownNameError, match="unknown split 'train'"):
        baseline_predictions(task.replaced(splits=type(task.splits)({"test": task.rows("test")})))
