"""Scoring new rows with saved heads: what differs between kinds of tasks, and which latents a saved head reads."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import HeadError
from extract.run.spec import ExtractionSpec
from probes.fitting.saved import FittedModule, SavedHead
from probes.latents.channels import split_poolings

Heads = Sequence[SavedHead[FittedModule]]
"""A head of a run, fitted with one seed or several."""
ScoreRows = Callable[[Heads, Sequence[Any], Decoder, ExtractionSpec], Any]
"""Scores rows with a head whose latents the spec extracts, and no others; gives as many predictions."""


def refuse_probabilities(heads: Heads, *_: Any) -> Any:
    """Refuse to give probabilities of classes.

    Raises:
        HeadError: Names the head.
    """
    raise HeadError(f"head {heads[0].record['name']!r} gives no probabilities of classes; allowed: logistic-probe.")


@dataclass(frozen=True)
class KindScoring:
    """How rows of one kind of task are scored and shown.

    Attributes:
        score: Predicts rows.
        fields: Names what a scored row holds, from the row and its prediction: a value, or a list of as many values as
            every other list of the row.
        n_texts: Counts the texts of a row, from the record of a head.
        probabilities: Gives `(N, K)` probabilities of the head's classes.
    """

    score: ScoreRows
    fields: Callable[[Any, Any], dict[str, Any]]
    n_texts: Callable[[dict[str, Any]], int] = lambda _: 1
    probabilities: ScoreRows = refuse_probabilities


def saved_channels(record: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """List the latents that a saved head reads, in order.

    Args:
        record: Its record; `layers` are names of layers, or of channels such as `mean/block_01`.

    Returns:
        `C` pairs of pooling and layer.

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


def only_chosen(saved: SavedHead[FittedModule], layer: str) -> SavedHead[FittedModule]:
    """Reduce a head to the one layer that it was chosen at, so that no other layer is computed to score with it.

    Args:
        saved: The head.
        layer: The chosen layer as scores.json names it; a head of one layer, or of a mix of layers, stays as it is.

    Returns:
        The head and its record, of that layer alone.
    """
    channels = saved_channels(saved.record)
    names = ["/".join(channel) if "+" in saved.record["pooling"] else channel[1] for channel in channels]
    if len(names) == 1 or layer not in names:
        return saved
    head: Any = saved.head
    place = names.index(layer)
    return SavedHead(head.only(place), {**saved.record, "layers": ["/".join(channels[place])]})


def narrow_spec(spec: ExtractionSpec, heads: Heads, decoder: Decoder, *, reads_words: bool) -> ExtractionSpec:
    """Leave out of an extraction what no head reads.

    Args:
        spec: The extraction of the run.
        heads: The heads.
        decoder: The decoder.
        reads_words: Whether latents are those of words.

    Returns:
        The extraction of only the layers and poolings that the heads read, each by its name.
    """
    channels = [channel for saved in heads for channel in saved_channels(saved.record)]
    poolings = tuple(dict.fromkeys(pooling for pooling, _ in channels))
    layers = tuple(name for name in decoder.layers if name in {layer for _, layer in channels})
    part: Any = {"words": replace(spec.words, poolings=poolings)} if reads_words else {"poolings": poolings}
    return replace(spec, layers=layers, **part)


def read_channels(
    latents: Float[Tensor, "L P N D"], record: dict[str, Any], *, layers: Sequence[str], poolings: Iterable[str]
) -> Float[Tensor, "C N D"]:
    """Pick the latents that a saved head reads out of those that were computed.

    Args:
        latents: `(L, P, N, D)` latents.
        record: The record of the head.
        layers: Names of the `L` layers.
        poolings: Names of the `P` poolings.

    Returns:
        `(C, N, D)` latents, as the head takes them.
    """
    names = list(poolings)
    picked = [latents[layers.index(layer), names.index(pooling)] for pooling, layer in saved_channels(record)]
    return torch.stack(picked)
