"""The Lightning data module that reads pairs of latents out of a cache."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader

from extract.errors import HeadError, TaskError
from extract.store.cache import LatentCache
from probes.latents.channels import Channels, channels_of
from probes.latents.standardise import Standardiser, fit_standardiser
from probes.latents.text_latents import GatheredRows, Shuffling, in_order
from probes.tasks import PairTask


class PairBatch(NamedTuple):
    """Latents of the first and second texts of pairs, and gold in [0, 1]."""

    a: Float[Tensor, "L B D"]
    b: Float[Tensor, "L B D"]
    gold: Float[Tensor, " B"]


class SimilarityBatch(NamedTuple):
    """Pairs whose layer similarities are known already, and gold in [0, 1]."""

    similarities: Float[Tensor, "C B"]
    gold: Float[Tensor, " B"]


class PairRows(GatheredRows[PairBatch]):
    """Pairs of one split."""

    def __init__(self, cache: LatentCache, rows: tuple[Tensor, Tensor], gold: Tensor, *, channels: Channels) -> None:
        self.cache, self.rows, self.gold, self.channels = cache, rows, gold, channels

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.gold)

    def __getitems__(self, indices: Sequence[int]) -> PairBatch:
        """Gather a batch."""
        index = torch.as_tensor(indices)
        both = torch.cat([self.rows[0][index], self.rows[1][index]])
        a, b = self.channels.gather(self.cache, both).chunk(2, dim=1)
        return PairBatch(a, b, self.gold[index])


class SimilarityRows(GatheredRows[SimilarityBatch]):
    """Similarities of the pairs of one split, in memory."""

    def __init__(self, similarities: Float[Tensor, "C N"], gold: Float[Tensor, " N"]) -> None:
        self.similarities, self.gold = similarities, gold

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.gold)

    def __getitems__(self, indices: Sequence[int]) -> SimilarityBatch:
        """Gather a batch."""
        index = torch.as_tensor(indices)
        return SimilarityBatch(self.similarities[:, index], self.gold[index])


class PairLatents(Shuffling):
    """Pairs of a task with their latents.

    Args:
        cache: A cache that holds every text of the task.
        task: The task.
        pooling: Which pooling of the cache, or several joined by `+`.
        layers: A selection of its layers.
        batch_size: Pairs per training batch; a last batch that is smaller is dropped.
        seed: Seed of the order of training pairs.
        selection: The split that epochs are chosen on; anything but `validation` is optimistic.

    Raises:
        CacheError: A text that the cache does not hold.
        UnknownNameError: A pooling or layer that the cache does not have.
        HeadError: A batch larger than the training split.
    """

    def __init__(
        self,
        cache: LatentCache,
        task: PairTask,
        *,
        pooling: str = "mean",
        layers: str | Sequence[str] = "all",
        batch_size: int = 128,
        seed: int = 0,
        selection: str = "validation",
    ) -> None:
        super().__init__()
        self.cache, self.task, self.seed, self.selection = cache, task, seed, selection
        self.channels = channels_of(cache, pooling, layers)
        self.pooling, self.layers = self.channels.pooling, self.channels.names
        """The pooling, or several joined by `+`, and the names of the `L` channels."""
        self.batch_size = batch_size
        self.fixed: dict[str, SimilarityRows] = {}
        """Splits whose similarities a head has computed once and for all; Lightning's loop reads these instead."""
        self.splits = {split: self._rows(split) for split in task.splits}
        n_train = len(self.splits["train"]) if "train" in self.splits else 0
        if n_train and not 1 <= batch_size <= n_train:
            raise HeadError(f"batch_size is {batch_size}; allowed: 1 to {n_train}, the pairs of the training split.")

    def _rows(self, split: str) -> PairRows:
        part = self.task.splits[split]
        rows = (self.cache.rows_of(list(part["sentence1"])), self.cache.rows_of(list(part["sentence2"])))
        gold = torch.from_numpy(self.task.gold01(split)).float()
        return PairRows(self.cache, rows, gold, channels=self.channels)

    def split(self, name: str) -> PairRows:
        """Return one split; a `TaskError` where the task has none of this name."""
        if name not in self.splits:
            raise TaskError(f"task {self.task.name!r} has no split {name!r}; it has: {', '.join(self.splits)}.")
        return self.splits[name]

    def standardiser(self) -> Standardiser:
        """Fit a standardiser on the texts of the training split."""
        rows = torch.cat(self.split("train").rows)
        return fit_standardiser(self.cache, rows, channels=self.channels)

    def loader(self, split: str) -> DataLoader[PairBatch]:
        """Pairs of one split in their order."""
        return in_order(self.split(split))

    def train_dataloader(self) -> DataLoader[Any]:
        """Training pairs, shuffled by the seed."""
        rows = self.fixed.get("train", self.split("train"))
        return self.shuffled(rows)

    def val_dataloader(self) -> DataLoader[Any]:
        """Pairs of the split that epochs are chosen on."""
        return in_order(self.fixed.get(self.selection, self.split(self.selection)))
