"""Latents of texts and pairs as heads read them: channels, features, standardisation, data modules and transforms."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from extract.decoders.decoder_spec import select_from
from extract.errors import HeadError, TaskError, require_counts, require_name
from extract.poolings.pooling_table import JOIN, split_poolings
from extract.store.cache import LatentCache
from probes.data.pair_task import PairTask

if TYPE_CHECKING:
    from probes.data.class_task import ClassTask


@dataclass(frozen=True)
class Channels:
    """Which latents of a cache a head reads, in order: for each pooling all of the layers, bottom up."""

    poolings: tuple[str, ...]
    layers: tuple[str, ...]
    picks: tuple[int, ...] | None = None
    """Positions of those that are read; all when None."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the channels: layers, with their pooling in front where there are several."""
        if len(self.poolings) == 1:
            names = self.layers
        else:
            names = tuple(f"{pooling}/{layer}" for pooling in self.poolings for layer in self.layers)
        return names if self.picks is None else tuple(names[k] for k in self.picks)

    def reads(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the layers that are read of each pooling."""
        for p, pooling in enumerate(self.poolings):
            first = p * len(self.layers)
            picks = range(len(self.layers)) if self.picks is None else [k - first for k in self.picks]
            layers = tuple(self.layers[k] for k in picks if 0 <= k < len(self.layers))
            if layers:
                yield pooling, layers

    @property
    def pooling(self) -> str:
        """The poolings as a config writes them: `mean`, or `mean+last`."""
        return JOIN.join(self.poolings)

    def gather(self, cache: LatentCache, rows: Tensor) -> Float[Tensor, "L B D"]:
        """Gather rows of every channel, `L` being their number."""
        parts = [cache.gather(rows, pooling, layers=layers) for pooling, layers in self.reads()]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def channels_of(cache: LatentCache, pooling: str, layers: str | Sequence[str] = "all") -> Channels:
    """Choose channels of a cache; a pooling or layer that it does not have raises `UnknownNameError`."""
    chosen = Channels(split_poolings(pooling), select_from(layers, cache.layers))
    for name in chosen.poolings:
        cache.gather([], name, layers=chosen.layers[:1])  # rejects an unknown pooling
    return chosen


# Features of a classification task's rows: latents of texts, or of pairs of texts joined symmetrically.

CHUNK_NUMBERS = 1 << 26  # float32 numbers of a chunk of layers, 256 MiB


@dataclass(frozen=True, eq=False)
class ClassFeatures:
    """Reads the features of every row of a task, a few layers at a time."""

    cache: LatentCache
    task: "ClassTask"
    channels: Channels

    @property
    def width(self) -> int:
        """Dimension of a feature: that of a latent, or twice of it for pairs."""
        return self.cache.width_of(self.channels.layers) * (2 if self.task.is_pairs else 1)

    def rows(self, split: str) -> tuple[Int[Tensor, " N"], ...]:
        """Return the cache rows of a split, one array per text column."""
        part = self.task.splits[split]
        return tuple(self.cache.rows_of(list(part[column])) for column in self.task.text_columns)

    def chunks(self, splits: Sequence[str]) -> Iterator[dict[str, Float[Tensor, "l N W"]]]:
        """Yield features by split, a few layers at a time; those of all chunks together are the channels, in order."""
        rows = {split: self.rows(split) for split in splits}
        n_numbers = sum(len(part[0]) for part in rows.values()) * self.width * (2 if self.task.is_pairs else 1)
        step = max(1, CHUNK_NUMBERS // max(n_numbers, 1))
        for pooling in self.channels.poolings:
            for start in range(0, len(self.channels.layers), step):
                chunk = Channels((pooling,), self.channels.layers[start : start + step])
                yield {
                    split: join_pair(*(chunk.gather(self.cache, index) for index in part))
                    for split, part in rows.items()
                }


def join_pair(a: Float[Tensor, "L N D"], b: Float[Tensor, "L N D"] | None = None) -> Float[Tensor, "L N W"]:
    """Return latents as they are, or two of them as their absolute difference and product, which are symmetric.

    Example:
        >>> join_pair(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 2.0]]])).tolist()
        [[[2.0, 0.0, 3.0, 4.0]]]
    """
    return a if b is None else torch.cat([(a - b).abs(), a * b], dim=-1)


CHUNK_ROWS = 1024


@dataclass(frozen=True)
class Standardiser:
    """Mean and scale of every dimension: the standard deviation, or 1 where a dimension is constant."""

    mean: Float[Tensor, "L D"]
    scale: Float[Tensor, "L D"]


def fit_standardiser(cache: LatentCache, rows: Tensor, *, channels: Channels) -> Standardiser:
    """Fit mean and scale of every dimension in one pass over at least two rows, a chunk at a time."""
    chunks = torch.unique(rows).split(CHUNK_ROWS)  # sorted rows read the file in order
    return standardise_chunks(channels.gather(cache, chunk) for chunk in chunks)


def standardise_chunks(chunks: Iterable[Float[Tensor, "L B D"]]) -> Standardiser:
    """Fit mean and scale of every dimension in one pass over chunks of any lengths, at least one, in float64."""
    count = 0
    means, squares = torch.zeros(2, 0)
    for chunk in chunks:
        n_layers, n, width = chunk.shape
        if not count:
            means, squares = torch.zeros(2, n_layers, width, dtype=torch.float64)
        for latents, mean, square in zip(chunk, means, squares, strict=True):  # a layer at a time, for memory
            exact = latents.double()
            chunk_mean = exact.mean(0)
            delta = chunk_mean - mean
            square.add_(((exact - chunk_mean) ** 2).sum(0) + delta**2 * (count * n / (count + n)))
            mean.add_(delta * (n / (count + n)))
        count += n
    scale = (squares / max(count - 1, 1)).sqrt()
    scale = torch.where(scale > 1e-6 * means.abs().clamp(min=1e-6), scale, 1.0)
    return Standardiser(means.float(), scale.float())


# Lightning data modules of texts and of pairs: a batch is gathered in one call.

EVALUATION_ROWS = 512
B = TypeVar("B")


class GatheredRows(Dataset[B], ABC, Generic[B]):
    """Rows that are gathered a batch at a time: one read per layer."""

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> B:
        """Gather a batch."""

    def __getitem__(self, index: int) -> B:
        """Return one row as a batch of one."""
        return self.__getitems__([index])


def as_is(batch: B) -> B:
    """Collate nothing: rows come as a batch."""
    return batch


def in_order(rows: Dataset[B]) -> DataLoader[B]:
    """Load rows in their order."""
    # Without a generator, a loader would use the global one.
    return DataLoader(rows, batch_size=EVALUATION_ROWS, collate_fn=as_is, generator=torch.Generator())


class Shuffling:
    """Data whose training rows come in an order of the seed's, which is kept with the state of a fit."""

    batch_size: int
    seed: int

    def __init__(self) -> None:
        self._generator = torch.Generator()
        self._next: Tensor | None = None

    def shuffled(self, rows: Dataset[B]) -> DataLoader[B]:
        """Load rows in another order every epoch; a last batch that is smaller is dropped."""
        self._generator = torch.Generator().manual_seed(self.seed)
        if self._next is not None:
            self._generator.set_state(self._next)
            self._next = None
        return DataLoader(
            rows, batch_size=self.batch_size, shuffle=True, drop_last=True, collate_fn=as_is, generator=self._generator
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return where the order of the next epoch begins."""
        return {"order": self._generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Let the next loader continue from a `state_dict`."""
        self._next = state_dict["order"]


class TextRows(GatheredRows[Tensor]):
    """Latents of single texts."""

    def __init__(self, cache: LatentCache, rows: Tensor, *, channels: Channels) -> None:
        self.cache, self.rows, self.channels = cache, rows, channels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: Sequence[int]) -> Float[Tensor, "L B D"]:
        return self.channels.gather(self.cache, self.rows[torch.as_tensor(indices)])


class TextLatents(Shuffling):
    """The texts of a corpus with their latents, of which a share `held_out` is not trained on.

    A cache of words, a share that leaves no text on a side, and a batch larger than the training texts are refused.
    """

    def __init__(
        self,
        cache: LatentCache,
        *,
        pooling: str = "mean",
        layers: str | Sequence[str] = "all",
        batch_size: int = 64,
        held_out: float = 0.05,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if cache.is_words:
            raise HeadError(
                f"cache {str(cache.path)!r} holds latents of words; allowed: one of whole texts, as that of a corpus."
            )
        self.cache, self.batch_size, self.seed = cache, batch_size, seed
        self.channels = channels_of(cache, pooling, layers)
        order = torch.randperm(len(cache), generator=torch.Generator().manual_seed(seed))
        n_held_out = max(1, round(held_out * len(cache)))
        n_train = len(cache) - n_held_out
        if not 0 < held_out < 1 or n_train < 2:
            raise HeadError(f"held_out is {held_out} of {len(cache)} texts; allowed: a share between 0 and 1.")
        if not 1 <= batch_size <= n_train:
            raise HeadError(f"batch_size is {batch_size}; allowed: 1 to {n_train}, the texts that are trained on.")
        self.train_rows = TextRows(cache, order[n_held_out:].sort().values, channels=self.channels)
        self.held_out_rows = TextRows(cache, order[:n_held_out].sort().values, channels=self.channels)

    def read_only(self, channels: Sequence[int]) -> None:
        """Read some of the channels from now on, by their positions in order."""
        for rows in (self.train_rows, self.held_out_rows):
            rows.channels = replace(self.channels, picks=tuple(channels))

    def standardiser(self) -> Standardiser:
        """Fit a standardiser on the training texts."""
        return fit_standardiser(self.cache, self.train_rows.rows, channels=self.channels)

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Training texts, shuffled by the seed."""
        return self.shuffled(self.train_rows)

    def val_dataloader(self) -> DataLoader[Tensor]:
        """Held-out texts."""
        return in_order(self.held_out_rows)


class PairBatch(NamedTuple):
    """Latents of the first and second texts of pairs, and gold in [0, 1]."""

    a: Float[Tensor, "L B D"]
    b: Float[Tensor, "L B D"]
    gold: Float[Tensor, " B"]


class SimilarityBatch(NamedTuple):
    """Pairs by their layer similarities, and gold in [0, 1]."""

    similarities: Float[Tensor, "C B"]
    gold: Float[Tensor, " B"]


class PairRows(GatheredRows[PairBatch]):
    """Pairs of one split."""

    def __init__(self, cache: LatentCache, rows: tuple[Tensor, Tensor], gold: Tensor, *, channels: Channels) -> None:
        self.cache, self.rows, self.gold, self.channels = cache, rows, gold, channels

    def __len__(self) -> int:
        return len(self.gold)

    def __getitems__(self, indices: Sequence[int]) -> PairBatch:
        index = torch.as_tensor(indices)
        both = torch.cat([self.rows[0][index], self.rows[1][index]])
        a, b = self.channels.gather(self.cache, both).chunk(2, dim=1)
        return PairBatch(a, b, self.gold[index])


class SimilarityRows(GatheredRows[SimilarityBatch]):
    """Similarities of the pairs of one split, in memory."""

    def __init__(self, similarities: Float[Tensor, "C N"], gold: Float[Tensor, " N"]) -> None:
        self.similarities, self.gold = similarities, gold

    def __len__(self) -> int:
        return len(self.gold)

    def __getitems__(self, indices: Sequence[int]) -> SimilarityBatch:
        index = torch.as_tensor(indices)
        return SimilarityBatch(self.similarities[:, index], self.gold[index])


class PairLatents(Shuffling):
    """Pairs of a task with their latents; a last training batch that is smaller is dropped.

    `selection` is the split that epochs are chosen on. A cache without a text of the task is refused, and a batch that
    is larger than the training split.
    """

    def __init__(
        self,
        cache: LatentCache,
        task: PairTask,
        *,
        pooling: str = "mean",
        layers: str | Sequence[str] = "all",
        batch_size: int = 128,
        seed: int = 0,
        selection: str = "validation",
    ) -> None:
        super().__init__()
        self.cache, self.task, self.seed, self.selection = cache, task, seed, selection
        self.channels = channels_of(cache, pooling, layers)
        self.pooling, self.layers = self.channels.pooling, self.channels.names
        """The pooling, or several joined by `+`, and the names of the `L` channels."""
        self.batch_size = batch_size
        self.fixed: dict[str, SimilarityRows] = {}
        """Splits whose similarities a head has computed for all epochs; Lightning's loop reads these instead."""
        self.splits = {split: self._rows(split) for split in task.splits}
        n_train = len(self.splits["train"]) if "train" in self.splits else 0
        if n_train and not 1 <= batch_size <= n_train:
            raise HeadError(f"batch_size is {batch_size}; allowed: 1 to {n_train}, the pairs of the training split.")

    def without_test(self) -> "PairLatents":
        """Leave test out, so that a fit cannot read it; everything else is shared."""
        blind = copy(self)
        blind.task = self.task.without_test()
        blind.splits = {split: rows for split, rows in self.splits.items() if split in blind.task.splits}
        return blind

    def _rows(self, split: str) -> PairRows:
        part = self.task.splits[split]
        rows = (self.cache.rows_of(part["sentence1"][:]), self.cache.rows_of(part["sentence2"][:]))
        gold = torch.from_numpy(self.task.gold01(split)).float()
        return PairRows(self.cache, rows, gold, channels=self.channels)

    def split(self, name: str) -> PairRows:
        """Return one split; a `TaskError` where the task has none of this name."""
        if name not in self.splits:
            raise TaskError(f"task {self.task.name!r} has no split {name!r}; it has: {', '.join(self.splits)}.")
        return self.splits[name]

    def standardiser(self) -> Standardiser:
        """Fit a standardiser on the texts of the training split."""
        rows = torch.cat(self.split("train").rows)
        return fit_standardiser(self.cache, rows, channels=self.channels)

    def loader(self, split: str) -> DataLoader[PairBatch]:
        """Pairs of one split in their order."""
        return in_order(self.split(split))

    def train_dataloader(self) -> DataLoader[Any]:
        """Training pairs, shuffled by the seed."""
        return self.shuffled(self.fixed.get("train", self.split("train")))

    def val_dataloader(self) -> DataLoader[Any]:
        """Pairs of the split that epochs are chosen on."""
        return in_order(self.fixed.get(self.selection, self.split(self.selection)))


# Read-out transforms of latents for cosines and distances, fitted on training texts or a corpus, layer by layer.

TRANSFORMS = {
    "none": "x",
    "centre": "x - mean",
    "standardise": "(x - mean) / standard deviation, dimension by dimension",
    "abtt": "x - mean without its first principal components (All-but-the-Top, arXiv 1702.01417, algorithm 1)",
    "whiten": "(x - mean) U S^-1/2 of the covariance U S U' (arXiv 2103.15316, section 3)",
}
"""Every transform, and its formula."""
LEAST = 1e-8
"""Share of the largest eigenvalue below which a direction has no variance to divide by."""


@dataclass(frozen=True)
class TransformOptions:
    """Which transform, and its parameters."""

    transform: str = "none"
    """A name from `TRANSFORMS`, or several joined by `+`, of which validation chooses one."""
    components: int = 0
    """Principal components that `abtt` removes (0: a hundredth of the width, at least 1) or `whiten` keeps (0: all that
    vary)."""
    shrinkage: float | None = None
    """How far `whiten` draws the covariance towards a multiple of the identity, 0 to 1; null is 0 where there are more
    rows than dimensions, and otherwise Ledoit and Wolf's (2004) estimate."""

    def __post_init__(self) -> None:
        split_names("transform", self.transform, TRANSFORMS)
        require_counts(self, "components", least=0)
        if self.shrinkage is not None and not 0 <= self.shrinkage <= 1:
            raise HeadError(f"shrinkage is {self.shrinkage}; allowed: a number from 0 to 1, or null.")

    @property
    def transforms(self) -> tuple[str, ...]:
        """The transforms to choose from."""
        return tuple(self.transform.split("+"))


def split_names(noun: str, text: str, table: Collection[str]) -> tuple[str, ...]:
    """Read names of a table joined by `+`, each once; UnknownNameError for another name, HeadError for one twice."""
    names = tuple(text.split("+"))
    for name in names:
        require_name(noun, name, table)
    if len(set(names)) < len(names):
        raise HeadError(f"{noun} is {text!r}; allowed: names joined by '+', each once.")
    return names


@dataclass(frozen=True, eq=False)
class Transform:
    """A fitted transform of `L` layers. `basis` has no columns where the transform needs none."""

    name: str
    mean: Float[Tensor, "L D"] = field(repr=False)
    scale: Float[Tensor, "L D"] = field(repr=False)
    basis: Float[Tensor, "L D k"] = field(repr=False)
    is_unit: bool = False
    """Whether each vector is then divided by its length, so that views side by side count alike in a cosine."""

    def __call__(self, latents: Float[Tensor, "L N D"]) -> Float[Tensor, "L N E"]:
        """Transform latents of every layer; `E` is `D`, or for `whiten` the number of components kept."""
        if self.name != "none":
            latents = (latents - self.mean.unsqueeze(1)) / self.scale.unsqueeze(1)
        if self.name == "abtt":
            latents = latents - latents @ self.basis @ self.basis.mT
        if self.name == "whiten":
            latents = latents @ self.basis
        return torch.nn.functional.normalize(latents, dim=-1) if self.is_unit else latents

    def of(self, layer: int) -> "Transform":
        """Return the transform of one layer, by its position."""
        rows = slice(layer, layer + 1) if layer >= 0 else slice(layer, None)
        return replace(self, mean=self.mean[rows], scale=self.scale[rows], basis=self.basis[rows])


def no_transform(n_layers: int, width: int) -> Transform:
    """Return the transform that changes nothing."""
    return Transform("none", torch.zeros(n_layers, width), torch.ones(n_layers, width), torch.zeros(n_layers, width, 0))


def fit_transform(
    name: str, cache: LatentCache, rows: Tensor, *, channels: Channels, options: TransformOptions
) -> Transform:
    """Fit a transform on at least two rows of a cache, a layer and a chunk of rows at a time, in float64."""
    if name == "none":
        return no_transform(len(channels.names), cache.width_of(channels.layers))
    chunks = torch.unique(rows).split(CHUNK_ROWS)
    if sum(map(len, chunks)) < 2:
        raise HeadError(f"transform {name!r} is fitted on {sum(map(len, chunks))} texts; give at least 2.")
    fit = partial(_fit_layer, name, [part for part in chunks if len(part)], cache, options)
    layers = [fit(Channels((pooling,), (layer,))) for pooling in channels.poolings for layer in channels.layers]
    most = max(layer.basis.shape[2] for layer in layers)
    bases = [torch.nn.functional.pad(layer.basis, (0, most - layer.basis.shape[2])) for layer in layers]
    mean, scale = (torch.cat([getattr(layer, key) for layer in layers]) for key in ("mean", "scale"))
    return Transform(name, mean, scale, torch.cat(bases))


def _fit_layer(
    name: str, chunks: Sequence[Tensor], cache: LatentCache, options: TransformOptions, one: Channels
) -> Transform:
    moments = standardise_chunks(one.gather(cache, chunk) for chunk in chunks)
    mean, width = moments.mean, moments.mean.shape[1]
    if not torch.isfinite(mean).all():
        raise HeadError(
            "a latent is NaN or infinite, so no transform can be fitted; extract again, with dtype float32."
        )
    none = torch.zeros(1, width, 0)
    if name == "standardise":
        return Transform(name, mean, moments.scale, none)
    if name == "centre":
        return Transform(name, mean, torch.ones_like(mean), none)
    gram, fourth, n_rows = torch.zeros(width, width, dtype=torch.float64), 0.0, 0
    for chunk in chunks:
        centred = one.gather(cache, chunk)[0].double() - mean.double()
        gram += centred.T @ centred
        fourth += float(((centred**2).sum(1) ** 2).sum())
        n_rows += len(centred)
    covariance = gram / (n_rows - 1)
    if name == "whiten":
        share = options.shrinkage
        if share is None:
            share = 0.0 if n_rows > width else ledoit_wolf(gram, fourth, n_rows)
        covariance = (1 - share) * covariance + share * covariance.trace() / width * torch.eye(width).double()
    values, vectors = (part.flip(-1) for part in torch.linalg.eigh(covariance))
    n_vary = int((values > LEAST * values[0]).sum()) if values[0] > 0 else 0
    n_used = options.components or (max(1, width // 100) if name == "abtt" else n_vary)
    if not 0 < n_used <= n_vary:
        raise HeadError(
            f"transform {name!r} takes {n_used} components at {one.layers[0]}, but latents of {n_rows} texts vary in "
            f"{n_vary} directions; give fewer components, more texts, or a shrinkage."
        )
    basis = vectors[:, :n_used] / (values[:n_used].sqrt() if name == "whiten" else 1.0)
    return Transform(name, mean, torch.ones_like(mean), basis.float()[None])


def ledoit_wolf(gram: Float[Tensor, "D D"], fourth: float, n_rows: int) -> float:
    """Estimate the best shrinkage of a covariance towards a multiple of the identity (Ledoit and Wolf 2004, sec. 3)."""
    covariance = gram / n_rows
    level = float(covariance.trace()) / len(covariance)
    squared = float((covariance**2).sum())
    spread = squared - len(covariance) * level**2
    error = (fourth / n_rows - squared) / n_rows
    return max(0.0, min(1.0, error / spread)) if spread > 0 else 0.0
