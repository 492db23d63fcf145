"""What every pair head shares: similarities per layer, combined into one prediction."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import lightning
import torch
from jaxtyping import Float
from torch import Tensor

from extract.errors import unknown_name
from probes.latents.pair_latents import PairBatch, PairLatents, SimilarityBatch
from probes.latents.standardise import Standardiser
from probes.metrics.correlation import correlations
from probes.networks.loss_table import LOSSES
from probes.networks.optimisers import adamw


class PairHead(lightning.LightningModule, ABC):
    """A head that scores pairs of texts from their latents: `L` similarities, then one prediction.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        loss: A name from `LOSSES`.
        learning_rate: AdamW learning rate.
        weight_decay: AdamW weight decay.
    """

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
        self.selection = "validation"
        """The split that Lightning's validation loop reads; names what is logged."""
        self._collected: list[tuple[Tensor, Tensor]] = []

    @property
    def has_fixed_similarities(self) -> bool:
        """Whether training leaves the similarities as they are, so that they are computed once, not in every epoch."""
        return False

    @abstractmethod
    def similarities(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "C B"]:
        """Compare two latents layer by layer, symmetric in its arguments.

        The first `L` rows are one similarity per layer; a head may add further blocks of `L` rows.
        """

    @abstractmethod
    def combine(self, similarities: Float[Tensor, "C B"]) -> Float[Tensor, " B"]:
        """Turn the similarities of all layers into one prediction per pair."""

    def forward(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, " B"]:
        """Score pairs."""
        return self.combine(self.similarities(a, b))

    def prepare(self, data: PairLatents, standardiser: Standardiser) -> None:
        """Fit what is fitted in closed form on the training split, before any epoch."""
        del data
        self._set_standardiser(standardiser)

    def _set_standardiser(self, standardiser: Standardiser) -> None:
        self.mean.copy_(standardiser.mean.unsqueeze(1))
        self.scale.copy_(standardiser.scale.unsqueeze(1))

    def standardised(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, "L B D"]:
        """Standardise latents by the fitted mean and scale."""
        return (latents - self.mean).mul_(self.scale.reciprocal())  # in place: a batch of all layers is large

    def identical_similarity(self) -> float | None:
        """Return the prediction for a text paired with itself: a constant, as every similarity is 1.

        None for a head whose prediction then depends on the text.
        """
        with torch.no_grad():
            return float(self.combine(torch.ones(self.n_layers, 1, device=self.mean.device)))

    def _score(self, batch: PairBatch | SimilarityBatch) -> Tensor:
        if isinstance(batch, SimilarityBatch):
            return self.combine(batch.similarities)
        scored: Tensor = self(batch.a, batch.b)
        return scored

    def training_step(self, batch: PairBatch | SimilarityBatch, _: int) -> Tensor:
        """Compute the loss of a batch."""
        predicted, gold = self._score(batch), batch.gold
        if self._n_processes() > 1:  # a variance, and a ranking, is of the whole batch, not of each device's share
            predicted, gold = self._from_all(predicted, has_gradient=True), self._from_all(gold)
        loss: Tensor = LOSSES[self.loss_name][0](predicted, gold)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch.gold))
        return loss

    def validation_step(self, batch: PairBatch | SimilarityBatch, _: int) -> None:
        """Collect predictions; correlations are of the whole corpus, never averaged over batches."""
        self._collected.append((self._score(batch).detach().cpu(), batch.gold.cpu()))

    def on_validation_epoch_end(self) -> None:
        """Log corpus-level correlations."""
        predicted, gold = (torch.cat([pair[k].float() for pair in self._collected]) for k in (0, 1))
        self._collected.clear()
        if self._n_processes() > 1:
            predicted, gold = (self._from_all(values.to(self.device)).cpu() for values in (predicted, gold))
        for metric, value in correlations(predicted.numpy(), gold.numpy()).items():
            self.log(f"{self.selection}_{metric}", value)

    def _n_processes(self) -> int:
        trainer = self._trainer
        return 1 if trainer is None else trainer.world_size

    def _from_all(self, values: Tensor, *, has_gradient: bool = False) -> Tensor:
        """Join `(B,)` values of every process to `(processes * B,)`."""
        joined: Any = self.all_gather(values, sync_grads=has_gradient)
        flat: Tensor = joined.reshape(-1)
        return flat

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use AdamW; without weight decay it is Adam."""
        return adamw(self.parameters(), learning_rate=self.learning_rate, weight_decay=self.weight_decay)

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values, to build the head again."""
        return dict(self.hparams)


def cosine(a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "L B"]:
    """Cosine of two batches of vectors, layer by layer; 0 for a vector of zeros."""
    return torch.nn.functional.cosine_similarity(a, b, dim=-1)


def collect_similarities(head: PairHead, data: PairLatents, split: str) -> Float[Tensor, "C N"]:
    """Compute the similarities of every pair of a split, on the CPU."""
    device = head.mean.device
    with torch.no_grad():
        parts = [head.similarities(batch.a.to(device), batch.b.to(device)).cpu() for batch in data.loader(split)]
    return torch.cat(parts, dim=1)
