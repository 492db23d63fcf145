"""How alike layers are: linear CKA with the unbiased estimator of HSIC, of one cache or between two."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from extract.decoders.layers import select_from
from extract.errors import ConfigError
from extract.store.cache import LatentCache
from extract.store.shards.cache import open_cache
from probes.geometry.measures import N_GROUPS, jackknife
from probes.geometry.sample import WHERE, choose_poolings, draw_sample, draw_shared

if TYPE_CHECKING:
    import pandas as pd

MOST_SHARED = 1000
"""Rows that layers are compared on; memory is eight bytes per layer and pair of rows."""
SIMILARITY_COLUMNS = (*WHERE, *(f"other_{name}" for name in WHERE), "value", "low", "high", "n_rows")


def kernel(x: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N N"]:
    """Return the linear kernel of centred rows, of mean square 1 on the diagonal."""
    centred = x - x.mean(axis=0, dtype=np.float64)
    scale = np.sqrt(np.square(centred).sum() / len(x))
    centred = centred / scale if scale else centred
    found: Float[np.ndarray, "N N"] = (centred @ centred.T).astype(np.float32)
    return found


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
    layers: str | int | Iterable[str | int] = "all",
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
    how: dict[str, Any] = {"most_rows": most_rows, "seed": seed, "standardise": standardise}
    poolings = [choose_poolings(first, pooling)[0]]
    if second is None:
        samples = [draw_sample(first, **how)]
    else:
        if first.is_words != second.is_words:
            raise ConfigError(
                f"caches {first.path.name!r} and {second.path.name!r} hold latents of words and of whole texts; "
                "compare caches of one kind."
            )
        samples = list(draw_shared(first, second, **how))
        wanted = other_pooling or (poolings[0] if poolings[0] in second.poolings else "")
        poolings.append(choose_poolings(second, wanted)[0])
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
    found = []
    for number in (-1, *range(N_GROUPS)):
        kept = np.flatnonzero(groups != number)
        units = [np.stack([unit_kernel(each[np.ix_(kept, kept)]) for each in part]) for part in kernels]
        found.append(units[0] @ units[-1].T)
    return found[0].astype(np.float64), np.stack(found[1:]).astype(np.float64)
