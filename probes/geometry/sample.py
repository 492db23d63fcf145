"""Which latents of a cache the geometry looks at: a seeded sample, in groups of whole texts, and where layers are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from extract.decoders.layers import relative_depths
from extract.errors import CacheError, unknown_name
from extract.inputs.joined import JoinedText
from extract.store.cache import LatentCache
from probes.geometry.measures import N_GROUPS

WHERE = ("cache", "decoder", "plan", "pooling", "layer", "depth")
"""Columns that say which layer a row of a frame is of."""
Texts = Sequence[str] | Sequence[JoinedText]
FEWEST_ROWS = 3 * N_GROUPS
"""Rows that a geometry takes at least, so that every group has some."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Latents of a cache that were drawn: places in ascending order, and the group of each, for intervals."""

    cache: LatentCache
    places: Int[np.ndarray, " N"]
    groups: Int[np.ndarray, " N"]
    is_standardised: bool = False
    """Whether every dimension is brought to mean 0 and variance 1 over the drawn latents."""

    def __len__(self) -> int:
        """Number of latents."""
        return len(self.places)

    def read(self, pooling: str, layer: str) -> Float[np.ndarray, "N D"]:
        """Read one layer of the drawn latents."""
        found: NDArray[np.float32] = self.cache.gather(self.places, pooling, layers=[layer])[0].numpy()
        if self.is_standardised:
            scale = found.std(axis=0, dtype=np.float64)
            found = ((found - found.mean(axis=0, dtype=np.float64)) / np.where(scale > 0, scale, 1)).astype(np.float32)
        return found

    def describe(self, pooling: str, layer: str) -> dict[str, Any]:
        """Name a layer in the columns `WHERE` of a frame."""
        return {
            "cache": self.cache.path.stem,
            "decoder": str(self.cache.manifest.provenance["decoder"]["name"]),
            "plan": self.cache.identity["plan"],
            "pooling": pooling,
            "layer": layer,
            "depth": self._depths[layer],
        }

    @cached_property
    def _depths(self) -> dict[str, float]:
        names = self.cache.layers
        depths = relative_depths(names, int(self.cache.identity["decoder"]["n_layers"]))
        return dict(zip(names, depths, strict=True))


def draw_sample(
    cache: LatentCache, *, texts: Texts = (), most_rows: int, seed: int, standardise: bool = False
) -> Sample:
    """Draw latents of a cache, or of some of its texts; all where there are no more. Words without one are left out.

    Raises:
        CacheError: Fewer than `FEWEST_ROWS` latents, or a text that the cache does not hold.
    """
    is_wanted = np.zeros(len(cache.has_latent), np.bool_)
    is_wanted[_places_of(cache, texts) if texts else slice(None)] = True
    [places] = np.nonzero(is_wanted & cache.has_latent)
    return replace(_draw(cache, places, cache.keys[places], most_rows, seed), is_standardised=standardise)


def _places_of(cache: LatentCache, texts: Texts) -> Int[np.ndarray, " P"]:
    if cache.is_words:
        return cache.words_of([text for text in texts if isinstance(text, JoinedText)]).positions
    places: NDArray[np.int64] = cache.rows_of([text for text in texts if isinstance(text, str)]).numpy()
    return places


def draw_shared(
    one: LatentCache, other: LatentCache, *, most_rows: int, seed: int, standardise: bool = False
) -> tuple[Sample, Sample]:
    """Draw latents of the texts, or words of texts, that two caches share: row by row of the same.

    Raises:
        CacheError: They share fewer than `FEWEST_ROWS`.
    """
    keys, others = (_as_values(cache.keys) for cache in (one, other))
    _, places, other_places = np.intersect1d(keys, others, return_indices=True)
    both = one.has_latent[places] & other.has_latent[other_places]
    places, other_places = places[both], other_places[both]
    if len(places) < FEWEST_ROWS:
        noun = "words" if one.is_words else "texts"
        raise CacheError(
            f"caches {one.path.name!r} and {other.path.name!r} share {len(places)} {noun}; needed: {FEWEST_ROWS} or "
            "more. Compare caches of the same texts, or of the same words."
        )
    sample = replace(_draw(one, places, one.keys[places], most_rows, seed), is_standardised=standardise)
    order = np.argsort(places)
    partners = other_places[order][np.searchsorted(places[order], sample.places)]
    return sample, replace(sample, cache=other, places=partners)


def choose_poolings(cache: LatentCache, wanted: str) -> tuple[str, ...]:
    """Return the pooling asked for, all of the cache where none is; UnknownNameError for one that it lacks."""
    if wanted and wanted not in cache.poolings:
        raise unknown_name("pooling", wanted, cache.poolings, hint="Extract it, or choose one that is there.")
    return (wanted,) if wanted else cache.poolings


def _draw(
    cache: LatentCache, places: Int[np.ndarray, " P"], keys: NDArray[np.uint64], most_rows: int, seed: int
) -> Sample:
    if min(len(places), most_rows) < FEWEST_ROWS:
        raise CacheError(
            f"{min(len(places), most_rows)} latents of cache {cache.path.name!r} would be drawn; needed: "
            f"{FEWEST_ROWS} or more, for most_rows too."
        )
    rng = np.random.default_rng(seed)
    drawn = np.sort(rng.permutation(len(places))[:most_rows])
    _, texts = np.unique(keys[drawn, :2], axis=0, return_inverse=True)
    turn = rng.permutation(texts.max() + 1) % N_GROUPS  # words of a text go together
    return Sample(cache, places[drawn], turn[texts.ravel()])


def _as_values(keys: NDArray[np.uint64]) -> NDArray[Any]:
    """Return each row of numbers as one value, to look for equal ones."""
    return np.ascontiguousarray(keys).view(np.dtype((np.void, 24))).ravel()
