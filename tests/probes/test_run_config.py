"""The configuration as Python objects: what contradicts itself is refused when it is built."""

from importlib.util import find_spec
from typing import Any

import pytest

import probes
from extract.errors import ConfigError, UnknownNameError
from extract.spec import ExtractionSpec
from probes.config import RunConfig, TaskSpec


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
)  # fmt: skip
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        RunConfig(**fields)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown task 'stbs': did you mean 'stsb'\?"):
        TaskSpec("stbs")
    with pytest.raises(UnknownNameError, match=r"unknown head 'cosine': did you mean"):
        RunConfig(heads={"cosine": {}})


def test_plain_values_hold_every_field() -> None:
    config = RunConfig(seeds=(1, 2), extraction=ExtractionSpec(poolings=("last",)), heads={"cosine-mlp": None})
    values = config.to_dict()
    assert set(values) == set(RunConfig.__dataclass_fields__)
    assert values["seeds"] == [1, 2]
    assert values["extraction"]["poolings"] == ["last"]
    assert values["heads"] == {"cosine-mlp": None}


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
