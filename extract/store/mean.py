"""Several caches of the same texts as one that holds the mean of their latents; nothing is copied."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from extract.errors import CacheError
from extract.store.cache import LatentCache
from extract.store.manifest import Manifest, require_same

MEAN_OF = "mean_of"
OF_PARTS = ("template", "poolings", "layers", "words", "chat")
"""In what caches may differ, or hold more, whose mean is read."""


class MeanCache(LatentCache):
    """The mean of several caches of the same texts, as of prompts whose latents are averaged (MetaEOL).

    Rows and places are those of the first cache. Each read takes the mean of what is read, in float32.

    Args:
        parts: Whole caches, extracted alike but for their templates.
        identity: What the mean is, of which all parts hold the poolings and layers; that of the first part with all
            templates when absent.

    Raises:
        CacheIdentityError: Caches that differ in more than their templates.
        CacheError: No caches, or caches of other texts.
    """

    def __init__(self, parts: Sequence[LatentCache], *, identity: dict[str, Any] | None = None) -> None:
        if not parts:
            raise CacheError("there are no caches to take the mean of; give at least one.")
        first = parts[0]
        for part in parts[1:]:
            one, other = ({k: v for k, v in each.identity.items() if k not in OF_PARTS} for each in (part, first))
            require_same(one, other, where=repr(str(part.path)))
        templates = [{k: v for k, v in part.identity["template"].items() if k != "window"} for part in parts]
        made = {**first.identity, "template": {**first.identity["template"], MEAN_OF: templates}}
        provenance = {**first.manifest.provenance, MEAN_OF: [part.manifest.id for part in parts]}
        self.parts = tuple(parts)
        self.path, self._file = first.path, first._file
        self.manifest = Manifest(identity or made, provenance)
        self._rows = [_match(first._row_digests, part._row_digests, part) for part in parts]
        self._places = [_match(first.keys, part.keys, part) for part in parts]

    @property
    def read_dtype(self) -> str:
        """float32, whatever the parts are stored in."""
        return "float32"

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of every part."""
        return tuple(dict.fromkeys(path for part in self.parts for path in part.files))

    @property
    def n_bytes(self) -> int:
        """Bytes of all files; those of a part that is read twice count once."""
        return sum({part.path: part.n_bytes for part in self.parts}.values())

    @property
    def n_done(self) -> int:
        """Rows that are done in every part."""
        return min(part.n_done for part in self.parts)

    @property
    def is_complete(self) -> bool:
        """Whether every part is whole."""
        return all(part.is_complete for part in self.parts)

    def verify(self) -> None:
        """Compare every part with its checksums; raises as `LatentCache.verify`."""
        for part in self.parts:
            part.verify()

    @property
    def certificate(self) -> dict[str, Any]:
        """The certificate of the first part, and the identities of all."""
        return {**self.parts[0].certificate, MEAN_OF: self.manifest.provenance[MEAN_OF]}

    @property
    def n_tokens(self) -> NDArray[np.int32]:
        """`(N,)` tokens per text, over all parts."""
        found = [part.n_tokens[rows] for part, rows in zip(self.parts, self._rows, strict=True)]
        counts: NDArray[np.int32] = np.stack(found).sum(0, dtype=np.int32)
        return counts

    @property
    def is_truncated(self) -> NDArray[np.bool_]:
        """`(N,)` whether text tokens of the row were dropped in any part."""
        found = [part.is_truncated[rows] for part, rows in zip(self.parts, self._rows, strict=True)]
        is_truncated: NDArray[np.bool_] = np.logical_or.reduce(found)
        return is_truncated

    def layer(self, layer: str, pooling: str) -> Float[Tensor, "N D"]:
        """Return the mean of one layer in float32, in new memory; raises as `LatentCache.layer`."""
        return self.gather(np.arange(self._n_places), pooling, layers=layer)[0]

    def _gather(
        self, rows: Int[Tensor, " B"], layers: Sequence[str], pooling: str, *, width: int
    ) -> Float[Tensor, "L B D"]:
        for name in layers:
            self._array(name, pooling)  # one that is not there is refused by this cache's own names
        total = torch.zeros(len(layers), len(rows), width)
        for part, places in zip(self.parts, self._places, strict=True):
            total += part.gather(places[rows.numpy()], pooling, layers=layers)
        return total / len(self.parts)

    def _fill(self, slot: Float[Tensor, "B D"], layer: str, pooling: str, start: int) -> None:
        slot.copy_(self.gather(np.arange(start, start + len(slot)), pooling, layers=[layer])[0])

    @property
    def word_flags(self) -> UInt8[np.ndarray, " W"]:
        """`(W,)` bits of every word in any part."""
        found = [part.word_flags[places] for part, places in zip(self.parts, self._places, strict=True)]
        flags: NDArray[np.uint8] = np.bitwise_or.reduce(found)
        return flags


def mean_parts(identity: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the identities of the caches that one is the mean of; none where it is a cache of its own."""
    template = identity["template"]
    own = {key: template[key] for key in ("window",) if key in template}
    plain = {key: value for key, value in identity.items() if key != "chat"}
    return [
        {**(identity if "chat" in part else plain), "template": {**part, **own}} for part in template.get(MEAN_OF, ())
    ]


def _match(keys: NDArray[Any], others: NDArray[Any], part: LatentCache) -> Int[np.ndarray, " P"]:
    """Find the place of each key of one cache in another."""
    order, other = np.lexsort(keys.T), np.lexsort(others.T)
    if keys.shape != others.shape or (keys[order] != others[other]).any():
        raise CacheError(f"cache {str(part.path)!r} holds other texts than the first; take the mean of the same texts.")
    places = np.empty(len(keys), np.int64)
    places[order] = other
    return places
