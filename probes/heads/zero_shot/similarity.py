"""How alike latents are, at every layer at once, in bounded memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extract.errors import HeadError
from extract.store.cache import LatentCache
from probes.latents.channels import Channels
from probes.latents.transform import Transform

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
