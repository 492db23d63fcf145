"""Rules of attention masks: which token attends to which. A new kind is one function here and one row in `mask_plan`.

Positions count the real tokens of a row from 0, on whichever side its padding is; `n` is the number of a kind that has
one. A drawing has a row per query `i` and a column per key `j`; 1 means that `i` attends to `j`.
`tests/conformance/test_all_masks.py` tests every kind.
"""

from collections.abc import Callable, Hashable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from extract.errors import InputError, first_line
from extract.inputs.joined_text import CONTEXT
from extract.masks.mask_plan import KINDS, MaskKind

CACHED_BYTES = 64 << 20
"""Most bytes of masks in a `MaskCache`."""
TRIED = 9
"""Tokens of the longest text that a user's rule is tried on."""


def allow_causal(i: Tensor, j: Tensor, *_: object) -> Tensor:
    """Token i attends to j <= i: the decoder as it was trained.

    1 0 0 0
    1 1 0 0
    1 1 1 0
    1 1 1 1
    """
    return j <= i


def allow_backward(i: Tensor, j: Tensor, *_: object) -> Tensor:
    """Token i attends to j >= i (LBW, BACK).

    1 1 1 1
    0 1 1 1
    0 0 1 1
    0 0 0 1
    """
    return j >= i


def allow_bidirectional(i: Tensor, j: Tensor, *_: object) -> Tensor:
    """Every token attends to every token (LBW, BIDIR).

    1 1 1 1
    1 1 1 1
    1 1 1 1
    1 1 1 1
    """
    return torch.ones_like(i + j, dtype=torch.bool)


def allow_nosink_causal(i: Tensor, j: Tensor, n: int, *_: object) -> Tensor:
    """Causal, but the first m tokens are hidden from every other (LBW, MASK0-FOR).

    1 0 0 0
    0 1 0 0
    0 1 1 0
    0 1 1 1

    With m = 3, `nosink3-causal`:

    1 0 0 0
    0 1 0 0
    0 0 1 0
    0 0 0 1
    """
    return (j <= i) & allow_nosink_bidirectional(i, j, n)


def allow_nosink_bidirectional(i: Tensor, j: Tensor, n: int, *_: object) -> Tensor:
    """Every token attends to all but the first m; those see themselves and what follows (LBW, MASK0-BIDIR).

    1 1 1 1
    0 1 1 1
    0 1 1 1
    0 1 1 1

    LBW names the last hidden position: m = 4, 6, 8 is MASK3/5/7. With m the length of the text it is `backward`, which
    LBW (appendix F.2) calls MASK9 for ten tokens. With m = 3, `nosink3-bidirectional`:

    1 1 1 1
    0 1 1 1
    0 0 1 1
    0 0 0 1
    """
    return (j >= n) | (j >= i)


def allow_hybrid(i: Tensor, j: Tensor, _: int, spans: Tensor | None) -> Tensor:
    """Context sees all context; a span token sees all context and, causally, its own span (MAGNET, Figure 2).

    With tokens 1 and 2 as one span:

    1 0 0 1
    1 1 0 1
    1 1 1 1
    1 0 0 1
    """
    if spans is None:
        raise ValueError("the hybrid mask needs spans")
    of_query, of_key = spans.unsqueeze(-1), spans.unsqueeze(-2)
    return (of_key == CONTEXT) | ((of_query == of_key) & (j <= i))


def allow_local(i: Tensor, j: Tensor, n: int, *_: object) -> Tensor:
    """Every token attends to the tokens at most w before or after it: how much context does a layer need? Here w = 1.

    1 1 0 0
    1 1 1 0
    0 1 1 1
    0 0 1 1
    """
    return (i - j).abs() <= n


def kind_matrix(kind: MaskKind, n_tokens: int, *, spans: Int[Tensor, " T"] | None = None) -> Bool[Tensor, "T T"]:
    """Build the truth table of a kind for one unpadded row.

    It is true where query i attends to key j. Only `hybrid` needs `spans`, the span number per token with `CONTEXT`
    outside spans.

    Example:
        >>> from extract.masks.mask_plan import parse_kind
        >>> print(draw(kind_matrix(parse_kind("nosink-causal"), 3)))
        1 0 0
        0 1 0
        0 1 1
    """
    order = torch.arange(n_tokens)
    return KINDS[kind.name].rule(order.unsqueeze(-1), order.unsqueeze(-2), kind.n, spans)


def is_closed(kind: MaskKind, n_first: int, n_tokens: int) -> bool:
    """Whether the first tokens of a row attend to none of the later ones, whatever the row's spans are."""
    return not kind.needs_spans and not bool(kind_matrix(kind, n_tokens)[:n_first, n_first:].any())


def batch_mask(
    kind: MaskKind, is_real: Bool[Tensor, "B T"], *, spans: Int[Tensor, "B T"] | None = None, window: int | None = None
) -> Bool[Tensor, "B T T"]:
    """Build the masks of a batch, padding on either side.

    Padding is never attended to; a padding query sees only itself, so that no row is empty. Under the sliding window
    of a layer, in tokens, i sees only |i - j| < window. `spans` are those of `kind_matrix`.
    """
    order = is_real.long().cumsum(1) - 1
    i, j = order.unsqueeze(-1), order.unsqueeze(-2)
    allowed = KINDS[kind.name].rule(i, j, kind.n, spans)
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


def try_rule(name: str, rule: Callable[..., object], n: int) -> None:
    """Refuse a rule that fails, or leaves a token nothing to attend to, on a text of up to `TRIED` tokens."""
    for n_tokens in range(1, TRIED + 1):
        order = torch.arange(n_tokens)
        try:
            mask = rule(order.unsqueeze(-1), order.unsqueeze(-2), n, None)
        except Exception as error:
            raise InputError(
                f"the rule of your mask {name!r} fails on {n_tokens} tokens: {first_line(error)}."
            ) from error
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (n_tokens, n_tokens):
            raise InputError(
                f"the rule of your mask {name!r} must give a bool tensor (T, T) from positions (T, 1) and (1, T)."
            )
        blind = (~mask.any(-1)).nonzero().flatten().tolist()
        if blind:
            raise InputError(
                f"under your mask {name!r} token {blind[0]} of {n_tokens} sees nothing, not even itself; let every "
                "token see at least one."
            )


class MaskCache:
    """The masks of unpadded rows that were used last, which depend on kind, sliding window, length and device alone."""

    def __init__(self) -> None:
        self._masks: dict[tuple[Hashable, ...], Tensor] = {}

    def build(self, kind: MaskKind, is_real: Bool[Tensor, "B T"], *, window: int | None) -> Bool[Tensor, "1 1 T T"]:
        """Build the mask that all rows of an unpadded batch share, or return that of an earlier batch."""
        # Tensors that are made in inference mode cannot be used everywhere outside.
        key = kind, window, is_real.shape[1], is_real.device, torch.is_inference_mode_enabled()
        mask = self._masks.pop(key, None)
        self._masks[key] = batch_mask(kind, is_real[:1], window=window).unsqueeze(1) if mask is None else mask
        while len(self._masks) > 1 and sum(mask.numel() for mask in self._masks.values()) > CACHED_BYTES:
            del self._masks[next(iter(self._masks))]  # the least recently used
        return self._masks[key]
