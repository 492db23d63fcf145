"""What a token head does to latents before it reads them."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Preparation:
    """What a head does to latents before it reads them, on the CPU, in place.

    Attributes:
        mean: `(L, D)` that is taken off; nothing is when None.
        factor: `(L, D)` that multiplies the rest.
        is_normed: Whether each latent is then layer-normed.
    """

    mean: Float[Tensor, "L D"] | None
    factor: Float[Tensor, "L D"] | None
    is_normed: bool

    def __call__(self, latents: Float[Tensor, "L W D"]) -> None:
        """Prepare latents, a layer at a time, for memory."""
        for k, layer in enumerate(latents):
            if self.mean is not None and self.factor is not None:
                layer.sub_(self.mean[k]).mul_(self.factor[k])
            if self.is_normed:
                layer.copy_(nn.functional.layer_norm(layer, layer.shape[-1:]))
