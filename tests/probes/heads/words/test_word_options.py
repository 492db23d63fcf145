"""Options of heads of words: protocols fill in, the config counts first, bad values get a sentence."""

from typing import Any

import pytest

from extract.errors import ConfigError, HeadError, UnknownNameError
from extract.registry import resolve
from probes.fitting.fit_options import PROTOCOLS
from probes.heads.head_table import HEADS, resolve_head

NAMES = [name for name, entry in HEADS.items() if entry.kind == "words"]


@pytest.mark.parametrize("name", NAMES)
def test_every_head_can_be_saved(name: str) -> None:
    assert HEADS[name].build is not None
    assert HEADS[name].oldest_schema == 1


@pytest.mark.parametrize("name", NAMES)
def test_no_options_are_the_defaults(name: str) -> None:
    resolved = resolve_head(name, {})
    [options] = map(resolve, HEADS[name].sources)
    assert (resolved.options, resolved.pooling, resolved.layers) == (options(), "", ("all",))


def test_magnet_is_what_its_appendix_says() -> None:
    found = resolve_head("token-classifier", {}, protocol="magnet")
    options = found.options
    assert (options.steps, options.batch_size, options.learning_rate, options.dropout) == (4000, 8, 5e-4, 0.1)
    assert (options.is_standardised, options.keep, found.layers) == (False, "last", ("final_norm",))
    assert options.decoding == "plain"


def test_look_both_ways_is_what_its_script_says() -> None:
    found = resolve_head("token-classifier", {}, protocol="look-both-ways")
    options = found.options
    assert (options.max_epochs, options.batch_size, options.learning_rate) == (3, 32, 5e-3)
    assert options.epoch_steps == 1  # three passes are three passes
    assert (options.schedule, options.keep, options.leaves_out_cut) == ("linear", "last", True)
    assert (options.is_standardised, found.layers) == (False, ("final_norm",))
    assert options.decoding == "plain"


@pytest.mark.parametrize(
    "protocol", [name for name, protocol in PROTOCOLS.items() if "token-classifier" in protocol.heads]
)
def test_the_config_counts_before_the_protocol(protocol: str) -> None:
    found = resolve_head(
        "token-classifier", {"learning_rate": "2e-3", "layers": "blocks", "steps": 0}, protocol=protocol
    )
    options = found.options
    assert (options.learning_rate, found.layers, options.steps) == (2e-3, ("blocks",), 0)
    assert not options.is_standardised


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lerning_rate": 1}, UnknownNameError, "option 'lerning_rate': did you mean 'learning_rate'"),
        ({"learning_rate": "fast"}, ConfigError, "option learning_rate of head 'token-classifier' is 'fast'; allowed"),
        ({"batch_size": 2.5}, ConfigError, "option batch_size of head 'token-classifier' is 2.5; allowed: a whole"),
        ({"batch_size": True}, ConfigError, "option batch_size of head 'token-classifier' is True"),
        ({"batch_size": float("inf")}, ConfigError, "option batch_size of head 'token-classifier' is inf"),
        ({"is_standardised": "yes"}, ConfigError, "is_standardised of head 'token-classifier' is 'yes'; allowed: true"),
        ({"keep": 3}, ConfigError, "option keep of head 'token-classifier' is 3; allowed: a text"),
        ({"layers": 1.5}, ConfigError, "option layers of head 'token-classifier' is 1.5; allowed"),
        ({"pooling": 3}, ConfigError, "option pooling of head 'token-classifier' is 3; allowed"),
        ({"decoding": "leagl"}, UnknownNameError, "unknown decoding 'leagl': did you mean 'legal'"),
        ({"keep": "bets"}, UnknownNameError, "unknown keep 'bets': did you mean 'best'"),
        ({"schedule": "cosine"}, UnknownNameError, "unknown schedule 'cosine'"),
        ({"class_weights": "balance"}, UnknownNameError, "class_weights 'balance': did you mean 'balanced'"),
        ({"batch_size": 0}, HeadError, "batch_size is 0; allowed: a whole number of at least 1"),
        ({"patience": 0}, HeadError, "patience is 0; allowed"),
        ({"epoch_steps": 0}, HeadError, "epoch_steps is 0; allowed: a whole number of at least 1"),
        ({"steps": -1}, HeadError, "steps is -1; allowed: a whole number of training steps, or 0"),
        ({"steps": 10}, HeadError, "steps is 10 and keep is 'best'; allowed: keep: last"),
        ({"dropout": 1}, HeadError, "dropout is 1.0; allowed: a share from 0 to below 1"),
        ({"weight_decay": -1}, HeadError, "weight_decay is -1.0; allowed: a number of at least 0"),
        ({"learning_rate": "nan"}, HeadError, "learning_rate is nan; allowed: a number of at least 0"),
        ({"buffer_mb": 0}, HeadError, "buffer_mb is 0; allowed: a whole number of at least 1"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve_head("token-classifier", options)


def test_an_unknown_head_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown head 'token-clasifier': did you mean 'token-classifier'"):
        resolve_head("token-clasifier", {})


def test_a_head_for_another_kind_of_task_is_refused() -> None:
    sentence = (
        r"unknown head 'cosine-mlp'. Allowed: token-classifier, .*token-mix\. These are the heads for tasks of words, "
        "such as 'ner'"
    )
    with pytest.raises(UnknownNameError, match=sentence):
        resolve_head("cosine-mlp", {}, kind="words", task="ner")
