"""Attention-mask kinds: which token attends to which. A new kind is one function with its truth table and one row.

Positions count the real tokens of a row from 0, on whichever side its padding is. A drawing has a row per query `i`
and a column per key `j`; 1 means that `i` attends to `j`. `tests/conformance/test_masks.py` tests every kind.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from extract.errors import InputError, first_line, unknown_name
from extract.inputs.spans import CONTEXT
from extract.own.names import PLACE, add_own, find_own


@dataclass(frozen=True)
class MaskKind:
    """One mask kind: a name from `KINDS`, and the number of a kind that has one, such as the tokens `nosink` hides."""

    name: str
    n: int = 0

    @property
    def text(self) -> str:
        """The text form, with the number after the first word: `nosink3-causal`; the default number is left out."""
        word, hyphen, rest = self.name.partition("-")
        return self.name if self.n == KINDS[self.name].default else f"{word}{self.n}{hyphen}{rest}"

    @property
    def needs_spans(self) -> bool:
        """Whether the kind depends on spans given per text."""
        return KINDS[self.name].needs_spans


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


def allow_nosink_causal(i: Tensor, j: Tensor, kind: MaskKind, *_: object) -> Tensor:
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
    return (j <= i) & allow_nosink_bidirectional(i, j, kind)


def allow_nosink_bidirectional(i: Tensor, j: Tensor, kind: MaskKind, *_: object) -> Tensor:
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
    return (j >= kind.n) | (j >= i)


def allow_hybrid(i: Tensor, j: Tensor, _: MaskKind, spans: Tensor | None) -> Tensor:
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


def allow_local(i: Tensor, j: Tensor, kind: MaskKind, *_: object) -> Tensor:
    """Every token attends to the tokens at most w before or after it: how much context does a layer need? Here w = 1.

    1 1 0 0
    1 1 1 0
    0 1 1 1
    0 0 1 1
    """
    return (i - j).abs() <= kind.n


Rule = Callable[[Tensor, Tensor, MaskKind, "Tensor | None"], Tensor]


class KindRow(NamedTuple):
    """A row of `KINDS`: the rule builds the mask from positions; `default` is the number of a kind that has one."""

    rule: Rule
    what: str
    source: str
    default: int = 0
    needs_spans: bool = False


KINDS: dict[str, KindRow] = {
    "causal": KindRow(allow_causal, "i attends to j <= i", "the decoder as it was trained"),
    "backward": KindRow(allow_backward, "i attends to j >= i", "LBW BACK"),
    "bidirectional": KindRow(allow_bidirectional, "every token attends to every token", "LBW BIDIR"),
    "nosink-causal": KindRow(
        allow_nosink_causal, "causal, the first token hidden from later ones", "LBW MASK0-FOR", default=1
    ),
    "nosink-bidirectional": KindRow(
        allow_nosink_bidirectional, "bidirectional, the first token hidden from later ones", "LBW MASK0-BIDIR",
        default=1,
    ),
    "hybrid": KindRow(
        allow_hybrid, "context sees context; a span sees context and, causally, itself", "MAGNET Fig. 2",
        needs_spans=True,
    ),
    "local": KindRow(allow_local, "i attends to |i - j| <= 1, or w as in local8", "local attention", default=1),
}  # fmt: skip
SHIPPED = tuple(KINDS)
TRIED = 9
"""Tokens of the longest text that a user's rule is tried on."""


def register_mask(
    name: str, rule: Rule | None = None, *, what: str = "", default: int = 0, needs_spans: bool = False
) -> Any:
    """Add a mask kind under a name, which plans may then use; also as a decorator.

    The code of the rule is part of what a cache is: edited, it is another mask, and nothing stored is reused.

    Args:
        name: Words of small letters joined by hyphens; the same again replaces it.
        rule: Takes the positions `(T, 1)` of queries, `(1, T)` of keys, the `MaskKind` and spans; returns `(T, T)`
            bool, true where a query attends to a key. It must work on batches of positions, too.
        what: One line for `icecore list masks`; the first line of its docstring when empty.
        default: The number of a kind that has one, read as `kind.n`: `my-kind` has this one, `my3-kind` another.
        needs_spans: Whether it reads spans.

    Raises:
        InputError: A name of the library or of another form, or a rule that leaves a token without anything to see.

    Example:
        >>> @register_mask("every-other")
        ... def allow_every_other(i, j, kind, spans):
        ...     return (i - j) % 2 == 0
    """
    if rule is None:
        return partial(register_mask, name, what=what, default=default, needs_spans=needs_spans)
    if not needs_spans:
        _try_rule(name, rule, default)
    row = KindRow(
        rule, what or (rule.__doc__ or "registered by you").strip().splitlines()[0], "yours", default, needs_spans
    )
    add_own("mask kind", name, row, shipped=SHIPPED, form=rf"[a-z]+(-[a-z]+)*|{PLACE.pattern}")
    KINDS[name] = row
    return rule


def _register_as(name: str, rule: Rule) -> None:
    """Add a rule that a name stands for, with the number and spans that it was registered with, if it was."""
    known = next((row for row in KINDS.values() if row.rule is rule), KindRow(rule, "", ""))
    register_mask(name, rule, what=known.what, default=known.default, needs_spans=known.needs_spans)


def _try_rule(name: str, rule: Rule, number: int) -> None:
    """Refuse a rule that fails, or leaves a token nothing to attend to, on a text of up to `TRIED` tokens."""
    for n_tokens in range(1, TRIED + 1):
        order = torch.arange(n_tokens)
        try:
            found = rule(order.unsqueeze(-1), order.unsqueeze(-2), MaskKind(name, number), None)
        except Exception as error:
            raise InputError(
                f"the rule of your mask {name!r} fails on {n_tokens} tokens: {first_line(error)}."
            ) from error
        if not isinstance(found, Tensor) or found.dtype != torch.bool or found.shape != (n_tokens, n_tokens):
            raise InputError(
                f"the rule of your mask {name!r} must give a bool tensor (T, T) from positions (T, 1) and (1, T)."
            )
        blind = (~found.any(-1)).nonzero().flatten().tolist()
        if blind:
            raise InputError(
                f"under your mask {name!r} token {blind[0]} of {n_tokens} sees nothing, not even itself; let every "
                "token see at least one."
            )


def parse_kind(text: str) -> MaskKind:
    """Read a name from `KINDS`; a kind with a number takes it after its first word: `nosink3-causal` hides three.

    Raises:
        UnknownNameError: An unknown kind, a number for a kind that has none, or a number of 0.

    Example:
        >>> parse_kind("nosink3-causal")
        MaskKind(name='nosink-causal', n=3)
    """
    if PLACE.fullmatch(text):
        find_own("mask kind", text, known=KINDS, add=_register_as)
        return MaskKind(text, KINDS[text].default)
    found = re.fullmatch(r"([a-z]+)(\d*)((?:-[a-z]+)*)", text)
    if found:
        find_own("mask kind", found[1] + found[3], known=KINDS, add=_register_as)
    row = KINDS.get(found[1] + found[3]) if found else None
    if found and row is not None:
        n = int(found[2]) if found[2] else row.default
        if not found[2] or (row.default and n):
            return MaskKind(found[1] + found[3], n)
    hint = "Kinds with a number take it after their first word, at least 1: `nosink3-causal` hides the first 3 tokens."
    raise unknown_name("mask kind", text, KINDS, hint=hint)


def kind_matrix(kind: MaskKind, n_tokens: int, *, spans: Int[Tensor, " T"] | None = None) -> Bool[Tensor, "T T"]:
    """Build the truth table of a kind for one unpadded row.

    It is true where query i attends to key j. Only `hybrid` needs `spans`, the span number per token with `CONTEXT`
    outside spans.

    Example:
        >>> print(draw(kind_matrix(parse_kind("nosink-causal"), 3)))
        1 0 0
        0 1 0
        0 1 1
    """
    order = torch.arange(n_tokens)
    return KINDS[kind.name].rule(order.unsqueeze(-1), order.unsqueeze(-2), kind, spans)


def batch_mask(
    kind: MaskKind, is_real: Bool[Tensor, "B T"], *, spans: Int[Tensor, "B T"] | None = None, window: int | None = None
) -> Bool[Tensor, "B T T"]:
    """Build the masks of a batch, padding on either side.

    Padding is never attended to; a padding query sees only itself, so that no row is empty. Under the sliding window
    of a layer, in tokens, i sees only |i - j| < window. `spans` are those of `kind_matrix`.
    """
    order = is_real.long().cumsum(1) - 1
    i, j = order.unsqueeze(-1), order.unsqueeze(-2)
    allowed = KINDS[kind.name].rule(i, j, kind, spans)
    if window is not None:
        allowed = allowed & ((i - j).abs() < window)
    itself = torch.eye(is_real.shape[1], dtype=torch.bool, device=is_real.device)
    return (allowed & is_real.unsqueeze(-2) & is_real.unsqueeze(-1)) | (itself & ~is_real.unsqueeze(-1))


def additive(mask: Bool[Tensor, "*B T T"], dtype: torch.dtype) -> Float[Tensor, "*B T T"]:
    """Turn a mask into what is added to attention scores: 0 where allowed, minus infinity elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))


def draw(matrix: Bool[Tensor, "T T"]) -> str:
    """Draw a truth table as rows of 0 and 1."""
    return "\n".join(" ".join("1" if cell else "0" for cell in row) for row in matrix.tolist())
