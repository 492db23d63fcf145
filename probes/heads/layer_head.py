"""What every head is given and gives, and heads of one layer: each layer under each value of an option, the best kept.

At the end new rows are scored with saved heads.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import HeadError, require_name, unknown_name
from extract.files import digest_json
from extract.poolings.pooling_table import split_poolings
from extract.records import Values
from extract.registry import digest_own
from extract.run.embed import embed_texts
from extract.run.extraction import unique_texts
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache
from probes.data.task import why_optimistic
from probes.fitting.fit_options import EpochReport, Protocol, find_protocol
from probes.fitting.saved_fits import FitRecord, FittedModule, M, SavedHead, fit_or_load, load_fitted
from probes.heads.head_table import AUTOENCODER, HEADS, HeadOptions, PlannedRun
from probes.heads.result import Curve, HeadResult, Rows
from probes.latents.text_latents import Channels, channels_of, join_pair
from probes.metrics.bootstrap import Resampling, SeedSummary, UnitScorer
from probes.metrics.prediction_metrics import CALIBRATIONS
from probes.networks.layerwise_networks import LayerAutoencoder

Reporter = Callable[[int], EpochReport]
"""Makes, for a seed, the function that receives every epoch."""


@dataclass(frozen=True)
class FitContext:
    """What all heads of a run share."""

    cache: LatentCache
    """The latents."""
    task: Any
    """The task."""
    seeds: tuple[int, ...]
    """Seeds of trained heads."""
    n_resamples: int
    """Bootstrap resamples."""
    device: str
    """Where heads are fitted."""
    folder: Path
    """Where fitted heads are saved, one folder per head and seed."""
    protocol: str = "icecore"
    """A key of `PROTOCOLS`."""
    calibration: str = "linear"
    """A key of `CALIBRATIONS`; how predictions of pair heads become scores."""
    anchor_identical: bool = False
    """Whether a text paired with itself gets the highest score."""
    autoencoders: Callable[[str], SavedHead[LayerAutoencoder]] | None = None
    """Loads or fits the autoencoders of a pooling, for heads that start from them."""
    has_details: bool = True
    """Whether subsets of test and residuals are described too; sweeps leave them out."""
    documents: LatentCache | None = None
    """The latents of documents, where they are read under another template than queries."""

    def __post_init__(self) -> None:
        find_protocol(self.protocol)
        require_name("calibration", self.calibration, CALIBRATIONS)

    def identify(self, *head: Any, more: Sequence[Any] = (), reads_test: bool = False) -> str:
        """Digest all that decides a fit: the head, its name first, latents and rows it sees, versions, and `more`."""
        code = digest_own("head", [str(head[0])])
        task = self.task if reads_test else self.task.without_test()  # the same fit when test is read later
        seen = [self.cache.manifest.id, task.digest(), self.cache.identity.versions]
        seen += [self.documents.manifest.id] if self.documents else []
        return digest_json([*head, *seen, *more, *([code] if code else [])])

    @property
    def rules(self) -> Protocol:
        """The protocol itself."""
        return find_protocol(self.protocol)


def build_head(record: FitRecord) -> FittedModule:
    """Build the module of a saved head from its record, without its weights; ValueError for a schema too old."""
    name = record.name
    build: Callable[..., FittedModule] = LayerAutoencoder
    oldest = 2
    if name in HEADS:
        build, oldest = HEADS[name].build, HEADS[name].oldest_schema
    elif name != AUTOENCODER:
        hint = "If it is your own, import what registers it first, or read its run by load_run."
        raise unknown_name("head", name, [AUTOENCODER, *HEADS], hint=hint)
    if record.schema < oldest:
        raise ValueError(f"its schema is {record.schema}, this version reads {name} from {oldest} on; fit it again")
    return build(**record.arguments)


def load_head(folder: str | Path) -> SavedHead[FittedModule]:
    """Read any fitted head back, ready to score latents.

    Args:
        folder: A folder of a head, such as RUN/heads/NAME/seed_0.

    Returns:
        The head and its record.

    Raises:
        HeadError: No head there, or one that cannot be read.
        UnknownNameError: A head that this version does not know.

    Example:
        >>> saved = load_head("runs/words-sample/heads/token-classifier/seed_0")  # doctest: +SKIP
        >>> saved.head(latents).argmax(-1)  # (layers, words) of (layers, words, width)  # doctest: +SKIP
    """
    return load_fitted(folder, build_head)


def channels_read(resolved: HeadOptions, context: FitContext) -> Channels:
    """Choose the channels that a head's options name; UnknownNameError for what the cache does not have."""
    return channels_of(context.cache, resolved.pooling or context.cache.default_pooling, resolved.layers)


def only_channel(channels: Channels, index: int) -> Channels:
    """Take one channel, by its position."""
    pooling, layer = tuple(product(channels.poolings, channels.layers))[index]
    return Channels((pooling,), (layer,))


@dataclass(frozen=True, eq=False)
class Choice:
    """The layer and the value of the option that are chosen, by position, and the scores that decide."""

    surface: Float[np.ndarray, "L A"]
    """Scores of every layer under every value; NaN where there is none."""
    layer: int
    column: int

    @classmethod
    def best(cls, surface: Float[np.ndarray, "L A"], penalties: Sequence[float] = ()) -> "Choice":
        """Choose the highest score; of equals the lowest layer, then the strongest penalty, or the first value."""
        order = np.argsort(-np.asarray(penalties), kind="stable") if penalties else np.arange(surface.shape[1])
        scores = np.where(np.isnan(surface), -np.inf, surface)[:, order]
        layer, column = np.unravel_index(int(np.argmax(scores)), surface.shape)
        return cls(surface, int(layer), int(order[column]))

    @classmethod
    def read(cls, values: Values) -> "Choice":
        """Read what `to_dict` wrote."""
        return cls(np.array(values["surface"], dtype=np.float64), *values["place"])

    def to_dict(self) -> dict[str, object]:
        """Return plain values, null for NaN."""
        rows = [[None if np.isnan(score) else score for score in row] for row in self.surface.tolist()]
        return {"place": [self.layer, self.column], "surface": rows}

    @property
    def score(self) -> float:
        """The score of the chosen layer and value."""
        return float(self.surface[self.layer, self.column])


Together = Callable[[Bool[np.ndarray, "M L"]], NDArray[np.generic]]
"""Gives `(S, M, N)` predictions of a head for `M` sets of layers, the other layers being their means over train."""


@dataclass(frozen=True, eq=False)
class HeadParts:
    """A head's predictions of one split from single layers and from sets of them."""

    pooling: str
    """The pooling it reads."""
    layers: tuple[str, ...]
    """Its `L` layers, bottom up."""
    scorer: UnitScorer
    """How predictions of the split are scored."""
    alone: NDArray[np.generic]
    """`(S, L, N)` predictions of each layer by itself, for `S` seeds."""
    how: str
    """How `alone` was computed, in a clause."""
    together: Together | None = None
    """Predicts from sets of layers; None for a head that reads one layer."""
    names: tuple[str, ...] = ()
    """What `alone` holds positions of; empty for numbers."""
    likely: tuple[NDArray[np.generic], NDArray[np.generic]] | None = None
    """`(L, N, T)` positions of the likeliest classes, and their probabilities; None where there are none."""


class Head(ABC):
    """A head of a run: its options, on the task and the latents of the run.

    The table of heads holds the methods of its class that need no head yet: `run`, `check` and `ablate`.
    """

    @staticmethod
    @abstractmethod
    def check(task: Any, resolved: HeadOptions, planned: PlannedRun) -> None:
        """Refuse a task or options that the head cannot be fitted with, before anything is extracted."""

    @abstractmethod
    def evaluate(self, reporter: Reporter) -> HeadResult:
        """Fit the head for every seed or load it, choose as the protocol says, and read test once."""

    @abstractmethod
    def parts(self, result: HeadResult, split: str, reporter: Reporter) -> HeadParts:
        """Predict a split from every layer by itself, and from sets of layers."""

    @classmethod
    def run(cls, *arguments: Any) -> HeadResult:
        """Make the head, and evaluate it."""
        *head, reporter = arguments
        return cls(*head).evaluate(reporter)

    @classmethod
    def ablate(cls, *arguments: Any) -> HeadParts:
        """Make the head, and predict from its parts."""
        *head, result, split, reporter = arguments
        return cls(*head).parts(result, split, reporter)


Fitted = tuple[M, Choice, Mapping[str, object]]
"""The chosen module of a head, the choice, and what is recorded of the module beside it."""


class LayerHead(Head, Generic[M]):
    """A head of one layer, on the task and the latents of a run.

    A subclass says how it is fitted, what it predicts and how that is scored; `evaluate` is the same for all of them.
    """

    module: ClassVar[type[Any]]
    """What is saved, and applied to new latents."""
    option: ClassVar[str] = "kind"
    """What is chosen together with the layer."""
    reads_test: bool = False
    """Whether the rows of test decide the fit."""
    reads_device: ClassVar[bool] = False
    """Whether the device decides the fit."""

    def __init__(self, resolved: HeadOptions, context: FitContext) -> None:
        self.check(context.task, resolved, PlannedRun(context.protocol))
        self.name, self.context, self.task = resolved.name, context, context.task
        self.resolved, self.options = resolved, resolved.options
        self.channels = channels_read(resolved, context)
        self.metric: str = self.task.metrics[0]

    @property
    @abstractmethod
    def values(self) -> Sequence[float | str]:
        """The values of the option."""

    @property
    def selection(self) -> str:
        """Where layer and value are chosen."""
        return "validation"

    @property
    def fit_inputs(self) -> list[object]:
        """What decides the fit beside options, latents and rows."""
        return [self.context.device] if self.reads_device else []

    def parts(self, result: HeadResult, split: str, reporter: Reporter) -> HeadParts:
        """Fit the head on every layer by itself."""
        return fit_every_layer(self.resolved, self.context, result, split, reporter)

    @abstractmethod
    def fit(self) -> Fitted[M]:
        """Fit every layer and value."""

    def read_choice(self, details: Values) -> Choice:
        """Read the choice from the details of a fit."""
        return Choice.read(details)

    def describe_choice(self, choice: Choice) -> dict[str, object]:
        """Record the choice."""
        return choice.to_dict()

    @abstractmethod
    def predict(self, module: M, layer: int, split: str) -> Mapping[str, Rows]:
        """Predict a split: metric to what it is computed from, `(S, N)` for seeds or draws, mostly one."""

    def scorer(self, split: str, metric: str) -> UnitScorer:
        """Return how predictions of a split are scored."""
        scorer: UnitScorer = self.task.scorer(split, metric)
        return scorer

    def summarise(self, split: str, metric: str, predicted: Rows) -> SeedSummary:
        """Score predictions `(S, N)` of a split."""
        return self.scorer(split, metric).summarise(predicted, Resampling(self.context.n_resamples))

    @abstractmethod
    def row_scores(self, split: str, predicted: Rows) -> NDArray[np.float64]:
        """Score single rows, higher is better; NaN where a row has no score."""

    def names(self, split: str, predicted: Rows) -> tuple[str, ...] | None:
        """Name the codes that are predicted; None where predictions are numbers."""
        del split, predicted
        return None

    def likely(self, module: M, layer: int, split: str) -> tuple[Rows, Rows] | None:
        """Give `(N, T)` positions of the likeliest classes and their probabilities; None for a head without any."""
        del module, layer, split
        return None

    def baselines(self) -> Mapping[str, Mapping[str, float]]:
        """Score the task without a decoder: baseline to split to score."""
        return {}

    def optimistic_because(self) -> str:
        """Say why the numbers are optimistic; empty where they are not."""
        return why_optimistic(self.task)

    def chosen_too(self, module: M) -> dict[str, object]:
        """Name what else was chosen."""
        del module
        return {}

    def extras(self, saved: SavedHead[M], predictions: Mapping[str, Rows]) -> dict[str, object]:
        """Report what only this head has."""
        del saved, predictions
        return {}

    def evaluate(self, reporter: Reporter) -> HeadResult:
        """Fit the head or load it, and score the chosen layer on every split; test is read once."""
        del reporter  # there are no epochs
        options = {} if self.options is None else asdict(self.options)
        context, channels, splits = self.context, self.channels, self.task.splits
        saved = fit_or_load(
            context.folder / self.name,
            context.identify(
                self.name,
                *([options] if options else []),
                channels.pooling,
                list(channels.names),
                more=self.fit_inputs,
                reads_test=self.reads_test,
            ),
            self._fit,
            lambda record: self.module(**record.arguments),
            cache=context.cache,
        )
        choice = self.read_choice(saved.record.details)
        rows = {split: self.predict(saved.head, choice.layer, split) for split in splits}
        predictions = {split: by_metric[self.metric][0] for split, by_metric in rows.items()}
        names = {split: self.names(split, codes) for split, codes in predictions.items()}
        labels = [value if isinstance(value, str) else f"{self.option} {value:g}" for value in self.values]
        return HeadResult(
            name=self.name,
            pooling=channels.pooling,
            layers=channels.names,
            options=options,
            metric=self.metric,
            selection=self.selection,
            selection_score=choice.score,
            chosen={
                "layer": channels.names[choice.layer],
                self.option: self.values[choice.column],
                **self.chosen_too(saved.head),
                "score": choice.score,
            },
            summary={
                split: {metric: self.summarise(split, metric, predicted) for metric, predicted in by_metric.items()}
                for split, by_metric in rows.items()
            },
            curves=tuple(
                Curve(label, self.selection, self.metric, tuple(scores))
                for label, scores in zip(labels, choice.surface.T.tolist(), strict=True)
            ),
            baselines=self.baselines(),
            optimistic_because=self.optimistic_because(),
            extras=self.extras(saved, predictions),
            predictions=predictions,
            names={split: known for split, known in names.items() if known is not None},
            likely={
                split: likely
                for split in splits
                if split != "train" and (likely := self.likely(saved.head, choice.layer, split))
            },
            scored={
                split: by_metric[self.metric] for split, by_metric in rows.items() if len(by_metric[self.metric]) > 1
            },
            row_scores={split: self.row_scores(split, predicted) for split, predicted in predictions.items()},
        )

    def _fit(self) -> tuple[M, FitRecord]:
        module, choice, details = self.fit()
        task = {"name": self.task.name, "digest": self.task.digest()}
        details = {"task": task, **self.describe_choice(choice), **details}
        return module, FitRecord(self.name, self.channels.pooling, (self.channels.names[choice.layer],), details)


def ablate(resolved: HeadOptions, context: FitContext, result: HeadResult, split: str, reporter: Reporter) -> HeadParts:
    """Predict a split from single layers of a fitted head and from sets of them; new fits stay in `context.folder`."""
    return (HEADS[resolved.name].parts or fit_every_layer)(resolved, context, result, split, reporter)


def fit_every_layer(
    resolved: HeadOptions, context: FitContext, result: HeadResult, split: str, reporter: Reporter
) -> HeadParts:
    """Fit a head of one layer on each layer by itself; its other choices are made on validation, as in a run."""
    channels = channels_read(resolved, context)
    results = []
    for index, name in enumerate(channels.names):
        one = only_channel(channels, index)
        alone = replace(resolved, pooling=one.pooling, layers=one.layers)
        folder = context.folder / "layers" / name.replace("/", "_")
        quick = replace(context, folder=folder, n_resamples=2, has_details=False)
        results.append(HEADS[resolved.name].evaluate(alone, quick, reporter))
    likely = None
    if all(split in alone.likely for alone in results):
        codes, shares = (np.stack(part) for part in zip(*(alone.likely[split] for alone in results), strict=True))
        likely = codes, shares
    return HeadParts(
        pooling=channels.pooling,
        layers=channels.names,
        scorer=context.task.scorer(split, result.metric),
        alone=np.stack([alone.predictions[split] for alone in results])[None],
        how="the head fitted on the layer alone, its other choices made as in the run",
        names=results[0].names.get(split, ()),
        likely=likely,
    )


# Scoring new rows with saved heads.

Heads = Sequence[SavedHead[FittedModule]]
"""A head of a run, fitted with one seed or several."""


def score_texts(heads: Heads, rows: Sequence[Any], decoder: Decoder, spec: ExtractionSpec) -> Any:
    """Predict texts, or pairs of texts where the task has two in a row, by a head that is fitted once."""
    head: Any = heads[0].head
    return head.predict(*_features(heads[0], rows, decoder, spec))


def classify_texts(
    heads: Heads, rows: Sequence[Any], decoder: Decoder, spec: ExtractionSpec
) -> tuple[list[str], Float[Tensor, "N K"]]:
    """Predict texts, with the probability of every class in the order of the head's names; HeadError without any."""
    require_probabilities(heads[0].record.name)
    head: Any = heads[0].head
    features = _features(heads[0], rows, decoder, spec)  # once for both: the decoder takes nearly all the time
    return list(head.predict(*features)), head(*features).softmax(-1)


def require_probabilities(name: str) -> None:
    """Refuse a head that gives no probabilities of classes."""
    if not HEADS[name].gives_probabilities:
        allowed = ", ".join(entry.name for entry in HEADS.values() if entry.gives_probabilities)
        raise HeadError(f"head {name!r} gives no probabilities of classes; allowed: {allowed}.")


def embed_once(
    texts: Iterable[str], decoder: Decoder, spec: ExtractionSpec
) -> tuple[Float[Tensor, "L P N D"], dict[str, int]]:
    """Embed every different text once; returns the latents, and the position of each text in them."""
    unique = unique_texts(texts)
    return embed_texts(decoder, unique, spec=spec), {text: i for i, text in enumerate(unique)}


def _features(
    saved: SavedHead[FittedModule], rows: Sequence[Any], decoder: Decoder, spec: ExtractionSpec
) -> tuple[Float[Tensor, "N D"], ...]:
    """Read what the head of one layer is called with: features of the rows, or latents of both texts."""
    columns = list(zip(*rows, strict=True)) if saved.record.details.get("is_pairs") else [rows]
    latents, positions = embed_once((text for column in columns for text in column), decoder, spec)
    read = read_channels(latents, saved.record, layers=spec.layers, poolings=spec.poolings_read(of_words=False))
    features = [read[:, [positions[text] for text in column]] for column in columns]
    if not getattr(saved.head, "compares_texts", False):
        features = [join_pair(*features)]
    return tuple(part[0] for part in features)


def saved_channels(record: FitRecord) -> tuple[tuple[str, str], ...]:
    """List the latents that a saved head reads, in order, as `C` pairs of pooling and layer.

    Example:
        >>> saved_channels(FitRecord("layer-cosine", "mean+last", ("block_01",)))
        (('mean', 'block_01'), ('last', 'block_01'))
        >>> saved_channels(FitRecord("layer-cosine", "mean+last", ("last/block_01",)))
        (('last', 'block_01'),)
    """
    named = [name.rpartition("/") for name in record.layers]
    if all(pooling for pooling, _, _ in named):
        return tuple((pooling, layer) for pooling, _, layer in named)
    return tuple(product(split_poolings(record.pooling), record.layers))


MIX = "mix"
"""What stands for the layer of a head that reads a mix of all its layers."""


def only_chosen(saved: SavedHead[FittedModule], chosen: Values) -> SavedHead[FittedModule]:
    """Reduce a head of several layers to what was chosen, as scores.json names it, so that no other is computed.

    The record of a head of words gets its `decoding`. HeadError for a layer that the head does not read by itself.
    """
    if "decoding" in chosen:
        details = {**saved.record.details, "decoding": chosen["decoding"]}
        saved = SavedHead(saved.head, replace(saved.record, details=details))
    head: Any = saved.head
    layer = chosen.get("layer", "")
    channels = saved_channels(saved.record)
    names = ["/".join(channel) if "+" in saved.record.pooling else channel[1] for channel in channels]
    if "views" in chosen:
        picks = [names.index(view["layer"]) for view in chosen["views"] if view["layer"] in names]
        if not picks or picks != getattr(head, "read_layers", ()):
            told = ", ".join(view["layer"] for view in chosen["views"])
            raise HeadError(
                f"scores.json says that head {saved.record.name!r} chose the layers {told!r}, and its saved head reads "
                "others; run its config again."
            )
        kept = tuple("/".join(channels[k]) for k in picks)
        return SavedHead(head.of_layers(picks), replace(saved.record, layers=kept))
    reads_one = hasattr(head, "only") and not getattr(head, "is_mixed", False)
    if layer not in (*(names if reads_one or len(names) == 1 else ()), *(() if reads_one else ("", MIX))):
        reads = "one" if reads_one else "all"
        raise HeadError(
            f"scores.json says that head {saved.record.name!r} chose the layer {layer!r}, and its saved head reads "
            f"{reads} of {', '.join(names)}; run its config again."
        )
    if not reads_one or len(names) == 1:
        return saved
    index = names.index(layer)
    return SavedHead(head.only(index), replace(saved.record, layers=("/".join(channels[index]),)))


def narrow_spec(spec: ExtractionSpec, heads: Heads, decoder: Decoder, *, reads_words: bool) -> ExtractionSpec:
    """Leave out of the extraction of a run the layers, poolings and views that no head reads; name the others."""
    channels = [channel for saved in heads for channel in saved_channels(saved.record)]
    poolings = tuple(dict.fromkeys(pooling for pooling, _ in channels))
    layers = tuple(name for name in decoder.layers if name in {layer for _, layer in channels})
    if spec.views:
        read = {name: changes for name, changes in spec.views.items() if name in poolings}
        return replace(spec, layers=layers, views=read)
    if reads_words:
        return replace(spec, layers=layers, words=replace(spec.words, poolings=poolings))
    return replace(spec, layers=layers, poolings=poolings)


def read_channels(
    latents: Float[Tensor, "L P N D"], record: FitRecord, *, layers: Sequence[str], poolings: Iterable[str]
) -> Float[Tensor, "C N D"]:
    """Pick the latents that a saved head reads, in its order, from those of some layers and poolings.

    HeadError for a layer or pooling that is not among them, as a forged record may name.
    """
    names = list(poolings)
    for pooling, layer in saved_channels(record):
        if layer not in layers or pooling not in names:
            raise HeadError(
                f"the saved head {record.name!r} reads {pooling}/{layer}, which the run has no latents of; run its "
                "config again."
            )
    picked = [latents[layers.index(layer), names.index(pooling)] for pooling, layer in saved_channels(record)]
    return torch.stack(picked)
