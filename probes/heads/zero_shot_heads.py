"""Heads without fitting: every layer, transform and measure tried on validation, one chosen, test scored once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NoReturn

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from extract.decoders.decoder import Decoder
from extract.errors import HeadError, TaskError
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache
from probes.data.zero_shot_task import answer_names
from probes.heads.context import Setting, Watch
from probes.heads.head_table import HeadOptions, Purpose
from probes.heads.layer_head import Choice, HeadParts, Heads, KindScoring, LayerHead, only_channel, score_texts
from probes.heads.result import HeadResult
from probes.latents.text_latents import Channels, Transform, TransformOptions, fit_transform, no_transform, split_names
from probes.metrics.bootstrap import (
    ROW_METRICS,
    Resampling,
    SeedSummary,
    UnitScorer,
    class_scorer,
    cluster_scorer,
    mean_scorer,
    number_units,
    precision_scorer,
    score_counts,
    summarise,
)
from probes.metrics.class_metrics import average_precision, ndcg, recall, reciprocal_rank

# How alike latents are, at every layer at once, in bounded memory.

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

    def of_documents(self) -> "LayerReader":
        """Return what reads documents."""
        return replace(self, cache=self.documents or self.cache)

    def gather(self, rows: Tensor) -> Float[Tensor, "L N D"]:
        """Gather rows, ready to be compared; HeadError for a latent that is not finite."""
        raw = self.channels.gather(self.cache, rows)
        if not torch.isfinite(raw).all():
            layer = next(name for name, part in zip(self.channels.names, raw, strict=True) if not part.isfinite().all())
            raise HeadError(f"{layer} holds a latent that is NaN or infinite; extract again, with dtype float32.")
        found = self.transform(raw)
        return torch.nn.functional.normalize(found, dim=-1) if self.measure == "cosine" else found

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
        kept = torch.empty(*queries.shape[:2], 0, dtype=torch.int64)
        for start in range(0, len(rows), BLOCK):
            block = self.between(queries, self.gather(rows[start : start + BLOCK]))
            keys = torch.cat([kept, _ordered(block) - torch.arange(start, start + block.shape[2])], dim=2)
            kept = keys.topk(min(n_nearest, keys.shape[2]), dim=2).values
        return (-kept) % (1 << 32)


def _ordered(values: Float[Tensor, "*N"]) -> Int[Tensor, "*N"]:
    """Turn float32 numbers into integers of the same order, with room below for 2^32 places."""
    bits = (values.float() + 0.0).view(torch.int32).long()  # -0.0 becomes 0.0
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) << 32


def rows_of(cache: LatentCache, texts: Sequence[Any]) -> Int[Tensor, " N"]:
    """Find the rows of texts in a cache; HeadError for a marked word without a latent."""
    if not cache.is_words:
        return cache.rows_of(list(texts))
    found = cache.words_of(list(texts))
    if not found.has_latent.all():
        text = texts[int((~found.has_latent).argmax())]
        raise HeadError(
            f"the word at {text.spans[0]} of {text.text[:60]!r} has no latent: it was cut off or has no token; "
            "shorten the sentence."
        )
    return torch.from_numpy(found.positions)


def layer_steps(n_layers: int, n_numbers: int, *, most: int = 1 << 26) -> Iterable[slice]:
    """Cut layers into stretches whose numbers fit in memory."""
    step = max(1, most // max(n_numbers, 1))
    return (slice(start, min(start + step, n_layers)) for start in range(0, n_layers, step))


# What each kind of task without fitting makes of latents: a score, a name or a number for each row, at every layer.

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


@dataclass(frozen=True)
class ZeroShotOptions(TransformOptions):
    """Options of heads without fitting."""

    similarity: str = "cosine"
    """A name from `MEASURES`, or several joined by `+`, of which validation chooses one."""

    def __post_init__(self) -> None:
        """Refuse unknown names and values out of their ranges."""
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


class ZeroShotHead(nn.Module):
    """What was chosen: the transform of one layer, a measure, and for pairs a threshold.

    Args:
        width: Dimension `D` of a latent.
        transform: Name of the transform.
        measure: Name of the measure.
        n_basis: Columns of the transform's basis.
        threshold: The similarity above which a pair is alike; NaN where nothing is decided by one.
    """

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
        """Keep the transform of one layer."""
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

    def forward(self, a: Float[Tensor, "N D"], b: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """Compare raw latents one by one: how far their similarity is above the threshold."""
        a, b = (self.transform(side[None])[0] for side in (a, b))
        if self.measure == "cosine":
            a, b = (nn.functional.normalize(side, dim=-1) for side in (a, b))
        return (-(a - b).norm(dim=-1) if self.measure == "euclidean" else (a * b).sum(-1)) - self.threshold

    def predict(self, a: Float[Tensor, "N D"], b: Float[Tensor, "N D"]) -> NDArray[np.float32]:
        """Compare as `forward` does, outside torch; above 0 is alike."""
        return np.asarray(self(a, b).numpy())

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {
            "width": self.width,
            "transform": self.name,
            "measure": self.measure,
            "n_basis": self.basis.shape[2],
            "threshold": self.threshold,
        }


class SimilarityHead(LayerHead[ZeroShotHead]):
    """A head without fitting: validation chooses layer, transform and measure.

    Clusters are found with every seed, and their scores averaged. Where a row's score is the metric, it is what is
    predicted of the row.
    """

    module = ZeroShotHead
    options: ZeroShotOptions

    def __init__(self, resolved: HeadOptions, setting: Setting) -> None:
        super().__init__(resolved, setting)
        self.judge = JUDGES[self.task.kind]

    @staticmethod
    def check(task: Any, resolved: HeadOptions, purpose: Purpose) -> None:
        """Refuse a task without validation, on which a layer is chosen, or without texts for a transform."""
        del purpose
        if "validation" not in task.splits:
            raise TaskError(
                f"task {task.name!r} has only {' and '.join(task.splits)}; add validation rows, on which head "
                f"{resolved.name!r} chooses a layer."
            )
        if resolved.own[0].transforms != ("none",):
            task.fit_texts()

    @property
    def values(self) -> tuple[str, ...]:
        """The variants."""
        return self.options.names

    @property
    def fit_inputs(self) -> list[Any]:
        """The seeds of clusters."""
        return [list(self.setting.seeds)] if self.judge.has_seeds else []

    def fit(self) -> tuple[ZeroShotHead, Choice, dict[str, Any]]:
        """Score every layer and variant on validation, and keep the best."""
        scorer = zero_shot_scorer(self.task, "validation", self.metric)
        columns = [
            np.mean([scorer.score(rows) for rows in self.curve("validation", variant)], axis=0)
            for variant in self.options.variants
        ]
        choice = Choice.best(np.stack(columns, axis=1))
        channel, (kind, measure) = only_channel(self.channels, choice.layer), self.options.variants[choice.column]
        transform, threshold = self.transform(kind, channel), 0.0
        if self.judge.has_threshold:
            [[similarities]] = self.apply("validation", channel, transform, measure)[self.metric]
            threshold = best_threshold(similarities, self.task.alike("validation") == 1)
        facts = {"is_pairs": self.judge.has_threshold, "score": choice.score}
        return ZeroShotHead.of(transform, measure, threshold), choice, facts

    def curve(self, split: str, variant: tuple[str, str]) -> NDArray[Any]:
        """Judge a split at every layer by the first metric, a few layers at a time: `(S, L, N)`."""
        kind, measure = variant
        width, n_rows = self.setting.cache.width_of(self.channels.layers), self.task.n_compared(split)
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
        cache = self.setting.documents or self.setting.cache
        if name == "none":
            return no_transform(len(channels.names), cache.width_of(channels.layers))
        rows = rows_of(cache, self.task.fit_texts())
        return fit_transform(name, cache, rows, channels=channels, options=self.options)

    def apply(
        self, split: str, channels: Channels, transform: Transform, measure: str, *, threshold: float = 0.0
    ) -> Judged:
        """Judge a split at some layers: metric to `(S, l, N)`, for the seeds of clusters or one."""
        reader = LayerReader(self.setting.cache, channels, transform, measure, self.setting.documents)
        call = Call(self.task, split, reader, threshold=threshold)
        seeds = self.setting.seeds if self.judge.has_seeds else (0,)
        judged = [self.judge.judge(replace(call, seed=seed)) for seed in seeds]
        return {metric: np.stack([by_metric[metric] for by_metric in judged]) for metric in self.task.metrics}

    def predict(self, module: ZeroShotHead, layer: int, split: str) -> Judged:
        """Judge a split by the chosen layer."""
        channel = only_channel(self.channels, layer)
        judged = self.apply(split, channel, module.transform, module.measure, threshold=module.threshold)
        return {metric: rows[:, 0] for metric, rows in judged.items()}

    def summarise(self, split: str, metric: str, predicted: NDArray[Any]) -> SeedSummary:
        """Score what is judged on a split."""
        scorer = zero_shot_scorer(self.task, split, metric)
        return summarise(
            scorer.score(predicted),
            score_counts(scorer.count(predicted), scorer.of_sums),
            n_units=scorer.n_units,
            resampling=Resampling(self.setting.n_resamples),
            is_centred=scorer.is_lifted,
        )

    def row_scores(self, split: str, predicted: NDArray[Any]) -> NDArray[np.float64]:
        """Score rows as their kind of task does."""
        return self.judge.row_scores(self.task, split, predicted)

    def names(self, split: str, predicted: NDArray[Any]) -> tuple[str, ...] | None:
        """Name clusters or answers."""
        return self.judge.names(self.task, split, predicted) if self.judge.names else None

    def baselines(self) -> dict[str, dict[str, float]]:
        """Score the task without a decoder, where its kind can."""
        return self.judge.baselines(self.task)

    def optimistic_because(self) -> str:
        """Nothing is fitted on train."""
        return ""

    def chosen_too(self, module: ZeroShotHead) -> dict[str, Any]:
        """Name the threshold of pairs."""
        return {"threshold": module.threshold} if self.judge.has_threshold else {}


def zero_shot_parts(resolved: HeadOptions, setting: Setting, result: HeadResult, split: str, watch: Watch) -> HeadParts:
    """Judge a split at every layer, by the transform and measure that the run chose."""
    del watch
    head = SimilarityHead(resolved, setting)
    variant = head.options.variants[head.options.names.index(str(result.chosen["kind"]))]
    return HeadParts(
        head.channels.pooling,
        head.channels.names,
        zero_shot_scorer(setting.task, split, result.metric),
        head.curve(split, variant),
        None,
        "the layer's latents compared as in the run",
    )


# Scoring new rows with heads without fitting: pairs of texts; other kinds are scored as whole tasks only.

ALIKE_SCORING = KindScoring(
    score_texts, lambda pair, above: {"above": float(above), "text1": pair[0], "text2": pair[1]}, n_texts=lambda _: 2
)
"""How far the similarity of a pair is above the threshold: above 0 is alike."""


def no_scoring(kind: str) -> KindScoring:
    """Refuse single rows of a kind, which mean nothing without the others."""

    def refuse(heads: Heads, rows: Sequence[Any], decoder: Decoder, spec: ExtractionSpec) -> NoReturn:
        del rows, decoder, spec
        raise HeadError(
            f"head {heads[0].record['name']!r} of a run on {kind} predicts nothing of single rows; write them as a "
            "task and run it, or take their latents with `icecore embed`."
        )

    return KindScoring(refuse, lambda *_: {})
