"""Round latents to the storage dtype; reject values that do not fit."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from extract.errors import NonFiniteLatentError
from extract.inputs.batching import Batch
from extract.inputs.joined import JoinedText
from extract.poolings.pages import empty_in_pages

TORCH_STORAGE = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def round_latents(latents: Float[Tensor, "L P N D"], storage: str) -> tuple[Tensor, tuple[int, ...] | None]:
    """Round latents to a storage dtype; also return the place of the first that is then not finite, or None."""
    dtype = TORCH_STORAGE[storage]
    is_stored = latents.dtype == dtype
    stored = latents if is_stored else empty_in_pages(latents.shape, dtype, device=latents.device).copy_(latents)
    # Whatever is not finite makes the sum so, at a fraction of the cost of asking every value. A sum may also overflow
    # by itself; only then every value is checked.
    if math.isfinite(float(stored.sum(dtype=torch.float32))):
        return stored, None
    is_finite = torch.isfinite(stored)
    if bool(is_finite.all()):
        return stored, None
    return stored, tuple((~is_finite).nonzero()[0].tolist())


def refuse_latent(value: float, *, where: str, storage: str, dtype: str) -> NonFiniteLatentError:
    """Build the error for a latent that cannot be stored: its value before rounding, where it is, and both dtypes."""
    if math.isfinite(value):
        cause = f"does not fit the storage dtype {storage}; choose storage_dtype bfloat16 or float32"
    elif dtype == "float32":
        cause = "is not finite although computed in float32; check the decoder's weights"
    else:
        cause = f"is not finite; compute in float32 or bfloat16 instead of {dtype}"
    return NonFiniteLatentError(f"latent {value:g} at {where} {cause}. Rows that are done stay.")


def name_latent(batch: Batch, place: int, texts: Sequence[str | JoinedText]) -> str:
    """Name the text, or the word and its text, of a row or word of a batch; `texts` are the caller's."""
    if batch.words is None:
        position = int(batch.positions[place])
        text = texts[position]
        return f"text {position} ({(text if isinstance(text, str) else text.text)[:40]!r})"
    ends = np.cumsum(batch.words.n_words)
    row = int(np.searchsorted(ends, place, side="right"))
    position = int(batch.positions[row])
    word = place - int(ends[row] - batch.words.n_words[row]) + int(batch.words.word_start[row])
    text = texts[position]
    assert isinstance(text, JoinedText)
    first, last = text.spans[word]
    return f"word {word} ({text.text[first:last][:40]!r}) of text {position} ({text.text[:40]!r})"
