"""A section of a config that is no mapping is refused, and no file turns code of a checkpoint on."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from extract.errors import ConfigError, IcecoreError
from probes.cli.arguments import read_command
from probes.cli.commands import COMMANDS
from probes.runs.run_config import RunConfig

SECTIONS = (
    "decoder",
    "extraction",
    "extraction.template",
    "extraction.words",
    "task",
    "task.options",
    "heads",
    "heads.layer-cosine",
    "pretraining",
    "pretraining.options",
    "pretraining.autoencoder",
)
MAY_BE_EMPTY = ("task.options", "heads.layer-cosine", "pretraining.options", "pretraining.autoencoder")


def read(folder: Path, values: Any, *argv: str) -> RunConfig:
    (folder / "c.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    config: RunConfig = read_command(COMMANDS["run"], [str(folder / "c.yaml"), *argv]).config
    return config


def nest(section: str, value: Any) -> dict[str, Any]:
    for key in reversed(section.split(".")):
        value = {key: value}
    found: dict[str, Any] = value
    return found


def is_name(section: str, value: Any) -> bool:
    return section in ("task", "decoder", "extraction.template", "heads") and value == "causal"


@pytest.mark.parametrize("value", [[1, 2], [], 5, 0, 0.5, True, False, "causal", ""])
@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_of_a_wrong_kind_is_refused(section: str, value: Any, tmp_path: Path) -> None:
    if is_name(section, value):
        return
    with pytest.raises(ConfigError) as error:
        read(tmp_path, nest(section, value))
    assert str(error.value).startswith(f"section {section!r} of '{tmp_path}/c.yaml' is {value!r}; allowed: ")


@pytest.mark.parametrize("section", SECTIONS)
def test_an_empty_section(section: str, tmp_path: Path) -> None:
    if section in MAY_BE_EMPTY:
        assert read(tmp_path, nest(section, None)).extraction.plan == "causal"
    else:
        with pytest.raises(ConfigError, match=f"section '{section}' of .* is empty; allowed"):
            read(tmp_path, nest(section, None))


@pytest.mark.parametrize("text", ["[1, 2]", "5", "true", "causal", "", "null"])
@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_of_a_wrong_kind_on_the_command_line(section: str, text: str) -> None:
    if is_name(section, text) or (text in ("", "null") and section in MAY_BE_EMPTY):
        return
    value = "empty" if text in ("", "null") else repr(yaml.safe_load(text))
    for argv in ([f"--{section}", text], [f"--{section}={text}"]):
        with pytest.raises(ConfigError) as error:
            read_command(COMMANDS["run"], argv).config.check_heads()
        assert str(error.value) == (
            f"section {section!r} is {value} on the command line; allowed: its keys one by one, as --{section}.KEY "
            f"VALUE, or together, as --{section} '{{KEY: VALUE}}'."
        )


def test_a_name_alone_stands_for_its_section(tmp_path: Path) -> None:
    (tmp_path / "models/mine").mkdir(parents=True)
    names = {"task": "class-sample", "decoder": "models/mine", "heads": "logistic-probe"}
    config = read(tmp_path, {**names, "extraction": {"template": "echo", "layers": -1}})
    assert config == read(
        tmp_path,
        {
            "task": {"name": "class-sample"},
            "decoder": {"name": "models/mine"},
            "heads": {"logistic-probe": {}},
            "extraction": {"template": {"name": "echo"}, "layers": [-1]},
        },
    )
    assert config.decoder.name.endswith("/models/mine")  # found from the config
    assert config.sources["task.name"] == "c.yaml"
    typed = [word for key, value in names.items() for word in (f"--{key}", value)]
    typed += ["--extraction.template", "echo", "--extraction.layers", "-1", "--decoder", config.decoder.name]
    assert read(tmp_path, {}, *typed) == config
    assert read(tmp_path, {"heads": ["layer-cosine", "cosine-mlp"]}).heads == {"layer-cosine": {}, "cosine-mlp": {}}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"task": "stbs"}, "unknown task 'stbs': did you mean 'stsb'?"),
        ({"heads": "layer-cosin"}, "unknown head 'layer-cosin': did you mean 'layer-cosine'?"),
        ({"extraction": {"template": "ehco"}}, "unknown template 'ehco': did you mean 'echo'?"),
    ],
)
def test_a_wrong_name_alone_is_refused_by_name(values: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(IcecoreError) as error:
        read(tmp_path, values)
    assert str(error.value).startswith(sentence)


def test_a_section_inside_a_section_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"section 'extraction\.template' is 5 on the command line"):
        read_command(COMMANDS["run"], ["--extraction", "{template: 5}"]).config.check_heads()
    (tmp_path / "part.yaml").write_text("template: [1]", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"section 'extraction\.template' of '.*part\.yaml' is \[1\]"):
        read_command(COMMANDS["run"], ["--extraction", str(tmp_path / "part.yaml")]).config.check_heads()


def test_sections_may_be_given_whole(tmp_path: Path) -> None:
    (tmp_path / "part.yaml").write_text("plan: backward", encoding="utf-8")
    argv = [
        "--extraction",
        str(tmp_path / "part.yaml"),
        "--heads={layer-cosine: }",
        "--heads.layer-cosine.pooling",
        "mean",
        "--task",
        "{name: sts-sample}",
        "--pretraining.options",
    ]
    with pytest.raises(ConfigError, match=r"--pretraining\.options lacks its value; allowed: "):
        read_command(COMMANDS["run"], argv).config.check_heads()
    config = read_command(COMMANDS["run"], argv[:-1]).config
    assert config.extraction.plan == "backward"
    assert config.heads == {"layer-cosine": {"pooling": "mean"}}


def test_every_section_is_checked() -> None:
    """A section that is added to the configuration is in the list above."""
    found, rest = set(), [("", RunConfig().to_dict())]
    while rest:
        prefix, values = rest.pop()
        for key, value in values.items():
            if isinstance(value, dict):
                found.add(f"{prefix}{key}")
                rest.append((f"{prefix}{key}.", value))
    assert found == set(SECTIONS)


@pytest.mark.parametrize("values", [[1], 5, True, "text", None, ""])
def test_a_file_that_holds_no_keys_is_refused(values: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"c.yaml' is .*; allowed: keys with values"):
        read(tmp_path, values)


def test_a_section_in_python_is_its_class() -> None:
    wrong: Any = 5
    with pytest.raises(ConfigError, match="extraction is 5; allowed: keys with values"):
        RunConfig(extraction=wrong)
    with pytest.raises(ConfigError, match="heads is 5; allowed: a mapping"):
        RunConfig(heads=wrong)


TRUSTS = {"decoder": {"name": "someone/model", "trust_remote_code": True}}


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--decoder.trust_remote_code", "false", "--config", "c.yaml"],
        ["--decoder.name", "true"],
    ],
)
def test_no_file_turns_code_of_a_checkpoint_on(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"decoder\.trust_remote_code is true in a file; allowed: on the command line"
    ):
        read(tmp_path, TRUSTS, *argv)


@pytest.mark.parametrize("argv", [["--decoder.trust_remote_code", "true"], ["--decoder.trust_remote_code=true"]])
def test_the_command_line_turns_it_on(argv: list[str], tmp_path: Path) -> None:
    assert read(tmp_path, TRUSTS, *argv).decoder.trust_remote_code
    assert read(tmp_path, {"name": "r"}, *argv).decoder.trust_remote_code
