"""Options as a YAML file gives them: coerced where that is safe, refused in a sentence elsewhere."""

from functools import partial
from typing import Any

import pytest
import torch

from extract.errors import ConfigError, HeadError, IcecoreError, UnknownNameError
from extract.registry import option_names
from probes.fitting.fit_options import EpochOptions, FitOptions
from probes.heads.head_table import AUTOENCODER, HEADS, SOURCES, head_entry, resolve_head
from probes.heads.pair_heads import check_autoencoder_options


def test_options_are_sorted_by_who_needs_them() -> None:
    found = resolve_head(
        "siamese-cosine", {"bottleneck": 8, "patience": 3, "pooling": "last", "layers": ["block_01", "block_02"]}
    )
    assert found.values == ({"bottleneck": 8}, EpochOptions(batch_size=128, max_epochs=150, patience=3))
    assert (found.pooling, found.layers) == ("last", ("block_01", "block_02"))
    assert resolve_head("layer-cosine", {"layers": "blocks"}).layers == ("blocks",)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("learning_rate", "1e-3", 1e-3),
        ("learning_rate", 1, 1.0),
        ("hidden", "64", 64),
        ("hidden", 64.0, 64),
        ("weight_decay", 0, 0.0),
        ("loss", "mse", "mse"),
        ("encoder_learning_rate", "1e-5", 1e-5),
        ("encoder_learning_rate", None, None),
        ("network_dropout", 0, 0.0),
    ],
)
def test_numbers_may_come_as_text(option: str, value: Any, expected: Any) -> None:
    found = resolve_head("siamese-cosine", {option: value}).options[option]
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("hidden", 1.5, "a whole number of at least 1"),
        ("hidden", "many", "a whole number"),
        ("hidden", True, "a whole number"),
        ("hidden", None, "a whole number"),
        ("hidden", 0, "a whole number of at least 1"),
        ("pair_features", -4, "a whole number of at least 0"),
        ("batch_size", 0, "a whole number of at least 1"),
        ("max_epochs", [1], "a whole number"),
        ("learning_rate", "fast", "a number"),
        ("learning_rate", False, "a number"),
        ("learning_rate", -1e-3, "a number of at least 0"),
        ("learning_rate", "nan", "a number"),
        ("learning_rate", float("inf"), "a number"),
        ("loss", 3, "a text"),
        ("encoder", True, "a text"),
        ("encoder_learning_rate", "slow", "a number of at least 0, or null"),
        ("encoder_learning_rate", -1, "a number of at least 0, or null"),
        ("network_dropout", None, "a number"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(option: str, value: Any, allowed: str) -> None:
    sentence = f"option {option} of head 'siamese-cosine' is {value!r}; allowed: {allowed}"
    with pytest.raises(ConfigError) as caught:
        resolve_head("siamese-cosine", {option: value})
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"botleneck": 4}, r"unknown siamese-cosine option 'botleneck': did you mean 'bottleneck'\?.*pooling, layers"),
        ({"loss": "log-varianc"}, r"unknown loss 'log-varianc': did you mean 'log-variance'\?"),
        ({"encoder": "lp"}, r"unknown encoder 'lp': did you mean 'mlp'\? Allowed: linear, mlp"),
    ],
)
def test_an_unknown_name_is_refused_before_anything_is_extracted(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnknownNameError, match=sentence):
        resolve_head("siamese-cosine", options)


def test_a_head_that_cannot_be_built_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"head 'siamese-cosine' cannot be built with \{'dropout': 2.0\}: dropout"):
        resolve_head("siamese-cosine", {"dropout": 2})


def test_a_size_that_no_tensor_can_have_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=rf"head 'siamese-cosine' cannot be built with \{{'hidden': {10**20}\}}: empty"
    ):
        resolve_head("siamese-cosine", {"hidden": 10**20})


ODD: list[Any] = [
    "x",
    "",
    "1.5",
    "nan",
    1.5,
    -1,
    0,
    1e400,
    float("nan"),
    None,
    [],
    [1.5],
    ["a"],
    [None],
    [[4], [4]],
    {},
    {"a": 1},
    {4: 1},
    True,
    False,
    -0.0,
    10**30,
    1e300,
    b"x",
    1 + 2j,
    "all",
]


@pytest.mark.parametrize(
    ("head", "option"),
    [
        *((name, option) for name, entry in HEADS.items() for option in entry.options()),
        *((AUTOENCODER, option) for source in SOURCES for option in option_names(source)),
    ],
)
def test_an_odd_value_of_any_option_is_taken_or_refused_in_a_sentence(head: str, option: str) -> None:
    n_refused = 0
    for value in ODD:
        try:
            if head == AUTOENCODER:
                check_autoencoder_options({option: value})
            else:
                resolve_head(head, {option: value})
        except IcecoreError as error:
            n_refused += 1
            assert str(error).endswith(".")
            assert "\n" not in str(error)
    assert n_refused > len(ODD) / 2


@pytest.mark.parametrize("rule", [1.5, None, [1.5], [None], {}, True])
@pytest.mark.parametrize("head", ["siamese-cosine", AUTOENCODER])
def test_a_width_of_the_wrong_kind_is_refused(head: str, rule: Any) -> None:
    check = check_autoencoder_options if head == AUTOENCODER else partial(resolve_head, head)
    with pytest.raises(HeadError) as caught:
        check({"bottleneck": rule})
    assert str(caught.value).startswith(f"bottleneck is {rule!r}; allowed: a size (256, D or D/4)")


@pytest.mark.parametrize("pooling", [3, "", ["mean"], True])
def test_a_pooling_is_a_name(pooling: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_head("cosine-mlp", {"pooling": pooling})
    assert str(caught.value) == f"option pooling of head 'cosine-mlp' is {pooling!r}; allowed: the name of a pooling."


@pytest.mark.parametrize("layers", [1.5, None, {"block_01": 1}, [], "", [True], ["block_01", None], [["block_01"]]])
def test_layers_are_names_or_numbers(layers: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_head("cosine-mlp", {"layers": layers})
    assert (
        str(caught.value) == f"option layers of head 'cosine-mlp' is {layers!r}; allowed: a layer, or a list of them."
    )
    assert resolve_head("cosine-mlp", {"layers": [3, "-1"]}).layers == ("3", "-1")


@pytest.mark.parametrize("options", [{}, {"loss": "log-variance"}, {"loss": "cosent"}])
def test_a_batch_of_one_is_refused_before_anything_is_extracted(options: dict[str, Any]) -> None:
    loss = options.get("loss", "log-variance")
    sentence = f"option batch_size of head 'siamese-cosine' is 1, but the loss '{loss}' compares rows"
    with pytest.raises(HeadError, match=sentence):
        resolve_head("siamese-cosine", {**options, "batch_size": 1})
    assert resolve_head("siamese-cosine", {**options, "batch_size": 2}).values[1].batch_size == 2
    assert resolve_head("siamese-cosine", {"loss": "mse", "batch_size": 1}).values[1].batch_size == 1
    assert resolve_head("cosine-mlp", {"batch_size": 1}).values[1].batch_size == 1


def test_an_unknown_head_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown head 'cosine-mpl': did you mean 'cosine-mlp'\?"):
        head_entry("cosine-mpl")


@pytest.mark.parametrize("name", ["batch_size", "max_epochs", "patience"])
def test_fit_options_are_counts(name: str) -> None:
    with pytest.raises(HeadError, match=rf"{name} is 0; allowed: a whole number of at least 1"):
        FitOptions(**{name: 0})


def test_checking_options_draws_nothing() -> None:
    before = torch.get_rng_state()
    resolve_head("siamese-cosine", {})
    assert torch.equal(torch.get_rng_state(), before)


def test_a_whole_number_keeps_its_digits() -> None:
    options: Any = resolve_head("few-shot-probe", {"seed": 2**53 + 1}).options
    assert options.seed == 2**53 + 1


@pytest.mark.parametrize("head", ["logistic-probe", "few-shot-probe", "ridge-probe"])
def test_a_negative_seed_is_refused_before_anything_is_extracted(head: str) -> None:
    with pytest.raises(HeadError, match="seed is -1; allowed: a whole number of at least 0"):
        resolve_head(head, {"seed": -1})
