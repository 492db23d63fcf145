"""What each kind of task without fitting makes of latents: a score, a name or a number for each row, at every layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from probes.heads.zero_shot.similarity import BLOCK, LayerReader, rows_of
from probes.metrics.bootstrap import number_units
from probes.metrics.unit_scorer import UnitScorer, class_scorer, mean_scorer
from probes.metrics.zero_shot.ranking import average_precision, ndcg, recall, reciprocal_rank
from probes.metrics.zero_shot.scorers import ROW_METRICS, cluster_scorer, precision_scorer
from probes.tasks.zero_shot.rows import answer_names

Judged = dict[str, NDArray[Any]]
"""Metric to what it is computed from, `(l, N)`: scores of rows, or what is predicted of them."""
DEPTH = 100
"""Documents that are ranked."""


@dataclass(frozen=True, eq=False)
class Call:
    """What a judge is asked: the rows of a split, read at a few layers."""

    task: Any
    split: str
    reader: LayerReader
    seed: int = 0
    threshold: float = 0.0
    """The similarity above which a pair is alike."""


def judge_retrieval(call: Call) -> Judged:
    """Rank the corpus for each query; a document of the query's own name is left out, as in BEIR."""
    task, rows = call.task, call.task.rows(call.split)
    reader = call.reader.of_documents()
    documents = rows_of(reader.cache, task.corpus)
    places = {name: place for place, name in enumerate(task.corpus_ids)}
    own = torch.tensor([places.get(name, -1) for name in rows["id"]])
    found = reader.nearest(call.reader.read(list(rows["query"])), documents, DEPTH + 1)
    is_own = found == own[:, None]
    found = found.gather(2, is_own.to(torch.uint8).argsort(dim=2, stable=True))[..., :DEPTH]
    grades, ideal, n_relevant = _grades(rows["documents"], rows["grades"], len(documents))
    ranked = grades(found.numpy())
    return {
        "ndcg@10": ndcg(ranked, ideal, 10),
        "recall@10": recall(ranked, n_relevant, 10),
        "recall@100": recall(ranked, n_relevant, 100),
    }


def _grades(
    documents: Sequence[Sequence[int]], grades: Sequence[Sequence[float]], n_documents: int
) -> tuple[Callable[[NDArray[np.int64]], NDArray[np.float64]], NDArray[np.float64], NDArray[np.int64]]:
    """Give what looks grades of `(L, Q, R)` documents up, the ideal grades, and how many documents are relevant."""
    keys = np.concatenate([query * n_documents + np.asarray(each) for query, each in enumerate(documents)])
    values = np.concatenate([np.asarray(each, np.float64) for each in grades])
    order = np.argsort(keys)
    keys, values = keys[order], values[order]
    most = max(map(len, grades))
    ideal = np.array([sorted((*each, *[0.0] * (most - len(each))), reverse=True) for each in grades])

    def look_up(found: NDArray[np.int64]) -> NDArray[np.float64]:
        wanted = np.arange(len(ideal))[:, None] * n_documents + found
        places = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
        return np.where(keys[places] == wanted, values[places], 0.0)

    return look_up, ideal, (ideal > 0).sum(1)


def judge_reranking(call: Call) -> Judged:
    """Rank the candidates of each query; of equals, the one with the higher name comes first."""
    rows = call.task.rows(call.split)
    queries = call.reader.read(list(rows["query"]))
    places, grades = _padded(rows["documents"], -1), _padded(rows["grades"], 0.0)
    reader = call.reader.of_documents()
    corpus = rows_of(reader.cache, call.task.corpus)
    parts = []
    step = max(1, BLOCK // places.shape[1])
    for start in range(0, len(places), step):
        block = torch.from_numpy(places[start : start + step])
        latents = reader.gather(corpus[block.clamp(min=0).flatten()])
        latents = latents.reshape(len(latents), *block.shape, -1)
        found = call.reader.paired(queries[:, start : start + step, None], latents)
        parts.append(found.masked_fill(block < 0, -torch.inf))  # padding comes last
    order = torch.cat(parts, dim=1).argsort(dim=2, descending=True, stable=True).numpy()
    ranked = np.take_along_axis(np.broadcast_to(grades, order.shape), order, axis=2)
    return {"map": average_precision(ranked, (grades > 0).sum(1)), "mrr": reciprocal_rank(ranked)}


def _padded(lists: Sequence[Sequence[Any]], fill: Any) -> NDArray[Any]:
    most = max(map(len, lists))
    return np.array([[*each, *[fill] * (most - len(each))] for each in lists])


def judge_clusters(call: Call) -> Judged:
    """Find as many clusters as there are labels, as mteb does (MiniBatchKMeans, batches of 500)."""
    from sklearn.cluster import MiniBatchKMeans

    n_clusters = int(call.task.labels(call.split).max()) + 1
    latents = call.reader.read(list(call.task.rows(call.split)["text"])).numpy()
    model = MiniBatchKMeans(n_clusters, batch_size=500, n_init="auto", random_state=call.seed)
    return {"v-measure": np.stack([model.fit_predict(each).astype(np.int64) for each in latents])}


def judge_pairs(call: Call) -> Judged:
    """Compare both texts of each pair, against the threshold."""
    rows = call.task.rows(call.split)
    a, b = (call.reader.read(list(rows[column])) for column in call.task.text_columns)
    above = call.reader.paired(a, b).numpy() - call.threshold
    return {
        "average-precision": above,
        "threshold-accuracy": ((above > 0) == (call.task.alike(call.split) == 1)).astype(np.float64),
    }


def judge_bitext(call: Call) -> Judged:
    """Find the nearest text of the other language, in both directions.

    Weighted F1 over texts is the mean of 2 / (n + 1) over texts that are found, `n` being how often their translation
    is the nearest of any.
    """
    rows = call.task.rows(call.split)
    sides = [rows_of(call.reader.cache, list(rows[column])) for column in call.task.text_columns]
    scores, hits = [], []
    for one, other in (sides, sides[::-1]):
        found = call.reader.nearest(call.reader.gather(one), other, 1)[..., 0].numpy()
        n_times = np.stack([np.bincount(layer, minlength=len(one)) for layer in found])
        is_hit = found == np.arange(len(one))
        scores.append(is_hit * 2 / (n_times + 1))
        hits.append(is_hit)
    return {"bitext-f1": np.mean(scores, axis=0), "bitext-accuracy": np.mean(hits, axis=0)}


def judge_odd(call: Call) -> Judged:
    """Answer with the sentence whose word has the largest sum of distances to those of the others (ReBA, A.4)."""
    questions = call.task.marked(call.split)
    flat = call.reader.read([text for question in questions for text in question])
    places = torch.from_numpy(_padded([range(len(question)) for question in questions], -1))
    starts = torch.tensor([0, *map(len, questions[:-1])]).cumsum(0)
    is_real = places >= 0
    words = flat[:, (starts[:, None] + places).clamp(min=0)]
    return {"accuracy": odd_one_out(call.reader.between(words, words), is_real).numpy()}


def odd_one_out(similarities: Float[Tensor, "*L N m m"], is_real: Bool[Tensor, "N m"]) -> Int[Tensor, "*L N"]:
    """Find the one with the smallest sum of similarities to the others, which is the largest sum of distances."""
    m = similarities.shape[-1]
    counts = is_real[:, :, None] & is_real[:, None, :] & ~torch.eye(m, dtype=torch.bool)
    sums = similarities.masked_fill(~counts, 0.0).sum(-1)
    return sums.masked_fill(~is_real, torch.inf).argmin(-1)


def _as_predicted(_: Any, __: str, predicted: NDArray[Any]) -> NDArray[np.float64]:
    return predicted.astype(np.float64)


def _no_scores(_: Any, __: str, predicted: NDArray[Any]) -> NDArray[np.float64]:
    return np.full(len(predicted), np.nan)


def _on_its_side(task: Any, split: str, predicted: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.where(task.alike(split) == 1, predicted, -predicted), np.float64)


def _is_answer(task: Any, split: str, predicted: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(predicted == task.answers(split), np.float64)


def _cluster_names(task: Any, split: str, codes: NDArray[Any]) -> tuple[str, ...]:
    clusters = (f"cluster {k + 1}" for k in range(int(codes.max()) + 1))
    return (*clusters, *sorted(set(task.rows(split)["label"])))  # labels, which are not predicted, for figures


def _answer_names(task: Any, split: str, _: NDArray[Any]) -> tuple[str, ...]:
    return tuple(answer_names(max(map(len, task.rows(split)["sentences"]))))


def _chance_of_answers(task: Any) -> dict[str, dict[str, float]]:
    return {"chance": {s: float(np.mean([1 / len(x) for x in rows["sentences"]])) for s, rows in task.splits.items()}}


@dataclass(frozen=True)
class Judge:
    """What one kind of task makes of latents, and what is kept of it.

    Attributes:
        judge: Judges a split.
        row_scores: Scores single rows from what is predicted of them, higher is better; NaN where a row has none.
        names: Names the codes that are predicted; none where numbers are.
        baselines: Scores without a decoder, by name and split.
        has_seeds: Whether a seed decides what is found.
        has_threshold: Whether a similarity is chosen on validation, above which a pair is alike.
    """

    judge: Callable[[Call], Judged]
    row_scores: Callable[[Any, str, NDArray[Any]], NDArray[np.float64]] = _as_predicted
    names: Callable[[Any, str, NDArray[Any]], tuple[str, ...]] | None = None
    baselines: Callable[[Any], dict[str, dict[str, float]]] = lambda _: {}
    has_seeds: bool = False
    has_threshold: bool = False


JUDGES = {
    "retrieval": Judge(judge_retrieval),
    "reranking": Judge(judge_reranking),
    "clustering": Judge(judge_clusters, _no_scores, _cluster_names, has_seeds=True),
    "pair-classification": Judge(judge_pairs, _on_its_side, has_threshold=True),
    "bitext": Judge(judge_bitext),
    "odd-one-out": Judge(judge_odd, _is_answer, _answer_names, _chance_of_answers),
}
"""Kind of task to its judge."""


def zero_shot_scorer(task: Any, split: str, metric: str) -> UnitScorer:
    """Return how what is judged on a split is scored."""
    groups = task.units(split)
    if metric in ROW_METRICS:
        units = number_units(groups, len(task.rows(split)))
        return mean_scorer(units, metric=metric, unit="rows" if groups is None else "groups")
    if metric == "average-precision":
        return precision_scorer(task.alike(split), groups)
    if metric == "v-measure":
        return cluster_scorer(task.labels(split), groups=groups)
    return class_scorer(task.answers(split), metric=metric, groups=groups)


def best_threshold(similarities: Float[np.ndarray, " N"], is_alike: Bool[np.ndarray, " N"]) -> float:
    """Give the middle of the gap that puts most pairs on their side; of equals the lowest.

    Pairs above it are called alike: all of them, or none, where that is best.
    """
    values = np.unique(similarities)
    cuts = np.concatenate([[values[0] - 1.0], (values[1:] + values[:-1]) / 2, [values[-1] + 1.0]])
    alike, unlike = np.sort(similarities[is_alike]), np.sort(similarities[~is_alike])
    n_right = len(alike) - np.searchsorted(alike, cuts, side="right") + np.searchsorted(unlike, cuts, side="right")
    return float(cuts[int(n_right.argmax())])
