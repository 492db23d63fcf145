"""What every pair head shares: similarities per layer, combined into one prediction."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import lightning
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from extract.errors import unknown_name
from probes.data import PairBatch, PairLatents, SimilarityBatch
from probes.losses import LOSSES
from probes.metrics import correlations
from probes.standardise import Standardiser


class PairHead(lightning.LightningModule, ABC):
    """A head that scores pairs of texts from their latents: `L` similarities, then one prediction.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        loss: A name from `LOSSES`.
        learning_rate: AdamW learning rate.
        weight_decay: AdamW weight decay.

    Raises:
        UnknownNameError: A loss that stands in no table.
    """

    has_fixed_similarities: ClassVar[bool] = False
    """Whether training leaves the similarities as they are, so that they are computed once and not in every epoch."""
    is_trained: ClassVar[bool] = True
    """Whether the head has epochs; otherwise preparing it is all."""

    mean: Tensor
    scale: Tensor

    def __init__(
        self, n_layers: int, width: int, *, loss: str = "mse", learning_rate: float = 3e-4, weight_decay: float = 0.0
    ) -> None:
        super().__init__()
        if loss not in LOSSES:
            raise unknown_name("loss", loss, LOSSES)
        self.n_layers, self.width = n_layers, width
        self.loss_name, self.learning_rate, self.weight_decay = loss, learning_rate, weight_decay
        self.register_buffer("mean", torch.zeros(n_layers, 1, width))
        self.register_buffer("scale", torch.ones(n_layers, 1, width))
        self._collected: list[tuple[Tensor, Tensor]] = []

    @abstractmethod
    def similarities(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "L B"]:
        """Compare two latents layer by layer; symmetric in its arguments."""

    @abstractmethod
    def combine(self, similarities: Float[Tensor, "L B"]) -> Float[Tensor, " B"]:
        """Turn the similarities of all layers into one prediction per pair."""

    def forward(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, " B"]:
        """Score pairs."""
        return self.combine(self.similarities(a, b))

    def prepare(self, data: PairLatents, standardiser: Standardiser) -> None:
        """Fit what is fitted in closed form on the training split, before any epoch.

        Args:
            data: The pairs.
            standardiser: Mean and scale fitted on the training texts.
        """
        del data
        self.mean.copy_(standardiser.mean.unsqueeze(1))
        self.scale.copy_(standardiser.scale.unsqueeze(1))

    def standardised(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, "L B D"]:
        """Standardise latents by the fitted mean and scale."""
        return (latents - self.mean) / self.scale

    def identical_similarity(self) -> float:
        """Give the prediction for a text paired with itself: every similarity is 1, so it is one constant."""
        with torch.no_grad():
            return float(self.combine(torch.ones(self.n_layers, 1, device=self.mean.device)))

    def _score(self, batch: PairBatch | SimilarityBatch) -> Tensor:
        if isinstance(batch, SimilarityBatch):
            return self.combine(batch.similarities)
        scored: Tensor = self(batch.a, batch.b)
        return scored

    def training_step(self, batch: PairBatch | SimilarityBatch, _: int) -> Tensor:
        """Compute the loss of a batch."""
        loss = LOSSES[self.loss_name][0](self._score(batch), batch.gold)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch.gold))
        return loss

    def validation_step(self, batch: PairBatch | SimilarityBatch, _: int) -> None:
        """Collect predictions; correlations are of the whole corpus, never averaged over batches."""
        self._collected.append((self._score(batch).detach().cpu(), batch.gold.cpu()))

    def on_validation_epoch_end(self) -> None:
        """Log corpus-level correlations."""
        predicted, gold = (np.concatenate([pair[k].float().numpy() for pair in self._collected]) for k in (0, 1))
        self._collected.clear()
        for metric, value in correlations(predicted, gold).items():
            self.log(f"validation_{metric}", value)

    def predict_step(self, batch: PairBatch | SimilarityBatch, _: int) -> Tensor:
        """Score a batch."""
        return self._score(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use AdamW; without weight decay it is Adam."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)

    def arguments(self) -> dict[str, Any]:
        """Give the constructor's arguments as plain values, to build the head again."""
        return dict(self.hparams)


def cosine(a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"], *, epsilon: float = 1e-8) -> Float[Tensor, "L B"]:
    """Cosine of two batches of vectors, layer by layer.

    Args:
        a: `(L, B, D)` vectors.
        b: `(L, B, D)` vectors.
        epsilon: Smallest norm, for vectors of zeros.

    Returns:
        `(L, B)` in [-1, 1].
    """
    return torch.nn.functional.cosine_similarity(a, b, dim=-1, eps=epsilon)


def collect_similarities(head: PairHead, data: PairLatents, split: str) -> Float[Tensor, "L N"]:
    """Compute the layer similarities of every pair of a split, on the CPU."""
    device = head.mean.device
    with torch.no_grad():
        parts = [head.similarities(batch.a.to(device), batch.b.to(device)).cpu() for batch in data.loader(split)]
    return torch.cat(parts, dim=1)
