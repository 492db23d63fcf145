"""Options as a YAML file gives them: coerced where that is safe, refused in a sentence elsewhere."""

from typing import Any

import pytest
import torch

from extract.errors import ConfigError, HeadError, UnknownNameError
from probes.fit import FitOptions
from probes.heads.options import resolve_options
from probes.heads.registry import HEADS, head_entry


@pytest.mark.parametrize("name", HEADS)
def test_no_options_are_the_defaults_of_the_table(name: str) -> None:
    found = resolve_options(name, {})
    assert found.arguments == {}
    assert found.fit == HEADS[name].options
    assert (found.pooling, found.layers) == (None, ("all",))
    assert HEADS[name].description


def test_options_are_sorted_by_who_needs_them() -> None:
    found = resolve_options(
        "siamese-cosine", {"bottleneck": 8, "patience": 3, "pooling": "last", "layers": ["block_01", "block_02"]}
    )
    assert found.arguments == {"bottleneck": 8}
    assert found.fit == FitOptions(batch_size=128, max_epochs=150, patience=3)
    assert (found.pooling, found.layers) == ("last", ("block_01", "block_02"))
    assert resolve_options("layer-cosine", {"layers": "blocks"}).layers == ("blocks",)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("learning_rate", "1e-3", 1e-3), ("learning_rate", 1, 1.0), ("hidden", "64", 64), ("hidden", 64.0, 64),
        ("weight_decay", 0, 0.0), ("loss", "mse", "mse"),
    ],
)  # fmt: skip
def test_numbers_may_come_as_text(option: str, value: Any, expected: Any) -> None:
    found = resolve_options("siamese-cosine", {option: value}).arguments[option]
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("hidden", 1.5, "a whole number of at least 1"), ("hidden", "many", "a whole number"),
        ("hidden", True, "a whole number"), ("hidden", None, "a whole number"),
        ("hidden", 0, "a whole number of at least 1"),
        ("pair_features", -4, "a whole number of at least 0"), ("batch_size", 0, "a whole number of at least 1"),
        ("max_epochs", [1], "a whole number"),
        ("learning_rate", "fast", "a number"), ("learning_rate", False, "a number"),
        ("learning_rate", -1e-3, "a number of at least 0"), ("learning_rate", "nan", "a number"),
        ("learning_rate", float("inf"), "a number"), ("loss", 3, "a text"), ("encoder", True, "a text"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused(option: str, value: Any, allowed: str) -> None:
    sentence = f"option {option} of head 'siamese-cosine' is {value!r}; allowed: {allowed}"
    with pytest.raises(ConfigError) as caught:
        resolve_options("siamese-cosine", {option: value})
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"botleneck": 4}, r"unknown siamese-cosine option 'botleneck': did you mean 'bottleneck'\?.*pooling, layers"),
        ({"loss": "log-varianc"}, r"unknown loss 'log-varianc': did you mean 'log-variance'\?"),
        ({"encoder": "lp"}, r"unknown encoder 'lp': did you mean 'mlp'\? Allowed: linear, mlp"),
    ],
)
def test_an_unknown_name_is_told_before_anything_is_extracted(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnknownNameError, match=sentence):
        resolve_options("siamese-cosine", options)


def test_a_head_that_cannot_be_built_is_told() -> None:
    with pytest.raises(ConfigError, match=r"head 'siamese-cosine' cannot be built with \{'dropout': 2.0\}: dropout"):
        resolve_options("siamese-cosine", {"dropout": 2})


@pytest.mark.parametrize("layers", [3, None, {"block_01": 1}])
def test_layers_are_names(layers: Any) -> None:
    with pytest.raises(ConfigError, match=r"option layers of head 'cosine-mlp' is .*; allowed: a layer name or a list"):
        resolve_options("cosine-mlp", {"layers": layers})


def test_an_unknown_head_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown head 'cosine-mpl': did you mean 'cosine-mlp'\?"):
        head_entry("cosine-mpl")


@pytest.mark.parametrize("name", ["batch_size", "max_epochs", "patience"])
def test_fit_options_are_counts(name: str) -> None:
    with pytest.raises(HeadError, match=rf"{name} is 0; allowed: a whole number of at least 1"):
        FitOptions(**{name: 0})


def test_checking_options_draws_nothing() -> None:
    before = torch.get_rng_state()
    resolve_options("siamese-cosine", {})
    assert torch.equal(torch.get_rng_state(), before)
