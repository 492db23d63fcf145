"""The Lightning data module that reads pairs of latents out of a cache."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import lightning
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from extract.errors import HeadError, TaskError
from extract.store.cache import LatentCache
from probes.latents.channels import Channels, channels_of
from probes.latents.standardise import Standardiser, fit_standardiser
from probes.tasks import PairTask

EVALUATION_ROWS = 512


class PairBatch(NamedTuple):
    """A batch of pairs.

    Attributes:
        a: `(L, B, D)` float32 latents of the first texts.
        b: `(L, B, D)` float32 latents of the second texts.
        gold: `(B,)` float32 gold in [0, 1].
    """

    a: Float[Tensor, "L B D"]
    b: Float[Tensor, "L B D"]
    gold: Float[Tensor, " B"]


class SimilarityBatch(NamedTuple):
    """A batch of pairs whose layer similarities are known already.

    Attributes:
        similarities: `(C, B)` float32.
        gold: `(B,)` float32 gold in [0, 1].
    """

    similarities: Float[Tensor, "C B"]
    gold: Float[Tensor, " B"]


class PairRows(Dataset[PairBatch]):
    """Pairs of one split; a whole batch is gathered in one call, so that a batch costs one read per layer."""

    def __init__(self, cache: LatentCache, rows: tuple[Tensor, Tensor], gold: Tensor, *, channels: Channels) -> None:
        self.cache, self.rows, self.gold, self.channels = cache, rows, gold, channels

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.gold)

    def __getitem__(self, index: int) -> PairBatch:
        """Return one pair as a batch of one."""
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> PairBatch:
        """Gather a batch."""
        index = torch.as_tensor(indices)
        both = torch.cat([self.rows[0][index], self.rows[1][index]])
        a, b = self.channels.gather(self.cache, both).chunk(2, dim=1)
        return PairBatch(a, b, self.gold[index])


class SimilarityRows(Dataset[SimilarityBatch]):
    """Similarities of the pairs of one split, `(C, N)`, in memory."""

    def __init__(self, similarities: Float[Tensor, "C N"], gold: Float[Tensor, " N"]) -> None:
        self.similarities, self.gold = similarities, gold

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.gold)

    def __getitem__(self, index: int) -> SimilarityBatch:
        """Return one pair as a batch of one."""
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> SimilarityBatch:
        """Gather a batch."""
        index = torch.as_tensor(indices)
        return SimilarityBatch(self.similarities[:, index], self.gold[index])


def _as_is(batch: Any) -> Any:
    return batch


def _in_order(rows: Dataset[Any]) -> DataLoader[Any]:
    # With a generator of its own a loader draws nothing from the global one.
    return DataLoader(rows, batch_size=EVALUATION_ROWS, collate_fn=_as_is, generator=torch.Generator())


class PairLatents(lightning.LightningDataModule):
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
        self, cache: LatentCache, task: PairTask, *, pooling: str = "mean", layers: str | Sequence[str] = "all",
        batch_size: int = 128, seed: int = 0, selection: str = "validation",
    ) -> None:  # fmt: skip
        super().__init__()
        self.cache, self.task, self.seed, self.selection = cache, task, seed, selection
        self.channels = channels_of(cache, pooling, layers)
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

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the channels, `L` of them; with one pooling these are its layers."""
        return self.channels.names

    @property
    def pooling(self) -> str:
        """The pooling, or several joined by `+`."""
        return self.channels.pooling

    def split(self, name: str) -> PairRows:
        """Return one split.

        Raises:
            TaskError: The task has no such split.
        """
        if name not in self.splits:
            raise TaskError(f"task {self.task.name!r} has no split {name!r}; it has: {', '.join(self.splits)}.")
        return self.splits[name]

    def standardiser(self) -> Standardiser:
        """Fit a standardiser on the texts of the training split."""
        rows = torch.cat(self.split("train").rows)
        return fit_standardiser(self.cache, rows, channels=self.channels)

    def train_dataloader(self) -> DataLoader[Any]:
        """Training pairs, shuffled by the seed."""
        rows: Dataset[Any] = self.fixed.get("train", self.split("train"))
        return DataLoader(
            rows, batch_size=self.batch_size, shuffle=True, drop_last=True, collate_fn=_as_is,
            generator=torch.Generator().manual_seed(self.seed),
        )  # fmt: skip

    def loader(self, split: str) -> DataLoader[PairBatch]:
        """Pairs of one split in their order."""
        return _in_order(self.split(split))

    def val_dataloader(self) -> DataLoader[Any]:
        """Pairs of the split that epochs are chosen on."""
        rows: Dataset[Any] = self.fixed.get(self.selection, self.split(self.selection))
        return _in_order(rows)

    def test_dataloader(self) -> DataLoader[PairBatch]:
        """Test pairs."""
        return self.loader("test")
