"""Token heads: a linear classifier of words on each layer, all layers in one computation, or on a learned mix of them.

Every probe of a head begins with the same weights and gets the same dropout masks, those of the seed, and every
operation keeps probes apart. So a layer that is trained among others ends as it would alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extract.errors import HeadError, unknown_name
from extract.linear import multiply_layers
from extract.records import Values
from probes.latents.text_latents import Standardiser
from probes.latents.word_latents import WordBatch
from probes.networks.layerwise_networks import TrainedModule, adamw

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import OptimizerLRScheduler

SCHEDULES = {
    "constant": "the learning rate stays as it is",
    "linear": "the learning rate falls to 0 in a line, step by step",
}
_FINE = 2**16  # dropout probabilities are multiples of 1 / 65,536


@dataclass(frozen=True, eq=False)
class Preparation:
    """Standardises and layer-norms latents before a head reads them, on the CPU, in place."""

    mean: Float[Tensor, "L D"] | None
    """What is subtracted; nothing is when None."""
    factor: Float[Tensor, "L D"] | None
    """What multiplies the difference."""
    is_normed: bool
    """Whether each latent is then layer-normed."""

    def __call__(self, latents: Float[Tensor, "L W D"]) -> None:
        """Prepare latents, a layer at a time, for memory."""
        for k, layer in enumerate(latents):
            if self.mean is not None and self.factor is not None:
                layer.sub_(self.mean[k]).mul_(self.factor[k])
            if self.is_normed:
                layer.copy_(nn.functional.layer_norm(layer, layer.shape[-1:]))


class TokenHead(TrainedModule[WordBatch], ABC):
    """A linear classifier of words from their latents; `P` independent probes at once.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        n_classes: Classes `K`.
        dropout: Share of the dimensions of a word that are left out in training, 0 to below 1.
        learning_rate: AdamW learning rate.
        weight_decay: AdamW weight decay.
        schedule: A name from `SCHEDULES`.
        seed: Seed of the initial weights and of dropout.
    """

    is_normed: ClassVar[bool] = False
    """Whether latents are layer-normed, after standardisation if there is any."""
    is_mixed: ClassVar[bool] = False
    """Whether one probe reads all layers; otherwise there is one probe per layer."""

    weight: nn.Parameter
    bias: nn.Parameter
    mean: Tensor
    scale: Tensor
    class_weights: Tensor

    def __init__(
        self,
        n_layers: int,
        width: int,
        n_classes: int,
        *,
        dropout: float = 0.1,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.01,
        schedule: str = "constant",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if schedule not in SCHEDULES:
            raise unknown_name("schedule", schedule, SCHEDULES)
        if not 0 <= dropout < 1:
            raise HeadError(f"dropout is {dropout}; allowed: a share from 0 to below 1.")
        self.n_layers, self.width, self.n_classes = n_layers, width, n_classes
        self.n_probes = 1 if self.is_mixed else n_layers
        self.dropout, self.learning_rate, self.weight_decay = dropout, learning_rate, weight_decay
        self.schedule, self.seed = schedule, seed
        generator = torch.Generator().manual_seed(seed)
        bound = width**-0.5  # as nn.Linear
        first = torch.empty(n_classes, width + 1).uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(first[:, :-1].repeat(self.n_probes, 1, 1))
        self.bias = nn.Parameter(first[:, -1].repeat(self.n_probes, 1))
        self.register_buffer("mean", torch.zeros(n_layers, width))
        self.register_buffer("scale", torch.ones(n_layers, width))
        self.register_buffer("class_weights", torch.ones(n_classes))
        self._noise = np.random.default_rng([seed, 1])
        self._noise_before: Mapping[str, object] | None = None

    @abstractmethod
    def logits(self, prepared: Float[Tensor, "L W D"]) -> Float[Tensor, "P W K"]:
        """Score latents after `preparation`."""

    @abstractmethod
    def only(self, probe: int) -> "TokenHead":
        """Return a head of one probe, with the layers that this probe reads."""

    def forward(self, latents: Float[Tensor, "L W D"]) -> Float[Tensor, "P W K"]:
        """Score latents as they are in a cache."""
        prepared = latents.clone().cpu()
        self.preparation()(prepared)
        return self.logits(prepared.to(self.weight.device))

    def preparation(self) -> Preparation:
        """Return what is done to latents before `logits`."""
        mean, scale = self.mean.detach().cpu(), self.scale.detach().cpu()
        if not mean.any() and bool((scale == 1).all()):
            return Preparation(None, None, self.is_normed)
        return Preparation(mean, scale.reciprocal(), self.is_normed)

    def set_standardiser(self, standardiser: Standardiser) -> None:
        """Set mean and scale, fitted on training words."""
        self.mean.copy_(standardiser.mean)
        self.scale.copy_(standardiser.scale)

    def begin_at(self, prior: Float[Tensor, " K"]) -> None:
        """Begin with weights of zero and biases that predict a distribution: rare classes then need not wait."""
        with torch.no_grad():
            self.weight.zero_()
            self.bias.copy_(prior.log().expand_as(self.bias))

    def losses(self, logits: Float[Tensor, "P W K"], labels: Int[Tensor, " W"]) -> Float[Tensor, " P"]:
        """Mean cross-entropy of each probe, words weighed by the weights of their classes."""
        entropies = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.repeat(len(logits)), weight=self.class_weights, reduction="none"
        )
        return entropies.view(len(logits), -1).sum(1) / self.class_weights[labels].sum()

    def on_fit_start(self) -> None:
        """Restart the dropout masks of the seed, or continue with those of the state that was loaded."""
        self._noise = np.random.default_rng([self.seed, 1])
        if self._noise_before is not None:
            self._noise.bit_generator.state, self._noise_before = self._noise_before, None

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Save the state of the dropout masks."""
        checkpoint["noise"] = self._noise.bit_generator.state

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Let the next fit continue from there."""
        self._noise_before = cast("Mapping[str, object]", checkpoint["noise"])

    def training_step(self, batch: WordBatch, _: int) -> Tensor:
        """Compute the sum of the probes' losses: none of them moves the weights of another."""
        if batch.labels is None:
            raise HeadError("a batch without labels cannot be trained on; use the training loader.")
        losses = self.losses(self.logits(self._drop(batch.latents)), batch.labels)
        self.loop.log("train_loss", losses.mean(), on_step=False, on_epoch=True, batch_size=len(batch.labels))
        return losses.sum()

    def _drop(self, latents: Float[Tensor, "L W D"]) -> Float[Tensor, "L W D"]:
        """Drop dimensions in place (new memory is expensive), the same ones in every layer."""
        limit = round(self.dropout * _FINE)
        if not limit:
            return latents
        is_read = self._noise.integers(0, _FINE, latents.shape[1:], dtype=np.uint16) >= limit
        mask = torch.from_numpy(is_read).float().mul_(_FINE / (_FINE - limit))
        return latents.mul_(mask.to(latents.device))

    def configure_optimizers(self) -> "OptimizerLRScheduler":
        """Use AdamW, its learning rate as the schedule says."""
        optimiser = adamw(self.parameters(), learning_rate=self.learning_rate, weight_decay=self.weight_decay)
        if self.schedule == "constant":
            return optimiser
        n_steps = int(self.loop.trainer.estimated_stepping_batches)
        falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: max(0.0, 1 - step / n_steps))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": falling, "interval": "step"}}

    def arguments(self) -> Values:
        """Return the constructor's arguments as plain values, to build the head again."""
        keys = ("n_layers", "width", "n_classes", "dropout", "learning_rate", "weight_decay", "schedule", "seed")
        return {key: getattr(self, key) for key in keys}


class TokenClassifier(TokenHead):
    """Dropout and a linear map on every layer: `P = L` probes (MAGNET, appendix A; Look Both Ways, section 3.2)."""

    def logits(self, prepared: Float[Tensor, "L W D"]) -> Float[Tensor, "P W K"]:
        """Map each layer by its own matrix."""
        return multiply_layers(prepared, self.weight) + self.bias.unsqueeze(1)

    def only(self, probe: int) -> "TokenClassifier":
        """Return the classifier of one layer."""
        alone = type(self)(**{**self.arguments(), "n_layers": 1})
        of_layers = {name: rows[probe : probe + 1] for name, rows in self.state_dict().items()}
        alone.load_state_dict({**of_layers, "class_weights": self.class_weights})
        return alone.train(self.training)


class TokenNormed(TokenClassifier):
    """The same on layer-normed latents: every word has the same length at every layer, and no layer a scale."""

    is_normed = True


class TokenMix(TokenHead):
    """Dropout and a linear map on ELMo's scalar mix (Peters et al., 2018, 3.2) of layer-normed layers: one probe."""

    is_normed = True
    is_mixed = True

    def __init__(self, n_layers: int, width: int, n_classes: int, **options: Any) -> None:
        super().__init__(n_layers, width, n_classes, **options)
        self.preference = nn.Parameter(torch.zeros(1, n_layers))
        self.gamma = nn.Parameter(torch.ones(1))

    def weights(self) -> Float[Tensor, " L"]:
        """Weights of the layers; they sum to 1."""
        return self.preference[0].softmax(0)

    def parts(self, prepared: Float[Tensor, "L W D"]) -> Float[Tensor, "L W K"]:
        """Return what each layer adds to the logits, before it is weighed and the bias is added."""
        return self.gamma * multiply_layers(prepared, self.weight.expand(self.n_layers, -1, -1))

    def logits(self, prepared: Float[Tensor, "L W D"]) -> Float[Tensor, "P W K"]:
        """Mix what the layers add: the same as classifying their mix."""
        return torch.einsum("l,lwk->wk", self.weights(), self.parts(prepared)).unsqueeze(0) + self.bias

    def only(self, probe: int) -> "TokenMix":
        """Return the head itself: its one probe reads every layer."""
        del probe
        return self
