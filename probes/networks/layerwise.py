"""Layer-wise modules: one small network per layer, all layers of one width in one batched computation."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extract.errors import unknown_name
from extract.linear import affine_layers

ENCODERS = {
    "linear": "D -> H, one matrix per layer",
    "mlp": "D -> (D + H) // 2 -> H with layer norm, dropout and GELU between",
    "normed-mlp": "D -> (D + H) // 2 -> H, layer norm, dropout and GELU behind both (FREEZE's autoencoders)",
    "deep-mlp": "D -> H -> H -> H, layer norm and GELU behind the first, GELU behind the second (FREEZE's siamese)",
}
XAVIER_GAIN = 0.5
"""Gain of the Xavier uniform weights that FREEZE's autoencoders begin with; their biases begin at 0."""


class LayerwiseLinear(nn.Module):
    """`L` affine maps at once."""

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
    """`L` layer norms at once."""

    def __init__(self, n_layers: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_layers, 1, width))
        self.bias = nn.Parameter(torch.zeros(n_layers, 1, width))

    def forward(self, x: Float[Tensor, "L B H"]) -> Float[Tensor, "L B H"]:
        """Norm each vector, then scale and shift by its layer's own parameters."""
        return torch.addcmul(self.bias, nn.functional.layer_norm(x, x.shape[-1:]), self.weight)


def build_map(
    kind: str, n_layers: int, *, n_in: int, n_out: int, dropout: float, is_decoder: bool = False
) -> nn.Sequential:
    """Build maps from `(L, B, n_in)` to `(L, B, n_out)`: encoders or, with both exchanged, their decoders.

    A decoder mirrors its encoder and ends in a linear map. `kind` is a name from `ENCODERS`; an unknown one raises
    `UnknownNameError`.
    """
    if kind not in ENCODERS:
        raise unknown_name("encoder", kind, ENCODERS)
    if kind == "linear":
        return nn.Sequential(nn.Dropout(dropout), LayerwiseLinear(n_layers, n_in, n_out))
    if kind == "deep-mlp":
        code = n_in if is_decoder else n_out
        return nn.Sequential(
            LayerwiseLinear(n_layers, n_in, code),
            LayerwiseNorm(n_layers, code),
            nn.GELU(),
            LayerwiseLinear(n_layers, code, code),
            nn.GELU(),
            LayerwiseLinear(n_layers, code, n_out),
        )
    hidden = (n_in + n_out) // 2
    parts: list[nn.Module] = [
        LayerwiseLinear(n_layers, n_in, hidden),
        LayerwiseNorm(n_layers, hidden),
        nn.Dropout(dropout),
        nn.GELU(),
        LayerwiseLinear(n_layers, hidden, n_out),
    ]
    if kind == "normed-mlp":
        _draw_xavier(part for part in parts if isinstance(part, LayerwiseLinear))
        parts += [] if is_decoder else [LayerwiseNorm(n_layers, n_out), nn.Dropout(dropout), nn.GELU()]
    return nn.Sequential(*parts)


@torch.no_grad()
def _draw_xavier(maps: Iterable[LayerwiseLinear]) -> None:
    for each in maps:
        _, n_in, n_out = each.weight.shape
        bound = XAVIER_GAIN * (6 / (n_in + n_out)) ** 0.5
        each.weight.uniform_(-bound, bound)
        each.bias.zero_()


class LayerGroups(nn.Module):
    """Layer-wise maps `D -> H_l` (encoders) or `H_l -> D` (decoders), one batched computation per distinct `H_l`.

    `kind` is a name from `ENCODERS`, `width` is `D`, and `codes` holds the `H_l` of each of the `L` layers.
    """

    def __init__(
        self, kind: str, width: int, codes: Sequence[int], *, dropout: float, is_decoder: bool = False
    ) -> None:
        super().__init__()
        self.places = tuple(tuple(k for k, code in enumerate(codes) if code == size) for size in dict.fromkeys(codes))
        """Layers of each group, in the order of the groups."""
        self.groups = nn.ModuleList(
            build_map(
                kind,
                len(layers),
                dropout=dropout,
                is_decoder=is_decoder,
                n_in=codes[layers[0]] if is_decoder else width,
                n_out=width if is_decoder else codes[layers[0]],
            )
            for layers in self.places
        )

    def encode(self, latents: Float[Tensor, "L B D"]) -> list[Tensor]:
        """Map latents `(L, B, D)` to codes `(L_g, B, H_g)`, a tensor per group."""
        return [group(pick_layers(latents, layers)) for group, layers in zip(self.groups, self.places, strict=True)]

    def decode(self, codes: Sequence[Tensor]) -> Float[Tensor, "L B D"]:
        """Map codes `(L_g, B, H_g)` of the same groups to latents `(L, B, D)`."""
        return self.ungroup([group(code) for group, code in zip(self.groups, codes, strict=True)])

    def ungroup(self, parts: Sequence[Tensor]) -> Tensor:
        """Put tensors `(L_g, ...)`, a part per group, into the order of the layers: `(L, ...)`."""
        if len(parts) == 1:
            return parts[0]
        order = [layer for layers in self.places for layer in layers]
        joined = torch.cat(list(parts))
        return joined if order == sorted(order) else joined[torch.tensor(order, device=joined.device).argsort()]

    def stacks(self) -> Iterator[tuple[nn.Parameter, tuple[int, ...]]]:
        """Return every parameter, whose first axis is the layer, with the layers it holds."""
        for group, layers in zip(self.groups, self.places, strict=True):
            for parameter in group.parameters():
                yield parameter, layers

    @torch.no_grad()
    def copy_layers(self, source: "LayerGroups", picks: Sequence[int]) -> None:
        """Take over the parameters of layers of the same kind and widths; `picks` are their positions in `source`."""
        spots = {layer: (g, row) for g, layers in enumerate(source.places) for row, layer in enumerate(layers)}
        for group, layers in zip(self.groups, self.places, strict=True):
            for row, layer in enumerate(layers):
                g, other = spots[picks[layer]]
                for mine, theirs in zip(group.parameters(), source.groups[g].parameters(), strict=True):
                    mine[row].copy_(theirs[other])


def pick_layers(latents: Float[Tensor, "L B D"], layers: Sequence[int]) -> Float[Tensor, "G B D"]:
    """Take layers of a batch: a view where they follow each other."""
    first = layers[0]
    if tuple(layers) == tuple(range(first, first + len(layers))):
        return latents[first : first + len(layers)]
    return latents[torch.tensor(layers, device=latents.device)]
