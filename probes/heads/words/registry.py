"""The heads of tasks of words: how each is fitted, and its options as they stand in a config."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from extract.errors import unknown_name
from probes.fitting.keep_best import EpochReport
from probes.heads.words.evaluation import WordResult, WordSetting, evaluate_token_head
from probes.heads.words.options import WordHeadOptions, resolve_token_options


@dataclass(frozen=True)
class WordHeadEntry:
    """A head of tasks of words."""

    evaluate: Callable[..., WordResult]
    description: str


WORD_HEADS: dict[str, WordHeadEntry] = {
    "token-classifier": WordHeadEntry(
        evaluate_token_head, "dropout and linear on each layer, all layers at once; the best on validation"
    ),
    "token-mix": WordHeadEntry(
        evaluate_token_head, "the same on a softmax-weighted sum of layer-normed layers with a scale"
    ),
}


def resolve_word_options(name: str, options: Mapping[str, Any], *, protocol: str = "icecore") -> WordHeadOptions:
    """Check the options of a head of tasks of words.

    Args:
        name: A key of `WORD_HEADS`.
        options: Options by name.
        protocol: The protocol of the run; its options stand where the config says nothing.

    Returns:
        The options.

    Raises:
        UnknownNameError: An unknown head or option.
        ConfigError: A value of the wrong kind.
        HeadError: A value outside its range.

    Example:
        >>> resolve_word_options("token-classifier", {"learning_rate": "3e-3"}).options.learning_rate
        0.003
    """
    if name not in WORD_HEADS:
        raise unknown_name("head of tasks of words", name, WORD_HEADS)
    return resolve_token_options(name, options, protocol=protocol)


def evaluate_word_head(
    name: str, resolved: WordHeadOptions, setting: WordSetting, *, watch: Callable[[int], EpochReport] | None = None
) -> WordResult:
    """Fit a head for every seed, choose on validation, and read test once.

    Args:
        name: A key of `WORD_HEADS`.
        resolved: Its options.
        setting: What all heads of the run share.
        watch: Gives, for a seed, the function that is told of every epoch.

    Returns:
        What came of it.

    Raises:
        IcecoreError: Rows or options that the head cannot work with.
    """
    return WORD_HEADS[name].evaluate(name, resolved, setting, watch=watch)
