"""Baselines: what the texts of a task give without a decoder, on the rows that heads are scored on.

Nothing is fitted on test. Words are weighted (tf-idf) on the texts of train; where a task has no train, on its corpus
or else on validation. Only clusters are those of the scored texts themselves, as the clusters of a head are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from probes.heads.result import Rows
from probes.metrics.prediction_metrics import pearson, score_classes

if TYPE_CHECKING:
    from probes.data.class_task import ClassTask, NumberTask
    from probes.data.pair_task import PairTask
    from probes.data.word_task import WordTask
    from probes.data.zero_shot_task import BitextTask, ClusteringTask, CorpusTask, OddOneOutTask, PairClassTask

WORD = r"(?u)\b\w+\b"
STRENGTHS = (1.0, 10.0, 100.0)
"""C of the logistic regression, 1 / alpha of the ridge regression; the best on validation, 10 without one."""
MOST_ROWS = 20_000
"""Rows of train that a linear model is fitted on, drawn with a fixed seed; all where there are fewer."""
MOST_WORDS, MOST_WEIGHTS = 50_000, 4_000_000
"""Words and pairs of words that a linear model knows, the most frequent ones, and its weights over all classes."""
AT_ONCE = 1 << 24
"""Similarities in memory at once."""


@dataclass(frozen=True, eq=False)
class Baseline:
    """Predictions without the decoder."""

    note: str
    """How it predicts and what it is fitted on, in a clause."""
    predictions: Mapping[str, Rows]
    """Split to `(N,)` predictions in the form of `HeadResult.predictions`: numbers, positions of names, or scores of
    rows for a metric that is the mean of rows."""


Baselines = Mapping[str, Baseline]
"""Name to baseline."""


def class_baselines(task: "ClassTask") -> Baselines:
    """Predict the most frequent class of train, and classes by a logistic regression on words and pairs of words."""
    most = np.bincount(task.labels("train")).argmax()
    majority = Baseline(
        "the most frequent class of train", {split: np.full(n, most) for split, n in task.n_rows().items()}
    )
    linear = _fit_linear(
        task,
        task.labels,
        lambda C: LogisticRegression(C=C, max_iter=1000),
        lambda predicted, gold: float(score_classes(predicted, gold, metric=task.metric)),
        n_outputs=len(np.unique(task.labels("train"))),
    )
    return {"majority": majority, **_named("bag-of-words", "logistic regression on tf-idf of words and pairs", linear)}


def number_baselines(task: "NumberTask") -> Baselines:
    """Predict numbers by a ridge regression on words and pairs of words."""
    if "train" not in task.splits:
        return {}
    linear = _fit_linear(
        task,
        task.numbers,
        lambda C: Ridge(alpha=1 / C),
        lambda predicted, gold: float(np.nan_to_num(pearson(predicted, gold))),
    )
    return _named("bag-of-words", "ridge regression on tf-idf of words and pairs", linear)


def _named(name: str, how: str, predictions: Mapping[str, Rows]) -> Baselines:
    """Name a linear model; nothing where there is none."""
    return {name: Baseline(f"{how}, fitted on train", predictions)} if predictions else {}


def _fit_linear(
    task: "ClassTask | NumberTask",
    gold: Callable[[str], NDArray[np.generic]],
    make: Callable[[float], BaseEstimator],
    score: Callable[[NDArray[Any], NDArray[Any]], float],
    *,
    n_outputs: int = 1,
) -> Mapping[str, Rows]:
    """Fit a linear model on tf-idf of the texts of train, those of a row joined; nothing for texts without words."""
    columns = {split: [rows[name] for name in task.text_columns] for split, rows in task.splits.items()}
    joined = {split: [" ".join(texts) for texts in zip(*texts, strict=True)] for split, texts in columns.items()}
    labels = gold("train")
    sample = np.arange(len(labels))
    if len(labels) > MOST_ROWS:
        sample = np.sort(np.random.default_rng(0).choice(len(labels), MOST_ROWS, replace=False))
    most_words = max(1, min(MOST_WORDS, MOST_WEIGHTS // n_outputs))
    options = {"ngram_range": (1, 2), "sublinear_tf": True, "max_features": most_words}
    vectorizer = fit_tfidf([joined["train"][row] for row in sample], **options)
    if vectorizer is None or len(np.unique(labels[sample])) < 2:
        return {}
    vectors = {split: vectorizer.transform(texts) for split, texts in joined.items()}
    strengths = STRENGTHS if "validation" in vectors else STRENGTHS[1:2]
    models = [make(strength).fit(vectors["train"][sample], labels[sample]) for strength in strengths]
    best = models[0]
    if len(models) > 1:
        scores = [score(model.predict(vectors["validation"]), gold("validation")) for model in models]
        best = models[int(np.argmax(scores))]
    return {split: np.asarray(best.predict(rows)) for split, rows in vectors.items()}


def pair_baselines(task: "PairTask") -> Baselines:
    """Score pairs by the cosine of the tf-idf of their words, and by the words that they share."""
    low, high = task.score_range
    sides = {split: [list(task.rows(split)[name]) for name in task.text_columns] for split in task.splits}
    split = _fit_split(sides)
    vectorizer = fit_tfidf([text for side in sides[split] for text in side])
    if vectorizer is None:
        return {}
    analyse = vectorizer.build_analyzer()

    def overlap(one: list[str], other: list[str]) -> Float[np.ndarray, " N"]:
        words = [(set(analyse(a)), set(analyse(b))) for a, b in zip(one, other, strict=True)]
        return np.array([len(a & b) / max(len(a | b), 1) for a, b in words])

    def scale(compare: Callable[[list[str], list[str]], Float[np.ndarray, " N"]]) -> dict[str, Rows]:
        return {split: low + (high - low) * compare(*both) for split, both in sides.items()}

    return {
        "bag-of-words": Baseline(
            f"cosine of the tf-idf of words, weighted on {split}",
            scale(lambda one, other: paired_cosines(vectorizer, one, other)),
        ),
        "word-overlap": Baseline("share of different words that both texts have", scale(overlap)),
    }


def word_baselines(task: "WordTask") -> Baselines:
    """Give each word its most frequent tag in train, and an unknown word that of all words."""
    if "train" not in task.splits:
        return {}
    from probes.data.word_task import usual_tags

    train = {tag for tags in task.rows("train")["tags"] for tag in tags}
    codes = {tag: code for code, tag in enumerate(tag for tag in task.labels if tag in train)}
    predictions = {split: np.array([codes[tag] for tag in usual_tags(task, split)]) for split in task.splits}
    return {"majority": Baseline("the most frequent tag of each word in train", predictions)}


# Tasks without fitting: texts compared by their tf-idf instead of their latents.


def search_baselines(task: "CorpusTask") -> Baselines:
    """Rank the corpus for each query by tf-idf, whose weights are those of the corpus."""
    from probes.heads.zero_shot_heads import DEPTH, score_rankings

    vectorizer = fit_tfidf(task.corpus)
    if vectorizer is None:
        return {}
    documents = vectorizer.transform(task.corpus)
    predictions = {}
    for split, rows in task.splits.items():
        own = task.own_documents(split)
        ranked = [
            _rank_documents(similarities, own[start : start + len(similarities)], DEPTH)
            for start, similarities in _blocks(vectorizer.transform(rows["query"]), documents)
        ]
        predictions[split] = score_rankings(task, split, np.concatenate(ranked))[task.metrics[0]]
    return {"tf-idf": Baseline("cosine of the tf-idf of words, weighted on the corpus", predictions)}


def _rank_documents(similarities: NDArray[np.float64], own: NDArray[np.int64], depth: int) -> NDArray[np.int64]:
    """Rank documents for each query, best first and its own last; of equals the first in the corpus."""
    rows = np.flatnonzero(own >= 0)
    similarities[rows, own[rows]] = -np.inf
    ranked, depth = [], min(depth, similarities.shape[1])
    for row in similarities:
        nearest = np.flatnonzero(row >= np.partition(row, -depth)[-depth])
        ranked.append(nearest[np.argsort(-row[nearest], kind="stable")][:depth])
    return np.array(ranked)


def rerank_baselines(task: "CorpusTask") -> Baselines:
    """Rank the candidates of each query by tf-idf, whose weights are those of the corpus."""
    from probes.heads.zero_shot_heads import padded, score_orders

    vectorizer = fit_tfidf(task.corpus)
    if vectorizer is None:
        return {}
    corpus, predictions = vectorizer.transform(task.corpus), {}
    for split, rows in task.splits.items():
        queries = vectorizer.transform(rows["query"])
        similarities = [
            (corpus[candidates] @ queries[row].T).toarray().ravel().tolist()
            for row, candidates in enumerate(rows["documents"])
        ]
        order = np.argsort(-padded(similarities, -np.inf), axis=1, kind="stable")
        predictions[split] = score_orders(order, padded(rows["grades"], 0.0))[task.metrics[0]]
    return {"tf-idf": Baseline("cosine of the tf-idf of words, weighted on the corpus", predictions)}


def cluster_baselines(task: "ClusteringTask") -> Baselines:
    """Cluster the texts of each split by tf-idf, as many clusters as labels, as the head does by latents."""
    from probes.heads.zero_shot_heads import cluster_rows

    texts = {split: list(rows["text"]) for split, rows in task.splits.items()}
    split = _fit_split(texts)
    vectorizer = fit_tfidf(texts[split])
    if vectorizer is None:
        return {}
    n_labels = {name: int(task.labels(name).max()) + 1 for name in texts}
    predictions = {name: cluster_rows(vectorizer.transform(rows), n_labels[name], 0) for name, rows in texts.items()}
    return {"tf-idf": Baseline(f"clusters of the tf-idf of words, weighted on {split}", predictions)}


def alike_baselines(task: "PairClassTask") -> Baselines:
    """Score pairs by the cosine of the tf-idf of their words."""
    sides = {split: [list(rows[name]) for name in task.text_columns] for split, rows in task.splits.items()}
    split = _fit_split(sides)
    vectorizer = fit_tfidf([text for side in sides[split] for text in side])
    if vectorizer is None:
        return {}
    predictions = {name: paired_cosines(vectorizer, *both) for name, both in sides.items()}
    return {"tf-idf": Baseline(f"cosine of the tf-idf of words, weighted on {split}", predictions)}


def bitext_baselines(task: "BitextTask") -> Baselines:
    """Find translations by the letters that both texts share: names, numbers, and words of one origin."""
    from probes.heads.zero_shot_heads import score_translations

    sides = {split: [list(rows[name]) for name in task.text_columns] for split, rows in task.splits.items()}
    split = _fit_split(sides)
    vectorizer = fit_tfidf([text for side in sides[split] for text in side], analyzer="char_wb", ngram_range=(2, 4))
    if vectorizer is None:
        return {}
    predictions = {}
    for name, both in sides.items():
        vectors = [vectorizer.transform(side) for side in both]
        nearest = [
            np.concatenate([block.argmax(1) for _, block in _blocks(one, other)])
            for one, other in (vectors, vectors[::-1])
        ]
        predictions[name] = score_translations(*nearest)[task.metrics[0]]
    return {"tf-idf": Baseline(f"nearest by the tf-idf of 2 to 4 letters, weighted on {split}", predictions)}


def odd_baselines(task: "OddOneOutTask") -> Baselines:
    """Answer with the sentence that is least like the others by tf-idf."""
    split = _fit_split(task.splits)
    vectorizer = fit_tfidf([text for sentences in task.rows(split)["sentences"] for text in sentences])
    if vectorizer is None:
        return {}

    def answer(sentences: Sequence[str]) -> int:
        vectors = vectorizer.transform(sentences)
        similarities = (vectors @ vectors.T).toarray()
        return int((similarities.sum(1) - similarities.diagonal()).argmin())

    predictions = {name: np.array([*map(answer, rows["sentences"])]) for name, rows in task.splits.items()}
    return {"tf-idf": Baseline(f"the sentence least like the others by tf-idf, weighted on {split}", predictions)}


def fit_tfidf(texts: Sequence[str], **options: Any) -> TfidfVectorizer | None:
    """Weight words, or what the options say, by how rare they are in some texts; None for texts without any."""
    vectorizer = TfidfVectorizer(**{"token_pattern": WORD} | options if "analyzer" not in options else options)
    try:
        return vectorizer.fit(texts)
    except ValueError as error:  # there is no other way to ask
        if "empty vocabulary" in str(error):
            return None
        raise


def paired_cosines(vectorizer: TfidfVectorizer, one: Sequence[str], other: Sequence[str]) -> Float[np.ndarray, " N"]:
    """Compare texts one by one: the cosine of their tf-idf, 0 to 1."""
    product = vectorizer.transform(one).multiply(vectorizer.transform(other))  # rows have length 1
    return np.asarray(product.sum(axis=1)).ravel()


def _blocks(one: csr_matrix, other: csr_matrix) -> Iterator[tuple[int, Float[np.ndarray, "B M"]]]:
    """Yield the similarities of every row with all others, a block of rows at a time, with the first of them."""
    step = max(1, AT_ONCE // other.shape[0])
    for start in range(0, one.shape[0], step):
        yield start, (one[start : start + step] @ other.T).toarray()


def _fit_split(splits: Mapping[str, object]) -> str:
    """Name the split whose texts weigh the words: train, else validation, and test where there is nothing else."""
    return next(split for split in ("train", "validation", "test") if split in splits)


BASELINES: dict[str, Callable[[Any], Baselines]] = {
    "classes": class_baselines,
    "numbers": number_baselines,
    "pairs": pair_baselines,
    "words": word_baselines,
    "retrieval": search_baselines,
    "reranking": rerank_baselines,
    "clustering": cluster_baselines,
    "pair-classification": alike_baselines,
    "bitext": bitext_baselines,
    "odd-one-out": odd_baselines,
}
"""Kind of task to what computes its baselines."""
