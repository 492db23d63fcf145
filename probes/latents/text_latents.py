"""The Lightning data module that reads latents of single texts out of a cache."""

from collections.abc import Sequence
from typing import Any

import lightning
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from extract.errors import HeadError
from extract.store.cache import LatentCache
from probes.latents.channels import channels_of
from probes.latents.standardise import Standardiser, fit_standardiser

EVALUATION_ROWS = 512


class TextRows(Dataset[Tensor]):
    """Latents of single texts; a whole batch `(L, B, D)` is gathered in one call."""

    def __init__(self, data: "TextLatents", rows: Tensor) -> None:
        self.data, self.rows = data, rows

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.rows)

    def __getitem__(self, index: int) -> Float[Tensor, "L 1 D"]:
        """Return one text as a batch of one."""
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> Float[Tensor, "L B D"]:
        """Gather a batch."""
        return self.data.channels.gather(self.data.cache, self.rows[torch.as_tensor(indices)])


def _as_is(batch: Any) -> Any:
    return batch


class TextLatents(lightning.LightningDataModule):
    """Every text of a cache, a part of them held out.

    Args:
        cache: The cache.
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
        self, cache: LatentCache, *, pooling: str = "mean", layers: str | Sequence[str] = "all", batch_size: int = 64,
        held_out: float = 0.05, seed: int = 0,
    ) -> None:  # fmt: skip
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
        self.train_rows = TextRows(self, order[n_held_out:].sort().values)
        self.held_out_rows = TextRows(self, order[:n_held_out].sort().values)

    def standardiser(self) -> Standardiser:
        """Fit a standardiser on the training texts."""
        return fit_standardiser(self.cache, self.train_rows.rows, channels=self.channels)

    def train_dataloader(self) -> DataLoader[Any]:
        """Training texts, shuffled by the seed."""
        return DataLoader(
            self.train_rows, batch_size=self.batch_size, shuffle=True, drop_last=True, collate_fn=_as_is,
            generator=torch.Generator().manual_seed(self.seed),
        )  # fmt: skip

    def val_dataloader(self) -> DataLoader[Any]:
        """Held-out texts."""
        return DataLoader(
            self.held_out_rows, batch_size=EVALUATION_ROWS, collate_fn=_as_is, generator=torch.Generator()
        )
