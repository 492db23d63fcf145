"""AdamW as heads use it: one fused step, with a learning rate per layer where layers are stacked."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def adamw(parameters: Iterable[nn.Parameter], *, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Make AdamW with the fused step for parameters on one device; without weight decay it is Adam."""
    return torch.optim.AdamW(
        [parameter for parameter in parameters if parameter.requires_grad],
        lr=learning_rate,
        weight_decay=weight_decay,
        fused=True,
    )


class LayerwiseAdamW(torch.optim.AdamW):
    """AdamW for parameters whose first axis is the layer, each layer with its own learning rate.

    The learning rates are FREEZE's: `learning_rate * (1 + layer / L)`. `stacks` are parameters `(L_g, ...)` with the
    positions, 0 to `L - 1`, of the layers they hold. Every layer's slice is a leaf that shares memory with its
    parameter, so that the fused step serves all of them.
    """

    def __init__(
        self,
        stacks: Sequence[tuple[nn.Parameter, Sequence[int]]],
        n_layers: int,
        *,
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        self.stacks = [parameter for parameter, _ in stacks]
        self._slices: list[list[Tensor]] = [list(parameter.detach().unbind()) for parameter in self.stacks]
        of_layer: dict[int, list[Tensor]] = {}
        for slices, (_, layers) in zip(self._slices, stacks, strict=True):
            for piece, layer in zip(slices, layers, strict=True):
                of_layer.setdefault(layer, []).append(piece.requires_grad_())
        groups = [
            {"params": pieces, "lr": learning_rate * (1 + layer / n_layers)}
            for layer, pieces in sorted(of_layer.items())
        ]
        super().__init__(groups, weight_decay=weight_decay, fused=True)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Hand every slice its part of the gradient and take one step."""

        def share_gradients() -> Any:
            loss = None if closure is None else closure()
            for parameter, slices in zip(self.stacks, self._slices, strict=True):
                if parameter.grad is not None:
                    for piece, gradient in zip(slices, parameter.grad.unbind(), strict=True):
                        piece.grad = gradient
            return loss

        return super().step(share_gradients)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of parameters and slices."""
        super().zero_grad(set_to_none=set_to_none)
        for parameter in self.stacks:
            parameter.grad = None
