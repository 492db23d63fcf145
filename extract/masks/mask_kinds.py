"""Attention-mask kinds by name. A new kind is one function with its truth table in `mask_rules`, and one row here."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from extract.errors import unknown_name
from extract.registry import PLACE, add_own, find_own, first_sentence, later

if TYPE_CHECKING:
    from torch import Tensor

Rule = Callable[..., "Tensor"]
"""`rule(i, j, n, spans)` builds the mask."""


@dataclass(frozen=True)
class MaskKind:
    """A mask kind."""

    name: str
    """A name from `KINDS`."""
    n: int = 0
    """The number of a kind that has one, such as the tokens that `nosink` hides."""

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The text form, with the number after the first word: `nosink3-causal`; the default number is left out."""
        word, hyphen, rest = self.name.partition("-")
        return self.name if self.n == KINDS[self.name].default else f"{word}{self.n}{hyphen}{rest}"

    @property
    def needs_spans(self) -> bool:
        """Whether the kind depends on the spans of a text."""
        return KINDS[self.name].needs_spans


class KindRow(NamedTuple):
    """A row of `KINDS`."""

    rule: Rule
    what: str
    source: str
    default: int = 0
    """The `n` of a kind that has one."""
    needs_spans: bool = False


def _rule(name: str) -> Rule:
    rule: Rule = later(f"extract.masks.mask_rules:{name}")
    return rule


KINDS: dict[str, KindRow] = {
    "causal": KindRow(_rule("allow_causal"), "i attends to j <= i", "the decoder as it was trained"),
    "backward": KindRow(_rule("allow_backward"), "i attends to j >= i", "LBW BACK"),
    "bidirectional": KindRow(_rule("allow_bidirectional"), "every token attends to every token", "LBW BIDIR"),
    "nosink-causal": KindRow(
        _rule("allow_nosink_causal"), "causal, the first token hidden from later ones", "LBW MASK0-FOR", default=1
    ),
    "nosink-bidirectional": KindRow(
        _rule("allow_nosink_bidirectional"),
        "bidirectional, the first token hidden from later ones",
        "LBW MASK0-BIDIR",
        default=1,
    ),
    "hybrid": KindRow(
        _rule("allow_hybrid"),
        "context sees context; a span sees context and, causally, itself",
        "MAGNET Fig. 2",
        needs_spans=True,
    ),
    "local": KindRow(
        _rule("allow_local"), "i attends to |i - j| <= 1, or w as in local8", "local attention", default=1
    ),
}
SHIPPED = tuple(KINDS)
CAUSAL_KIND = MaskKind("causal")


def register_mask(
    name: str, rule: Rule | None = None, *, what: str = "", default: int = 0, needs_spans: bool = False
) -> Any:
    """Add a mask kind under a name, which plans may then use; also as a decorator.

    The code of the rule is part of what a cache is: edited, it is another mask, and nothing stored is reused.

    Args:
        name: Words of small letters joined by hyphens; the same again replaces it.
        rule: Takes the positions `(T, 1)` of queries, `(1, T)` of keys, the number `n` and spans; returns
            `(T, T)` bool, true where a query attends to a key. It must work on batches of positions, too.
        what: One line for `icecore list masks`; the first line of its docstring when empty.
        default: The number of a kind that has one, the `n` of the rule: `my-kind` has this one, `my3-kind` another.
        needs_spans: Whether it reads spans.

    Raises:
        InputError: A name of the library or of another form, or a rule that leaves a token without anything to see.

    Example:
        >>> @register_mask("every-other")
        ... def allow_every_other(i, j, n, spans):
        ...     return (i - j) % 2 == 0
    """
    if rule is None:
        return partial(register_mask, name, what=what, default=default, needs_spans=needs_spans)
    if not needs_spans:
        later("extract.masks.mask_rules:try_rule")(name, rule, default)
    row = KindRow(rule, what or first_sentence(rule), "yours", default, needs_spans)
    add_own("mask kind", name, row, shipped=SHIPPED, form=rf"[a-z]+(-[a-z]+)*|{PLACE.pattern}")
    KINDS[name] = row
    return rule


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
    if match := re.fullmatch(r"([a-z]+)(\d*)((?:-[a-z]+)*)", text):
        name, number = match[1] + match[3], match[2]
        find_own("mask kind", name, known=KINDS, add=_register_as)
        if name in KINDS:
            default = KINDS[name].default
            n = int(number) if number else default
            if not number or (default and n):
                return MaskKind(name, n)
    hint = "Kinds with a number take it after their first word, at least 1: `nosink3-causal` hides the first 3 tokens."
    raise unknown_name("mask kind", text, KINDS, hint=hint)


def _register_as(name: str, rule: Rule) -> None:
    """Register a rule under another name, with the number and spans of its own registration if it has one."""
    row = next((row for row in KINDS.values() if row.rule is rule), KindRow(rule, "", ""))
    register_mask(name, rule, what=row.what, default=row.default, needs_spans=row.needs_spans)
