"""The Lightning data module of single texts, and what it shares with that of pairs: a batch is gathered in one call."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import lightning
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from extract.errors import HeadError
from extract.store.cache import LatentCache
from probes.latents.channels import Channels, channels_of
from probes.latents.standardise import Standardiser, fit_standardiser

EVALUATION_ROWS = 512
B = TypeVar("B")


class GatheredRows(Dataset[B], ABC, Generic[B]):
    """Rows that are gathered a batch at a time, so that a batch costs one read per layer."""

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> B:
        """Gather a batch."""

    def __getitem__(self, index: int) -> B:
        """Return one row as a batch of one."""
        return self.__getitems__([index])


def as_is(batch: Any) -> Any:
    """Collate nothing: rows come as a batch."""
    return batch


def in_order(rows: Dataset[Any]) -> DataLoader[Any]:
    """Load rows in their order."""
    # With a generator of its own a loader draws nothing from the global one.
    return DataLoader(rows, batch_size=EVALUATION_ROWS, collate_fn=as_is, generator=torch.Generator())


class Shuffling(lightning.LightningDataModule):
    """A data module whose training rows come in an order of the seed's; Lightning keeps it with the state of a fit."""

    batch_size: int
    seed: int

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator()
        self._next: Tensor | None = None

    def shuffled(self, rows: Dataset[Any]) -> DataLoader[Any]:
        """Load rows in another order every epoch; a last batch that is smaller is dropped."""
        self._generator = torch.Generator().manual_seed(self.seed)
        if self._next is not None:
            self._generator.set_state(self._next)
            self._next = None
        return DataLoader(
            rows, batch_size=self.batch_size, shuffle=True, drop_last=True, collate_fn=as_is, generator=self._generator
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return where the order of the next epoch begins."""
        return {"order": self._generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Let the next loader go on from what `state_dict` gave."""
        self._next = state_dict["order"]


class TextRows(GatheredRows[Tensor]):
    """Latents of single texts."""

    def __init__(self, cache: LatentCache, rows: Tensor, *, channels: Channels) -> None:
        self.cache, self.rows, self.channels = cache, rows, channels

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.rows)

    def __getitems__(self, indices: Sequence[int]) -> Float[Tensor, "L B D"]:
        """Gather a batch."""
        return self.channels.gather(self.cache, self.rows[torch.as_tensor(indices)])


class TextLatents(Shuffling):
    """Every text of a cache, a part of them held out.

    Args:
        cache: A cache of whole texts.
        pooling: Which pooling of the cache, or several joined by `+`.
        layers: A selection of its layers.
        batch_size: Texts per training batch; a last batch that is smaller is dropped.
        held_out: Share of the texts that are not trained on, 0 to 1.
        seed: Seed of the division and of the order of training texts.

    Raises:
        HeadError: A cache of words, no text would be held out or trained on, or a batch larger than the training texts.
        UnknownNameError: A pooling or layer that the cache does not have.
    """

    def __init__(
        self,
        cache: LatentCache,
        *,
        pooling: str = "mean",
        layers: str | Sequence[str] = "all",
        batch_size: int = 64,
        held_out: float = 0.05,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if cache.is_words:
            raise HeadError(
                f"cache {str(cache.path)!r} holds latents of words; allowed: one of whole texts, as that of a corpus."
            )
        self.cache, self.batch_size, self.seed = cache, batch_size, seed
        self.channels = channels_of(cache, pooling, layers)
        order = torch.randperm(len(cache), generator=torch.Generator().manual_seed(seed))
        n_held_out = max(1, round(held_out * len(cache)))
        n_train = len(cache) - n_held_out
        if not 0 < held_out < 1 or n_train < 2:
            raise HeadError(f"held_out is {held_out} of {len(cache)} texts; allowed: a share between 0 and 1.")
        if not 1 <= batch_size <= n_train:
            raise HeadError(f"batch_size is {batch_size}; allowed: 1 to {n_train}, the texts that are trained on.")
        self.train_rows = TextRows(cache, order[n_held_out:].sort().values, channels=self.channels)
        self.held_out_rows = TextRows(cache, order[:n_held_out].sort().values, channels=self.channels)

    def standardiser(self) -> Standardiser:
        """Fit a standardiser on the training texts."""
        return fit_standardiser(self.cache, self.train_rows.rows, channels=self.channels)

    def train_dataloader(self) -> DataLoader[Any]:
        """Training texts, shuffled by the seed."""
        return self.shuffled(self.train_rows)

    def val_dataloader(self) -> DataLoader[Any]:
        """Held-out texts."""
        return in_order(self.held_out_rows)
