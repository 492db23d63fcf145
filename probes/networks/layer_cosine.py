"""Layer cosine: the cosine of raw and of standardised latents at each layer; the best one is the score."""

from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from extract.errors import HeadError
from probes.latents.pair_latents import PairBatch, PairLatents
from probes.latents.standardise import Standardiser
from probes.metrics.correlation import pearson, spearman
from probes.networks.pair_head import PairHead, cosine

KINDS = ("raw", "standardised")


class LayerCosine(PairHead):
    """Cosine per layer, without training (FREEZE Figure 1).

    Preparing the head fits the standardisation on training texts and chooses layer and kind by validation Pearson.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
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
        """Fit the standardisation and choose kind and layer on validation.

        Raises:
            HeadError: The cosine varies at no layer, so that there is nothing to choose by.
        """
        super().prepare(data, standardiser)
        curves = self.curves(data, "validation")["pearson"]
        if np.isnan(curves).all():
            raise HeadError(
                f"the cosine of the {data.pooling!r} latents is the same for every validation pair at all of "
                f"{', '.join(data.layers)}; read another pooling or other layers."
            )
        if not np.isfinite(curves).any():
            raise HeadError(
                "no layer's cosine varies over the validation pairs, so none can be chosen; check texts and pooling."
            )
        best = int(np.nanargmax(curves))
        self.chosen.copy_(torch.tensor(divmod(best, curves.shape[1])))

    def curves(self, data: PairLatents, split: str) -> dict[str, Float[np.ndarray, "2 L"]]:
        """Correlate every layer's cosine with gold.

        Args:
            data: The pairs.
            split: The split.

        Returns:
            Metric to `(2, L)` correlations, raw first.
        """
        parts = [self._cosines(batch) for batch in data.loader(split)]
        values = np.concatenate(parts, axis=2)
        gold = data.split(split).gold.numpy()
        return {"pearson": pearson(values, gold), "spearman": spearman(values, np.broadcast_to(gold, values.shape))}

    def _cosines(self, batch: PairBatch) -> Any:
        with torch.no_grad():
            return self.both(batch.a.to(self.mean.device), batch.b.to(self.mean.device)).cpu().numpy()
