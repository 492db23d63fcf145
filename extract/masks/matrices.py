"""Masks as matrices: the truth table of a kind, the masks of a batch, and what is added to attention scores."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from extract.masks.kinds import KINDS, MaskKind


def kind_matrix(kind: MaskKind, n_tokens: int, *, spans: Int[Tensor, " T"] | None = None) -> Bool[Tensor, "T T"]:
    """Build the truth table of a kind for one unpadded row.

    It is true where query i attends to key j. Only `hybrid` needs `spans`, the span number per token with `CONTEXT`
    outside spans.

    Example:
        >>> from extract.masks.kinds import parse_kind
        >>> print(draw(kind_matrix(parse_kind("nosink-causal"), 3)))
        1 0 0
        0 1 0
        0 1 1
    """
    order = torch.arange(n_tokens)
    matrix: Tensor = KINDS[kind.name].rule(order.unsqueeze(-1), order.unsqueeze(-2), kind.n, spans)
    return matrix


def batch_mask(
    kind: MaskKind, is_real: Bool[Tensor, "B T"], *, spans: Int[Tensor, "B T"] | None = None, window: int | None = None
) -> Bool[Tensor, "B T T"]:
    """Build the masks of a batch, padding on either side.

    Padding is never attended to; a padding query sees only itself, so that no row is empty. Under the sliding window
    of a layer, in tokens, i sees only |i - j| < window. `spans` are those of `kind_matrix`.
    """
    order = is_real.long().cumsum(1) - 1
    i, j = order.unsqueeze(-1), order.unsqueeze(-2)
    allowed: Tensor = KINDS[kind.name].rule(i, j, kind.n, spans)
    if window is not None:
        allowed = allowed & ((i - j).abs() < window)
    itself = torch.eye(is_real.shape[1], dtype=torch.bool, device=is_real.device)
    return (allowed & is_real.unsqueeze(-2) & is_real.unsqueeze(-1)) | (itself & ~is_real.unsqueeze(-1))


def additive(mask: Bool[Tensor, "*B T S"], dtype: torch.dtype) -> Float[Tensor, "*B T S"]:
    """Turn a mask into what is added to attention scores: 0 where allowed, minus infinity elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))


def draw(matrix: Bool[Tensor, "T T"]) -> str:
    """Draw a truth table as rows of 0 and 1."""
    return "\n".join(" ".join("1" if cell else "0" for cell in row) for row in matrix.tolist())
