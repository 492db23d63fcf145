"""The geometry of every layer of a cache as a tidy frame; for pairs also how far cosine follows gold."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.special import entr
from scipy.stats import t
from threadpoolctl import threadpool_limits

from extract.decoders.decoder_spec import Layers, relative_depths, select_from
from extract.errors import CacheError, ConfigError, TaskError, require_name, unknown_name
from extract.inputs.joined_text import JoinedText
from extract.store.cache import LatentCache, open_cache
from probes.data.pair_task import PairTask
from probes.data.task import Task
from probes.metrics.bootstrap import DEFAULT, Resampling, summarise_seeds
from probes.metrics.prediction_metrics import CORRELATIONS

if TYPE_CHECKING:
    import pandas as pd


# Intrinsic dimension from the two nearest neighbours of every point (Facco et al. 2017).

N_NEAREST = 12
"""Neighbours that are kept, so that two are left where a tenth of the points is left out."""
FEWEST_POINTS = 30
"""Distinct points that a dimension is estimated from at least."""
BLOCK = 512
"""Points whose distances are in memory at once."""


class Neighbours(NamedTuple):
    """The nearest neighbours of distinct points, the nearest first."""

    points: Int[np.ndarray, " M"]
    """The row of each point; of equal rows the first is kept."""
    nearest: Int[np.ndarray, "M K"]
    """Places in `points`."""
    distances: Float[np.ndarray, "M K"]


def _as_values(rows: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return each row of numbers as one value, to look for equal ones."""
    whole = np.ascontiguousarray(rows)
    return whole.view(np.dtype((np.void, whole.itemsize * whole.shape[1]))).ravel()


def find_neighbours(x: Float[np.ndarray, "N D"], *, n_nearest: int = N_NEAREST) -> Neighbours:
    """Find the nearest neighbours of every distinct row by Euclidean distance."""
    _, first = np.unique(_as_values(x + 0), return_index=True)  # -0 is 0
    points = np.sort(first)
    rows = x[points].astype(np.float64)
    rows -= rows.mean(axis=0)
    squares = np.square(rows).sum(axis=1)
    k = min(n_nearest, len(rows) - 1)
    nearest = np.empty((len(rows), k), np.int64)
    distances = np.empty((len(rows), k))
    for start in range(0, len(rows), BLOCK) if k > 0 else ():
        block = slice(start, start + BLOCK)
        apart = squares - 2 * rows[block] @ rows.T  # squared distances, but for a constant of each row
        apart[np.arange(len(apart)), np.arange(start, start + len(apart))] = np.inf
        candidates = np.argpartition(apart, k - 1, axis=1)[:, :k]
        # Differences are exact where those of squares would have cancelled.
        exact = np.stack([np.linalg.norm(rows[block] - rows[column], axis=1) for column in candidates.T], axis=1)
        order = np.argsort(exact, axis=1)
        nearest[block] = np.take_along_axis(candidates, order, axis=1)
        distances[block] = np.take_along_axis(exact, order, axis=1)
    return Neighbours(points, nearest, distances)


def two_nn(near: Neighbours, *, keep: Bool[np.ndarray, " M"] | None = None) -> float:
    """Estimate the intrinsic dimension from the ratio of the distances to the second and the first neighbour."""
    is_used = np.ones(len(near.points), np.bool_) if keep is None else keep
    if np.count_nonzero(is_used) < FEWEST_POINTS:
        return float("nan")
    order = np.argsort(~is_used[near.nearest], axis=1, kind="stable")[:, :2]  # used neighbours come first
    first, second = np.take_along_axis(near.distances, order, axis=1)[is_used].T
    logs = np.sort(np.log(second / first))
    return float(len(logs) / logs.sum()) if logs.sum() else float("nan")


# Measures of a cloud of latents: directions, norms, massive dimensions, and how many dimensions it fills.

N_GROUPS = 10
"""Groups of rows that intervals leave out in turn."""
MASSIVE = 10.0
"""How many times the median a dimension's mean magnitude is above which the dimension is called massive."""
CONFIDENCE = 0.95
Measured = dict[str, float]
"""Measure to value."""
Points = Float[np.ndarray, "N D"]
Groups = Int[np.ndarray, " N"]
"""The group of each row; intervals leave out one after the other."""


class Estimate(NamedTuple):
    """A value with its interval, NaN where it has none."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


@dataclass(frozen=True)
class Measure:
    """A measure of the geometry: how it is labelled, and the unit of its axis."""

    label: str
    unit: str
    family: str
    """What it is computed with, a key of `FAMILIES`."""
    is_log: bool = False
    """Whether a figure needs a logarithmic scale."""
    has_interval: bool = True
    """Whether leaving out rows gives an interval: not of counts and quantiles, which move in steps."""


MEASURES = {
    "mean-cosine": Measure("mean cosine of two rows", "cosine", "cosine"),
    "norm": Measure("mean norm", "Euclidean norm", "norm", is_log=True),
    "norm-q05": Measure("norm, 5 % quantile", "Euclidean norm", "norm", is_log=True, has_interval=False),
    "norm-median": Measure("norm, median", "Euclidean norm", "norm", is_log=True, has_interval=False),
    "norm-q95": Measure("norm, 95 % quantile", "Euclidean norm", "norm", is_log=True, has_interval=False),
    "massive-dimensions": Measure("massive dimensions", "number of dimensions", "massive", has_interval=False),
    "massive-share": Measure("massive dimensions, share", "share of squared norm", "massive"),
    "effective-rank": Measure("effective rank", "dimensions", "rank"),
    "participation-ratio": Measure("participation ratio", "dimensions", "rank"),
    "intrinsic-dimension": Measure("intrinsic dimension (TwoNN)", "dimensions", "dimension"),
}
"""Every measure of one layer, in the order of tables and figures."""


def mean_cosine(x: Points) -> Measured:
    """Return the mean cosine over all pairs of different rows; 0 is isotropic (Ethayarajh 2019)."""
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    total = np.divide(x, norms, out=np.zeros_like(x), where=norms > 0).sum(axis=0)
    n = len(x)
    return {"mean-cosine": float((total @ total - np.count_nonzero(norms)) / (n * (n - 1)))}


def norm_profile(x: Points) -> Measured:
    """Return mean, median and outer quantiles of the Euclidean norms of the rows."""
    norms = np.linalg.norm(x, axis=1)
    low, middle, high = np.quantile(norms, [0.05, 0.5, 0.95])
    return {"norm": float(norms.mean()), "norm-q05": float(low), "norm-median": float(middle), "norm-q95": float(high)}


def massive_dimensions(x: Points, *, multiple: float = MASSIVE) -> Int[np.ndarray, " M"]:
    """Find the dimensions whose mean magnitude exceeds `multiple` times the median of all dimensions."""
    magnitude = np.abs(x).mean(axis=0)
    return np.flatnonzero(magnitude > multiple * np.median(magnitude))


def massive_share(x: Points) -> Measured:
    """Count massive dimensions, and give their share of the squared norm of all rows (Sun et al. 2024)."""
    massive = massive_dimensions(x)
    squares = np.square(x).sum(axis=0)
    return {"massive-dimensions": float(len(massive)), "massive-share": float(squares[massive].sum() / squares.sum())}


def ranks(x: Points) -> Measured:
    """Return effective rank and participation ratio of the centred rows.

    The effective rank is exp(entropy) of the singular values over their sum (Roy and Vetterli 2007); the participation
    ratio is the squared sum of the variances of the principal components over the sum of their squares.
    """
    centred = x - x.mean(axis=0)
    return _ranks_of(centred.T @ centred if x.shape[0] >= x.shape[1] else centred @ centred.T)


def _ranks_of(gram: Float[np.ndarray, "K K"]) -> Measured:
    variances = np.linalg.eigvalsh(gram).clip(min=0)
    if not variances.sum():
        return {"effective-rank": float("nan"), "participation-ratio": float("nan")}
    shares = np.sqrt(variances) / np.sqrt(variances).sum()
    entropy = float(entr(shares).sum())
    ratio = float(variances.sum() ** 2 / np.square(variances).sum())
    return {"effective-rank": float(np.exp(entropy)), "participation-ratio": ratio}


def _ranks_without(x: Points, groups: Groups) -> list[Measured]:
    """Compute `ranks` of all rows and without each group, from one Gram matrix where rows outnumber dimensions."""
    parts = [groups == number for number in np.unique(groups)]
    if x.shape[0] < x.shape[1]:
        return [ranks(x), *(ranks(x[~part]) for part in parts)]
    centred = x - x.mean(axis=0)
    gram = centred.T @ centred
    measured = [_ranks_of(gram)]
    for part in parts:
        rows, total = centred[part], centred[part].sum(axis=0)
        measured.append(_ranks_of(gram - rows.T @ rows - np.outer(total, total) / np.count_nonzero(~part)))
    return measured


def _dimension_without(x: Points, groups: Groups) -> list[Measured]:
    """Estimate the intrinsic dimension of all rows and without each group, from one search for neighbours."""
    near = find_neighbours(x)
    masks = [np.ones(len(x), np.bool_), *(groups != number for number in np.unique(groups))]
    return [{"intrinsic-dimension": two_nn(near, keep=mask[near.points])} for mask in masks]


def _without(measure: Callable[[Points], Measured]) -> Callable[[Points, Groups], list[Measured]]:
    """Return what computes a measure of all rows and without each group."""
    return lambda x, groups: [measure(x), *(measure(x[groups != number]) for number in np.unique(groups))]


FAMILIES: Mapping[str, Callable[[Points, Groups], list[Measured]]] = {
    "cosine": _without(mean_cosine),
    "norm": _without(norm_profile),
    "massive": _without(massive_share),
    "rank": _ranks_without,
    "dimension": _dimension_without,
}
"""What computes each family of measures: of all rows, and without each group of rows."""


def jackknife(value: float, without: Float[np.ndarray, " G"]) -> Estimate:
    """Return a value with its interval: Student's t on the spread of the values without each of `G` groups of rows.

    This is the delete-a-group jackknife (Kott 2001). There is no interval where a value is NaN.
    """
    n = len(without)
    error = np.sqrt((n - 1) / n * np.square(without - without.mean()).sum())
    half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1) * error)
    return Estimate(value, value - half, value + half)


def measure_rows(x: Float[np.ndarray, "N D"], groups: Groups, families: Iterable[str]) -> dict[str, Estimate]:
    """Measure rows by every family; intervals follow from leaving out each of the `groups` of rows in turn."""
    points = x.astype(np.float64)
    estimates: dict[str, Estimate] = {}
    for family in families:
        whole, *parts = FAMILIES[family](points, groups)
        for name, value in whole.items():
            without = np.array([part[name] for part in parts])
            estimates[name] = jackknife(value, without) if MEASURES[name].has_interval else Estimate(value)
    return estimates


# Which latents of a cache the geometry looks at: a seeded sample, in groups of whole texts, and where layers are.

WHERE = ("cache", "decoder", "plan", "pooling", "layer", "depth")
"""Columns that say which layer a row of a frame is of."""
Texts = Sequence[str] | Sequence[JoinedText]
FEWEST_ROWS = 3 * N_GROUPS
"""Rows that a geometry takes at least, so that every group has some."""


@dataclass(frozen=True, eq=False)
class Sample:
    """A sample of the latents of a cache: their rows in ascending order, and the group of each, for intervals."""

    cache: LatentCache
    rows: Int[np.ndarray, " N"]
    groups: Int[np.ndarray, " N"]
    is_standardised: bool = False
    """Whether every dimension is brought to mean 0 and variance 1 over the drawn latents."""

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, pooling: str, layer: str) -> Float[np.ndarray, "N D"]:
        """Read one layer of the drawn latents."""
        latents: NDArray[np.float32] = self.cache.gather(self.rows, pooling, layers=[layer])[0].numpy()
        if self.is_standardised:
            mean, scale = latents.mean(axis=0, dtype=np.float64), latents.std(axis=0, dtype=np.float64)
            latents = ((latents - mean) / np.where(scale > 0, scale, 1)).astype(np.float32)
        return latents

    def describe(self, pooling: str, layer: str) -> dict[str, object]:
        """Name a layer in the columns `WHERE` of a frame."""
        return {
            "cache": self.cache.path.stem,
            "decoder": str(self.cache.manifest.provenance["decoder"]["name"]),
            "plan": self.cache.plan_of(pooling),
            "pooling": pooling,
            "layer": layer,
            "depth": self._depths[layer],
        }

    @cached_property
    def _depths(self) -> dict[str, float]:
        names = self.cache.layers
        depths = relative_depths(names, int(self.cache.identity.decoder["n_layers"]))
        return dict(zip(names, depths, strict=True))


def draw_sample(
    cache: LatentCache, *, texts: Texts = (), most_rows: int, seed: int, standardise: bool = False
) -> Sample:
    """Draw latents of a cache, or of some of its texts; all where there are no more. Words without one are left out."""
    is_wanted = np.zeros(len(cache.has_latent), np.bool_)
    is_wanted[_rows_of(cache, texts) if texts else slice(None)] = True
    [rows] = np.nonzero(is_wanted & cache.has_latent)
    return replace(_draw(cache, rows, cache.keys[rows], most_rows, seed), is_standardised=standardise)


def _rows_of(cache: LatentCache, texts: Texts) -> Int[np.ndarray, " P"]:
    if cache.is_words:
        return cache.words_of([text for text in texts if isinstance(text, JoinedText)]).positions
    return np.asarray(cache.rows_of([text for text in texts if isinstance(text, str)]).numpy())


def draw_shared(
    one: LatentCache, other: LatentCache, *, most_rows: int, seed: int, standardise: bool = False
) -> tuple[Sample, Sample]:
    """Draw latents of the texts, or words of texts, that two caches share: row by row of the same."""
    keys, others = (_as_values(cache.keys) for cache in (one, other))
    _, rows, other_rows = np.intersect1d(keys, others, return_indices=True)
    both = one.has_latent[rows] & other.has_latent[other_rows]
    rows, other_rows = rows[both], other_rows[both]
    if len(rows) < FEWEST_ROWS:
        noun = "words" if one.is_words else "texts"
        raise CacheError(
            f"caches {one.path.name!r} and {other.path.name!r} share {len(rows)} {noun}; needed: {FEWEST_ROWS} or "
            "more. Compare caches of the same texts, or of the same words."
        )
    sample = replace(_draw(one, rows, one.keys[rows], most_rows, seed), is_standardised=standardise)
    order = np.argsort(rows)
    partners = other_rows[order][np.searchsorted(rows[order], sample.rows)]
    return sample, replace(sample, cache=other, rows=partners)


def choose_poolings(cache: LatentCache, pooling: str) -> tuple[str, ...]:
    """Return the pooling asked for, all of the cache where none is; UnknownNameError for one that it lacks."""
    if pooling and pooling not in cache.poolings:
        raise unknown_name("pooling", pooling, cache.poolings, hint="Extract it, or choose one that is there.")
    return (pooling,) if pooling else cache.poolings


def _draw(
    cache: LatentCache, rows: Int[np.ndarray, " P"], keys: NDArray[np.uint64], most_rows: int, seed: int
) -> Sample:
    if min(len(rows), most_rows) < FEWEST_ROWS:
        raise CacheError(
            f"{min(len(rows), most_rows)} latents of cache {cache.path.name!r} would be drawn; needed: "
            f"{FEWEST_ROWS} or more, for most_rows too."
        )
    rng = np.random.default_rng(seed)
    drawn = np.sort(rng.permutation(len(rows))[:most_rows])
    _, texts = np.unique(keys[drawn, :2], axis=0, return_inverse=True)
    if not texts.any():
        raise CacheError(
            f"all {len(drawn)} words of cache {cache.path.name!r} that would be drawn are of one text; needed: words "
            "of two texts or more, which intervals leave out in turn."
        )
    turn = rng.permutation(texts.max() + 1) % N_GROUPS  # words of a text go together
    return Sample(cache, rows[drawn], turn[texts.ravel()])


MOST_ROWS = 2000
"""Rows that a layer is measured on."""
MOST_THREADS = 4
"""Layers measured at once; each takes a few times the memory of its rows."""
GEOMETRY_COLUMNS = (*WHERE, "measure", "value", "low", "high", "n_rows")


def measure_geometry(
    cache: LatentCache | str | Path,
    *,
    measures: Iterable[str] = (),
    texts: Texts = (),
    pooling: str = "",
    layers: Layers = "all",
    most_rows: int = MOST_ROWS,
    seed: int = 0,
    standardise: bool = False,
) -> "pd.DataFrame":
    """Measure the geometry of every layer of a cache, of texts or of words; no decoder is needed.

    All layers are measured on the same rows, a few at a time.

    Args:
        cache: A cache, or its path.
        measures: Keys of `probes.layers.geometry.MEASURES`; all when empty.
        texts: Texts to measure on; all of the cache when empty. Of pairs give one text each: the intrinsic dimension
            reads far too low where the nearest neighbour of a text is its own paraphrase.
        pooling: A pooling of the cache; each of them when empty.
        layers: A selection of its layers.
        most_rows: Rows to measure on, drawn with `seed`; bounds time and memory.
        seed: Seed of the draw.
        standardise: Whether to give every dimension mean 0 and variance 1 first, as heads that standardise do.

    Returns:
        A row per pooling, layer and measure, with the columns `GEOMETRY_COLUMNS`. `depth` is relative: 0 the embedding,
        1 the final norm. `low` to `high` is a 95 % interval from a jackknife over ten groups of texts, missing for
        counts and quantiles. What each measure is: docs/statistics.md.

    Raises:
        CacheError: A file that cannot be read as a cache, or too few rows.
        UnknownNameError: A measure, pooling or layer that is not there.

    Example:
        >>> table = measure_geometry("caches/demo.h5", measures=["norm"])  # doctest: +SKIP
        >>> table.pivot(index="layer", columns="measure", values="value")  # doctest: +SKIP
    """
    import pandas as pd

    selected = list(measures) or list(MEASURES)
    for name in selected:
        require_name("measure", name, MEASURES)
    families = list(dict.fromkeys(MEASURES[name].family for name in selected))
    opened = open_cache(cache)
    sample = draw_sample(opened, texts=texts, most_rows=most_rows, seed=seed, standardise=standardise)

    def measure(channel: tuple[str, str]) -> list[dict[str, object]]:
        estimates = measure_rows(sample.read(*channel), sample.groups, families)
        return [_row(sample, *channel, name, estimates[name]) for name in MEASURES if name in selected]

    names = select_from(layers, opened.layers)
    channels = [(name, layer) for name in choose_poolings(opened, pooling) for layer in names]
    # One BLAS thread each: eigenvalues of small matrices get slower with more.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        rows = [row for channel_rows in pool.map(measure, channels) for row in channel_rows]
    return pd.DataFrame(rows, columns=list(GEOMETRY_COLUMNS))


def cosine_with_gold(
    cache: LatentCache | str | Path,
    task: Task,
    *,
    split: str = "validation",
    metric: str = "pearson",
    pooling: str = "",
    layers: Layers = "all",
    resampling: Resampling = DEFAULT,
) -> "pd.DataFrame":
    """Correlate the cosine of pairs with gold at every layer (FREEZE Figure 1); nothing is fitted.

    Args:
        cache: A cache that holds every text of the split, or its path.
        task: The pairs.
        split: The split of the task.
        metric: `pearson` or `spearman`, which names the measure, as `gold-pearson`.
        pooling: A pooling of the cache; each of them when empty.
        layers: A selection of its layers.
        resampling: The bootstrap behind the intervals, of pairs, or of groups where the task has them.

    Returns:
        A row per pooling and layer, with the columns of `measure_geometry`; `n_rows` counts pairs.

    Raises:
        TaskError: The task has no pairs.
        CacheError: A text that the cache does not hold.
        UnknownNameError: A split, metric, pooling or layer that is not there.
    """
    import pandas as pd

    require_pairs(task)
    require_name("metric", metric, CORRELATIONS)
    opened, part = open_cache(cache), task.rows(split)
    sides = [opened.rows_of(list(part[column])).numpy() for column in ("sentence1", "sentence2")]
    sample = Sample(opened, np.concatenate(sides), np.zeros(2 * len(part), np.int64))
    gold, groups = np.array(cast("PairTask", task).gold01(split)), task.units(split)
    rows = []
    for name in choose_poolings(opened, pooling):
        for layer in select_from(layers, opened.layers):
            one, other = np.split(sample.read(name, layer).astype(np.float64), 2)
            lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
            cosines = np.divide((one * other).sum(axis=1), lengths, out=np.zeros(len(one)), where=lengths > 0)
            summary = summarise_seeds(cosines[None], gold, metric=metric, groups=groups, resampling=resampling)
            estimate = Estimate(summary.mean, summary.low, summary.high)
            rows.append({**_row(sample, name, layer, f"gold-{metric}", estimate), "n_rows": len(gold)})
    return pd.DataFrame(rows, columns=list(GEOMETRY_COLUMNS))


def require_pairs(task: Task) -> None:
    """Refuse a task that is not one of pairs."""
    if task.kind != "pairs":
        raise TaskError(f"task {task.name!r} is one of {task.kind}; allowed: pairs, which have a gold similarity.")


def _row(sample: Sample, pooling: str, layer: str, measure: str, estimate: Estimate) -> dict[str, object]:
    return {**sample.describe(pooling, layer), "measure": measure, **estimate._asdict(), "n_rows": len(sample)}


# How alike layers are: linear CKA with the unbiased estimator of HSIC, of one cache or between two.

MOST_SHARED = 1000
"""Rows that layers are compared on; memory is eight bytes per layer and pair of rows."""
SIMILARITY_COLUMNS = (*WHERE, *(f"other_{name}" for name in WHERE), "value", "low", "high", "n_rows")


def kernel(x: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N N"]:
    """Return the linear kernel of centred rows, of mean square 1 on the diagonal."""
    centred = x - x.mean(axis=0, dtype=np.float64)
    scale = np.sqrt(np.square(centred).sum() / len(x))
    centred = centred / scale if scale else centred
    return np.asarray((centred @ centred.T).astype(np.float32))


def unit_kernel(products: Float[np.ndarray, "N N"]) -> Float[np.ndarray, " P"]:
    """Centre a kernel so that products of two are unbiased, and return it flat, of norm 1.

    The inner product of two of them is debiased linear CKA: the unbiased HSIC of Song et al. (2012) over the
    geometric mean of both HSIC of the layers with themselves (Kornblith et al. 2019; Nguyen et al. 2021). It is written
    as the inner product of U-centred kernels (Szekely and Rizzo 2014). NaN for a layer that does not vary.
    """
    n = len(products)
    wide = products.astype(np.float64)
    np.fill_diagonal(wide, 0)
    means = wide.sum(axis=1) / (n - 2)
    wide -= means[:, None] + means - means.sum() / (n - 1)
    np.fill_diagonal(wide, 0)
    norm = np.linalg.norm(wide)
    flat: Float[np.ndarray, " P"] = (wide / norm if norm > 1e-9 * n else np.full_like(wide, np.nan)).astype(np.float32)
    return flat.ravel()


def linear_cka(x: Float[np.ndarray, "N D"], y: Float[np.ndarray, "N E"]) -> float:
    """Return debiased linear CKA of the same rows in two layers: 1 for rotated copies, about 0 for unrelated ones.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> round(linear_cka(x, 3 * x[:, ::-1]), 5)
        1.0
    """
    return float(unit_kernel(kernel(x)) @ unit_kernel(kernel(y)))


def similarity_of_layers(
    cache: LatentCache | str | Path,
    other: LatentCache | str | Path | None = None,
    *,
    pooling: str = "",
    other_pooling: str = "",
    layers: Layers = "all",
    most_rows: int = MOST_SHARED,
    seed: int = 0,
    standardise: bool = False,
) -> "pd.DataFrame":
    """Compare every two layers of a cache, or every layer of one with every layer of another, by debiased linear CKA.

    Args:
        cache: A cache of texts or of words, or its path.
        other: A second one, of another plan or decoder; rows of the same text, or of the same word of a text, are
            matched.
        pooling: Pooling of `cache`; its first when empty.
        other_pooling: Pooling of `other`; as `pooling` where `other` has it, else its first, when empty.
        layers: A selection of layers, of both.
        most_rows: Rows to compare on, drawn with `seed`.
        seed: Seed of the draw.
        standardise: Whether to give every dimension the same variance first, so that no massive one decides.

    Returns:
        A row per pair of layers, with the columns `SIMILARITY_COLUMNS`; the 95 % interval is that of a jackknife over
        ten groups of texts. A layer whose rows are all equal has no value.

    Raises:
        CacheError: A file that cannot be read as a cache, or too few rows, shared ones where there are two caches.
        ConfigError: A cache of words and one of texts.
        UnknownNameError: A pooling or layer that a cache does not have.

    Example:
        >>> table = similarity_of_layers("caches/demo.h5")  # doctest: +SKIP
        >>> table.pivot(index="layer", columns="other_layer", values="value")  # doctest: +SKIP
    """
    import pandas as pd

    first, second = open_cache(cache), None if other is None else open_cache(other)
    poolings = [choose_poolings(first, pooling)[0]]
    if second is None:
        samples = [draw_sample(first, most_rows=most_rows, seed=seed, standardise=standardise)]
    else:
        if first.is_words != second.is_words:
            raise ConfigError(
                f"caches {first.path.name!r} and {second.path.name!r} hold latents of words and of whole texts; "
                "compare caches of one kind."
            )
        samples = list(draw_shared(first, second, most_rows=most_rows, seed=seed, standardise=standardise))
        same = poolings[0] if poolings[0] in second.poolings else ""
        poolings.append(choose_poolings(second, other_pooling or same)[0])
    names = [select_from(layers, sample.cache.layers) for sample in samples]
    kernels = [
        [kernel(sample.read(pooling, name)) for name in chosen]
        for sample, pooling, chosen in zip(samples, poolings, names, strict=True)
    ]
    values, without = _all_cka(kernels, samples[0].groups)
    rows = []
    for i, name in enumerate(names[0]):
        for j, other_name in enumerate(names[-1]):
            there = samples[-1].describe(poolings[-1], other_name)
            rows.append(
                {
                    **samples[0].describe(poolings[0], name),
                    **{f"other_{key}": value for key, value in there.items()},
                    **jackknife(float(values[i, j]), without[:, i, j])._asdict(),
                    "n_rows": len(samples[0]),
                }
            )
    return pd.DataFrame(rows, columns=list(SIMILARITY_COLUMNS))


def _all_cka(
    kernels: Sequence[Sequence[Float[np.ndarray, "N N"]]], groups: Int[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "L M"], Float[np.ndarray, "G L M"]]:
    """Compare every layer of the first list with every layer of the last, on all rows and without each group."""
    similarities = []
    for number in (-1, *np.unique(groups)):
        rest = np.flatnonzero(groups != number)
        units = [np.stack([unit_kernel(layer[np.ix_(rest, rest)]) for layer in part]) for part in kernels]
        similarities.append(units[0] @ units[-1].T)
    return similarities[0].astype(np.float64), np.stack(similarities[1:]).astype(np.float64)
