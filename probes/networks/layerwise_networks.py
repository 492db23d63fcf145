"""Layer-wise modules: one small network per layer, all layers of one width in one batched computation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extract.errors import HeadError, require_name
from extract.linear import affine_layers, multiply_layers
from extract.records import Values
from probes.latents.text_latents import Standardiser
from probes.networks.network_options import Widths, code_widths

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import OptimizerLRScheduler

    from probes.latents.word_latents import WordBatch


ENCODERS = {
    "linear": "D -> H, one matrix per layer",
    "mlp": "D -> (D + H) // 2 -> H with layer norm, dropout and GELU between",
    "normed-mlp": "D -> (D + H) // 2 -> H, layer norm, dropout and GELU behind both (FREEZE's autoencoders)",
    "deep-mlp": "D -> H -> H -> H, layer norm and GELU behind the first, GELU behind the second (FREEZE's siamese)",
}
XAVIER_GAIN = 0.5
"""Gain of the Xavier uniform weights that FREEZE's autoencoders begin with; their biases begin at 0."""


class TrainedModule(nn.Module):
    """A module with the steps that a training loop calls; plain torch, so that loading one imports no Lightning.

    It is not generic in its batches: the digest of a user's subclass would count the parameters of its type.
    """

    loop: Any = None
    """The LightningModule that calls the steps while the module is fitted: it logs, and knows the other processes."""

    @abstractmethod
    def training_step(self, batch: Any, index: int) -> Tensor:
        """Compute the loss of a batch."""

    def validation_step(self, batch: Any, index: int) -> None:
        """Look at a held-out batch."""

    def on_validation_epoch_end(self) -> None:
        """Log what the held-out batches gave."""

    @abstractmethod
    def configure_optimizers(self) -> "OptimizerLRScheduler":
        """Make the optimiser, and the schedule of its learning rate if there is one."""

    def on_fit_start(self) -> None:
        """Start a fit, or continue one whose state was loaded."""

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Add to the state of a fit what weights and optimiser do not hold."""

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Read that back."""


class StackedModule(TrainedModule):
    """A module whose parameters hold layers that train apart, so that those which are done can leave the computation.

    A layer that has left costs nothing: parameters, their gradients and the optimiser's state hold the others alone,
    and so do the batches it is trained on. Those left are trained as if all were there.
    """

    trained: tuple[int, ...]
    """The layers that are trained now, in order."""

    @abstractmethod
    def all_stacks(self) -> list[tuple[nn.Parameter, Sequence[int]]]:
        """Return every parameter with the layers that its first axis has when none has left."""

    def stacks(self) -> list[tuple[nn.Parameter, Sequence[int]]]:
        """Return every parameter with the layers that its first axis has now."""
        return [(stack, [layer for layer in layers if layer in self.trained]) for stack, layers in self.all_stacks()]

    @torch.no_grad()
    def train_only(self, layers: Sequence[int]) -> None:
        """Let the other layers leave, between steps; those that come back have weights of zero until restored."""
        optimisers = self.loop.trainer.optimizers if self.loop is not None else []
        states = {key: value for optimiser in optimisers for key, value in optimiser.state.items()}
        before, self.trained = self.stacks(), tuple(layers)
        for (stack, old), (_, new) in zip(before, self.stacks(), strict=True):
            for value in states.get(stack, {}).values():
                if value.shape == stack.shape:  # a state that was loaded has left before
                    value.data = _move_rows(value, old, new)
            stack.data, stack.grad = _move_rows(stack, old, new), None
        for optimiser in optimisers:
            if isinstance(optimiser, LayerwiseAdamW):
                optimiser.follow(self.stacks())

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Save parameters of all layers; the weights of those that have left are saved by what keeps the best."""
        weights = cast("dict[str, Tensor]", checkpoint["state_dict"])
        names = {parameter: name for name, parameter in self.named_parameters()}
        for (stack, layers), (_, present) in zip(self.all_stacks(), self.stacks(), strict=True):
            weights[names[stack]] = _move_rows(stack.detach(), present, layers)


def _move_rows(values: Tensor, old: Sequence[int], new: Sequence[int]) -> Tensor:
    """Return rows of layers as those of other layers: zeros for a layer that was not there."""
    if list(old) == list(new):
        return values.data
    moved = values.new_zeros(len(new), *values.shape[1:])
    both = [layer for layer in new if layer in old]
    moved[[new.index(layer) for layer in both]] = values.data[[old.index(layer) for layer in both]]
    return moved


def arguments_of(names: dict[str, object]) -> dict[str, object]:
    """Return the arguments of a constructor from its `locals()` at its beginning."""
    return {name: value for name, value in names.items() if name not in ("self", "__class__")}


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


class LayerwiseDropout(nn.Dropout):
    """Dropout of `L` layers at once, which on a CPU gives a layer the same masks when others have left."""

    rows: tuple[int, ...] | None = None
    """The rows that are there, of `n_layers`; all of any number when None."""
    n_layers = 0

    def forward(self, x: Float[Tensor, "*L B H"]) -> Float[Tensor, "*L B H"]:
        """Drop numbers in training."""
        if self.rows is None or not self.training or not self.p:
            return super().forward(x)
        noise = x.new_empty(self.n_layers, *x.shape[1:]).bernoulli_(1 - self.p)[list(self.rows)]
        return x * noise.div_(1 - self.p)


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
    """Build encoders from `(L, B, n_in)` to `(L, B, n_out)`, or decoders, which mirror them and end in a linear map."""
    require_name("encoder", kind, ENCODERS)
    if kind == "linear":
        return nn.Sequential(LayerwiseDropout(dropout), LayerwiseLinear(n_layers, n_in, n_out))
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
        LayerwiseDropout(dropout),
        nn.GELU(),
        LayerwiseLinear(n_layers, hidden, n_out),
    ]
    if kind == "normed-mlp":
        _draw_xavier(part for part in parts if isinstance(part, LayerwiseLinear))
        parts += [] if is_decoder else [LayerwiseNorm(n_layers, n_out), LayerwiseDropout(dropout), nn.GELU()]
    return nn.Sequential(*parts)


@torch.no_grad()
def _draw_xavier(maps: Iterable[LayerwiseLinear]) -> None:
    for linear in maps:
        _, n_in, n_out = linear.weight.shape
        bound = XAVIER_GAIN * (6 / (n_in + n_out)) ** 0.5
        linear.weight.uniform_(-bound, bound)
        linear.bias.zero_()


class LayerGroups(nn.Module):
    """Layer-wise maps `D -> H_l` (encoders) or `H_l -> D` (decoders), one batched computation per distinct `H_l`."""

    def __init__(
        self, kind: str, width: int, codes: Sequence[int], *, dropout: float, is_decoder: bool = False
    ) -> None:
        super().__init__()
        self.all_members = self.members = tuple(
            tuple(k for k, code in enumerate(codes) if code == size) for size in dict.fromkeys(codes)
        )
        """Layers of each group, in the order of the groups; `members` are their places among those that are there."""
        self.groups = nn.ModuleList(
            build_map(
                kind,
                len(layers),
                dropout=dropout,
                is_decoder=is_decoder,
                n_in=codes[layers[0]] if is_decoder else width,
                n_out=width if is_decoder else codes[layers[0]],
            )
            for layers in self.members
        )

    def encode(self, latents: Float[Tensor, "L B D"]) -> list[Tensor]:
        """Map latents `(L, B, D)` to codes `(L_g, B, H_g)`, a tensor per group."""
        return [group(pick_layers(latents, layers)) for group, layers in zip(self.groups, self.members, strict=True)]

    def decode(self, codes: Sequence[Tensor]) -> Float[Tensor, "L B D"]:
        """Map codes `(L_g, B, H_g)` of the same groups to latents `(L, B, D)`."""
        return self.ungroup([group(code) for group, code in zip(self.groups, codes, strict=True)])

    def ungroup(self, parts: Sequence[Tensor]) -> Tensor:
        """Put tensors `(L_g, ...)`, a part per group, into the order of the layers: `(L, ...)`."""
        if len(parts) == 1:
            return parts[0]
        order = [layer for layers in self.members for layer in layers]
        joined = torch.cat(list(parts))
        return joined if order == sorted(order) else joined[torch.tensor(order, device=joined.device).argsort()]

    def keep(self, layers: Sequence[int]) -> None:
        """Compute some of the layers from now on, in order; the parameters must hold these."""
        self.members = tuple(
            tuple(layers.index(layer) for layer in group if layer in layers) for group in self.all_members
        )
        for group, here in zip(self.groups, self.all_members, strict=True):
            for part in group.modules():
                if isinstance(part, LayerwiseDropout):
                    part.n_layers, part.rows = len(here), tuple(k for k, layer in enumerate(here) if layer in layers)

    def stacks(self) -> Iterator[tuple[nn.Parameter, tuple[int, ...]]]:
        """Return every parameter, whose first axis is the layer, with the layers it holds when all are there."""
        for group, layers in zip(self.groups, self.all_members, strict=True):
            for parameter in group.parameters():
                yield parameter, layers

    @torch.no_grad()
    def copy_layers(self, source: "LayerGroups", picks: Sequence[int]) -> None:
        """Copy the parameters of layers of the same kind and widths; `picks` are their positions in `source`."""
        positions = {layer: (g, row) for g, layers in enumerate(source.members) for row, layer in enumerate(layers)}
        for group, layers in zip(self.groups, self.members, strict=True):
            for row, layer in enumerate(layers):
                g, other = positions[picks[layer]]
                for target, parameter in zip(group.parameters(), source.groups[g].parameters(), strict=True):
                    target[row].copy_(parameter[other])


def pick_layers(latents: Float[Tensor, "L B D"], layers: Sequence[int]) -> Float[Tensor, "G B D"]:
    """Take layers of a batch: a view where they follow each other."""
    first = layers[0] if layers else 0
    if tuple(layers) == tuple(range(first, first + len(layers))):
        return latents[first : first + len(layers)]
    return latents[torch.tensor(layers, device=latents.device)]


# AdamW as heads use it: one fused step, with a learning rate per layer where layers are stacked.


def adamw(parameters: Iterable[nn.Parameter], *, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Make AdamW with the fused step for parameters on one device; without weight decay it is Adam."""
    return torch.optim.AdamW(
        [parameter for parameter in parameters if parameter.requires_grad],
        lr=learning_rate,
        weight_decay=weight_decay,
        fused=True,
    )


class LayerwiseAdamW(torch.optim.AdamW):
    """AdamW for parameters whose first axis is the layer, with FREEZE's rates: `learning_rate * (1 + layer / L)`.

    Every layer's slice is a leaf that shares memory with its parameter, so that the fused step serves all of them.
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
        self._all = [dict(zip(layers, parameter.detach().unbind(), strict=True)) for parameter, layers in stacks]
        self._slices: list[list[Tensor]] = [list(pieces.values()) for pieces in self._all]
        of_layer: dict[int, list[Tensor]] = {}
        for pieces in self._all:
            for layer, piece in pieces.items():
                of_layer.setdefault(layer, []).append(piece.requires_grad_())
        groups = [
            {"params": pieces, "lr": learning_rate * (1 + layer / n_layers)}
            for layer, pieces in sorted(of_layer.items())
        ]
        super().__init__(groups, weight_decay=weight_decay, fused=True)

    def follow(self, stacks: Sequence[tuple[nn.Parameter, Sequence[int]]]) -> None:
        """Step only these layers of the same parameters, whose memory is new."""
        self._slices = [
            [pieces[layer] for layer in layers] for pieces, (_, layers) in zip(self._all, stacks, strict=True)
        ]
        for slices, (parameter, _) in zip(self._slices, stacks, strict=True):
            for piece, row in zip(slices, parameter.detach().unbind(), strict=True):
                piece.data = row
        for pieces, (_, layers) in zip(self._all, stacks, strict=True):
            for layer in pieces.keys() - set(layers):  # a view would hold the memory of all that were there with it
                pieces[layer].data = pieces[layer].new_empty(0)
                self.state.pop(pieces[layer], None)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Give every slice its part of the gradient and take one step."""

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


# Layer-wise autoencoders: one per layer, trained together on the latents of any texts (FREEZE section 4.2.3).


class LayerAutoencoder(StackedModule):
    """`L` autoencoders, `D -> (D + H) // 2 -> H` and back; no layer sees another.

    The loss of a layer is the mean squared error of its standardised latents, so 1 is what predicting the mean
    would give, or of its latents as they are. The learning rate rises with the layer:
    `learning_rate * (1 + layer / L)`.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        bottleneck: Dimension `H` of the codes: a size, a rule such as `256, upper half 512`, or a list over layers.
        encoder: A name from `ENCODERS`.
        standardises_latents: Whether each dimension of a latent is standardised first; FREEZE's are not.
        dropout: Dropout probability.
        learning_rate: AdamW learning rate of the lowest layer.
        weight_decay: AdamW weight decay.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        n_layers: int,
        width: int,
        *,
        bottleneck: Widths = "256, upper half 512",
        encoder: str = "mlp",
        standardises_latents: bool = True,
        dropout: float = 0.1,
        learning_rate: float = 3e-4,
        weight_decay: float = 0.01,
    ) -> None:
        arguments = arguments_of(locals())
        super().__init__()
        self._arguments = arguments
        self.n_layers, self.width, self.kind = n_layers, width, encoder
        self.trained = tuple(range(n_layers))
        self.standardises_latents = standardises_latents
        self.codes = code_widths(bottleneck, n_layers, width=width)
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.register_buffer("mean", torch.zeros(n_layers, 1, width))
        self.register_buffer("scale", torch.ones(n_layers, 1, width))
        self.encoder = LayerGroups(encoder, width, self.codes, dropout=dropout)
        self.decoder = LayerGroups(encoder, width, self.codes, dropout=dropout, is_decoder=True)
        self._seen: list[tuple[Tensor, int]] = []

    @property
    def standardiser(self) -> Standardiser:
        """Mean and scale `(L, D)` of the latents."""
        return Standardiser(self.mean.squeeze(1), self.scale.squeeze(1))

    def prepare(self, standardiser: Standardiser) -> None:
        """Copy the standardisation of the training texts, if latents are standardised."""
        if self.standardises_latents:
            self.mean.copy_(standardiser.mean.unsqueeze(1))
            self.scale.copy_(standardiser.scale.unsqueeze(1))

    def forward(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, "L B D"]:
        """Reconstruct standardised latents from raw ones."""
        return self.decoder.decode(self.encoder.encode((latents - self.mean) / self.scale))

    def all_stacks(self) -> list[tuple[nn.Parameter, Sequence[int]]]:
        """Return every parameter with its layers."""
        return [*self.encoder.stacks(), *self.decoder.stacks()]

    def train_only(self, layers: Sequence[int]) -> None:
        """Let the other layers leave."""
        super().train_only(layers)
        self.encoder.keep(self.trained)
        self.decoder.keep(self.trained)

    def losses(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, " L"]:
        """Mean squared error of each trained layer: of standardised latents, in units of their variance, or of raw."""
        mean, scale = (pick_layers(values, self.trained) for values in (self.mean, self.scale))
        standardised = (latents - mean).mul_(scale.reciprocal())
        reconstructed = self.decoder.decode(self.encoder.encode(standardised))
        return ((reconstructed - standardised) ** 2).mean(dim=(1, 2))

    def raw_losses(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, " L"]:
        """Mean squared error of each layer in the units of its latents (FREEZE Figure 2)."""
        reconstructed: Tensor = self(latents)
        return ((reconstructed * self.scale + self.mean - latents) ** 2).mean(dim=(1, 2))

    def training_step(self, latents: Float[Tensor, "L B D"], _: int) -> Tensor:
        """Sum the losses of the layers: no gradient of one reaches another."""
        losses = self.losses(latents)
        self.loop.log("train_loss", losses.mean(), on_step=False, on_epoch=True, batch_size=latents.shape[1])
        return losses.sum()

    def validation_step(self, latents: Float[Tensor, "L B D"], _: int) -> None:
        """Collect the losses of a batch."""
        self._seen.append((self.losses(latents).cpu(), latents.shape[1]))

    def on_validation_epoch_end(self) -> None:
        """Log the mean over rows, per layer and over layers."""
        n_rows = sum(n for _, n in self._seen)
        of_layers = torch.stack([losses * n for losses, n in self._seen]).sum(0) / n_rows
        self._seen.clear()
        self.loop.log("held_out_loss", of_layers.mean())
        for k, loss in zip(self.trained, of_layers, strict=True):
            self.loop.log(f"held_out_loss_{k}", loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use AdamW with a learning rate per layer."""
        return LayerwiseAdamW(
            self.all_stacks(),
            self.n_layers,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
        )

    def arguments(self) -> Values:
        """Return the constructor's arguments as plain values, to build the module again."""
        return dict(self._arguments)


# Token heads: a linear classifier of words on each layer, all layers in one computation, or on a learned mix of them.
#
# Every probe of a head begins with the same weights and gets the same dropout masks, those of the seed, and every
# operation keeps probes apart. So a layer that is trained among others ends as it would alone.


SCHEDULES = {
    "constant": "the learning rate stays as it is",
    "linear": "the learning rate falls to 0 in a line, step by step",
}
_FINE = 2**16  # dropout probabilities are multiples of 1 / 65,536


@dataclass(frozen=True, eq=False)
class Preparation:
    """Standardises and layer-norms latents before a head reads them, on the CPU, in place."""

    mean: Float[Tensor, "L D"] | None
    """What is subtracted; nothing is when None."""
    factor: Float[Tensor, "L D"] | None
    """What multiplies the difference."""
    is_normed: bool
    """Whether each latent is then layer-normed."""

    def __call__(self, latents: Float[Tensor, "L W D"]) -> None:
        """Prepare latents, a layer at a time, for memory."""
        for k, layer in enumerate(latents):
            if self.mean is not None and self.factor is not None:
                layer.sub_(self.mean[k]).mul_(self.factor[k])
            if self.is_normed:
                layer.copy_(nn.functional.layer_norm(layer, layer.shape[-1:]))


class TokenHead(StackedModule, ABC):
    """A linear classifier of words from their latents; `P` independent probes at once.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        n_classes: Classes `K`.
        dropout: Share of the dimensions of a word that are left out in training, 0 to below 1.
        learning_rate: AdamW learning rate.
        weight_decay: AdamW weight decay.
        schedule: A name from `SCHEDULES`.
        seed: Seed of the initial weights and of dropout.
    """

    is_normed: ClassVar[bool] = False
    """Whether latents are layer-normed, after standardisation if there is any."""
    is_mixed: ClassVar[bool] = False
    """Whether one probe reads all layers; otherwise there is one probe per layer."""

    weight: nn.Parameter
    bias: nn.Parameter
    mean: Tensor
    scale: Tensor
    class_weights: Tensor

    def __init__(
        self,
        n_layers: int,
        width: int,
        n_classes: int,
        *,
        dropout: float = 0.1,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.01,
        schedule: str = "constant",
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_name("schedule", schedule, SCHEDULES)
        if not 0 <= dropout < 1:
            raise HeadError(f"dropout is {dropout}; allowed: a share from 0 to below 1.")
        self.n_layers, self.width, self.n_classes = n_layers, width, n_classes
        self.n_probes = 1 if self.is_mixed else n_layers
        self.trained = tuple(range(self.n_probes))
        self.dropout, self.learning_rate, self.weight_decay = dropout, learning_rate, weight_decay
        self.schedule, self.seed = schedule, seed
        generator = torch.Generator().manual_seed(seed)
        bound = width**-0.5  # as nn.Linear
        first = torch.empty(n_classes, width + 1).uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(first[:, :-1].repeat(self.n_probes, 1, 1))
        self.bias = nn.Parameter(first[:, -1].repeat(self.n_probes, 1))
        self.register_buffer("mean", torch.zeros(n_layers, width))
        self.register_buffer("scale", torch.ones(n_layers, width))
        self.register_buffer("class_weights", torch.ones(n_classes))
        self._noise = np.random.default_rng([seed, 1])
        self._noise_before: Mapping[str, object] | None = None

    @abstractmethod
    def logits(self, prepared: Float[Tensor, "L W D"]) -> Float[Tensor, "P W K"]:
        """Score latents after `preparation`."""

    @abstractmethod
    def only(self, probe: int) -> "TokenHead":
        """Return a head of one probe, with the layers that this probe reads."""

    def forward(self, latents: Float[Tensor, "L W D"]) -> Float[Tensor, "P W K"]:
        """Score latents as they are in a cache."""
        prepared = latents.clone().cpu()
        self.preparation()(prepared)
        return self.logits(prepared.to(self.weight.device))

    def all_stacks(self) -> list[tuple[nn.Parameter, Sequence[int]]]:
        """Return every parameter with its probes."""
        return [(parameter, range(self.n_probes)) for parameter in self.parameters()]

    def preparation(self) -> Preparation:
        """Return what is done to latents before `logits`, those of the layers that are trained."""
        picks = slice(None) if self.is_mixed else list(self.trained)
        mean, scale = self.mean.detach().cpu()[picks], self.scale.detach().cpu()[picks]
        if not mean.any() and bool((scale == 1).all()):
            return Preparation(None, None, self.is_normed)
        return Preparation(mean, scale.reciprocal(), self.is_normed)

    def set_standardiser(self, standardiser: Standardiser) -> None:
        """Set mean and scale, fitted on training words."""
        self.mean.copy_(standardiser.mean)
        self.scale.copy_(standardiser.scale)

    def begin_at(self, prior: Float[Tensor, " K"]) -> None:
        """Begin with weights of zero and biases that predict a distribution: rare classes then need not wait."""
        with torch.no_grad():
            self.weight.zero_()
            self.bias.copy_(prior.log().expand_as(self.bias))

    def losses(self, logits: Float[Tensor, "P W K"], labels: Int[Tensor, " W"]) -> Float[Tensor, " P"]:
        """Mean cross-entropy of each probe, words weighed by the weights of their classes."""
        entropies = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.repeat(len(logits)), weight=self.class_weights, reduction="none"
        )
        return entropies.view(len(logits), -1).sum(1) / self.class_weights[labels].sum()

    def on_fit_start(self) -> None:
        """Restart the dropout masks of the seed, or continue with those of the state that was loaded."""
        self._noise = np.random.default_rng([self.seed, 1])
        if self._noise_before is not None:
            self._noise.bit_generator.state, self._noise_before = self._noise_before, None

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Save the state of the dropout masks too."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["noise"] = self._noise.bit_generator.state

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Let the next fit continue from there."""
        self._noise_before = cast("Mapping[str, object]", checkpoint["noise"])

    def training_step(self, batch: "WordBatch", _: int) -> Tensor:
        """Compute the sum of the probes' losses: none of them moves the weights of another."""
        if batch.labels is None:
            raise HeadError("a batch without labels cannot be trained on; use the training loader.")
        losses = self.losses(self.logits(self._drop(batch.latents)), batch.labels)
        self.loop.log("train_loss", losses.mean(), on_step=False, on_epoch=True, batch_size=len(batch.labels))
        return losses.sum()

    def _drop(self, latents: Float[Tensor, "L W D"]) -> Float[Tensor, "L W D"]:
        """Drop dimensions in place (new memory is expensive), the same ones in every layer."""
        limit = round(self.dropout * _FINE)
        if not limit:
            return latents
        is_read = self._noise.integers(0, _FINE, latents.shape[1:], dtype=np.uint16) >= limit
        mask = torch.from_numpy(is_read).float().mul_(_FINE / (_FINE - limit))
        return latents.mul_(mask.to(latents.device))

    def configure_optimizers(self) -> "OptimizerLRScheduler":
        """Use AdamW, its learning rate as the schedule says."""
        optimiser = adamw(self.parameters(), learning_rate=self.learning_rate, weight_decay=self.weight_decay)
        if self.schedule == "constant":
            return optimiser
        n_steps = int(self.loop.trainer.estimated_stepping_batches)
        falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: max(0.0, 1 - step / n_steps))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": falling, "interval": "step"}}

    def arguments(self) -> Values:
        """Return the constructor's arguments as plain values, to build the head again."""
        keys = ("n_layers", "width", "n_classes", "dropout", "learning_rate", "weight_decay", "schedule", "seed")
        return {key: getattr(self, key) for key in keys}


class TokenClassifier(TokenHead):
    """Dropout and a linear map on every layer: `P = L` probes (MAGNET, appendix A; Look Both Ways, section 3.2)."""

    def logits(self, prepared: Float[Tensor, "L W D"]) -> Float[Tensor, "P W K"]:
        """Map each layer by its own matrix."""
        return multiply_layers(prepared, self.weight) + self.bias.unsqueeze(1)

    def only(self, probe: int) -> "TokenClassifier":
        """Return the classifier of one layer."""
        alone = type(self)(**{**self.arguments(), "n_layers": 1})
        of_layers = {name: rows[probe : probe + 1] for name, rows in self.state_dict().items()}
        alone.load_state_dict({**of_layers, "class_weights": self.class_weights})
        return alone.train(self.training)


class TokenNormed(TokenClassifier):
    """The same on layer-normed latents: every word has the same length at every layer, and no layer a scale."""

    is_normed = True


class TokenMix(TokenHead):
    """Dropout and a linear map on ELMo's scalar mix (Peters et al., 2018, 3.2) of layer-normed layers: one probe."""

    is_normed = True
    is_mixed = True

    def __init__(self, n_layers: int, width: int, n_classes: int, **options: Any) -> None:
        super().__init__(n_layers, width, n_classes, **options)
        self.preference = nn.Parameter(torch.zeros(1, n_layers))
        self.gamma = nn.Parameter(torch.ones(1))

    def weights(self) -> Float[Tensor, " L"]:
        """Weights of the layers; they sum to 1."""
        return self.preference[0].softmax(0)

    def parts(self, prepared: Float[Tensor, "L W D"]) -> Float[Tensor, "L W K"]:
        """Return what each layer adds to the logits, before it is weighed and the bias is added."""
        return self.gamma * multiply_layers(prepared, self.weight.expand(self.n_layers, -1, -1))

    def logits(self, prepared: Float[Tensor, "L W D"]) -> Float[Tensor, "P W K"]:
        """Mix what the layers add: the same as classifying their mix."""
        return torch.einsum("l,lwk->wk", self.weights(), self.parts(prepared)).unsqueeze(0) + self.bias

    def only(self, probe: int) -> "TokenMix":
        """Return the head itself: its one probe reads every layer."""
        del probe
        return self
