"""The configuration as Python objects: what contradicts itself is refused when it is built."""

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

import probes
from extract.errors import ConfigError, HeadError, UnknownNameError
from extract.run.extraction_spec import ExtractionSpec
from probes.runs.run_config import PretrainingSpec, RunConfig, TaskSpec


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"name": ""}, "the run name is ''"),
        ({"name": "a/b"}, "the run name is 'a/b'; allowed: a folder name"),
        ({"name": ".hidden"}, r"the run name is '\.hidden'"),
        ({"seeds": ()}, r"seeds are \[\]; allowed"),
        ({"seeds": (1, 2, 1)}, r"seeds are \[1, 2, 1\]; allowed: at least one, each once"),
        ({"bootstrap": 99}, "bootstrap is 99; allowed: 100 resamples or more"),
        ({"heads": {}}, "no head was named"),
        ({"heads": {"cosine-mlp": {"pooling": "last"}}}, "head 'cosine-mlp' reads the pooling 'last', .*: mean, or"),
        ({"heads": {"cosine-mlp": {"pooling": 3}}}, "option pooling of head 'cosine-mlp' is 3; allowed"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        RunConfig(**fields)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown task 'stbs': did you mean 'stsb'\?"):
        TaskSpec("stbs")
    with pytest.raises(UnknownNameError, match=r"unknown head 'cosine': did you mean"):
        RunConfig(heads={"cosine": {}})


@pytest.mark.parametrize(
    ("spec", "field", "value", "sentence"),
    [
        (TaskSpec, "drop_leaked", "pair", "unknown task.drop_leaked 'pair': did you mean 'pairs'? Allowed: none, "),
        (RunConfig, "protocol", "icecor", "unknown protocol 'icecor': did you mean 'icecore'? Allowed: icecore, "),
        (RunConfig, "protocol", ["icecore"], "unknown protocol ['icecore']: "),
        (RunConfig, "calibration", "isotone", "unknown calibration 'isotone': did you mean 'isotonic'? Allowed: "),
        (RunConfig, "calibration", "", "unknown calibration ''. Allowed: linear, isotonic."),
    ],
)
def test_a_choice_that_stands_in_no_table_is_refused_in_python_too(
    spec: type[TaskSpec | RunConfig], field: str, value: Any, sentence: str
) -> None:
    made = spec()
    object.__setattr__(made, field, value)  # as a caller without type checks would
    with pytest.raises(UnknownNameError) as caught:
        made.__post_init__()
    assert str(caught.value).startswith(sentence)


def test_nothing_in_the_place_of_a_choice_is_refused_in_python_too() -> None:
    made = TaskSpec()
    object.__setattr__(made, "drop_leaked", None)
    with pytest.raises(ConfigError, match=r"task.drop_leaked is null; give a value, or leave the key out"):
        made.__post_init__()


def test_plain_values_hold_every_field() -> None:
    config = RunConfig(seeds=(1, 2), extraction=ExtractionSpec(poolings=("last",)), heads={"cosine-mlp": None})
    values = config.to_dict()
    untold = {"sources", "missing", "sweep", "random_decoder", "has_checked_heads", "views"}
    assert set(values) == set(RunConfig.__dataclass_fields__) - untold
    assert replace(config, random_decoder=True).to_dict()["random_decoder"] is True
    assert values["seeds"] == [1, 2]
    assert values["extraction"]["poolings"] == ["last"]
    assert values["heads"] == {"cosine-mlp": None}
    assert values["pretraining"] == {"corpus": "", "options": {}, "texts": 20000, "autoencoder": {}, "seed": 0}
    assert (values["protocol"], values["calibration"], values["anchor_identical"]) == ("icecore", "linear", False)
    assert values["task"]["drop_leaked"] == "none"


@pytest.mark.parametrize("name", probes.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(probes, name).__name__ == name


@pytest.mark.parametrize("name", probes.__all__)
def test_no_module_takes_a_public_name(name: str) -> None:
    """Importing a module binds its name on the package, and would hide the function behind it."""
    assert find_spec(f"probes.{name}") is None


def test_other_public_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="module 'probes' has no attribute 'load_hat'"):
        _ = probes.load_hat


def test_a_task_can_be_drawn_down_for_a_quick_trial() -> None:
    task = TaskSpec("sts-sample", pairs=16).load()
    assert {split: len(rows) for split, rows in task.splits.items()} == {"train": 16, "validation": 16, "test": 16}
    assert "subset of at most 16 rows per split" in task.notes[0]
    with pytest.raises(ConfigError, match=r"task\.pairs is -1"):
        TaskSpec("sts-sample", pairs=-1)


@pytest.mark.parametrize(
    ("pooling", "error", "sentence"),
    [
        (
            "mean+last",
            ConfigError,
            "head 'cosine-mlp' reads the pooling 'last', which is not extracted; allowed: mean,",
        ),
        ("last+mean", ConfigError, "reads the pooling 'last', which is not extracted"),
        ("mean+mean", HeadError, r"pooling is 'mean\+mean'; allowed: names, each once"),
        ("mean+", HeadError, r"pooling is 'mean\+'; allowed: names, each once"),
    ],
)
def test_every_pooling_of_a_head_must_be_extracted(pooling: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        RunConfig(heads={"cosine-mlp": {"pooling": pooling}})


def test_both_poolings_may_be_read_together() -> None:
    config = RunConfig(
        extraction=ExtractionSpec(poolings=("last", "mean")), heads={"cosine-mlp": {"pooling": "mean+last"}}
    )
    assert config.heads == {"cosine-mlp": {"pooling": "mean+last"}}


@pytest.mark.parametrize("start", ["pretrained", "frozen"])
def test_a_start_from_autoencoders_needs_a_corpus(start: str) -> None:
    heads: dict[str, dict[str, Any] | None] = {"siamese-cosine": {"start": start}}
    with pytest.raises(
        ConfigError, match=rf"head 'siamese-cosine' has start '{start}', but `pretraining.corpus` is empty; name the"
    ):
        RunConfig(heads=heads)
    for corpus in ("generics", "text-file", "sts-sample"):
        assert RunConfig(heads=heads, pretraining=PretrainingSpec(corpus)).pretraining.corpus == corpus
    RunConfig(heads={"siamese-cosine": {"start": "fresh"}})


@pytest.mark.parametrize(
    ("fields", "error", "sentence"),
    [
        ({"corpus": "genercis"}, UnknownNameError, r"unknown corpus 'genercis': did you mean 'generics'\?.*sts-sample"),
        ({"texts": 0}, ConfigError, r"pretraining\.texts is 0; allowed: a whole number of at least 1"),
        ({"autoencoder": {"widht": 3}}, UnknownNameError, "unknown autoencoder option 'widht'"),
        ({"autoencoder": {"bottleneck": "x"}}, HeadError, "bottleneck is 'x'; allowed"),
        ({"autoencoder": {"dropout": "much"}}, ConfigError, "option dropout of head 'autoencoder' is 'much'; allowed"),
    ],
)
def test_pretraining_that_cannot_be_is_refused(fields: dict[str, Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        PretrainingSpec(**fields)


@pytest.mark.parametrize("start", ["pretrained", "frozen"])
@pytest.mark.parametrize(
    ("own", "autoencoder", "told"),
    [
        ({"encoder": "linear"}, {}, ("encoder", "'linear'", "'mlp'")),
        ({"encoder": "mlp"}, {"encoder": "linear"}, ("encoder", "'mlp'", "'linear'")),
        ({"bottleneck": 128}, {}, ("bottleneck", "128", "'256, upper half 512'")),
        ({"bottleneck": "D/2", "encoder": "mlp"}, {"bottleneck": 64}, ("bottleneck", "'D/2'", "64")),
        ({"bottleneck": [3, 4]}, {"bottleneck": [3, 5]}, ("bottleneck", r"\[3, 4\]", r"\[3, 5\]")),
        ({"bottleneck": "256,upper half 512", "encoder": "mlp"}, {}, None),
        ({"bottleneck": "64", "encoder": "linear"}, {"bottleneck": 64, "encoder": "linear"}, None),
        ({"bottleneck": [3, 4]}, {"bottleneck": [3, 4]}, None),
        ({"hidden": 64, "dropout": 0.3}, {"dropout": 0.1}, None),  # the head's own
    ],
)
def test_a_head_that_starts_from_autoencoders_has_their_encoders(
    start: str, own: dict[str, Any], autoencoder: dict[str, Any], told: tuple[str, str, str] | None
) -> None:
    heads: dict[str, dict[str, Any] | None] = {"siamese-cosine": {"start": start, **own}}
    corpus = PretrainingSpec("generics", autoencoder=autoencoder)
    RunConfig(heads={"siamese-cosine": own}, pretraining=corpus)  # fresh encoders are its own
    if told is None:
        assert RunConfig(heads=heads, pretraining=corpus).heads == heads
        return
    option, mine, theirs = told
    sentence = (
        rf"option {option} of head 'siamese-cosine' is {mine}, but it starts from autoencoders whose {option} is "
        rf"{theirs}; leave it out, or set pretraining\.autoencoder\.{option}\."
    )
    with pytest.raises(ConfigError, match=sentence):
        RunConfig(heads=heads, pretraining=corpus)


def test_an_anchor_for_identical_texts_needs_a_head_with_a_constant() -> None:
    heads: dict[str, dict[str, Any] | None] = {"siamese-cosine": {"pair_features": 4}}
    assert RunConfig(heads=heads).anchor_identical is False
    RunConfig(heads={"siamese-cosine": {"pair_features": 0}}, anchor_identical=True)
    with pytest.raises(
        ConfigError, match=r"anchor_identical is true, but head 'siamese-cosine' has pair_features 4 and"
    ):
        RunConfig(heads=heads, anchor_identical=True)


@pytest.mark.parametrize("rule", ["wide", 0, [4, 0]])
def test_widths_that_cannot_be_read_are_told_with_the_configuration(rule: Any) -> None:
    with pytest.raises(HeadError, match=r"bottleneck is .*; allowed: a size"):
        RunConfig(heads={"siamese-cosine": {"bottleneck": rule}})
