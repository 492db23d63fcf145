"""Scoring new texts, or pairs of texts, with the class heads of a run."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.run.embed import embed_texts
from extract.run.runner import unique_texts
from extract.run.spec import ExtractionSpec
from probes.heads.scoring import Heads, KindScoring, read_channels, refuse_probabilities
from probes.latents.class_features import join_pair


def score_texts(heads: Heads, rows: Sequence[Any], decoder: Decoder, spec: ExtractionSpec) -> list[str]:
    """Classify texts, or pairs of texts.

    Args:
        heads: The head.
        rows: `N` texts, or pairs of texts where the task has two in a row.
        decoder: The decoder.
        spec: What the head reads.

    Returns:
        `N` class names.

    Raises:
        InputError: An empty text.
        HeadError: A latent that is NaN or infinite.
    """
    head: Any = heads[0].head
    names: list[str] = head.predict(*_inputs(heads, rows, decoder, spec))
    return names


def class_probabilities(
    heads: Heads, rows: Sequence[Any], decoder: Decoder, spec: ExtractionSpec
) -> Float[Tensor, "N K"]:
    """Return the probability of every class.

    Args:
        heads: The head, a logistic probe.
        rows: As for `score_texts`.
        decoder: The decoder.
        spec: What the head reads.

    Returns:
        `(N, K)` probabilities in the order of the head's class names.

    Raises:
        InputError: An empty text.
        HeadError: A head without probabilities.
    """
    if heads[0].record["name"] != "logistic-probe":
        refuse_probabilities(heads)
    logits: Tensor = heads[0].head(*_inputs(heads, rows, decoder, spec))
    return logits.softmax(-1)


def _inputs(heads: Heads, rows: Sequence[Any], decoder: Decoder, spec: ExtractionSpec) -> tuple[Tensor, ...]:
    record = heads[0].record
    sides = list(zip(*rows, strict=True)) if record["is_pairs"] else [rows]
    texts = unique_texts(text for side in sides for text in side)
    spot = {text: i for i, text in enumerate(texts)}
    latents = embed_texts(decoder, texts, spec=spec)
    read = read_channels(latents, record, layers=spec.layers, poolings=spec.poolings)
    found = [read[:, [spot[text] for text in side]] for side in sides]
    head: Any = heads[0].head
    if head.compares_texts:
        return tuple(side[0] for side in found)
    return (join_pair(*found)[0],)


def _fields(row: Any, name: str) -> dict[str, Any]:
    if isinstance(row, str):
        return {"class": name, "text": row}
    return {"class": name, "text1": row[0], "text2": row[1]}


CLASSES_SCORING = KindScoring(
    score_texts, _fields, n_texts=lambda record: 2 if record["is_pairs"] else 1, probabilities=class_probabilities
)
