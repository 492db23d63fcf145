"""Stores of word latents written without a decoder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from extract.inputs.joined_text import JoinedText, digest_texts, join_words
from extract.store.format import create_store
from extract.store.manifest import Manifest, WordIdentity
from extract.store.writer import StoreWriter
from tests.extract.tiny_decoders import make_manifest

Piece = tuple[int, int, int]  # which text, its first word in the row, and how many words the row holds


def words(each: Sequence[str]) -> JoinedText:
    """Join words with spaces."""
    return join_words(each, [True] * len(each))


def make_word_manifest(texts: Sequence[JoinedText], n_rows: int, **changes: Any) -> Manifest:
    """Make the manifest of a small store of words."""
    words = WordIdentity(
        poolings=tuple(changes.pop("word_poolings", ("mean", "last"))),
        shift=False,
        on_lost="error",
        n_words=sum(len(text.spans) for text in texts),
    )
    return make_manifest(texts, **{"poolings": [], "n_rows": n_rows, "words": words, **changes})


def write_word_cache(
    path: Path,
    texts: Sequence[JoinedText],
    pieces: Sequence[Piece],
    *,
    n_done: int | None = None,
    flags: NDArray[np.uint8] | None = None,
    **changes: Any,
) -> dict[tuple[int, int], Tensor]:
    """Write a store whose rows are `pieces`; return the latents `(L, P, D)` in float32 of each word of each text."""
    manifest = make_word_manifest(texts, len(pieces), **changes)
    identity = manifest.identity
    create_store(path, manifest)
    n_words = manifest.n_words
    shape = (len(identity.layers), len(manifest.poolings), n_words, identity.decoder["width"])
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    stored = latents.to(getattr(torch, identity.storage_dtype))
    raw = (stored.view(torch.uint16) if stored.dtype == torch.bfloat16 else stored).numpy()
    given = np.zeros(n_words, np.uint8) if flags is None else flags
    writer = StoreWriter(path)
    place = 0
    found: dict[tuple[int, int], Tensor] = {}
    for row, (text, start, count) in enumerate(pieces[:n_done]):
        rows: dict[str, NDArray[Any]] = {
            "digest": digest_texts([texts[text]]),
            "n_tokens": np.array([3], np.int32),
            "is_truncated": np.zeros(1, np.uint8),
            "first_word": np.array([place], np.int64),
            "n_words": np.array([count], np.int32),
            "word_start": np.array([start], np.int32),
        }
        own = slice(place, place + count)
        writer.write_rows(
            row,
            raw[:, :, own],
            rows=rows,
            words=(place, given[own]),
        )
        writer.close_rows(row, 1)
        found |= {(text, start + k): stored[:, :, place + k].float() for k in range(count)}
        place += count
    if n_done is None:
        writer.write_certificate({"frozen": {"is_bit_identical": True}})
    writer.close()
    return found
