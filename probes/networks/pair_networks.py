"""Pair heads: similarities per layer, combined into one prediction; and their losses."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from extract.errors import HeadError, require_name
from extract.records import Values
from probes.latents.text_latents import (
    PairBatch,
    PairLatents,
    SimilarityBatch,
    Standardiser,
    Transform,
    TransformOptions,
    fit_transform,
)
from probes.metrics.prediction_metrics import correlations, pearson, spearman
from probes.networks.layerwise_networks import LayerGroups, LayerwiseLinear, TrainedModule, adamw, arguments_of
from probes.networks.network_options import LOSSES, Widths, code_widths


class PairHead(TrainedModule, ABC):
    """A head that scores pairs of texts from their latents: `L` similarities, then one prediction.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        loss: A name from `LOSSES`.
        learning_rate: AdamW learning rate.
        weight_decay: AdamW weight decay.
    """

    is_trained: ClassVar[bool] = True
    """Whether the head has epochs; otherwise it is only prepared."""

    mean: Tensor
    scale: Tensor

    def __init__(
        self, n_layers: int, width: int, *, loss: str = "mse", learning_rate: float = 3e-4, weight_decay: float = 0.0
    ) -> None:
        super().__init__()
        require_name("loss", loss, LOSSES)
        self.n_layers, self.width = n_layers, width
        self.loss_name, self.learning_rate, self.weight_decay = loss, learning_rate, weight_decay
        self.register_buffer("mean", torch.zeros(n_layers, 1, width))
        self.register_buffer("scale", torch.ones(n_layers, 1, width))
        self.selection = "validation"
        """The split that Lightning's validation loop reads; names what is logged."""
        self._collected: list[tuple[Tensor, Tensor]] = []
        self._arguments: Values = {}

    @property
    def has_fixed_similarities(self) -> bool:
        """Whether training leaves the similarities as they are, so that they are computed once, not in every epoch."""
        return False

    @abstractmethod
    def similarities(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "C B"]:
        """Compare two latents layer by layer, symmetric in its arguments.

        The first `L` rows are one similarity per layer; a head may add further blocks of `L` rows.
        """

    @abstractmethod
    def combine(self, similarities: Float[Tensor, "C B"]) -> Float[Tensor, " B"]:
        """Turn the similarities of all layers into one prediction per pair."""

    def forward(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, " B"]:
        """Score pairs."""
        return self.combine(self.similarities(a, b))

    def prepare(self, data: PairLatents, standardiser: Standardiser) -> None:
        """Fit what is fitted in closed form on the training split, before any epoch."""
        del data
        self._set_standardiser(standardiser)

    def _set_standardiser(self, standardiser: Standardiser) -> None:
        self.mean.copy_(standardiser.mean.unsqueeze(1))
        self.scale.copy_(standardiser.scale.unsqueeze(1))

    def standardised(self, latents: Float[Tensor, "L B D"]) -> Float[Tensor, "L B D"]:
        """Standardise latents by the fitted mean and scale."""
        return (latents - self.mean).mul_(self.scale.reciprocal())  # in place: a batch of all layers is large

    def identical_similarity(self) -> float | None:
        """Return the constant prediction for a text paired with itself; None where it depends on the text."""
        with torch.no_grad():
            return float(self.combine(torch.ones(self.n_layers, 1, device=self.mean.device)))

    def _score(self, batch: PairBatch | SimilarityBatch) -> Tensor:
        if isinstance(batch, SimilarityBatch):
            return self.combine(batch.similarities)
        scored: Tensor = self(batch.a, batch.b)
        return scored

    def training_step(self, batch: PairBatch | SimilarityBatch, _: int) -> Tensor:
        """Compute the loss of a batch."""
        predicted, gold = self._score(batch), batch.gold
        if self._n_processes() > 1:  # a variance, and a ranking, is of the whole batch, not of each device's share
            predicted, gold = self._from_all(predicted, has_gradient=True), self._from_all(gold)
        loss: Tensor = LOSSES[self.loss_name][0](predicted, gold)
        self.loop.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch.gold))
        return loss

    def validation_step(self, batch: PairBatch | SimilarityBatch, _: int) -> None:
        """Collect predictions; correlations are of the whole corpus, never averaged over batches."""
        self._collected.append((self._score(batch).detach().cpu(), batch.gold.cpu()))

    def on_validation_epoch_end(self) -> None:
        """Log corpus-level correlations."""
        predicted, gold = (torch.cat([pair[k].float() for pair in self._collected]) for k in (0, 1))
        self._collected.clear()
        if self._n_processes() > 1:
            predicted, gold = (self._from_all(values.to(self.mean.device)).cpu() for values in (predicted, gold))
        for metric, value in correlations(predicted.numpy(), gold.numpy()).items():
            self.loop.log(f"{self.selection}_{metric}", value)

    def _n_processes(self) -> int:
        return 1 if self.loop is None else int(self.loop.trainer.world_size)

    def _from_all(self, values: Tensor, *, has_gradient: bool = False) -> Tensor:
        """Join `(B,)` values of every process to `(processes * B,)`."""
        joined: Tensor = self.loop.all_gather(values, sync_grads=has_gradient)
        return joined.reshape(-1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use AdamW; without weight decay it is Adam."""
        return adamw(self.parameters(), learning_rate=self.learning_rate, weight_decay=self.weight_decay)

    def arguments(self) -> Values:
        """Return the constructor's arguments as plain values, to build the head again."""
        return dict(self._arguments)


def cosine(a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "L B"]:
    """Cosine of two batches of vectors, layer by layer; 0 for a vector of zeros."""
    return torch.nn.functional.cosine_similarity(a, b, dim=-1)


def collect_similarities(head: PairHead, data: PairLatents, split: str) -> Float[Tensor, "C N"]:
    """Compute the similarities of every pair of a split, on the CPU."""
    device = head.mean.device
    with torch.no_grad():
        parts = [head.similarities(batch.a.to(device), batch.b.to(device)).cpu() for batch in data.loader(split)]
    return torch.cat(parts, dim=1)


# Layer cosine: the cosine of raw and of transformed latents at each layer; the best one is the score.

_KINDS = {"none": "raw", "standardise": "standardised"}
_DEFAULT = TransformOptions("none+standardise")


class UntrainedCosine(PairHead):
    """Cosines of the latents of every layer, as they are and transformed, without training.

    Preparing the head fits the transforms on training texts; what is read of the cosines is chosen on validation.
    """

    is_trained: ClassVar[bool] = False

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
        """Names of the transforms in curves."""
        self._register_choice()
        for name in self._with_basis():
            self.register_buffer(f"basis_{name}", torch.zeros(n_layers, width, 0))

    @abstractmethod
    def _register_choice(self) -> None:
        """Add the buffer that holds what is chosen."""

    @abstractmethod
    def choice(self, layers: Sequence[str]) -> Values:
        """Name what was chosen, as a `HeadResult` has it, given the names of the layers."""

    def arguments(self) -> Values:
        """Return the constructor's arguments as plain values, those of transforms where they are not the default."""
        plain = {key: value for key, value in vars(self.options).items() if value != getattr(_DEFAULT, key)}
        return {"n_layers": self.n_layers, "width": self.width, **plain}

    def _with_basis(self) -> list[str]:
        return [name for name in self.options.transforms if name in ("abtt", "whiten")]

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Make room for bases, whose width the latents decided, and read the weights."""
        for name in self._with_basis():
            basis = state_dict.get(f"{prefix}basis_{name}")
            if basis is not None:
                setattr(self, f"basis_{name}", torch.empty_like(basis))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _transform(self, kind: int) -> Transform:
        """Return a transform by its position."""
        name = self.options.transforms[kind]
        mean, scale = self.mean[:, 0], self.scale[:, 0]
        basis = getattr(self, f"basis_{name}", mean.new_zeros(self.n_layers, self.width, 0))
        return Transform(name, mean, scale if name == "standardise" else torch.ones_like(scale), basis)

    def all_cosines(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "K L B"]:
        """Return the cosines of every transform."""
        return torch.stack([self._cosine(kind, a, b) for kind in range(len(self.kinds))])

    def _cosine(self, kind: int, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "L B"]:
        transform = self._transform(kind)
        if transform.name == "standardise":
            return cosine(self.standardised(a), self.standardised(b))
        return cosine(transform(a), transform(b))

    def _at(self, layers: Sequence[int], network: "type[_Cosine]") -> "_Cosine":
        """Return a head of some of the layers, with all that is fitted but what is chosen."""
        part = network(len(layers), self.width, **vars(self.options))
        part._set_standardiser(Standardiser(self.mean[layers, 0], self.scale[layers, 0]))
        for name in self._with_basis():
            setattr(part, f"basis_{name}", getattr(self, f"basis_{name}")[layers])
        return part.eval()

    def prepare(self, data: PairLatents, standardiser: Standardiser) -> None:
        """Fit the transforms."""
        super().prepare(data, standardiser)
        rows = torch.cat(data.split("train").rows)
        for name in self._with_basis():
            transform = fit_transform(name, data.cache, rows, channels=data.channels, options=self.options)
            setattr(self, f"basis_{name}", transform.basis.to(self.mean.device))

    def split_cosines(self, data: PairLatents, split: str) -> Float32[np.ndarray, "K L N"]:
        """Compute the cosines of every transform, layer and pair of a split."""
        device = self.mean.device
        with torch.no_grad():
            parts = [self.all_cosines(batch.a.to(device), batch.b.to(device)).cpu() for batch in data.loader(split)]
        return np.asarray(torch.cat(parts, dim=2).numpy())

    def curves(self, data: PairLatents, split: str) -> dict[str, Float[np.ndarray, "K L"]]:
        """Correlate every layer's cosine, transform by transform, with gold: metric to correlations."""
        values, gold = self.split_cosines(data, split), data.split(split).gold.numpy()
        return {"pearson": pearson(values, gold), "spearman": spearman(values, np.broadcast_to(gold, values.shape))}


_Cosine = TypeVar("_Cosine", bound=UntrainedCosine)


def _best(scores: Float[np.ndarray, "K L"], pooling: str, layers: Sequence[str]) -> tuple[int, int]:
    """Find the kind and the layer with the highest score, the first of equal ones; HeadError where there is none."""
    if np.isnan(scores).all():
        raise HeadError(
            f"the cosine of the {pooling!r} latents is the same for every validation pair at all of "
            f"{', '.join(layers)}; read another pooling or other layers."
        )
    kind, layer = divmod(int(np.nanargmax(scores)), scores.shape[1])
    return kind, layer


class LayerCosine(UntrainedCosine):
    """Cosine of each layer, without training (FREEZE Figure 1); that with the best validation Pearson is the score.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        transform: Names of `probes.latents.text_latents.TRANSFORMS` to choose from, joined by `+`.
        components: Components that `abtt` removes or `whiten` keeps; 0 as in `TransformOptions`.
        shrinkage: Shrinkage of `whiten`; None as in `TransformOptions`.
    """

    chosen: Tensor

    def _register_choice(self) -> None:
        self.register_buffer("chosen", torch.zeros(2, dtype=torch.int64))  # kind, layer

    def similarities(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "L B"]:
        """Return the cosines of the chosen transform."""
        return self._cosine(int(self.chosen[0]), a, b)

    def combine(self, similarities: Float[Tensor, "L B"]) -> Float[Tensor, " B"]:
        """Take the chosen layer."""
        return similarities[self.chosen[1]]

    def only(self, layer: int, kind: str = "") -> "LayerCosine":
        """Return the head that reads one of the layers, as it would if that one, and a kind of cosine, were chosen."""
        alone = self._at([layer], LayerCosine)
        alone.chosen[0] = self.kinds.index(kind) if kind else self.chosen[0]
        return alone

    def read_out(self) -> Transform:
        """Return the transform whose latents the chosen cosine is of; of every layer."""
        return self._transform(int(self.chosen[0]))

    def choice(self, layers: Sequence[str]) -> Values:
        """Name kind and layer."""
        kind, layer = self.chosen.tolist()
        return {"kind": self.kinds[kind], "layer": layers[layer]}

    def prepare(self, data: PairLatents, standardiser: Standardiser) -> None:
        """Fit the transforms, and choose one and the layer on validation; a `HeadError` where no cosine varies."""
        super().prepare(data, standardiser)
        curves = self.curves(data, "validation")["pearson"]
        self.chosen.copy_(torch.tensor(_best(curves, data.pooling, data.layers)))


MOST_ROUNDS = 10
"""Times that the choice of every view is looked at again, at most; two or three are usual."""


class JoinedCosine(UntrainedCosine):
    """Mean of the cosines of several views or poolings, a layer and transform of each, without training.

    It is the cosine of their vectors side by side, each of length 1. Every view starts from its best layer alone; then
    one after the other is chosen again while the validation Pearson of the mean rises. A layer whose latent is the same
    for every training text, as the embedding of a prompt's last token is, is not chosen.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        transform: Names of `probes.latents.text_latents.TRANSFORMS` to choose from, joined by `+`.
        components: Components that `abtt` removes or `whiten` keeps; 0 as in `TransformOptions`.
        shrinkage: Shrinkage of `whiten`; None as in `TransformOptions`.
    """

    kind_of: Tensor

    def _register_choice(self) -> None:
        self.register_buffer("kind_of", torch.full((self.n_layers,), -1))  # -1 of a layer that is not read

    def similarities(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "L B"]:
        """Return the cosines of the transform that was chosen at each layer; of the first at those not read."""
        cosines = self.all_cosines(a, b)
        return cosines[self.kind_of.clamp(min=0), torch.arange(self.n_layers, device=cosines.device)]

    def combine(self, similarities: Float[Tensor, "L B"]) -> Float[Tensor, " B"]:
        """Average the layers that were chosen."""
        return similarities[self.kind_of >= 0].mean(0)

    @property
    def read_layers(self) -> list[int]:
        """Positions of the layers that were chosen."""
        return [k for k, kind in enumerate(self.kind_of.tolist()) if kind >= 0]

    def of_layers(self, layers: Sequence[int]) -> "JoinedCosine":
        """Return the head that has some of the layers alone."""
        part = self._at(layers, JoinedCosine)
        part.kind_of.copy_(self.kind_of[layers])
        return part

    def read_out(self, layer: int) -> Transform:
        """Return the transform whose latents the cosine of a layer is of."""
        return self._at([layer], LayerCosine)._transform(int(self.kind_of[layer]))

    def choice(self, layers: Sequence[str]) -> Values:
        """Name layer and kind of every view."""
        return {"views": [{"layer": layers[k], "kind": self.kinds[self.kind_of[k]]} for k in self.read_layers]}

    def prepare(self, data: PairLatents, standardiser: Standardiser) -> None:
        """Fit the transforms, and choose on validation; a `HeadError` where no cosine of a view varies."""
        super().prepare(data, standardiser)
        cosines, gold = self.split_cosines(data, "validation"), data.split("validation").gold.numpy()
        views: dict[str, list[int]] = {}
        for k, name in enumerate(data.layers):
            views.setdefault(name.rpartition("/")[0] or data.pooling, []).append(k)
        of_view = {view: cosines[:, layers] for view, layers in views.items()}
        is_constant = (standardiser.scale == 1).all(-1).numpy()  # beside others it would stand for no latent of a view

        def best(view: str, others: Float32[np.ndarray, " N"]) -> tuple[int, int]:
            names, scores = [data.layers[k] for k in views[view]], pearson(others + of_view[view], gold)
            return _best(np.where(is_constant[views[view]], np.nan, scores), view, names)

        picks = {view: best(view, np.zeros_like(gold)) for view in views}
        for _ in range(MOST_ROUNDS):
            before = dict(picks)
            for view in views:
                others = [of_view[name][pick] for name, pick in picks.items() if name != view]
                picks[view] = best(view, np.sum(others, axis=0, initial=0.0))
            if picks == before:
                break
        self.kind_of.fill_(-1)
        for view, (kind, layer) in picks.items():
            self.kind_of[views[view][layer]] = kind


# Cosine heads: the layers' cosines through a small network, or a weight for each.

SCALINGS = {
    "layer": "by mean and deviation of each layer over the training pairs",
    "global": "by one mean and deviation over all layers and training pairs (FREEZE)",
    "none": "not at all",
}
"""How cosines are scaled before the network."""
ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}


class CosineHead(PairHead):
    """Scaled layer cosines, then a network with one output and a sigmoid.

    The cosines are scaled as `cosine_scaling` says and, with `standardises_latents`, each dimension of a latent is
    standardised before the cosine, both by the training split. A head sets `network`, from `(B, L)` to `(B, 1)`.
    """

    cosine_mean: Tensor
    cosine_scale: Tensor
    network: nn.Module

    def __init__(
        self, n_layers: int, width: int, *, standardises_latents: bool, cosine_scaling: str, **fit: Any
    ) -> None:
        super().__init__(n_layers, width, **fit)
        require_name("cosine scaling", cosine_scaling, SCALINGS)
        self.standardises_latents, self.cosine_scaling = standardises_latents, cosine_scaling
        self.register_buffer("cosine_mean", torch.zeros(n_layers, 1))
        self.register_buffer("cosine_scale", torch.ones(n_layers, 1))

    @property
    def has_fixed_similarities(self) -> bool:
        """Nothing below the cosines is trained."""
        return True

    def similarities(self, a: Float[Tensor, "L B D"], b: Float[Tensor, "L B D"]) -> Float[Tensor, "L B"]:
        """Return the cosines of latents, standardised or as they are."""
        if self.standardises_latents:
            a, b = self.standardised(a), self.standardised(b)
        return cosine(a, b)

    def combine(self, similarities: Float[Tensor, "L B"]) -> Float[Tensor, " B"]:
        """Scale the cosines and pass them through the network."""
        inputs = ((similarities - self.cosine_mean) / self.cosine_scale).T
        return torch.sigmoid(self.network(inputs)).squeeze(-1)

    def prepare(self, data: PairLatents, standardiser: Standardiser) -> None:
        """Fit standardisation and scaling on the training split."""
        super().prepare(data, standardiser)
        if self.cosine_scaling == "none":
            return
        values = collect_similarities(self, data, "train")
        if self.cosine_scaling == "global":
            values = values.reshape(1, -1)
        self.cosine_mean.copy_(values.mean(1, keepdim=True))
        self.cosine_scale.copy_(values.std(1, keepdim=True).clamp(min=1e-4))


class CosineMLP(CosineHead):
    """Scaled layer cosines, then `L -> hidden -> 1` and a sigmoid (FREEZE section 4.2.1).

    FREEZE's is `standardises_latents=False, cosine_scaling="global", activation="relu"`.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        hidden: Units of the hidden layer.
        standardises_latents: Whether each dimension of a latent is standardised before the cosine.
        cosine_scaling: A name from `SCALINGS`.
        activation: `gelu` or `relu`, behind the hidden layer.
        loss: A name from `LOSSES`.
        learning_rate: AdamW learning rate.
        weight_decay: AdamW weight decay.
    """

    def __init__(
        self,
        n_layers: int,
        width: int,
        *,
        hidden: int = 128,
        standardises_latents: bool = True,
        cosine_scaling: str = "layer",
        activation: str = "gelu",
        loss: str = "mse",
        learning_rate: float = 3e-4,
        weight_decay: float = 0.01,
    ) -> None:
        arguments = arguments_of(locals())
        fit = {"loss": loss, "learning_rate": learning_rate, "weight_decay": weight_decay}
        super().__init__(
            n_layers, width, standardises_latents=standardises_latents, cosine_scaling=cosine_scaling, **fit
        )
        require_name("activation", activation, ACTIVATIONS)
        self.network = nn.Sequential(nn.Linear(n_layers, hidden), ACTIVATIONS[activation](), nn.Linear(hidden, 1))
        self._arguments = arguments


class CosineLinear(CosineHead):
    """Scaled layer cosines, then one linear map and a sigmoid: a weight per layer, and no hidden layer.

    Cosines of neighbouring layers rise and fall together, so a weight says what a layer adds beside the others, not
    what it knows alone.

    Args:
        n_layers: Layers `L`.
        width: Dimension `D` of a latent.
        standardises_latents: Whether each dimension of a latent is standardised before the cosine.
        cosine_scaling: A name from `SCALINGS`.
        loss: A name from `LOSSES`.
        learning_rate: AdamW learning rate.
        weight_decay: AdamW weight decay.
    """

    network: nn.Linear

    def __init__(
        self,
        n_layers: int,
        width: int,
        *,
        standardises_latents: bool = True,
        cosine_scaling: str = "layer",
        loss: str = "mse",
        learning_rate: float = 3e-3,
        weight_decay: float = 0.01,
    ) -> None:
        arguments = arguments_of(locals())
        fit = {"loss": loss, "learning_rate": learning_rate, "weight_decay": weight_decay}
        super().__init__(
            n_layers, width, standardises_latents=standardises_latents, cosine_scaling=cosine_scaling, **fit
        )
        self.network = nn.Linear(n_layers, 1)
        nn.init.zeros_(self.network.weight)  # few weights and many similar layers: random initial weights would remain
        nn.init.zeros_(self.network.bias)
        self._arguments = arguments

    def weights(self) -> Float[Tensor, " L"]:
        """Weight of each layer's scaled cosine before the sigmoid; by default, per standard deviation of it."""
        return torch.as_tensor(self.network.weight.detach()[0])


# Siamese cosine head: layer-wise encoders, their cosines, and a network that combines them.

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
        norms_network: Whether a layer norm follows each hidden layer, before dropout and GELU.
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
        arguments = arguments_of(locals())
        super().__init__(n_layers, width, loss=loss, learning_rate=learning_rate, weight_decay=weight_decay)
        self._arguments = arguments
        require_name("start", start, STARTS)
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
            for layers in (self.encoder.members if pair_features else ())
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
        """Set the mode; frozen encoders stay in eval mode, without dropout."""
        super().train(mode)
        if self.start == "frozen":
            self.encoder.eval()
        return self

    def adopt(self, encoders: LayerGroups, standardiser: Standardiser, *, picks: Sequence[int]) -> None:
        """Copy encoders of this head's kind and widths, those at `picks`, with their standardisation."""
        self.encoder.copy_layers(encoders, picks)
        self._set_standardiser(Standardiser(standardiser.mean[list(picks)], standardiser.scale[list(picks)]))
        self.encoder.requires_grad_(self.start != "frozen")
        self._is_adopted = True
        self.train(self.training)

    def prepare(self, data: PairLatents, standardiser: Standardiser) -> None:
        """Copy the standardisation of the training split, unless the encoders have one; HeadError without encoders."""
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


# Losses between predicted and gold similarities, both in [0, 1]; their names are in `network_options`.

MIN_BATCH = 2
"""Fewest rows of a loss that compares rows with each other: one has no variance and no order."""


def log_variance_loss(
    predicted: Float[Tensor, " B"], gold: Float[Tensor, " B"], *, epsilon: float = 1e-6
) -> Float[Tensor, ""]:
    """Logarithm of the variance of the residuals (FREEZE section 4.1.1), which ignores a constant offset.

    It is biased low in small batches (by about 1 / (B - 1)); `epsilon` keeps it finite where all residuals are equal.
    """
    if len(predicted) < MIN_BATCH:
        raise HeadError(
            f"the log-variance loss got a batch of {len(predicted)}; allowed: at least {MIN_BATCH} rows "
            "(32 or more to keep its bias small). Raise batch_size."
        )
    return torch.log((predicted - gold).var(correction=1) + epsilon)


def mse_loss(predicted: Float[Tensor, " B"], gold: Float[Tensor, " B"]) -> Float[Tensor, ""]:
    """Mean squared error; unlike torch's, of one shape only."""
    return torch.nn.functional.mse_loss(predicted, gold)


def cosent_loss(predicted: Float[Tensor, " B"], gold: Float[Tensor, " B"], *, scale: float = 20.0) -> Float[Tensor, ""]:
    """`log(1 + sum over gold_i > gold_j of exp(scale * (predicted_j - predicted_i)))` (CoSENT, J. Su 2022).

    Only the order of the gold counts; the larger `scale`, the more the worst pair of rows counts.
    """
    if len(predicted) < MIN_BATCH:
        raise HeadError(
            f"the CoSENT loss got a batch of {len(predicted)}; allowed: at least {MIN_BATCH} rows. Raise batch_size."
        )
    wrong = scale * (predicted.unsqueeze(0) - predicted.unsqueeze(1))  # [i, j]: how far j is above i
    wrong = wrong[gold.unsqueeze(1) > gold.unsqueeze(0)]
    return torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), dim=0)
