"""Layer cosine: the cosine of raw and of transformed latents at each layer; the best one is the score."""

from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from extract.errors import HeadError
from probes.latents.pair_latents import PairLatents
from probes.latents.standardise import Standardiser
from probes.latents.transform import Transform, TransformOptions, fit_transform
from probes.metrics.correlation import pearson, spearman
from probes.networks.pair_head import PairHead, cosine

_KINDS = {"none": "raw", "standardise": "standardised"}
_DEFAULT = TransformOptions("none+standardise")


class LayerCosine(PairHead):
    """Cosine per layer, without training (FREEZE Figure 1).

    Preparing the head fits the transforms on training texts and chooses layer and transform by validation Pearson.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        transform: Names of `probes.latents.transform.TRANSFORMS` to choose from, joined by `+`.
        components: Components that `abtt` removes or `whiten` keeps; 0 as in `TransformOptions`.
        shrinkage: Shrinkage of `whiten`; None as in `TransformOptions`.
    """

    is_trained: ClassVar[bool] = False
    chosen: Tensor

    def __init__(
        self,
        n_layers: int,
        width: int,
        *,
        transform: str = "none+standardise",
        components: int = 0,
        shrinkage: float | None = None,
    ) -> None:
        super().__init__(n_layers, width)
        self.options = TransformOptions(transform, components, shrinkage)
        self.kinds = tuple(_KINDS.get(name, name) for name in self.options.transforms)
        """How the transforms are called in curves."""
        self.register_buffer("chosen", torch.zeros(2, dtype=torch.int64))  # kind, layer
        for name in self._with_basis():
            self.register_buffer(f"basis_{name}", torch.zeros(n_layers, width, 0))

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values, those of transforms where they are not the default."""
        plain = {key: value for key, value in vars(self.options).items() if value != getattr(_DEFAULT, key)}
        return {"n_layers": self.n_layers, "width": self.width, **plain}

    def _with_basis(self) -> list[str]:
        return [name for name in self.options.transforms if name in ("abtt", "whiten")]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Make room for bases, whose width the latents decided, and read the weights."""
        for name in self._with_basis():
            found = state_dict.get(f"{prefix}basis_{name}")
            if found is not None:
                setattr(self, f"basis_{name}", torch.empty_like(found))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _transform(self, kind: int) -> Transform:
        """Return a transform by its position."""
        name = self.options.transforms[kind]
        mean, scale = self.mean[:, 0], self.scale[:, 0]
        basis = getattr(self, f"basis_{name}", mean.new_zeros(self.n_layers, self.width, 0))
        return Transform(name, mean, scale if name == "standardise" else torch.ones_like(scale), basis)

    def each(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "K L B"]:
        """Return the cosines of every transform."""
        return torch.stack([self._cosine(kind, a, b) for kind in range(len(self.kinds))])

    def _cosine(self, kind: int, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "L B"]:
        transform = self._transform(kind)
        if transform.name == "standardise":
            return cosine(self.standardised(a), self.standardised(b))
        return cosine(transform(a), transform(b))

    def similarities(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "L B"]:
        """Return the cosines of the chosen transform."""
        return self._cosine(int(self.chosen[0]), a, b)

    def combine(self, similarities: Float[Tensor, "L B"]) -> Float[Tensor, " B"]:
        """Take the chosen layer."""
        return similarities[self.chosen[1]]

    def only(self, layer: int) -> "LayerCosine":
        """Return the head that reads one of the layers, as it would if that one were chosen."""
        alone = LayerCosine(1, self.width, **vars(self.options))
        alone._set_standardiser(Standardiser(self.mean[layer], self.scale[layer]))
        for name in self._with_basis():
            setattr(alone, f"basis_{name}", getattr(self, f"basis_{name}")[layer : layer + 1])
        alone.chosen[0] = self.chosen[0]
        return alone.eval()

    def prepare(self, data: PairLatents, standardiser: Standardiser) -> None:
        """Fit the transforms, and choose one and the layer on validation; a `HeadError` where no cosine varies."""
        super().prepare(data, standardiser)
        rows = torch.cat(data.split("train").rows)
        for name in self._with_basis():
            found = fit_transform(name, data.cache, rows, channels=data.channels, options=self.options)
            setattr(self, f"basis_{name}", found.basis.to(self.mean.device))
        curves = self.curves(data, "validation")["pearson"]
        if np.isnan(curves).all():
            raise HeadError(
                f"the cosine of the {data.pooling!r} latents is the same for every validation pair at all of "
                f"{', '.join(data.layers)}; read another pooling or other layers."
            )
        best = int(np.nanargmax(curves))
        self.chosen.copy_(torch.tensor(divmod(best, curves.shape[1])))

    def curves(self, data: PairLatents, split: str) -> dict[str, Float[np.ndarray, "K L"]]:
        """Correlate every layer's cosine, transform by transform, with gold: metric to correlations."""
        device = self.mean.device
        with torch.no_grad():
            parts = [self.each(batch.a.to(device), batch.b.to(device)).cpu() for batch in data.loader(split)]
        values = torch.cat(parts, dim=2).numpy()
        gold = data.split(split).gold.numpy()
        return {"pearson": pearson(values, gold), "spearman": spearman(values, np.broadcast_to(gold, values.shape))}
