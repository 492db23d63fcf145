"""Scoring new rows with saved heads: what differs between kinds of tasks, and which latents a saved head reads."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import HeadError
from extract.run.embed import embed_texts
from extract.run.runner import unique_texts
from extract.run.spec import ExtractionSpec
from probes.fitting.saved import FittedModule, SavedHead
from probes.heads.registry import HEADS
from probes.latents.class_features import join_pair
from probes.latents.poolings import split_poolings

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
