"""Siamese cosine head: layer-wise encoders, their cosines, and a network that combines them."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extract.errors import HeadError, unknown_name
from probes.latents.pair_latents import PairLatents
from probes.latents.standardise import Standardiser
from probes.networks.layerwise import LayerGroups, LayerwiseLinear
from probes.networks.optimisers import adamw
from probes.networks.pair_head import PairHead, cosine
from probes.networks.widths import Widths, code_widths

STARTS = {
    "fresh": "encoders begin at random and are trained with the head",
    "pretrained": "encoders of the layer-wise autoencoders, trained on with the head",
    "frozen": "encoders of the layer-wise autoencoders, left as they are",
}

MOST_HIDDEN_LAYERS = 100


class SiameseCosine(PairHead):
    """One encoder per layer shared by both texts, `L` cosines, then an MLP (FREEZE sections 4.1.1 and 4.2).

    The encoders see latents standardised by the training split or raw; those that come from autoencoders, as the
    autoencoders saw them. Symmetric by construction. The protocol `freeze-released` sets the options of FREEZE.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        bottleneck: Dimension `H` of a code: a size, a rule such as `256, upper half 512`, or a list over layers.
        encoder: A name from `ENCODERS`.
        start: A name from `STARTS`; `pretrained` and `frozen` take encoder and bottleneck from the autoencoders.
        standardises_latents: Whether each dimension of a latent is standardised before a fresh encoder.
        pair_features: Numbers per layer that a small projection takes from the product and the absolute difference
            of two codes of length 1, shown to the network beside the cosine; none when 0.
        hidden: Units of each hidden layer of the network.
        hidden_layers: Hidden layers of the network.
        norms_network: Whether a layer norm stands behind each hidden layer, before dropout and GELU.
        dropout: Dropout probability of the encoders.
        network_dropout: Dropout probability of the network, at each of its hidden layers.
        loss: A name from `LOSSES`.
        learning_rate: AdamW learning rate.
        encoder_learning_rate: That of the encoders, for instance a lower one for those that come from autoencoders;
            `learning_rate` when None.
        weight_decay: AdamW weight decay, of encoders and network.
    """

    def __init__(  # noqa: PLR0913 - a head's options are its signature
        self,
        n_layers: int,
        width: int,
        *,
        bottleneck: Widths = 256,
        encoder: str = "linear",
        start: str = "fresh",
        standardises_latents: bool = True,
        pair_features: int = 0,
        hidden: int = 512,
        hidden_layers: int = 3,
        norms_network: bool = False,
        dropout: float = 0.1,
        network_dropout: float = 0.0,
        loss: str = "log-variance",
        learning_rate: float = 3e-4,
        encoder_learning_rate: float | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(n_layers, width, loss=loss, learning_rate=learning_rate, weight_decay=weight_decay)
        self.save_hyperparameters()
        if start not in STARTS:
            raise unknown_name("start", start, STARTS)
        if start == "frozen" and encoder_learning_rate is not None:
            raise HeadError(
                f"encoder_learning_rate is {encoder_learning_rate:g}, but start is 'frozen', which trains no encoder; "
                "leave it out, or use start: pretrained."
            )
        if not 1 <= hidden_layers <= MOST_HIDDEN_LAYERS:
            raise HeadError(f"hidden_layers is {hidden_layers}; allowed: 1 to {MOST_HIDDEN_LAYERS}.")
        self.encoder_learning_rate = encoder_learning_rate
        self.standardises_latents = standardises_latents
        self.start, self._is_adopted = start, False
        codes = code_widths(bottleneck, n_layers, width=width)
        self.encoder = LayerGroups(encoder, width, codes, dropout=dropout)
        self.projections = nn.ModuleList(
            LayerwiseLinear(len(layers), 2 * codes[layers[0]], pair_features)
            for layers in (self.encoder.places if pair_features else ())
        )
        parts: list[nn.Module] = []
        for n_in in (n_layers * (1 + pair_features), *[hidden] * (hidden_layers - 1)):
            norm = nn.LayerNorm(hidden) if norms_network else None
            parts += [nn.Linear(n_in, hidden), _activation(network_dropout, norm)]
        self.network = nn.Sequential(*parts, nn.Linear(hidden, 1), nn.Hardsigmoid())

    @property
    def has_fixed_similarities(self) -> bool:
        """Frozen encoders give the same cosines in every epoch."""
        return self.start == "frozen" and not self.projections

    def train(self, mode: bool = True) -> "SiameseCosine":
        """Set the mode; frozen encoders stay in eval mode, so that nothing of theirs is dropped."""
        super().train(mode)
        if self.start == "frozen":
            self.encoder.eval()
        return self

    def adopt(self, encoders: LayerGroups, standardiser: Standardiser, *, picks: Sequence[int]) -> None:
        """Take over encoders of this head's kind and widths, with the standardisation they were trained under.

        `picks` are the positions of the `L` layers there.
        """
        self.encoder.copy_layers(encoders, picks)
        self._set_standardiser(Standardiser(standardiser.mean[list(picks)], standardiser.scale[list(picks)]))
        self.encoder.requires_grad_(self.start != "frozen")
        self._is_adopted = True
        self.train(self.training)

    def prepare(self, data: PairLatents, standardiser: Standardiser) -> None:
        """Take the standardisation of the training split, unless the encoders brought theirs.

        Encoders that should come from autoencoders, where none were given, raise `HeadError`.
        """
        if self.start == "fresh":
            if self.standardises_latents:
                super().prepare(data, standardiser)
        elif not self._is_adopted:
            raise HeadError(
                f"option start is {self.start!r}, but no autoencoders were given; allowed: 'fresh', or a run with "
                "`pretraining` set."
            )

    def similarities(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "C B"]:
        """Return the cosines of the codes, then the pair features: `(L * (1 + pair_features), B)`."""
        # Both texts in one pass over the encoders: half the calls, and each twice as long.
        codes = self.encoder.encode(self.standardised(torch.cat([a, b], dim=1)))
        of_a, of_b = zip(*(code.chunk(2, dim=1) for code in codes), strict=True)
        cosines = self.encoder.ungroup([cosine(x, y) for x, y in zip(of_a, of_b, strict=True)])
        if not self.projections:
            return cosines
        parts = []
        for project, x, y in zip(self.projections, of_a, of_b, strict=True):
            u, v = (nn.functional.normalize(code, dim=-1, eps=1e-8) for code in (x, y))
            parts.append(project(torch.cat([u * v, (u - v).abs()], dim=-1)))
        features = self.encoder.ungroup(parts)
        return torch.cat([cosines, features.permute(2, 0, 1).flatten(0, 1)])

    def combine(self, similarities: Float[Tensor, "C B"]) -> Float[Tensor, " B"]:
        """Pass the cosines (and pair features) of all layers through the network."""
        combined: Tensor = self.network(similarities.T)
        return combined.squeeze(-1)

    def identical_similarity(self) -> float | None:
        """Return the prediction for a text paired with itself; none with pair features, which depend on the text."""
        return None if self.projections else super().identical_similarity()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use AdamW, the encoders at their own learning rate if they have one; without weight decay it is Adam."""
        if self.encoder_learning_rate is None:
            return super().configure_optimizers()
        rest = [parameter for name, parameter in self.named_parameters() if not name.startswith("encoder.")]
        optimiser = adamw(rest, learning_rate=self.learning_rate, weight_decay=self.weight_decay)
        optimiser.add_param_group({"params": list(self.encoder.parameters()), "lr": self.encoder_learning_rate})
        return optimiser


def _activation(dropout: float, norm: nn.LayerNorm | None) -> nn.Module:
    """One module in every case, so that the network's weights keep their names."""
    if norm is not None:
        return nn.Sequential(norm, nn.Dropout(dropout), nn.GELU())
    return nn.Sequential(nn.GELU(), nn.Dropout(dropout)) if dropout else nn.GELU()
