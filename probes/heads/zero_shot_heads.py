"""Heads without fitting: every layer, transform and measure tried on validation, one chosen, test scored once."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from extract.errors import HeadError, TaskError
from extract.store.cache import LatentCache
from probes.data.zero_shot_task import (
    BitextTask,
    ClusteringTask,
    CorpusTask,
    OddOneOutTask,
    PairClassTask,
    ZeroShotTask,
    answer_names,
)
from probes.heads.head_table import HeadOptions, PlannedRun
from probes.heads.layer_head import Choice, Fitted, HeadParts, LayerHead, Reporter, only_channel
from probes.heads.result import HeadResult, Rows
from probes.latents.text_latents import Channels, Transform, TransformOptions, fit_transform, no_transform, split_names
from probes.metrics.bootstrap import (
    ROW_METRICS,
    UnitScorer,
    class_scorer,
    cluster_scorer,
    mean_scorer,
    number_units,
    precision_scorer,
)
from probes.metrics.prediction_metrics import average_precision, ndcg, recall, reciprocal_rank


@dataclass(frozen=True)
class ZeroShotOptions(TransformOptions):
    """Options of heads without fitting."""

    similarity: str = "cosine"
    """A name from `MEASURES`, or several joined by `+`, of which validation chooses one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        split_names("similarity", self.similarity, MEASURES)

    @property
    def variants(self) -> tuple[tuple[str, str], ...]:
        """Every transform with every measure."""
        return tuple(product(self.transforms, self.similarity.split("+")))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variants in curves: the measure, and the transform before it if there is one."""
        return tuple(measure if name == "none" else f"{name} {measure}" for name, measure in self.variants)


@dataclass(frozen=True)
class ClusterOptions(ZeroShotOptions):
    """Options of the head `layer-clusters`."""

    similarity: str = "euclidean"
    """As mteb: `euclidean` clusters latents as they are, `cosine` scales them to length 1 first."""


@dataclass(frozen=True)
class OddOptions(ZeroShotOptions):
    """Options of the head `layer-odd`."""

    similarity: str = "euclidean+cosine"
    """Both distances of ReBA's appendix A.4; validation chooses."""


MEASURES = {
    "cosine": "cosine of the angle",
    "euclidean": "Euclidean distance, with a minus",
    "dot": "inner product",
}
"""How alike two latents are: higher is nearer."""
BLOCK = 4096
"""Documents compared at once."""


@dataclass(frozen=True, eq=False)
class LayerReader:
    """Reads transformed latents of a few layers."""

    cache: LatentCache
    channels: Channels
    transform: Transform
    measure: str
    documents: LatentCache | None = None
    """Cache of documents, where they are read under another template than queries."""
    threshold: float = 0.0
    """The similarity above which a pair is alike."""

    def of_documents(self) -> "LayerReader":
        """Return the reader of documents."""
        return replace(self, cache=self.documents or self.cache)

    def gather(self, rows: Tensor) -> Float[Tensor, "L N D"]:
        """Gather rows, ready to be compared; HeadError for a latent that is not finite."""
        raw = self.channels.gather(self.cache, rows)
        if not torch.isfinite(raw).all():
            layer = next(name for name, part in zip(self.channels.names, raw, strict=True) if not part.isfinite().all())
            raise HeadError(f"{layer} holds a latent that is NaN or infinite; extract again, with dtype float32.")
        latents = self.transform(raw)
        return nn.functional.normalize(latents, dim=-1) if self.measure == "cosine" else latents

    def read(self, texts: Sequence[Any]) -> Float[Tensor, "L N D"]:
        """Gather the latents of texts, or of sentences with one word each."""
        return self.gather(rows_of(self.cache, texts))

    def between(self, a: Float[Tensor, "*L N D"], b: Float[Tensor, "*L M D"]) -> Float[Tensor, "*L N M"]:
        """Compare every latent with every other."""
        return -torch.cdist(a, b) if self.measure == "euclidean" else a @ b.mT

    def paired(self, a: Float[Tensor, "*#L D"], b: Float[Tensor, "*#L D"]) -> Float[Tensor, "*_"]:
        """Compare latents one by one."""
        return -(a - b).norm(dim=-1) if self.measure == "euclidean" else (a * b).sum(-1)

    def nearest(self, queries: Float[Tensor, "L Q D"], rows: Tensor, n_nearest: int) -> Int[Tensor, "L Q k"]:
        """Find the nearest of many rows, best first, a block at a time; of equals the first in `rows`."""
        best = torch.empty(*queries.shape[:2], 0, dtype=torch.int64)
        for start in range(0, len(rows), BLOCK):
            block = self.between(queries, self.gather(rows[start : start + BLOCK]))
            keys = torch.cat([best, _ordered(block) - torch.arange(start, start + block.shape[2])], dim=2)
            best = keys.topk(min(n_nearest, keys.shape[2]), dim=2).values
        return (-best) % (1 << 32)


def _ordered(values: Float[Tensor, "*N"]) -> Int[Tensor, "*N"]:
    """Turn float32 numbers into integers of the same order, with room below for 2^32 positions."""
    bits = (values.float() + 0.0).view(torch.int32).long()  # -0.0 becomes 0.0
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) << 32


def rows_of(cache: LatentCache, texts: Sequence[Any]) -> Int[Tensor, " N"]:
    """Look up the rows of texts in a cache; HeadError for a marked word without a latent."""
    if not cache.is_words:
        return cache.rows_of(list(texts))
    words = cache.words_of(list(texts))
    if not words.has_latent.all():
        text = texts[int((~words.has_latent).argmax())]
        raise HeadError(
            f"the word at {text.spans[0]} of {text.text[:60]!r} has no latent: it was cut off or has no token; "
            "shorten the sentence."
        )
    return torch.from_numpy(words.positions)


def layer_steps(n_layers: int, n_numbers: int, *, most: int = 1 << 26) -> Iterable[slice]:
    """Cut layers into stretches whose numbers fit in memory."""
    step = max(1, most // max(n_numbers, 1))
    return (slice(start, min(start + step, n_layers)) for start in range(0, n_layers, step))


class ZeroShotHead(nn.Module):
    """The transform of one layer, whose basis has `n_basis` columns, a measure, and for pairs a threshold."""

    compares_texts = True
    mean: Tensor
    scale: Tensor
    basis: Tensor

    def __init__(self, width: int, *, transform: str, measure: str, n_basis: int = 0, threshold: float = 0.0) -> None:
        super().__init__()
        self.width, self.name, self.measure, self.threshold = width, transform, measure, threshold
        self.register_buffer("mean", torch.zeros(1, width))
        self.register_buffer("scale", torch.ones(1, width))
        self.register_buffer("basis", torch.zeros(1, width, n_basis))

    @classmethod
    def of(cls, transform: Transform, measure: str, threshold: float) -> "ZeroShotHead":
        """Make the module from a transform of one layer."""
        basis = transform.basis
        head = cls(
            basis.shape[1], transform=transform.name, measure=measure, n_basis=basis.shape[2], threshold=threshold
        )
        for name in ("mean", "scale", "basis"):
            getattr(head, name).copy_(getattr(transform, name))
        return head.eval()

    @property
    def transform(self) -> Transform:
        """The transform."""
        return Transform(self.name, self.mean, self.scale, self.basis)

    def read_out(self) -> Transform:
        """Return the transform."""
        return self.transform

    def forward(self, a: Float[Tensor, "N D"], b: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """Compare raw latents one by one: how far their similarity is above the threshold."""
        a, b = (self.transform(latents[None])[0] for latents in (a, b))
        if self.measure == "cosine":
            a, b = (nn.functional.normalize(latents, dim=-1) for latents in (a, b))
        return (-(a - b).norm(dim=-1) if self.measure == "euclidean" else (a * b).sum(-1)) - self.threshold

    def predict(self, a: Float[Tensor, "N D"], b: Float[Tensor, "N D"]) -> NDArray[np.float32]:
        """Compare as `forward` does, outside torch; above 0 is alike."""
        return np.asarray(self(a, b).numpy())

    def arguments(self) -> dict[str, object]:
        """Return the constructor's arguments as plain values."""
        return {
            "width": self.width,
            "transform": self.name,
            "measure": self.measure,
            "n_basis": self.basis.shape[2],
            "threshold": self.threshold,
        }


Judged = dict[str, Rows]
"""Metric to what it is computed from: scores of rows, or what is predicted of them."""


class SimilarityHead(LayerHead[ZeroShotHead]):
    """A head without fitting: validation chooses layer, transform and measure. Each kind of task has a subclass."""

    module = ZeroShotHead
    has_seeds: ClassVar[bool] = False
    """Whether a seed decides what is predicted: scores are then averaged over the seeds of the run."""
    has_threshold: ClassVar[bool] = False
    """Whether validation chooses a similarity above which a pair is alike."""
    options: ZeroShotOptions

    @abstractmethod
    def judge(self, split: str, reader: LayerReader) -> Judged:
        """Judge a split at a few layers: metric to `(l, N)`, with seeds `(S, l, N)`."""

    def scorer(self, split: str, metric: str) -> UnitScorer:
        """Return how what is judged on a split is scored, by default the mean of the rows."""
        groups = self.task.units(split)
        units = number_units(groups, len(self.task.rows(split)))
        return mean_scorer(units, metric=metric, unit="rows" if groups is None else "groups")

    @staticmethod
    def check(task: ZeroShotTask, resolved: HeadOptions, planned: PlannedRun) -> None:
        """Refuse a task without validation, on which a layer is chosen, or without texts for a transform."""
        del planned
        if "validation" not in task.splits:
            raise TaskError(
                f"task {task.name!r} has only {' and '.join(task.splits)}; add validation rows, on which head "
                f"{resolved.name!r} chooses a layer."
            )
        if resolved.options.transforms != ("none",):
            task.fit_texts()

    @property
    def values(self) -> tuple[str, ...]:
        """The variants."""
        return self.options.names

    @property
    def fit_inputs(self) -> list[object]:
        """The seeds of clusters."""
        return [list(self.context.seeds)] if self.has_seeds else []

    def fit(self) -> Fitted[ZeroShotHead]:
        """Score every layer and variant on validation, and keep the best."""
        scorer = self.scorer("validation", self.metric)
        columns = [
            np.mean([scorer.score(rows) for rows in self.curve("validation", variant)], axis=0)
            for variant in self.options.variants
        ]
        choice = Choice.best(np.stack(columns, axis=1))
        channel, (kind, measure) = only_channel(self.channels, choice.layer), self.options.variants[choice.column]
        transform, threshold = self.transform(kind, channel), 0.0
        if self.has_threshold:
            [[similarities]] = self.apply("validation", channel, transform, measure)[self.metric]
            threshold = best_threshold(similarities, self.task.labels("validation") == 1)
        facts = {"is_pairs": self.has_threshold, "score": choice.score}
        return ZeroShotHead.of(transform, measure, threshold), choice, facts

    def curve(self, split: str, variant: tuple[str, str]) -> Rows:
        """Judge a split at every layer by the first metric, a few layers at a time: `(S, L, N)`."""
        kind, measure = variant
        width, n_rows = self.context.cache.width_of(self.channels.layers), self.task.n_compared(split)
        n_others = min(max(n_rows, len(getattr(self.task, "corpus", ()))), BLOCK)
        n_numbers = 2 * (n_rows + n_others) * width + n_rows * n_others
        parts = [
            Channels((pooling,), self.channels.layers[part])
            for pooling in self.channels.poolings
            for part in layer_steps(len(self.channels.layers), n_numbers)
        ]
        judged = [self.apply(split, part, self.transform(kind, part), measure)[self.metric] for part in parts]
        return np.concatenate(judged, axis=1)

    def transform(self, name: str, channels: Channels) -> Transform:
        """Fit a transform on the texts that the task has for it."""
        cache = self.context.documents or self.context.cache
        if name == "none":
            return no_transform(len(channels.names), cache.width_of(channels.layers))
        rows = rows_of(cache, self.task.fit_texts())
        return fit_transform(name, cache, rows, channels=channels, options=self.options)

    def apply(
        self, split: str, channels: Channels, transform: Transform, measure: str, *, threshold: float = 0.0
    ) -> Judged:
        """Judge a split at some layers: metric to `(S, l, N)`, for the seeds of clusters or one."""
        reader = LayerReader(self.context.cache, channels, transform, measure, self.context.documents, threshold)
        judged = self.judge(split, reader)
        return {metric: judged[metric] if self.has_seeds else judged[metric][None] for metric in self.task.metrics}

    def predict(self, module: ZeroShotHead, layer: int, split: str) -> Judged:
        """Judge a split by the chosen layer."""
        channel = only_channel(self.channels, layer)
        judged = self.apply(split, channel, module.transform, module.measure, threshold=module.threshold)
        return {metric: rows[:, 0] for metric, rows in judged.items()}

    def parts(self, result: HeadResult, split: str, reporter: Reporter) -> HeadParts:
        """Judge a split at every layer, by the transform and measure that the run chose."""
        del reporter
        variant = self.options.variants[self.options.names.index(str(result.chosen["kind"]))]
        return HeadParts(
            pooling=self.channels.pooling,
            layers=self.channels.names,
            scorer=self.scorer(split, result.metric),
            alone=self.curve(split, variant),
            how="the layer's latents compared as in the run",
        )

    def row_scores(self, split: str, predicted: Rows) -> NDArray[np.float64]:
        """Return what is predicted of the rows, their scores."""
        del split
        return predicted.astype(np.float64)

    def optimistic_because(self) -> str:
        """Nothing is fitted on train."""
        return ""

    def chosen_too(self, module: ZeroShotHead) -> dict[str, object]:
        """Name the threshold of pairs."""
        return {"threshold": module.threshold} if self.has_threshold else {}


def best_threshold(similarities: Float[np.ndarray, " N"], is_alike: Bool[np.ndarray, " N"]) -> float:
    """Give the middle of the gap that puts most pairs on their side, or all of them on one; of equals the lowest."""
    values = np.unique(similarities)
    cuts = np.concatenate([[values[0] - 1.0], (values[1:] + values[:-1]) / 2, [values[-1] + 1.0]])
    alike, unlike = np.sort(similarities[is_alike]), np.sort(similarities[~is_alike])
    n_right = len(alike) - np.searchsorted(alike, cuts, side="right") + np.searchsorted(unlike, cuts, side="right")
    return float(cuts[int(n_right.argmax())])


# The head of each kind of task: a score, a name or a number for each row, at every layer.

DEPTH = 100
"""Documents that are ranked."""


class SearchHead(SimilarityHead):
    """The head `layer-search`: the corpus ranked for each query, but for a document of the query's own name (BEIR)."""

    task: CorpusTask

    def judge(self, split: str, reader: LayerReader) -> Judged:
        """Score the ranking of each query."""
        rows, of_documents = self.task.rows(split), reader.of_documents()
        documents = rows_of(of_documents.cache, self.task.corpus)
        excluded = torch.from_numpy(self.task.own_documents(split))
        nearest = of_documents.nearest(reader.read(list(rows["query"])), documents, DEPTH + 1)
        is_excluded = nearest == excluded[:, None]
        ranked = nearest.gather(2, is_excluded.to(torch.uint8).argsort(dim=2, stable=True))[..., :DEPTH].numpy()
        return score_rankings(self.task, split, ranked)


def score_rankings(task: CorpusTask, split: str, ranked: Int[np.ndarray, "*L Q k"]) -> Judged:
    """Score rankings of the corpus, best first, of each query of a split."""
    rows, n_documents = task.rows(split), len(task.corpus)
    keys = [query * n_documents + np.asarray(part) for query, part in enumerate(rows["documents"])]
    values = [np.asarray(part, np.float64) for part in rows["grades"]]
    key, value = np.concatenate(keys), np.concatenate(values)
    order = np.argsort(key)
    key, value = key[order], value[order]
    ranked_keys = np.arange(len(rows))[:, None] * n_documents + ranked
    at = np.searchsorted(key, ranked_keys).clip(max=len(key) - 1)
    grades = np.where(key[at] == ranked_keys, value[at], 0.0)
    ideal = -np.sort(-padded(rows["grades"], 0.0), axis=1)
    n_relevant = (ideal > 0).sum(1)
    return {
        "ndcg@10": ndcg(grades, ideal, 10),
        "recall@10": recall(grades, n_relevant, 10),
        "recall@100": recall(grades, n_relevant, 100),
    }


class RerankHead(SimilarityHead):
    """The head `layer-rerank`: the candidates of each query ranked; of equals, the one with the higher name first."""

    task: CorpusTask

    def judge(self, split: str, reader: LayerReader) -> Judged:
        """Score the ranking of each query."""
        rows, of_documents = self.task.rows(split), reader.of_documents()
        queries = reader.read(list(rows["query"]))
        candidates, grades = padded(rows["documents"], -1), padded(rows["grades"], 0.0)
        corpus = rows_of(of_documents.cache, self.task.corpus)
        parts = []
        step = max(1, BLOCK // candidates.shape[1])
        for start in range(0, len(candidates), step):
            block = torch.from_numpy(candidates[start : start + step])
            latents = of_documents.gather(corpus[block.clamp(min=0).flatten()])
            latents = latents.reshape(len(latents), *block.shape, -1)
            similarities = reader.paired(queries[:, start : start + step, None], latents)
            parts.append(similarities.masked_fill(block < 0, -torch.inf))  # padding comes last
        order = torch.cat(parts, dim=1).argsort(dim=2, descending=True, stable=True).numpy()
        return score_orders(order, grades)


def score_orders(order: Int[np.ndarray, "*L Q m"], grades: Float[np.ndarray, "Q m"]) -> Judged:
    """Score orders of the candidates of each query, best first."""
    ranked = np.take_along_axis(np.broadcast_to(grades, order.shape), order, axis=-1)
    return {"map": average_precision(ranked, (grades > 0).sum(1)), "mrr": reciprocal_rank(ranked)}


def padded(lists: Sequence[Sequence[Any]], fill: Any) -> Rows:
    """Make lists of unequal length the rows of an array."""
    most = max(map(len, lists))
    return np.array([[*items, *[fill] * (most - len(items))] for items in lists])


class ClusterHead(SimilarityHead):
    """The head `layer-clusters`: as many clusters as labels, as mteb does (MiniBatchKMeans, batches of 500)."""

    task: ClusteringTask

    has_seeds = True

    def judge(self, split: str, reader: LayerReader) -> Judged:
        """Put every text into a cluster."""
        n_clusters = self.n_clusters(split)
        latents = reader.read(list(self.task.rows(split)["text"])).numpy()
        seeds = self.context.seeds
        return {"v-measure": np.stack([[cluster_rows(layer, n_clusters, seed) for layer in latents] for seed in seeds])}

    def n_clusters(self, split: str) -> int:
        """Count the labels of a split."""
        return int(self.task.labels(split).max()) + 1

    def scorer(self, split: str, metric: str) -> UnitScorer:
        """Compare clusters with labels."""
        del metric
        return cluster_scorer(self.task.labels(split), groups=self.task.units(split))

    def row_scores(self, split: str, predicted: Rows) -> NDArray[np.float64]:
        """Return NaN: a text alone is in no wrong cluster."""
        del split
        return np.full(len(predicted), np.nan)

    def names(self, split: str, predicted: Rows) -> tuple[str, ...]:
        """Name the clusters, and for figures the labels, which are not predicted."""
        del predicted
        clusters = (f"cluster {k + 1}" for k in range(self.n_clusters(split)))
        return (*clusters, *sorted(set(self.task.rows(split)["label"])))


def cluster_rows(rows: Any, n_clusters: int, seed: int) -> Int[np.ndarray, " N"]:
    """Put rows, which may be sparse, into clusters numbered from 0."""
    from sklearn.cluster import MiniBatchKMeans

    model = MiniBatchKMeans(n_clusters, batch_size=500, n_init="auto", random_state=seed)
    return np.asarray(model.fit_predict(rows), np.int64)


class AlikeHead(SimilarityHead):
    """The head `layer-alike`: pairs by their similarity, against a threshold."""

    task: PairClassTask

    has_threshold = True

    def judge(self, split: str, reader: LayerReader) -> Judged:
        """Compare both texts of each pair."""
        a, b = (reader.read(list(self.task.rows(split)[column])) for column in self.task.text_columns)
        above = reader.paired(a, b).numpy() - reader.threshold
        is_right = (above > 0) == (self.task.labels(split) == 1)
        return {"average-precision": above, "threshold-accuracy": is_right.astype(np.float64)}

    def scorer(self, split: str, metric: str) -> UnitScorer:
        """Rank pairs by their similarity, or count those on the right side of the threshold."""
        if metric in ROW_METRICS:
            return super().scorer(split, metric)
        return precision_scorer(self.task.labels(split), self.task.units(split))

    def row_scores(self, split: str, predicted: Rows) -> NDArray[np.float64]:
        """Score a pair by how far it is on its side of the threshold."""
        return np.asarray(np.where(self.task.labels(split) == 1, predicted, -predicted), np.float64)


class TranslateHead(SimilarityHead):
    """The head `layer-translate`: the nearest text of the other language, in both directions.

    Weighted F1 is the mean of 2 / (n + 1) over texts that are found, the nearest of `n` texts.
    """

    task: BitextTask

    def judge(self, split: str, reader: LayerReader) -> Judged:
        """Score every text, the mean of both directions."""
        rows = [rows_of(reader.cache, list(self.task.rows(split)[column])) for column in self.task.text_columns]
        return score_translations(
            *(reader.nearest(reader.gather(a), b, 1)[..., 0].numpy() for a, b in (rows, rows[::-1]))
        )


def score_translations(*nearest: Int[np.ndarray, "*L N"]) -> Judged:
    """Score the nearest text that was found for each text, in both directions."""
    scores, hits = [], []
    for found in nearest:
        n_rows = found.shape[-1]
        n_times = np.apply_along_axis(np.bincount, -1, found, minlength=n_rows)
        is_hit = found == np.arange(n_rows)
        scores.append(is_hit * 2 / (n_times + 1))
        hits.append(is_hit)
    return {"bitext-f1": np.mean(scores, axis=0), "bitext-accuracy": np.mean(hits, axis=0)}


class OddHead(SimilarityHead):
    """The head `layer-odd`: the sentence whose word has the largest sum of distances to the others (ReBA, A.4)."""

    task: OddOneOutTask

    def judge(self, split: str, reader: LayerReader) -> Judged:
        """Answer every question."""
        questions = self.task.marked(split)
        flat = reader.read([text for question in questions for text in question])
        positions = torch.from_numpy(padded([range(len(question)) for question in questions], -1))
        starts = torch.tensor([0, *map(len, questions[:-1])]).cumsum(0)
        words = flat[:, (starts[:, None] + positions).clamp(min=0)]
        return {"accuracy": odd_one_out(reader.between(words, words), positions >= 0).numpy()}

    def scorer(self, split: str, metric: str) -> UnitScorer:
        """Compare answers with the right ones."""
        return class_scorer(self.task.answers(split), metric=metric, groups=self.task.units(split))

    def row_scores(self, split: str, predicted: Rows) -> NDArray[np.float64]:
        """Score 1 for the right answer."""
        return np.asarray(predicted == self.task.answers(split), np.float64)

    def names(self, split: str, predicted: Rows) -> tuple[str, ...]:
        """Name the answers."""
        del predicted
        return tuple(answer_names(max(map(len, self.task.rows(split)["sentences"]))))

    def baselines(self) -> dict[str, dict[str, float]]:
        """Score an answer by chance."""
        splits = self.task.splits.items()
        return {"chance": {split: float(np.mean([1 / len(x) for x in rows["sentences"]])) for split, rows in splits}}


def odd_one_out(similarities: Float[Tensor, "*L N m m"], is_real: Bool[Tensor, "N m"]) -> Int[Tensor, "*L N"]:
    """Find the one with the smallest sum of similarities to the others, which is the largest sum of distances."""
    m = similarities.shape[-1]
    counts = is_real[:, :, None] & is_real[:, None, :] & ~torch.eye(m, dtype=torch.bool)
    sums = similarities.masked_fill(~counts, 0.0).sum(-1)
    return sums.masked_fill(~is_real, torch.inf).argmin(-1)
