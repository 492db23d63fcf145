"""Baselines without a decoder: predictions in the form of a head's, so that they are scored and resampled like one."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from probes.metrics.class_metrics import score_classes
from probes.metrics.correlation import pearson
from probes.tasks.base import Task
from probes.tasks.words.task import usual_tags

Predictions = dict[str, NDArray[Any]]
"""Split to `(N,)` predictions."""
STRENGTHS = (1.0, 10.0, 100.0)
"""C of the logistic regression, 1 / alpha of the ridge regression; the best on validation, 10 without one."""


def baseline_predictions(task: Task) -> dict[str, Predictions]:
    """Predict every split of a task without a decoder, fitted on train and chosen on validation.

    `majority` is the most frequent class of train, and for words the most frequent tag of the word in train, of an
    unknown word that of all words. `bag-of-words` is a linear model on tf-idf of words and pairs of words, and for
    pairs of texts with a graded similarity the cosine of the tf-idf of their words; `word-overlap` is the share of
    different words, in lower case, that both texts of a pair have.

    Returns:
        Name to split to predictions, as in `HeadResult.predictions`: numbers, for pairs between the ends of the score
        range; classes as the task numbers them; tags by their place among those of train, in the order of the task.

    Raises:
        UnknownNameError: The task has no training split.
    """
    task.rows("train")
    return _BASELINES[task.kind](task)


def _of_classes(task: Any) -> dict[str, Predictions]:
    most = np.bincount(task.labels("train")).argmax()
    linear = _fit_linear(
        task,
        task.labels,
        lambda C: LogisticRegression(C=C, max_iter=1000),
        lambda found, gold: float(score_classes(found, gold, metric=task.metric)),
    )
    return {"majority": {split: np.full(n, most) for split, n in task.n_rows().items()}, "bag-of-words": linear}


def _of_numbers(task: Any) -> dict[str, Predictions]:
    linear = _fit_linear(
        task, task.numbers, lambda C: Ridge(alpha=1 / C), lambda found, gold: float(np.nan_to_num(pearson(found, gold)))
    )
    return {"bag-of-words": linear}


def _fit_linear(
    task: Any,
    gold: Callable[[str], NDArray[Any]],
    make: Callable[[float], BaseEstimator],
    score: Callable[[NDArray[Any], NDArray[Any]], float],
) -> Predictions:
    """Fit a linear model on tf-idf of the texts of train, of each text of a row by itself."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    joined = {split: _texts(task, split) for split in task.splits}
    vectors = {"train": vectorizer.fit_transform(joined["train"])}
    vectors |= {split: vectorizer.transform(texts) for split, texts in joined.items() if split != "train"}
    strengths = STRENGTHS if "validation" in vectors else STRENGTHS[1:2]
    models = [make(strength).fit(vectors["train"], gold("train")) for strength in strengths]
    best = models[0]
    if len(models) > 1:
        scores = [score(model.predict(vectors["validation"]), gold("validation")) for model in models]
        best = models[int(np.argmax(scores))]
    return {split: np.asarray(best.predict(found)) for split, found in vectors.items()}


def _texts(task: Any, split: str) -> list[str]:
    return [" ".join(texts) for texts in zip(*(task.rows(split)[name] for name in task.text_columns), strict=True)]


def _of_pairs(task: Any) -> dict[str, Predictions]:
    low, high = task.score_range
    sides = {split: [list(task.rows(split)[name]) for name in task.text_columns] for split in task.splits}
    vectorizer = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b").fit([text for side in sides["train"] for text in side])
    analyse = vectorizer.build_analyzer()

    def cosine(one: list[str], other: list[str]) -> Float[np.ndarray, " N"]:
        product = vectorizer.transform(one).multiply(vectorizer.transform(other))  # rows have length 1
        return np.asarray(product.sum(axis=1)).ravel()

    def overlap(one: list[str], other: list[str]) -> Float[np.ndarray, " N"]:
        words = [(set(analyse(a)), set(analyse(b))) for a, b in zip(one, other, strict=True)]
        return np.array([len(a & b) / max(len(a | b), 1) for a, b in words])

    return {
        name: {split: low + (high - low) * compare(*both) for split, both in sides.items()}
        for name, compare in (("bag-of-words", cosine), ("word-overlap", overlap))
    }


def _of_words(task: Any) -> dict[str, Predictions]:
    known = {tag for tags in task.rows("train")["tags"] for tag in tags}
    places = {tag: place for place, tag in enumerate(tag for tag in task.labels if tag in known)}
    return {"majority": {split: np.array([places[tag] for tag in usual_tags(task, split)]) for split in task.splits}}


_BASELINES: dict[str, Callable[[Any], dict[str, Predictions]]] = {
    "classes": _of_classes,
    "numbers": _of_numbers,
    "pairs": _of_pairs,
    "words": _of_words,
}
