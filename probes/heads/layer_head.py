"""What heads of one layer share: every layer is tried under every value of one option, and the best place is kept."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import HeadError
from extract.run.embed import embed_texts
from extract.run.extraction import unique_texts
from extract.run.extraction_spec import ExtractionSpec
from probes.data.task import why_optimistic
from probes.fitting.saved_fits import FittedModule, SavedHead
from probes.heads.context import Setting, Watch
from probes.heads.head_table import HEADS, HeadOptions
from probes.heads.result import Curve, HeadResult
from probes.latents.pooled_reads import split_poolings
from probes.latents.text_latents import Channels, channels_of, join_pair
from probes.metrics.bootstrap import Resampling, SeedSummary, UnitScorer, class_scorer, correlation_scorer


def channels_read(resolved: HeadOptions, setting: Setting) -> Channels:
    """Choose the channels that a head's options name; UnknownNameError for what the cache does not have."""
    cache = setting.cache
    return channels_of(cache, resolved.pooling_of(cache.poolings), resolved.layers)


def only_channel(channels: Channels, place: int) -> Channels:
    """Take one channel, by its position."""
    pooling, layer = tuple(product(channels.poolings, channels.layers))[place]
    return Channels((pooling,), (layer,))


def best_place(surface: Float[np.ndarray, "L A"], penalties: Sequence[float] = ()) -> tuple[int, int]:
    """Choose the highest score that is not NaN; of equals the lowest layer, then the strongest penalty.

    Args:
        surface: Scores of every layer under every value of the option.
        penalties: How strong each value's penalty is; of equals the first value where there are none.

    Returns:
        Position of the layer and of the value.
    """
    order = np.argsort(-np.asarray(penalties), kind="stable") if penalties else np.arange(surface.shape[1])
    known = np.where(np.isnan(surface), -np.inf, surface)
    layer, place = np.unravel_index(int(np.argmax(known[:, order])), surface.shape)
    return int(layer), int(order[place])


def record_layer(name: str, channels: Channels, task: Any, *, layer: int, **facts: Any) -> dict[str, Any]:
    """Describe the head of a chosen layer, with facts of its own, as it is saved."""
    return {
        "name": name,
        "pooling": channels.pooling,
        "layers": [channels.names[layer]],
        "task": {"name": task.name, "digest": task.digest()},
        **facts,
    }


def record_surface(surface: Float[np.ndarray, "L A"]) -> list[list[float | None]]:
    """Write scores out as JSON can: null for NaN."""
    return [[None if np.isnan(score) else score for score in row] for row in surface.tolist()]


def layer_result(
    resolved: HeadOptions,
    setting: Setting,
    predictions: Mapping[str, NDArray[Any]],
    *,
    gold: Callable[[str], Any],
    summarise: Callable[..., SeedSummary],
    compare: Callable[[Any, Any], NDArray[np.float64]],
    reason: str = "",
    **facts: Any,
) -> HeadResult:
    """Score the predictions of every split by every metric of the task.

    Args:
        resolved: The head and its options.
        setting: What all heads of the run share.
        predictions: Split to `(N,)` predictions.
        gold: Gives the gold of a split.
        summarise: Summarises predictions by a metric, as `summarise_seeds` does.
        compare: Scores every row from its prediction and its gold.
        reason: Why the head's own choice makes its numbers optimistic; reasons of the task are added.
        facts: Other fields, those of `describe_choice` among them.
    """
    task, resampling = setting.task, Resampling(setting.n_resamples)
    golds = {split: gold(split) for split in predictions}
    return HeadResult(
        name=resolved.name,
        options=asdict(resolved.own[0]) if resolved.own else {},
        metric=task.metrics[0],
        selection_score=facts["chosen"]["score"],
        summary={
            split: {
                metric: summarise(
                    found[None], golds[split], metric=metric, groups=task.units(split), resampling=resampling
                )
                for metric in task.metrics
            }
            for split, found in predictions.items()
        },
        optimistic_because="; ".join(filter(None, (reason, why_optimistic(task)))),
        predictions=predictions,
        row_scores={split: compare(found, golds[split]) for split, found in predictions.items()},
        **facts,
    )


def describe_choice(
    channels: Channels,
    surface: Sequence[Sequence[float | None]],
    place: Sequence[int],
    *,
    metric: str,
    selection: str,
    option: str,
    values: Sequence[Any],
    **chosen: Any,
) -> dict[str, Any]:
    """Give the fields of a result that show what was chosen: channels, place, and a curve for each value.

    Args:
        channels: The `L` channels that were tried.
        surface: `(L, A)` scores; None where there is none.
        place: Position of the chosen layer and value.
        metric: What was scored.
        selection: The split that decided.
        option: Name of the option.
        values: Its `A` values, numbers or names.
        chosen: What else was chosen.
    """
    scores = np.array(surface, dtype=np.float64)  # None is NaN
    layer, column = place
    names = [value if isinstance(value, str) else f"{option} {value:g}" for value in values]
    return {
        "pooling": channels.pooling,
        "layers": channels.names,
        "selection": selection,
        "chosen": {
            "layer": channels.names[layer],
            option: values[column],
            **chosen,
            "score": float(scores[layer, column]),
        },
        "curves": tuple(
            Curve(name, selection, metric, tuple(line)) for name, line in zip(names, scores.T.tolist(), strict=True)
        ),
    }


# A fitted head taken apart: what it makes of every layer by itself, and of some layers without the others.

Together = Callable[[Bool[np.ndarray, "M L"]], NDArray[np.generic]]
"""Gives `(S, M, N)` predictions of a head for `M` sets of layers, the other layers being their means over train."""


@dataclass(frozen=True, eq=False)
class HeadParts:
    """What a head makes of the layers of one split.

    Attributes:
        pooling: The pooling it reads.
        layers: Its `L` layers, bottom up.
        scorer: How predictions of the split are scored.
        alone: `(S, L, N)` predictions of each layer by itself, for `S` seeds.
        together: Predicts from sets of layers; None for a head that reads one layer.
        how: How `alone` came about, in a sentence.
    """

    pooling: str
    layers: tuple[str, ...]
    scorer: UnitScorer
    alone: NDArray[np.generic]
    together: Together | None
    how: str


def split_scorer(task: Any, split: str, metric: str) -> UnitScorer:
    """Return how predicted pairs, classes or numbers of a split are scored."""
    return _SCORERS[task.kind](task, split, metric)


_SCORERS: dict[str, Callable[[Any, str, str], UnitScorer]] = {
    "pairs": lambda task, split, metric: correlation_scorer(
        task.gold01(split), metric=metric, groups=task.units(split)
    ),
    "classes": lambda task, split, metric: class_scorer(task.labels(split), metric=metric, groups=task.units(split)),
    "numbers": lambda task, split, metric: correlation_scorer(
        task.numbers(split), metric=metric, groups=task.units(split)
    ),
}


# Taking a head of a run apart, whatever kind of task it is for.


def take_apart(resolved: HeadOptions, setting: Setting, result: HeadResult, split: str, watch: Watch) -> HeadParts:
    """Take a head of a run apart, fitting what was not kept; what is fitted here stays in `setting.folder`.

    Args:
        resolved: The head and its options.
        setting: What all heads of the run share.
        result: What came of the head in the run.
        split: The split to predict.
        watch: Receives epochs.
    """
    entry = HEADS[resolved.name]
    return (entry.parts or fit_every_layer)(resolved, setting, result, split, watch)


def fit_every_layer(resolved: HeadOptions, setting: Setting, result: HeadResult, split: str, watch: Watch) -> HeadParts:
    """Fit a head of one layer on each layer by itself, its other choices being made on validation as ever."""
    channels = channels_read(resolved, setting)
    found = []
    for place, name in enumerate(channels.names):
        one = only_channel(channels, place)
        alone = replace(resolved, pooling=one.pooling, layers=one.layers)
        folder = setting.folder / "layers" / name.replace("/", "_")
        quick = replace(setting, folder=folder, n_resamples=2, has_details=False)
        found.append(HEADS[resolved.name].evaluate(alone, quick, watch).predictions[split])
    return HeadParts(
        channels.pooling,
        channels.names,
        split_scorer(setting.task, split, result.metric),
        np.stack(found)[None],
        None,
        "the head fitted on the layer alone, its other choices made as in the run",
    )


# Scoring new rows with saved heads: what differs between kinds of tasks, and which latents a saved head reads.

Heads = Sequence[SavedHead[FittedModule]]
"""A head of a run, fitted with one seed or several."""
ScoreRows = Callable[[Heads, Sequence[Any], Decoder, ExtractionSpec], Any]
"""Scores rows with a head whose latents the spec extracts, and no others; gives as many predictions."""


@dataclass(frozen=True)
class KindScoring:
    """How rows of one kind of task are scored and shown.

    Attributes:
        score: Predicts rows.
        fields: Names what a scored row holds, from the row and its prediction: a value, or a list of as many values as
            every other list of the row.
        n_texts: Counts the texts of a row, from the record of a head.
    """

    score: ScoreRows
    fields: Callable[[Any, Any], dict[str, Any]]
    n_texts: Callable[[dict[str, Any]], int] = lambda _: 1


def score_texts(heads: Heads, rows: Sequence[Any], decoder: Decoder, spec: ExtractionSpec) -> Any:
    """Predict texts, or pairs of texts where the task has two in a row, by a head that is fitted once."""
    head: Any = heads[0].head
    return head.predict(*_features(heads[0], rows, decoder, spec))


def class_probabilities(
    heads: Heads, rows: Sequence[Any], decoder: Decoder, spec: ExtractionSpec
) -> Float[Tensor, "N K"]:
    """Give the probability of every class, in the order of the head's names; HeadError for a head without any."""
    name = heads[0].record["name"]
    if not HEADS[name].gives_probabilities:
        allowed = ", ".join(entry.name for entry in HEADS.values() if entry.gives_probabilities)
        raise HeadError(f"head {name!r} gives no probabilities of classes; allowed: {allowed}.")
    logits: Tensor = heads[0].head(*_features(heads[0], rows, decoder, spec))
    return logits.softmax(-1)


def embed_once(
    texts: Iterable[str], decoder: Decoder, spec: ExtractionSpec
) -> tuple[Float[Tensor, "L P N D"], dict[str, int]]:
    """Embed every different text once; gives the latents, and the position of each text in them."""
    unique = unique_texts(texts)
    return embed_texts(decoder, unique, spec=spec), {text: i for i, text in enumerate(unique)}


def _features(
    saved: SavedHead[FittedModule], rows: Sequence[Any], decoder: Decoder, spec: ExtractionSpec
) -> tuple[Float[Tensor, "N D"], ...]:
    """Read what the head of one layer is called with: features of the rows, or latents of both texts."""
    sides = list(zip(*rows, strict=True)) if saved.record.get("is_pairs") else [rows]
    latents, places = embed_once((text for side in sides for text in side), decoder, spec)
    read = read_channels(latents, saved.record, layers=spec.layers, poolings=spec.poolings)
    found = [read[:, [places[text] for text in side]] for side in sides]
    if not getattr(saved.head, "compares_texts", False):
        found = [join_pair(*found)]
    return tuple(side[0] for side in found)


def saved_channels(record: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """List the latents that a saved head reads, in order, as `C` pairs of pooling and layer.

    Example:
        >>> saved_channels({"pooling": "mean+last", "layers": ["block_01"]})
        (('mean', 'block_01'), ('last', 'block_01'))
        >>> saved_channels({"pooling": "mean+last", "layers": ["last/block_01"]})
        (('last', 'block_01'),)
    """
    named = [name.rpartition("/") for name in record["layers"]]
    if all(pooling for pooling, _, _ in named):
        return tuple((pooling, layer) for pooling, _, layer in named)
    return tuple(product(split_poolings(record["pooling"]), record["layers"]))


def only_chosen(saved: SavedHead[FittedModule], chosen: Mapping[str, Any]) -> SavedHead[FittedModule]:
    """Reduce a head to what was chosen, as scores.json names it, so that no other layer is computed to score with it.

    A head of one layer, or of a mix of layers, keeps them. The record of a head of words learns its `decoding`.
    """
    if "decoding" in chosen:
        saved = SavedHead(saved.head, {**saved.record, "decoding": chosen["decoding"]})
    layer = chosen.get("layer", "")
    channels = saved_channels(saved.record)
    names = ["/".join(channel) if "+" in saved.record["pooling"] else channel[1] for channel in channels]
    if len(names) == 1 or layer not in names:
        return saved
    head: Any = saved.head
    place = names.index(layer)
    return SavedHead(head.only(place), {**saved.record, "layers": ["/".join(channels[place])]})


def narrow_spec(spec: ExtractionSpec, heads: Heads, decoder: Decoder, *, reads_words: bool) -> ExtractionSpec:
    """Leave out of the extraction of a run the layers and poolings that no head reads; name the others one by one."""
    channels = [channel for saved in heads for channel in saved_channels(saved.record)]
    poolings = tuple(dict.fromkeys(pooling for pooling, _ in channels))
    layers = tuple(name for name in decoder.layers if name in {layer for _, layer in channels})
    part: Any = {"words": replace(spec.words, poolings=poolings)} if reads_words else {"poolings": poolings}
    return replace(spec, layers=layers, **part)


def read_channels(
    latents: Float[Tensor, "L P N D"], record: dict[str, Any], *, layers: Sequence[str], poolings: Iterable[str]
) -> Float[Tensor, "C N D"]:
    """Pick the latents that a saved head reads, as it takes them, out of those of some layers and poolings."""
    names = list(poolings)
    picked = [latents[layers.index(layer), names.index(pooling)] for pooling, layer in saved_channels(record)]
    return torch.stack(picked)
