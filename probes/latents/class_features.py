"""Features of a classification task's rows: latents of texts, or of pairs of texts joined symmetrically."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extract.store.cache import LatentCache
from probes.latents.channels import Channels
from probes.tasks.classes.task import ClassTask

CHUNK_NUMBERS = 1 << 26  # float32 numbers of a chunk of layers, 256 MiB


@dataclass(frozen=True, eq=False)
class ClassFeatures:
    """Reads the features of every row of a task, a few layers at a time."""

    cache: LatentCache
    task: ClassTask
    channels: Channels

    @property
    def width(self) -> int:
        """Dimension of a feature: that of a latent, or twice of it for pairs."""
        return self.cache.width_of(self.channels.layers) * (2 if self.task.is_pairs else 1)

    def rows(self, split: str) -> tuple[Int[Tensor, " N"], ...]:
        """Return the cache rows of a split, one array per text column."""
        part = self.task.splits[split]
        return tuple(self.cache.rows_of(list(part[column])) for column in self.task.text_columns)

    def chunks(self, splits: Sequence[str]) -> Iterator[dict[str, Float[Tensor, "l N W"]]]:
        """Yield features by split, a few layers at a time; those of all chunks together are the channels, in order."""
        rows = {split: self.rows(split) for split in splits}
        n_numbers = sum(len(part[0]) for part in rows.values()) * self.width * (2 if self.task.is_pairs else 1)
        step = max(1, CHUNK_NUMBERS // max(n_numbers, 1))
        for pooling in self.channels.poolings:
            for start in range(0, len(self.channels.layers), step):
                chunk = Channels((pooling,), self.channels.layers[start : start + step])
                yield {
                    split: join_pair(*(chunk.gather(self.cache, index) for index in part))
                    for split, part in rows.items()
                }


def join_pair(a: Float[Tensor, "L N D"], b: Float[Tensor, "L N D"] | None = None) -> Float[Tensor, "L N W"]:
    """Return latents as they are, or two of them as their absolute difference and product, which are symmetric.

    Example:
        >>> join_pair(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 2.0]]])).tolist()
        [[[2.0, 0.0, 3.0, 4.0]]]
    """
    return a if b is None else torch.cat([(a - b).abs(), a * b], dim=-1)
