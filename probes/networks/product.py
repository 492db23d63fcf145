"""The one product that token heads are made of, quick on CPUs: frozen latents with a matrix for each layer."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from extract.linear import is_quick, quick_product


class _Product(torch.autograd.Function):
    """Products of frozen latents with weights, layer by layer through oneDNN."""

    @staticmethod
    def forward(ctx: Any, latents: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(latents)
        return torch.stack([quick_product(x, w) for x, w in zip(latents, weight, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (latents,) = ctx.saved_tensors
        slopes = gradients[0].transpose(1, 2).contiguous()
        return None, torch.stack([quick_product(slope, x.t()) for slope, x in zip(slopes, latents, strict=True)])


def classify(latents: Float[Tensor, "L W D"], weight: Float[Tensor, "L K D"]) -> Float[Tensor, "L W K"]:
    """Multiply each layer's latents by its own matrix: `latents[l] @ weight[l].T`.

    Args:
        latents: `(L, W, D)`; they get no gradient.
        weight: `(L, K, D)`.

    Returns:
        `(L, W, K)`, differentiable once in `weight`.
    """
    if is_quick(latents, weight):
        return _Product.apply(latents, weight)  # type: ignore[no-untyped-call,no-any-return]
    return torch.bmm(latents, weight.transpose(1, 2))
