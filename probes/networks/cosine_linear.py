"""Cosine linear: the layers' cosines, each with a weight of its own."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probes.networks.cosine_mlp import CosineHead


class CosineLinear(CosineHead):
    """Standardised layer cosines, then one linear map and a sigmoid: a weight per layer, and no hidden layer.

    Cosines of neighbouring layers rise and fall together, so a weight says what a layer adds beside the others, not
    what it knows alone. The arguments are those of `CosineHead`.
    """

    network: nn.Linear

    def __init__(
        self, n_layers: int, width: int, *, standardises_latents: bool = True, loss: str = "mse",
        learning_rate: float = 3e-3, weight_decay: float = 0.01,
    ) -> None:  # fmt: skip
        how = {"loss": loss, "learning_rate": learning_rate, "weight_decay": weight_decay}
        super().__init__(n_layers, width, standardises_latents=standardises_latents, **how)
        self.network = nn.Linear(n_layers, 1)
        nn.init.zeros_(self.network.weight)  # few weights and many layers alike: a start at random would stay in them
        nn.init.zeros_(self.network.bias)
        self.save_hyperparameters()

    def weights(self) -> Float[Tensor, " L"]:
        """Weight of each layer's cosine, per standard deviation of it over the training pairs, before the sigmoid."""
        return torch.as_tensor(self.network.weight.detach()[0])
