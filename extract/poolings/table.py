"""Poolings by name. A new one is a function in `pooling` or `word_pooling`, and a row here."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from extract.errors import UnknownNameError, unknown_name
from extract.masks.kinds import MaskKind, parse_kind
from extract.masks.plan import MaskPlan
from extract.names import later
from extract.own.names import add_own, find_own, first_sentence

Pooling = Callable[..., Any]
"""Pools hidden states `(B, T, D)` by the index of their batch: `PoolingIndex`, or `WordIndex` for words."""

POOLINGS: dict[str, tuple[Pooling, str]] = {
    "last": (later("extract.poolings.pooling:pool_last"), "the last real token"),
    "mean": (
        later("extract.poolings.pooling:pool_mean"), "the mean of the text tokens, specials and instruction left out"
    ),
    "weighted-mean": (
        later("extract.poolings.pooling:pool_weighted_mean"),
        "the mean of the text tokens with weights 1, 2, 3 ... along the text",
    ),
    "first": (later("extract.poolings.pooling:pool_first"), "the first text token"),
    "max": (
        later("extract.poolings.pooling:pool_max"), "the largest value of each dimension over the text tokens"
    ),
    "median": (
        later("extract.poolings.pooling:pool_median"),
        "the median of each dimension over the text tokens, whatever a few outliers do",
    ),
    "reba-last": (
        later("extract.poolings.reba:pool_reba_last"),
        "ReBA: the last token of the first copy and what follows, weighed by attention back to it",
    ),
    "reba-mean": (
        later("extract.poolings.reba:pool_reba_mean"), "ReBA: the mean over the tokens of the first copy of such sums"
    ),
}  # fmt: skip
WORD_POOLINGS: dict[str, tuple[Pooling, str]] = {
    "first": (later("extract.poolings.word_pooling:pool_first_token"), "the first token of the word"),
    "last": (later("extract.poolings.word_pooling:pool_last_token"), "the last token of the word"),
    "mean": (later("extract.poolings.word_pooling:pool_mean_of_tokens"), "the mean of the tokens of the word"),
    "reba": (
        later("extract.poolings.reba:pool_reba_words"),
        "ReBA: the word in the first copy and what follows, weighed by attention back to it; the mean of its tokens",
    ),
}
SHIPPED = {"pooling": tuple(POOLINGS), "word pooling": tuple(WORD_POOLINGS)}
AUTO = "auto"
AUTO_RULE = "last where every block is causal, first where every block is backward, else mean"


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
    return _register("pooling", POOLINGS, SHIPPED["pooling"], name, function, what)


def register_word_pooling(name: str, function: Pooling | None = None, *, what: str = "") -> Any:
    """Add a word pooling under a name, as `register_pooling`.

    The function takes the hidden states `(B, T, D)` of a layer and the `WordIndex` of the batch, and returns `(W, D)`.
    """
    return _register("word pooling", WORD_POOLINGS, (AUTO, *SHIPPED["word pooling"]), name, function, what)


def _register(
    noun: str, table: dict[str, tuple[Pooling, str]], shipped: Iterable[str], name: str, function: Pooling | None,
    what: str,
) -> Any:  # fmt: skip
    if function is None:
        return lambda decorated: _register(noun, table, shipped, name, decorated, what)
    add_own(noun, name, function, shipped=tuple(shipped))
    table[name] = (later("extract.poolings.guard:pool_guarded", noun, name, function), what or first_sentence(function))
    return function


def select_poolings(names: str | Iterable[str]) -> tuple[str, ...]:
    """Check names from `POOLINGS`, or one name, and drop repeats; raises as `check_names`."""
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        find_own("pooling", name, known=POOLINGS, add=register_pooling)
    return check_names("pooling", chosen, POOLINGS)


def check_word_poolings(names: Iterable[str]) -> tuple[str, ...]:
    """Check word pooling names, `auto` included, and drop repeats; raises as `check_names`."""
    chosen = list(names)
    for name in chosen:
        known = (AUTO, *WORD_POOLINGS)
        find_own("word pooling", name, known=known, add=register_word_pooling)
    return check_names("word pooling", chosen, [AUTO, *WORD_POOLINGS])


def select_word_poolings(names: Iterable[str], plan: MaskPlan, n_blocks: int) -> tuple[str, ...]:
    """Choose word poolings, `auto` by what a token has seen under a plan.

    Under causal masks only the last token of a word has seen all of it, under backward masks only the first.

    Raises:
        UnknownNameError: An unknown name, no name at all, or a plan that does not fit the decoder.
    """
    kinds = {*plan.kinds(n_blocks), *(() if plan.architecture == "inplace" else (plan.converted[0],))}
    sees = {side for kind in kinds for side in _sides(parse_kind(kind))}
    best = {frozenset({"back"}): "last", frozenset({"ahead"}): "first"}.get(frozenset(sees), "mean")
    return tuple(dict.fromkeys(best if name == AUTO else name for name in check_word_poolings(names)))


def _sides(kind: MaskKind) -> set[str]:
    """Say whether tokens see back, ahead, or both; a kind with spans may do both."""
    if kind.needs_spans:
        return {"back", "ahead"}
    from extract.masks.matrices import kind_matrix  # brings torch with it

    matrix = kind_matrix(kind, kind.n + 3)
    return {side for side, part in (("back", matrix.tril(-1)), ("ahead", matrix.triu(1))) if bool(part.any())}


def check_names(noun: str, names: Iterable[str], allowed: Collection[str]) -> tuple[str, ...]:
    """Check names against those allowed and drop repeats; `UnknownNameError` for an unknown name or none at all."""
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in allowed:
            raise unknown_name(noun, name, allowed)
    if not chosen:
        raise UnknownNameError(f"no {noun} was selected. Allowed: {', '.join(allowed)}.")
    return chosen
