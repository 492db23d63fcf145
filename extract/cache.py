"""Reading a cache: no decoder, no tokenizer, no dataset; a layer costs one layer's bytes."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from extract.digest import digest_texts
from extract.errors import CacheError, CacheIncompleteError, unknown_name
from extract.layers import select_from
from extract.layout import ArrayPlace, read_layout
from extract.manifest import require_same


class LatentCache:
    """A latent cache, open for reading.

    The file is mapped, never held open through HDF5, so a cache can be pickled and shared with DataLoader workers,
    forked or spawned. Views are copy-on-write: changing one never changes the file.

    Args:
        path: The store.
        expected: Identity the cache must have; any when absent.
        allow_partial: Read a half-done cache; rows that are not done hold arbitrary values.

    Raises:
        CacheError: No such file, or no readable cache.
        CacheIdentityError: The cache holds something other than `expected`; names the differing fields.
        CacheIncompleteError: Some rows are not done and `allow_partial` is off.

    Example:
        >>> cache = LatentCache(getfixture("tiny_cache"))
        >>> cache.layer("block_01", "mean").shape == (len(cache), cache.width)
        True
    """

    def __init__(
        self, path: str | Path, *, expected: dict[str, Any] | None = None, allow_partial: bool = False
    ) -> None:
        self.path = Path(path)
        self.manifest, self._places = read_layout(self.path)
        if expected is not None:
            require_same(self.manifest.identity, expected, where=repr(str(self.path)))
        self._maps: dict[str, NDArray[Any]] = {}
        self._lookup: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None
        if not allow_partial and not self.is_complete:
            state = "no certificate yet" if self.n_done == len(self) else "the rest is missing"
            raise CacheIncompleteError(
                f"cache {str(path)!r} is half done: {self.n_done} of {len(self)} rows, {state}. "
                "Run the extraction again to go on where it stopped."
            )

    def __len__(self) -> int:
        """Number of rows."""
        return int(self.manifest.identity["n_rows"])

    def __getstate__(self) -> dict[str, Any]:
        """Leave the maps behind: another process makes its own."""
        return {**self.__dict__, "_maps": {}}

    @property
    def identity(self) -> dict[str, Any]:
        """What the cache holds; equal identities hold equal latents."""
        return self.manifest.identity

    @property
    def layers(self) -> tuple[str, ...]:
        """Layer names, bottom up."""
        return tuple(self.identity["layers"])

    @property
    def poolings(self) -> tuple[str, ...]:
        """Pooling names."""
        return tuple(self.identity["poolings"])

    @property
    def width(self) -> int:
        """Dimension `D` of a latent."""
        return int(self.identity["decoder"]["width"])

    @property
    def storage_dtype(self) -> str:
        """`float32`, `float16` or `bfloat16`."""
        return str(self.identity["storage_dtype"])

    @property
    def n_done(self) -> int:
        """Rows that are done."""
        return int(np.count_nonzero(self._map("/rows/is_done")))

    @property
    def is_complete(self) -> bool:
        """Whether every row is done and the certificate is written."""
        return self.n_done == len(self) and bool(self.certificate)

    @property
    def certificate(self) -> dict[str, Any]:
        """The certificate written when the extraction ended; empty before that."""
        text = self._map("/certificate").tobytes().rstrip(b"\0")
        try:
            return dict(json.loads(text)) if text else {}
        except ValueError as error:
            raise CacheError(
                f"the certificate of cache {str(self.path)!r} is damaged ({error}); delete the file and extract anew."
            ) from error

    @property
    def n_tokens(self) -> NDArray[np.int32]:
        """`(N,)` tokens per row, specials and instruction included."""
        return self._map("/rows/n_tokens")

    @property
    def is_truncated(self) -> NDArray[np.bool_]:
        """`(N,)` whether text tokens of the row were dropped."""
        return self._map("/rows/is_truncated").astype(np.bool_)

    def layer(self, layer: str, pooling: str) -> Float[Tensor, "N D"]:
        """Give one layer as a view of the file.

        Args:
            layer: One of `layers`.
            pooling: One of `poolings`.

        Returns:
            `(N, D)` in the stored dtype, without a copy; bytes are read when they are touched.

        Raises:
            UnknownNameError: A layer or pooling this cache does not have.
        """
        if layer not in self.layers:
            raise unknown_name("layer", layer, self.layers)
        if pooling not in self.poolings:
            raise unknown_name("pooling", pooling, self.poolings, hint="Extract it, or choose one that is there.")
        view = torch.from_numpy(self._map(f"/latents/{pooling}/{layer}"))
        return view.view(torch.bfloat16) if self.storage_dtype == "bfloat16" else view

    def gather(
        self,
        rows: Int[Tensor, " B"] | NDArray[np.int64] | Sequence[int],
        pooling: str,
        *,
        layers: str | Iterable[str] = "all",
    ) -> Float[Tensor, "L B D"]:
        """Gather rows of many layers.

        Args:
            rows: `B` row positions, in any order, repeats allowed.
            pooling: One of `poolings`.
            layers: A selection as in `select_layers`.

        Returns:
            `(L, B, D)` float32.

        Raises:
            UnknownNameError: A layer or pooling this cache does not have.
            CacheError: A row position outside the cache, or one that is no whole number (a mask, for instance).
        """
        index = self._check_rows(np.asarray(rows))
        names = select_from(layers, self.layers)
        gathered = torch.empty(len(names), len(index), self.width, dtype=torch.float32)
        for slot, name in zip(gathered, names, strict=True):
            slot.copy_(self.layer(name, pooling)[index])
        return gathered

    def rows_of(self, texts: Sequence[str]) -> Int[Tensor, " B"]:
        """Find the rows of texts by their digests.

        Args:
            texts: `B` texts, repeats allowed.

        Returns:
            `(B,)` int64 row positions.

        Raises:
            CacheError: A text that this cache does not hold; names the first.
        """
        if self._lookup is None:
            keys = self._digests().view(np.uint64)[:, 0]
            order = np.argsort(keys, kind="stable")
            self._lookup = (keys[order], order)
        wanted = digest_texts(texts)
        keys, order = self._lookup
        spots = np.searchsorted(keys, wanted.view(np.uint64)[:, 0]).clip(max=len(keys) - 1)
        rows: NDArray[np.int64] = order[spots]
        is_found = (self._digests()[rows] == wanted).all(axis=1)
        if not is_found.all():
            missing = texts[int(np.argmin(is_found))]
            raise CacheError(
                f"cache {str(self.path)!r} does not hold the text {missing[:60]!r} "
                f"({int((~is_found).sum())} of {len(texts)} are missing); extract a cache for these texts."
            )
        return torch.from_numpy(rows)

    def _check_rows(self, rows: NDArray[Any]) -> Int[Tensor, " B"]:
        if rows.size and rows.dtype.kind not in "iu":
            raise CacheError(f"rows are of dtype {rows.dtype}; allowed: whole numbers from 0 to {len(self) - 1}.")
        outside = rows[(rows < 0) | (rows >= len(self))]
        if outside.size:
            raise CacheError(f"row {outside[0]} is outside this cache; allowed: 0 to {len(self) - 1}.")
        return torch.as_tensor(rows.astype(np.int64))

    def _digests(self) -> NDArray[np.uint8]:
        return self._map("/rows/digest")

    def _map(self, name: str) -> NDArray[Any]:
        if name not in self._maps:
            place: ArrayPlace = self._places[name]
            self._maps[name] = np.memmap(self.path, place.dtype, "c", offset=place.offset, shape=place.shape)
        return self._maps[name]
