"""Layer-wise modules: one small network per layer, all of them in one batched computation."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extract.errors import unknown_name
from extract.linear import affine_layers

ENCODERS = {
    "linear": "D -> H, one matrix per layer",
    "mlp": "D -> (D + H) // 2 -> H with layer norm, dropout and GELU between (FREEZE's encoder)",
}


class LayerwiseLinear(nn.Module):
    """`L` affine maps at once.

    Args:
        n_layers: Layers `L`.
        n_in: Inputs `D`.
        n_out: Outputs `H`.
    """

    def __init__(self, n_layers: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_layers, n_in, n_out))
        self.bias = nn.Parameter(torch.empty(n_layers, 1, n_out))
        bound = n_in**-0.5  # as nn.Linear
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Float[Tensor, "L B D"]) -> Float[Tensor, "L B H"]:
        """Map each layer by its own matrix."""
        return affine_layers(x, self.weight, self.bias)


class LayerwiseNorm(nn.Module):
    """`L` layer norms at once.

    Args:
        n_layers: Layers `L`.
        width: Dimension that is normed.
    """

    def __init__(self, n_layers: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_layers, 1, width))
        self.bias = nn.Parameter(torch.zeros(n_layers, 1, width))

    def forward(self, x: Float[Tensor, "L B H"]) -> Float[Tensor, "L B H"]:
        """Norm each vector, then scale and shift by its layer's own parameters."""
        return torch.addcmul(self.bias, nn.functional.layer_norm(x, x.shape[-1:]), self.weight)


def build_map(kind: str, n_layers: int, *, n_in: int, n_out: int, dropout: float) -> nn.Sequential:
    """Build layer-wise maps, as an encoder or, with `n_in` and `n_out` exchanged, its decoder.

    Args:
        kind: A name from `ENCODERS`.
        n_layers: Layers `L`.
        n_in: Inputs.
        n_out: Outputs.
        dropout: Dropout probability.

    Returns:
        A module from `(L, B, n_in)` to `(L, B, n_out)`.

    Raises:
        UnknownNameError: Unknown kind.
    """
    if kind not in ENCODERS:
        raise unknown_name("encoder", kind, ENCODERS)
    if kind == "linear":
        return nn.Sequential(nn.Dropout(dropout), LayerwiseLinear(n_layers, n_in, n_out))
    hidden = (n_in + n_out) // 2
    return nn.Sequential(
        LayerwiseLinear(n_layers, n_in, hidden),
        LayerwiseNorm(n_layers, hidden),
        nn.Dropout(dropout),
        nn.GELU(),
        LayerwiseLinear(n_layers, hidden, n_out),
    )
