"""Poolings by name. A new one is a function in `poolings`, and a row of `POOLINGS`, `TOKEN_SETS` or `WORD_POOLINGS`."""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from extract.errors import HeadError, InputError, UnknownNameError, unknown_name
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import MaskPlan
from extract.registry import add_own, find_own, first_sentence, later

if TYPE_CHECKING:
    from torch import Tensor


Pooling = Callable[..., "Tensor"]
"""Pools hidden states `(B, T, D)` by the index of their batch: `PoolingIndex`, or `WordIndex` for words."""


def _ours(name: str, *bound: object) -> Pooling:
    function: Pooling = later(f"extract.poolings.poolings:{name}", *bound)
    return function


POOLINGS: dict[str, tuple[Pooling, str]] = {
    "last": (_ours("pool_last"), "the last real token"),
    "mean": (_ours("pool_mean"), "the mean of the text tokens, specials and instruction left out"),
    "weighted-mean": (
        _ours("pool_weighted_mean"),
        "the mean of the text tokens with weights 1, 2, 3 ... along the text",
    ),
    "first": (_ours("pool_first"), "the first text token"),
    "max": (_ours("pool_max"), "the largest value of each dimension over the text tokens"),
    "median": (_ours("pool_median"), "the median of each dimension over the text tokens, whatever a few outliers do"),
    "echo-last": (_ours("pool_echo_last"), "the last token of the last copy of a repeated text"),
    "echo-mean": (_ours("pool_echo_mean"), "the mean of the tokens of a repeated text, the first copy left out"),
    "reba-last": (
        _ours("pool_reba_last"),
        "ReBA: the last token of the first copy and what follows, weighed by attention back to it",
    ),
    "reba-mean": (_ours("pool_reba_mean"), "ReBA: the mean over the tokens of the first copy of such sums"),
}
TOKEN_SETS: dict[str, tuple[str, Pooling, str]] = {
    "token:N": (
        r"token:(0|-?[1-9]\d*)",
        _ours("select_token"),
        "the token at a position of the text, in its last copy: from 0, or from the end if negative",
    ),
    "last:N": (
        r"last:([1-9]\d*)",
        _ours("select_last"),
        "the mean of the last N tokens, from 1, up to the one that `last` reads, other specials left out",
    ),
    "role:NAME": (
        r"role:(instruction|text|suffix|joiner|chat)",
        _ours("select_role"),
        "the mean of the tokens with a role: instruction, text, suffix, joiner or chat",
    ),
    "span": (r"span()", _ours("select_span"), "the mean of the tokens in the spans of the template"),
    "span:N": (r"span:(\d+)", _ours("select_span"), "the mean of the tokens in one span, from 0"),
}
"""Poolings with an argument, which average some tokens: how their names are written (a pattern whose group is the
argument, as text), which function selects the tokens, and what they are."""
WORD_POOLINGS: dict[str, tuple[Pooling, str]] = {
    "first": (_ours("pool_first_token"), "the first token of the word"),
    "last": (_ours("pool_last_token"), "the last token of the word"),
    "mean": (_ours("pool_mean_of_tokens"), "the mean of the tokens of the word"),
    "echo": (_ours("pool_echo"), "the mean of its tokens in the last copy of the text"),
    "echo-first": (_ours("pool_echo_first"), "the first of these tokens"),
    "echo-last": (_ours("pool_word_echo_last"), "the last of these tokens"),
    "reba": (
        _ours("pool_reba_words"),
        "ReBA: the word in the first copy and what follows, weighed by attention back to it; the mean of its tokens",
    ),
}
SHIPPED = {"pooling": tuple(POOLINGS), "word pooling": tuple(WORD_POOLINGS)}
ECHO = frozenset(name for names in SHIPPED.values() for name in names if name.startswith("echo"))
"""Poolings that read a further copy of a text."""
AUTO = "auto"
AUTO_RULE = "last where every block is causal, first where every block is backward, else mean; of the last copy"


def register_pooling(name: str, function: Pooling | None = None, *, what: str = "") -> Any:
    """Add a pooling under a name, by which an extraction finds it; also as a decorator.

    The code of the function is part of what a cache is: edited, it is another pooling, and nothing stored is reused. It
    must not depend on padding, which an extraction tries before it begins.

    Args:
        name: A name of its own; the same again replaces it.
        function: Takes the hidden states `(B, T, D)` of a layer and the `PoolingIndex` of the batch, and returns
            `(B, D)`.
        what: One line for `icecore list poolings`; the first line of its docstring when empty.

    Raises:
        InputError: A name that the library has, or no name.

    Example:
        >>> @register_pooling("sum-of-tokens")
        ... def sum_tokens(hidden, index):
        ...     return (hidden.float() * index.weights.unsqueeze(-1)).sum(1)
    """
    shipped = [*SHIPPED["pooling"], *([name] if _has_argument(name) else [])]
    return _register("pooling", POOLINGS, shipped, name, function, what)


def register_word_pooling(name: str, function: Pooling | None = None, *, what: str = "") -> Any:
    """Add a word pooling under a name, as `register_pooling`.

    The function takes the hidden states `(B, T, D)` of a layer and the `WordIndex` of the batch, and returns `(W, D)`.
    """
    return _register("word pooling", WORD_POOLINGS, (AUTO, *SHIPPED["word pooling"]), name, function, what)


def _register(
    noun: str,
    table: dict[str, tuple[Pooling, str]],
    shipped: Iterable[str],
    name: str,
    function: Pooling | None,
    what: str,
) -> Any:
    if function is None:
        return lambda decorated: _register(noun, table, shipped, name, decorated, what)
    add_own(noun, name, function, shipped=tuple(shipped))
    table[name] = _ours("pool_guarded", noun, name, function), what or first_sentence(function)
    return function


def select_poolings(names: str | Iterable[str]) -> tuple[str, ...]:
    """Check names of poolings, or one name, and drop repeats; raises as `check_names`."""
    chosen = [names] if isinstance(names, str) else list(names)
    sets = [name for name in chosen if _has_argument(name)]
    for name in chosen:
        if name not in sets:
            find_own("pooling", name, known=POOLINGS, add=register_pooling)
        elif not find_token_set(name):
            stem = name.partition(":")[0]
            forms = [f"{form}, {what}" for form, (*_, what) in TOKEN_SETS.items() if form.partition(":")[0] == stem]
            raise UnknownNameError(f"the pooling {name!r} is not written as {'; or as '.join(forms)}.")
    return check_names("pooling", chosen, [*POOLINGS, *sets], listed=[*POOLINGS, *TOKEN_SETS])


def _has_argument(name: str) -> bool:
    """Whether a name is of the library's poolings with an argument, rightly written or not: never MODULE:FUNCTION."""
    return find_token_set(name) is not None or name.startswith(
        tuple(form.partition(":")[0] + ":" for form in TOKEN_SETS)
    )


def find_pooling(name: str) -> Pooling:
    """Find the function of a pooling by a name that `select_poolings` has checked."""
    token_set = find_token_set(name)
    return _ours("pool_tokens", *token_set) if token_set else POOLINGS[name][0]


def find_token_set(name: str) -> tuple[Pooling, str] | None:
    """Find the function that selects the tokens of a pooling with an argument, and the argument; None for others."""
    for pattern, select, _ in TOKEN_SETS.values():
        if match := re.fullmatch(pattern, name):
            return select, match[1]
    return None


def check_template(names: Iterable[str], template: InputTemplate) -> None:
    """Refuse poolings of texts or of words that a template has no tokens for: `InputError` names the first."""
    for name in names:
        if name in ECHO and min(member.repeat for member in template.members) < 2:
            raise InputError(f"the pooling {name!r} reads a further copy of a text; set template.repeat to 2 or more.")
        if name.startswith("span") and find_token_set(name) and not template.spans:
            raise InputError(f"the pooling {name!r} reads spans, and the template has none; set template.spans.")


def check_word_poolings(names: Iterable[str]) -> tuple[str, ...]:
    """Check word pooling names, `auto` included, and drop repeats; raises as `check_names`."""
    chosen = list(names)
    for name in chosen:
        find_own("word pooling", name, known=(AUTO, *WORD_POOLINGS), add=register_word_pooling)
    return check_names("word pooling", chosen, [AUTO, *WORD_POOLINGS])


MOST_TOKENS = 1000
"""Number of a mask kind up to which all that it lets a token see is looked at."""
ECHOED = {"last": "echo-last", "first": "echo-first", "mean": "echo"}
"""Pooling of a word to the same one in the last copy of its text."""


def select_word_poolings(names: Iterable[str], plan: MaskPlan, n_blocks: int, *, n_copies: int = 1) -> tuple[str, ...]:
    """Choose word poolings, `auto` by what a token sees under a plan, and in the last copy of a text.

    Under causal masks only the last token of a word sees all of it, under backward masks only the first.
    """
    from extract.masks.mask_rules import kind_matrix

    sees_back = sees_ahead = False
    for kind in {*plan.kinds(n_blocks), *(() if plan.architecture == "inplace" else (plan.converted[0],))}:
        n_tokens = min(kind.n, MOST_TOKENS) + 3
        matrix = None if kind.needs_spans else kind_matrix(kind, n_tokens)  # by its spans, a token may see both ways
        sees_back |= matrix is None or bool(matrix.tril(-1).any())
        sees_ahead |= matrix is None or bool(matrix.triu(1).any())
    best = {(True, False): "last", (False, True): "first"}.get((sees_back, sees_ahead), "mean")
    best = ECHOED[best] if n_copies > 1 else best
    return tuple(dict.fromkeys(best if name == AUTO else name for name in check_word_poolings(names)))


def check_names(
    noun: str, names: Iterable[str], allowed: Collection[str], *, listed: Collection[str] = ()
) -> tuple[str, ...]:
    """Check names and drop repeats; `UnknownNameError` lists those allowed, or `listed` where they are others."""
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in allowed:
            raise unknown_name(noun, name, listed or allowed)
    if not chosen:
        raise UnknownNameError(f"no {noun} was selected. Allowed: {', '.join(listed or allowed)}.")
    return chosen


REBA = frozenset({"reba-last", "reba-mean", "reba"})
"""Poolings that need the attention of every block before they can be computed."""
ATTENTIONS = {
    "all": "the largest weight over all blocks and heads (ReBA, Algorithm 1)",
    "last": "the largest weight over the heads of the last block (appendix A.1.3)",
}
DIRECTIONS = {
    "backward": "a token gathers itself and what follows it (ReBA, equation 6)",
    "symmetric": "a token gathers what precedes it too (appendix A.1.3, as we read it)",
}


@dataclass(frozen=True)
class RebaOptions:
    """Which attention ReBA poolings gather states by."""

    attention: Literal["all", "last"] = "all"
    """`all` blocks and heads, the largest weight of each pair of tokens; or the heads of the `last` block."""
    direction: Literal["backward", "symmetric"] = "backward"
    """`backward`: a token gathers itself and later ones; `symmetric`: earlier ones too."""

    def __post_init__(self) -> None:
        """Refuse values outside the tables."""
        if self.attention not in ATTENTIONS:
            raise unknown_name("attention of ReBA", self.attention, ATTENTIONS)
        if self.direction not in DIRECTIONS:
            raise unknown_name("direction of ReBA", self.direction, DIRECTIONS)


JOIN = "+"


def split_poolings(text: str) -> tuple[str, ...]:
    """Read `mean` or `mean+last`; an empty or repeated name raises `HeadError`."""
    names = tuple(part.strip() for part in text.split(JOIN))
    if not all(names) or len(set(names)) != len(names):
        raise HeadError(f"pooling is {text!r}; allowed: names, each once, joined by '{JOIN}', for instance mean+last.")
    return names
