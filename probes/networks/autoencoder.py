"""Layer-wise autoencoders: one per layer, trained together on the latents of any texts (FREEZE section 4.2.3)."""

from typing import Any

import lightning
import torch
from jaxtyping import Float
from torch import Tensor

from probes.latents.standardise import Standardiser
from probes.networks.layerwise import LayerGroups
from probes.networks.optimisers import LayerwiseAdamW
from probes.networks.widths import Widths, code_widths


class LayerAutoencoder(lightning.LightningModule):
    """`L` autoencoders, `D -> (D + H) // 2 -> H` and back; no layer sees another.

    The loss of a layer is the mean squared error of its standardised latents, so 1 is what predicting the mean
    would give, or of its latents as they are. The learning rate rises with the layer:
    `learning_rate * (1 + layer / L)`.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        bottleneck: Dimension `H` of the codes: a size, a rule such as `256, upper half 512`, or a list over layers.
        encoder: A name from `ENCODERS`.
        standardises_latents: Whether each dimension of a latent is standardised first; FREEZE's are not.
        dropout: Dropout probability.
        learning_rate: AdamW learning rate of the lowest layer.
        weight_decay: AdamW weight decay.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        n_layers: int,
        width: int,
        *,
        bottleneck: Widths = "256, upper half 512",
        encoder: str = "mlp",
        standardises_latents: bool = True,
        dropout: float = 0.1,
        learning_rate: float = 3e-4,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.n_layers, self.width, self.kind = n_layers, width, encoder
        self.standardises_latents = standardises_latents
        self.codes = code_widths(bottleneck, n_layers, width=width)
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.register_buffer("mean", torch.zeros(n_layers, 1, width))
        self.register_buffer("scale", torch.ones(n_layers, 1, width))
        self.encoder = LayerGroups(encoder, width, self.codes, dropout=dropout)
        self.decoder = LayerGroups(encoder, width, self.codes, dropout=dropout, is_decoder=True)
        self._seen: list[tuple[Tensor, int]] = []

    @property
    def standardiser(self) -> Standardiser:
        """Mean and scale `(L, D)` of the latents."""
        return Standardiser(self.mean.squeeze(1), self.scale.squeeze(1))

    def prepare(self, standardiser: Standardiser) -> None:
        """Take over the standardisation of the training texts, if latents are standardised."""
        if self.standardises_latents:
            self.mean.copy_(standardiser.mean.unsqueeze(1))
            self.scale.copy_(standardiser.scale.unsqueeze(1))

    def forward(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, "L B D"]:
        """Reconstruct standardised latents from raw ones."""
        return self.decoder.decode(self.encoder.encode((latents - self.mean) / self.scale))

    def losses(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, " L"]:
        """Mean squared error of each layer: of standardised latents, in units of their variance, or of raw ones."""
        wanted = (latents - self.mean).mul_(self.scale.reciprocal())
        found = self.decoder.decode(self.encoder.encode(wanted))
        return ((found - wanted) ** 2).mean(dim=(1, 2))

    def raw_losses(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, " L"]:
        """Mean squared error of each layer in the units of its latents (FREEZE Figure 2)."""
        found: Tensor = self(latents)
        return ((found * self.scale + self.mean - latents) ** 2).mean(dim=(1, 2))

    def training_step(self, latents: Float[Tensor, "L B D"], _: int) -> Tensor:
        """Sum the losses of the layers: no gradient of one reaches another."""
        losses = self.losses(latents)
        self.log("train_loss", losses.mean(), on_step=False, on_epoch=True, batch_size=latents.shape[1])
        return losses.sum()

    def validation_step(self, latents: Float[Tensor, "L B D"], _: int) -> None:
        """Collect the losses of a batch."""
        self._seen.append((self.losses(latents).cpu(), latents.shape[1]))

    def on_validation_epoch_end(self) -> None:
        """Log the mean over rows, per layer and over layers."""
        n_rows = sum(n for _, n in self._seen)
        of_layers = torch.stack([losses * n for losses, n in self._seen]).sum(0) / n_rows
        self._seen.clear()
        self.log("held_out_loss", of_layers.mean())
        for k, loss in enumerate(of_layers):
            self.log(f"held_out_loss_{k}", loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use AdamW with a learning rate per layer."""
        return LayerwiseAdamW(
            [*self.encoder.stacks(), *self.decoder.stacks()],
            self.n_layers,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
        )

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values, to build the module again."""
        return dict(self.hparams)
