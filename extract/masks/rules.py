"""Rules of attention masks: which token attends to which. A new kind is one function here and one row in `kinds`.

Positions count the real tokens of a row from 0, on whichever side its padding is; `n` is the number of a kind that has
one. A drawing has a row per query `i` and a column per key `j`; 1 means that `i` attends to `j`.
`tests/conformance/test_masks.py` tests every kind.
"""

import torch
from torch import Tensor

from extract.inputs.spans import CONTEXT


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
