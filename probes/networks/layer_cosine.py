"""Layer cosine: the cosine of raw and of standardised latents at each layer; the best one is the score."""

from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from extract.errors import HeadError
from probes.latents.pair_latents import PairLatents
from probes.latents.standardise import Standardiser
from probes.metrics.correlation import pearson, spearman
from probes.networks.pair_head import PairHead, cosine

KINDS = ("raw", "standardised")


class LayerCosine(PairHead):
    """Cosine per layer, without training (FREEZE Figure 1).

    Preparing the head fits the standardisation on training texts and chooses layer and kind by validation Pearson.
    """

    is_trained: ClassVar[bool] = False
    chosen: Tensor

    def __init__(self, n_layers: int, width: int) -> None:
        super().__init__(n_layers, width)
        self.save_hyperparameters()
        self.register_buffer("chosen", torch.zeros(2, dtype=torch.int64))  # kind, layer

    def both(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "2 L B"]:
        """Return raw and standardised cosines."""
        return torch.stack([cosine(a, b), cosine(self.standardised(a), self.standardised(b))])

    def similarities(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "L B"]:
        """Return the cosines of the chosen kind."""
        return self.both(a, b)[self.chosen[0]]

    def combine(self, similarities: Float[Tensor, "L B"]) -> Float[Tensor, " B"]:
        """Take the chosen layer."""
        return similarities[self.chosen[1]]

    def only(self, layer: int) -> "LayerCosine":
        """Return the head that reads one of the layers, as it would if that one were chosen."""
        alone = LayerCosine(1, self.width)
        alone._set_standardiser(Standardiser(self.mean[layer], self.scale[layer]))
        alone.chosen[0] = self.chosen[0]
        return alone.eval()

    def prepare(self, data: PairLatents, standardiser: Standardiser) -> None:
        """Fit the standardisation and choose kind and layer on validation; a `HeadError` where no cosine varies."""
        super().prepare(data, standardiser)
        curves = self.curves(data, "validation")["pearson"]
        if np.isnan(curves).all():
            raise HeadError(
                f"the cosine of the {data.pooling!r} latents is the same for every validation pair at all of "
                f"{', '.join(data.layers)}; read another pooling or other layers."
            )
        best = int(np.nanargmax(curves))
        self.chosen.copy_(torch.tensor(divmod(best, curves.shape[1])))

    def curves(self, data: PairLatents, split: str) -> dict[str, Float[np.ndarray, "2 L"]]:
        """Correlate every layer's cosine, raw and then standardised, with gold: metric to correlations."""
        device = self.mean.device
        with torch.no_grad():
            parts = [self.both(batch.a.to(device), batch.b.to(device)).cpu() for batch in data.loader(split)]
        values = torch.cat(parts, dim=2).numpy()
        gold = data.split(split).gold.numpy()
        return {"pearson": pearson(values, gold), "spearman": spearman(values, np.broadcast_to(gold, values.shape))}
