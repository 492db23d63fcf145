"""Cosine heads: the layers' cosines through a small network, or each with a weight of its own."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extract.errors import unknown_name
from probes.latents.pair_latents import PairLatents
from probes.latents.standardise import Standardiser
from probes.networks.pair_head import PairHead, collect_similarities, cosine

SCALINGS = {
    "layer": "by mean and deviation of each layer over the training pairs",
    "global": "by one mean and deviation over all layers and training pairs (FREEZE)",
    "none": "not at all",
}
"""How cosines are scaled before the network."""
ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}


class CosineHead(PairHead):
    """Scaled layer cosines, then a network with one output and a sigmoid.

    The cosines are scaled as `cosine_scaling` says and, with `standardises_latents`, each dimension of a latent is
    standardised before the cosine, both by the training split. A head sets `network`, from `(B, L)` to `(B, 1)`.
    """

    cosine_mean: Tensor
    cosine_scale: Tensor
    network: nn.Module

    def __init__(
        self, n_layers: int, width: int, *, standardises_latents: bool, cosine_scaling: str, **how: Any
    ) -> None:
        super().__init__(n_layers, width, **how)
        if cosine_scaling not in SCALINGS:
            raise unknown_name("cosine scaling", cosine_scaling, SCALINGS)
        self.standardises_latents, self.cosine_scaling = standardises_latents, cosine_scaling
        self.register_buffer("cosine_mean", torch.zeros(n_layers, 1))
        self.register_buffer("cosine_scale", torch.ones(n_layers, 1))

    @property
    def has_fixed_similarities(self) -> bool:
        """Nothing below the cosines is trained."""
        return True

    def similarities(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "L B"]:
        """Return the cosines of latents, standardised or as they are."""
        if self.standardises_latents:
            a, b = self.standardised(a), self.standardised(b)
        return cosine(a, b)

    def combine(self, similarities: Float[Tensor, "L B"]) -> Float[Tensor, " B"]:
        """Scale the cosines and pass them through the network."""
        inputs = ((similarities - self.cosine_mean) / self.cosine_scale).T
        return torch.sigmoid(self.network(inputs)).squeeze(-1)

    def prepare(self, data: PairLatents, standardiser: Standardiser) -> None:
        """Fit standardisation and scaling on the training split."""
        super().prepare(data, standardiser)
        if self.cosine_scaling == "none":
            return
        values = collect_similarities(self, data, "train")
        if self.cosine_scaling == "global":
            values = values.reshape(1, -1)
        self.cosine_mean.copy_(values.mean(1, keepdim=True))
        self.cosine_scale.copy_(values.std(1, keepdim=True).clamp(min=1e-4))


class CosineMLP(CosineHead):
    """Scaled layer cosines, then `L -> hidden -> 1` and a sigmoid (FREEZE section 4.2.1).

    FREEZE's is `standardises_latents=False, cosine_scaling="global", activation="relu"`.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        hidden: Units of the hidden layer.
        standardises_latents: Whether each dimension of a latent is standardised before the cosine.
        cosine_scaling: A name from `SCALINGS`.
        activation: `gelu` or `relu`, behind the hidden layer.
        loss: A name from `LOSSES`.
        learning_rate: AdamW learning rate.
        weight_decay: AdamW weight decay.
    """

    def __init__(
        self,
        n_layers: int,
        width: int,
        *,
        hidden: int = 128,
        standardises_latents: bool = True,
        cosine_scaling: str = "layer",
        activation: str = "gelu",
        loss: str = "mse",
        learning_rate: float = 3e-4,
        weight_decay: float = 0.01,
    ) -> None:
        how = {"loss": loss, "learning_rate": learning_rate, "weight_decay": weight_decay}
        super().__init__(
            n_layers, width, standardises_latents=standardises_latents, cosine_scaling=cosine_scaling, **how
        )
        if activation not in ACTIVATIONS:
            raise unknown_name("activation", activation, ACTIVATIONS)
        self.network = nn.Sequential(nn.Linear(n_layers, hidden), ACTIVATIONS[activation](), nn.Linear(hidden, 1))
        self.save_hyperparameters()


class CosineLinear(CosineHead):
    """Scaled layer cosines, then one linear map and a sigmoid: a weight per layer, and no hidden layer.

    Cosines of neighbouring layers rise and fall together, so a weight says what a layer adds beside the others, not
    what it knows alone.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        standardises_latents: Whether each dimension of a latent is standardised before the cosine.
        cosine_scaling: A name from `SCALINGS`.
        loss: A name from `LOSSES`.
        learning_rate: AdamW learning rate.
        weight_decay: AdamW weight decay.
    """

    network: nn.Linear

    def __init__(
        self,
        n_layers: int,
        width: int,
        *,
        standardises_latents: bool = True,
        cosine_scaling: str = "layer",
        loss: str = "mse",
        learning_rate: float = 3e-3,
        weight_decay: float = 0.01,
    ) -> None:
        how = {"loss": loss, "learning_rate": learning_rate, "weight_decay": weight_decay}
        super().__init__(
            n_layers, width, standardises_latents=standardises_latents, cosine_scaling=cosine_scaling, **how
        )
        self.network = nn.Linear(n_layers, 1)
        nn.init.zeros_(self.network.weight)  # few weights and many layers alike: a start at random would stay in them
        nn.init.zeros_(self.network.bias)
        self.save_hyperparameters()

    def weights(self) -> Float[Tensor, " L"]:
        """Weight of each layer's scaled cosine before the sigmoid; by default, per standard deviation of it."""
        return torch.as_tensor(self.network.weight.detach()[0])
