"""Poolings of users: guarded, so that a wrong one is one sentence, and tried for padding before an extraction."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from extract.errors import InputError, first_line
from extract.poolings.pooling import index_batch


def pool_guarded(noun: str, name: str, function: Callable[[Tensor, Any], Tensor], hidden: Tensor, index: Any) -> Tensor:
    """Call a user's pooling; its errors and wrong shapes are one sentence, an InputError."""
    try:
        pooled = function(hidden, index)
    except Exception as error:
        raise InputError(
            f"your {noun} {name!r} fails on hidden states {tuple(hidden.shape)}: {first_line(error)}."
        ) from error
    wanted = (len(index.first), hidden.shape[-1])
    if not isinstance(pooled, Tensor) or pooled.shape != wanted:
        found = tuple(pooled.shape) if isinstance(pooled, Tensor) else type(pooled).__name__
        raise InputError(
            f"your {noun} {name!r} returns {found} for hidden states {tuple(hidden.shape)}; allowed: a tensor "
            f"{wanted}, a vector for each."
        )
    return pooled


@torch.no_grad()
def require_no_padding(poolings: Mapping[str, Callable[[Tensor, Any], Tensor]], width: int) -> None:
    """Refuse poolings of the user that give a row another vector when it is padded: `InputError` names it.

    `width` is that of the decoder; rows of random states are tried alone and padded beside another, on either side.
    """
    drawn = torch.Generator().manual_seed(0)
    for name, pool in poolings.items():
        states = torch.randn(2, 7, width, generator=drawn)
        for side in (slice(0, 4), slice(3, 7)):
            is_real = torch.zeros(2, 7, dtype=torch.bool)
            is_real[0, side], is_real[1] = True, True
            padded = states.masked_fill(~is_real.unsqueeze(-1), 50.0)
            together = pool(padded, index_batch(is_real, is_real))[0]
            whole = torch.ones(1, 4, dtype=torch.bool)
            alone = pool(states[:1, side], index_batch(whole, whole))[0]
            if not torch.allclose(together.float(), alone.float(), rtol=1e-3, atol=1e-4, equal_nan=True):
                raise InputError(
                    f"your pooling {name!r} gives a text another vector beside a longer one: it reads padding; weigh "
                    "tokens by index.weights, which are zero there."
                )
