"""Encoders of all layers, whose codes may differ in width: layers of one width are computed together."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probes.networks.layerwise import build_map


class LayerGroups(nn.Module):
    """Layer-wise maps `D -> H_l` (encoders) or `H_l -> D` (decoders), one batched computation per distinct `H_l`.

    Args:
        kind: A name from `ENCODERS`.
        width: Dimension `D` of a latent.
        codes: Width `H_l` of the codes of each of the `L` layers.
        dropout: Dropout probability.
        is_decoder: Whether the maps lead from codes back to latents.

    Raises:
        UnknownNameError: Unknown kind.
    """

    def __init__(
        self, kind: str, width: int, codes: Sequence[int], *, dropout: float, is_decoder: bool = False
    ) -> None:
        super().__init__()
        self.places = tuple(tuple(k for k, code in enumerate(codes) if code == size) for size in dict.fromkeys(codes))
        """Layers of each group, in the order of the groups."""
        self.groups = nn.ModuleList(
            build_map(
                kind, len(layers), dropout=dropout,
                n_in=codes[layers[0]] if is_decoder else width, n_out=width if is_decoder else codes[layers[0]],
            )
            for layers in self.places
        )  # fmt: skip

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
        """Take over the parameters of another one's layers, of the same kind and widths.

        Args:
            source: Where they come from.
            picks: For each of the layers here, its position there.
        """
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
