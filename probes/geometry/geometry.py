"""The geometry of every layer of a cache as a tidy frame; for pairs also how far cosine follows gold."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from extract.decoders.layers import select_from
from extract.errors import TaskError, unknown_name
from extract.store.cache import LatentCache
from extract.store.shards.cache import open_cache
from probes.geometry.measures import MEASURES, Estimate, measure_rows
from probes.geometry.sample import WHERE, Sample, Texts, choose_poolings, draw_sample
from probes.metrics.bootstrap import DEFAULT, Resampling
from probes.metrics.correlation import CORRELATIONS
from probes.metrics.intervals import resample_correlations
from probes.tasks import PairTask
from probes.tasks.base import Task

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 2000
"""Rows that a layer is measured on."""
MOST_THREADS = 4
"""Layers measured at once; each takes a few times the memory of its rows."""
GEOMETRY_COLUMNS = (*WHERE, "measure", "value", "low", "high", "n_rows")


def measure_geometry(
    cache: LatentCache | str | Path, *, measures: Iterable[str] = (), texts: Texts = (), pooling: str = "",
    layers: str | int | Iterable[str | int] = "all", most_rows: int = MOST_ROWS, seed: int = 0,
    standardise: bool = False,
) -> "pd.DataFrame":  # fmt: skip
    """Measure the geometry of every layer of a cache, of texts or of words; no decoder is needed.

    All layers are measured on the same rows, a few at a time.

    Args:
        cache: A cache, or its path.
        measures: Keys of `probes.geometry.measures.MEASURES`; all when empty.
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

    wanted = list(measures) or list(MEASURES)
    for name in wanted:
        if name not in MEASURES:
            raise unknown_name("measure", name, MEASURES)
    families = list(dict.fromkeys(MEASURES[name].family for name in wanted))
    opened = open_cache(cache)
    sample = draw_sample(opened, texts=texts, most_rows=most_rows, seed=seed, standardise=standardise)

    def measure(place: tuple[str, str]) -> list[dict[str, Any]]:
        found = measure_rows(sample.read(*place), sample.groups, families)
        return [_row(sample, *place, name, found[name]) for name in MEASURES if name in wanted]

    places = [(each, name) for each in choose_poolings(opened, pooling) for name in select_from(layers, opened.layers)]
    # One BLAS thread each: eigenvalues of small matrices get slower with more.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        rows = [row for found in pool.map(measure, places) for row in found]
    return pd.DataFrame(rows, columns=list(GEOMETRY_COLUMNS))


def cosine_with_gold(
    cache: LatentCache | str | Path, task: Task, *, split: str = "validation", metric: str = "pearson",
    pooling: str = "", layers: str | int | Iterable[str | int] = "all", resampling: Resampling = DEFAULT,
) -> "pd.DataFrame":  # fmt: skip
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
    if metric not in CORRELATIONS:
        raise unknown_name("metric", metric, CORRELATIONS)
    opened, part = open_cache(cache), task.rows(split)
    sides = [opened.rows_of(list(part[column])).numpy() for column in ("sentence1", "sentence2")]
    sample = Sample(opened, np.concatenate(sides), np.zeros(2 * len(part), np.int64))
    gold, groups = np.array(cast("PairTask", task).gold01(split)), task.units(split)
    tail = (1 - resampling.confidence) / 2
    rows = []
    for each in choose_poolings(opened, pooling):
        names = select_from(layers, opened.layers)
        cosines = np.stack([_cosines(sample.read(each, name)) for name in names])
        values = CORRELATIONS[metric](cosines, np.broadcast_to(gold, cosines.shape))
        resampled = resample_correlations(cosines, gold, metric=metric, groups=groups, resampling=resampling)
        for name, value, drawn in zip(names, values, resampled, strict=True):
            known = drawn[np.isfinite(drawn)]
            ends = np.quantile(known, [tail, 1 - tail]) if len(known) else (np.nan, np.nan)
            row = _row(sample, each, name, f"gold-{metric}", Estimate(float(value), float(ends[0]), float(ends[1])))
            rows.append({**row, "n_rows": len(gold)})
    return pd.DataFrame(rows, columns=list(GEOMETRY_COLUMNS))


def require_pairs(task: Task) -> None:
    """Refuse a task that is not one of pairs."""
    if task.kind != "pairs":
        raise TaskError(f"task {task.name!r} is one of {task.kind}; allowed: pairs, which have a gold similarity.")


def _cosines(stacked: Float[np.ndarray, "P D"]) -> Float[np.ndarray, " N"]:
    """Return the cosine of each pair, first texts before second texts; 0 where a latent is zero."""
    one, other = np.split(stacked.astype(np.float64), 2)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray(np.divide((one * other).sum(axis=1), lengths, out=np.zeros(len(one)), where=lengths > 0))


def _row(sample: Sample, pooling: str, layer: str, measure: str, found: Estimate) -> dict[str, Any]:
    return {**sample.describe(pooling, layer), "measure": measure, **found._asdict(), "n_rows": len(sample)}
