"""Siamese cosine head: layer-wise encoders, their cosines, and a network that combines them."""

from jaxtyping import Float
from torch import Tensor, nn

from probes.heads.base import PairHead, cosine
from probes.heads.layerwise import build_encoder


class SiameseCosine(PairHead):
    """One encoder per layer shared by both texts, `L` cosines, then an MLP (FREEZE sections 4.1.1 and 4.2).

    The encoders start fresh and see latents standardised by the training split. Symmetric by construction.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        bottleneck: Dimension `H` of a code.
        encoder: A name from `ENCODERS`.
        hidden: Units of each of the three hidden layers.
        dropout: Dropout probability of the encoders.
        loss: A name from `LOSSES`.
        learning_rate: AdamW learning rate.
        weight_decay: AdamW weight decay.
    """

    def __init__(
        self, n_layers: int, width: int, *, bottleneck: int = 256, encoder: str = "linear", hidden: int = 512,
        dropout: float = 0.1, loss: str = "log-variance", learning_rate: float = 3e-4, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(n_layers, width, loss=loss, learning_rate=learning_rate, weight_decay=weight_decay)
        self.save_hyperparameters()
        self.encoder = build_encoder(encoder, n_layers, width, bottleneck=bottleneck, dropout=dropout)
        self.network = nn.Sequential(
            nn.Linear(n_layers, hidden), nn.GELU(),
            nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, 1), nn.Hardsigmoid(),
        )  # fmt: skip

    def encode(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, "L B H"]:
        """Encode latents layer by layer."""
        codes: Tensor = self.encoder(self.standardised(latents))
        return codes

    def similarities(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "L B"]:
        """Give the cosines of the codes."""
        return cosine(self.encode(a), self.encode(b))

    def combine(self, similarities: Float[Tensor, "L B"]) -> Float[Tensor, " B"]:
        """Pass the cosines of all layers through the network."""
        combined: Tensor = self.network(similarities.T)
        return combined.squeeze(-1)
