"""Round latents to the storage dtype; reject values that do not fit."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from extract.errors import NonFiniteLatentError
from extract.inputs.batching import Batch
from extract.inputs.joined import JoinedText
from extract.poolings.pages import empty_in_pages

TORCH_STORAGE = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Unfit(NamedTuple):
    """The first latent that cannot be stored: its place in `(L, P, N, D)`, and its value before rounding."""

    place: tuple[int, ...]
    value: float


def round_latents(latents: Float[Tensor, "L P N D"], storage: str) -> tuple[Tensor, Int64[Tensor, " 3"]]:
    """Round latents to a storage dtype; also return a report on those that do not fit, for `read_report`.

    Both are on the device of the latents, which is not waited for.
    """
    dtype = TORCH_STORAGE[storage]
    is_stored = latents.dtype == dtype
    stored = latents if is_stored else empty_in_pages(latents.shape, dtype, device=latents.device).copy_(latents)
    # Whatever is not finite makes the sum so, at a fraction of the cost of asking every value. A sum may also overflow
    # by itself; only then every value is checked. A device is not asked, since it would be waited for.
    on_cpu = stored.device.type == "cpu"
    if stored.numel() == 0 or (on_cpu and math.isfinite(float(stored.sum(dtype=torch.float32)))):
        return stored, torch.zeros(3, dtype=torch.int64, device=stored.device)
    return stored, report_on(latents, stored)


def report_on(latents: Float[Tensor, "L P N D"], stored: Float[Tensor, "L P N D"]) -> Int64[Tensor, " 3"]:
    """Report on latents and what is stored of them: whether one is not finite, the first place, its bits in float32."""
    width = stored.shape[-1]
    low, high = stored.reshape(-1, width).aminmax(dim=-1)  # NaN if one value is; nothing large is made
    row = (~(low.isfinite() & high.isfinite())).to(torch.uint8).argmax().reshape(1)
    is_unfit = ~stored.reshape(-1, width).index_select(0, row)[0].isfinite()
    column = is_unfit.to(torch.uint8).argmax().reshape(1)
    value = latents.reshape(-1, width).index_select(0, row)[0].index_select(0, column)
    bits = value.to(torch.float32).view(torch.int32).to(torch.int64)
    return torch.cat([is_unfit.any().reshape(1).to(torch.int64), row * width + column, bits])


def read_report(report: Int64[Tensor, " 3"], shape: Sequence[int]) -> Unfit | None:
    """Read the report of `round_latents`, in main memory, on latents of a shape; None where all of them fit."""
    is_unfit, place, bits = report.tolist()
    if not is_unfit:
        return None
    value = float(np.array(bits, np.int32).view(np.float32))
    return Unfit(tuple(int(each) for each in np.unravel_index(place, tuple(shape))), value)


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
