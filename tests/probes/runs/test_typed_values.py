"""What a user types wins over protocols and templates, and config.yaml says where each value came from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from extract.errors import ConfigError
from extract.inputs.template import InputTemplate
from extract.records import given
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from probes.runs.config_file import read_config
from probes.runs.folder import RunFolder, open_folder
from probes.runs.run_config import RunConfig, TaskSpec, describe_sources

WORDS: dict[str, Any] = {"task": TaskSpec("words-sample"), "heads": {"token-classifier": {}}}
TYPED_WORDS = [("task.name", "words-sample"), ("heads", "{token-classifier: }"), ("protocol", "magnet")]


def write(folder: Path, values: Any) -> str:
    (folder / "base.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(folder / "base.yaml")


def test_a_default_that_is_typed_wins_over_the_protocol() -> None:
    assert read_config([*TYPED_WORDS]).extraction.words == WordSpec(("mean",), shift=True)
    words = read_config([*TYPED_WORDS, ("extraction.words.shift", "false")]).extraction.words
    assert words == WordSpec(("mean",), shift=False)
    assert read_config([*TYPED_WORDS, ("extraction.words.poolings", "auto")]).extraction.words.poolings == ("auto",)


def test_defaults_in_a_file_win_over_the_protocol(tmp_path: Path) -> None:
    extraction = {"layers": ["all"], "template": {"bos": "auto"}}
    config = read_config([], file=write(tmp_path, {"protocol": "freeze-released", "extraction": extraction}))
    assert (config.extraction.layers, config.extraction.template.bos) == (("all",), "auto")
    assert config.extraction.poolings == ("last",)  # which the protocol still decides


def test_advice_to_extract_a_pooling_can_be_followed() -> None:
    typed: list[tuple[str, str | None]] = [("protocol", "freeze-released"), ("heads.layer-cosine.pooling", "mean")]
    with pytest.raises(ConfigError, match=r"'mean', which is not extracted; .* or add it to extraction\.poolings\."):
        read_config(typed)
    for poolings in ("mean", "last,mean"):
        config = read_config([*typed, ("extraction.poolings", poolings)])
        assert config.extraction.poolings == tuple(poolings.split(","))


def test_a_default_that_is_typed_wins_over_a_template() -> None:
    template = ("extraction.template.name", "prompt-eol")
    assert read_config([template]).extraction.template == InputTemplate(name="prompt-eol")
    typed = read_config([template, ("extraction.template.last", "row")]).extraction.template
    assert (typed.last, typed.suffix) == ("row", InputTemplate(name="prompt-eol").suffix)
    assert InputTemplate(name="prompt-eol", last="row") == typed


def test_a_default_that_is_typed_wins_over_several_templates() -> None:
    names = "prompt-eol+pretended-cot"
    plain, typed = InputTemplate(name=names), InputTemplate(name=names, last="row")
    assert [member.last for member in plain.members] == ["prompt", "prompt"]
    assert [member.last for member in typed.members] == ["row", "row"]
    assert InputTemplate(**typed.settings()).members == typed.members


def test_a_template_comes_before_a_protocol() -> None:
    typed: list[tuple[str, str | None]] = [("protocol", "freeze-released"), ("extraction.template.name", "prompt-eol")]
    template = read_config(typed).extraction.template
    assert (template.last, template.bos) == ("prompt", "force")


def test_what_is_given_in_python_wins_too() -> None:
    words = WordSpec(shift=False)
    config = RunConfig(protocol="magnet", extraction=ExtractionSpec(words=words), **WORDS)
    assert config.extraction.words == WordSpec(("mean",), shift=False)
    sources = describe_sources(config)
    assert (sources["extraction.words.shift"], sources["extraction.words.poolings"]) == ("default", "protocol magnet")
    assert given(words) == {"shift"}
    assert replace(config, seeds=(1,)).extraction == config.extraction
    assert RunConfig(protocol="magnet", extraction=ExtractionSpec(plan="backward"), **WORDS).extraction.words.shift


def test_replacing_a_field_gives_no_other() -> None:
    extraction = replace(ExtractionSpec(), storage_dtype="float16")
    assert RunConfig(protocol="freeze-released", extraction=extraction).extraction.poolings == ("last",)
    assert given(extraction) == {"storage_dtype"}


@pytest.mark.parametrize(
    "typed",
    [
        [*TYPED_WORDS, ("extraction.words.shift", "false")],
        [("protocol", "freeze-released"), ("extraction.template.bos", "auto"), ("extraction.layers", "all")],
        [("extraction.template.name", "prompt-eol"), ("extraction.template.last", "row")],
        [("extraction.template.name", "prompt-eol+pretended-cot"), ("extraction.template.last", "row")],
    ],
)
def test_a_recorded_configuration_reads_back_as_itself(typed: list[tuple[str, str | None]], tmp_path: Path) -> None:
    config = read_config(typed)
    folder = open_folder(str(tmp_path), "r", config.to_dict(), sources=describe_sources(config))
    assert yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")) == config.to_dict()
    for again in (RunFolder(folder).config, read_config([], file=str(folder / "config.yaml"))):
        assert again == config
        assert again.extraction.template.members == config.extraction.template.members


def test_a_run_folder_says_where_each_value_came_from(tmp_path: Path) -> None:
    values = {
        "protocol": "freeze-released",
        "seeds": [1, 2],
        "heads": {"cosine-mlp": {"hidden": 8, "batch_size": 4}},
        "extraction": {"template": {"name": "prompt-eol", "instruction": "Say\nit: "}},
        "task": {"options": {"a": 1}},
    }
    typed: list[tuple[str, str | None]] = [("bootstrap", "1000"), ("heads.cosine-mlp.hidden", "16")]
    config = replace(read_config(typed, file=write(tmp_path, values)), calibration="isotonic")
    folder = open_folder(str(tmp_path), "r", config.to_dict(), sources=describe_sources(config))
    text = (folder / "config.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == config.to_dict()
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert lines > {
        "name: run # default",
        "protocol: freeze-released # base.yaml",
        "seeds: # base.yaml",
        "bootstrap: 1000 # command line",
        "hidden: 16 # command line",
        "batch_size: 4 # base.yaml",
        "bos: force # protocol freeze-released",
        "last: prompt # template prompt-eol",
        "plan: causal # default",
        "layers: # protocol freeze-released",
        "calibration: isotonic # Python",
        "a: 1 # base.yaml",
        "# heads.cosine-mlp.loss: mse, protocol freeze-released",
    }
    assert not any("heads.cosine-mlp.hidden" in line for line in lines)  # which was typed


def test_sources_make_no_other_run(tmp_path: Path) -> None:
    one, other = read_config([("bootstrap", "1000")]), read_config([])
    folders = [
        open_folder(str(tmp_path), "r", config.to_dict(), sources=describe_sources(config)) for config in (one, other)
    ]
    assert folders[0] == folders[1]
    assert one == other


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            [("extraction.words.shift", "true")],
            "extraction.words.shift does nothing, as task 'sts-sample' has no words",
        ),
        (
            [*TYPED_WORDS, ("extraction.poolings", "mean")],
            "extraction.poolings does nothing, as task 'words-sample' is",
        ),
        ([("pretraining.texts", "9")], "pretraining.texts does nothing, as pretraining.corpus names no texts"),
        ([("pretraining.options.file", "x")], "pretraining.options.file does nothing, as pretraining.corpus names no"),
        ([("extraction.reba.attention", "last")], "extraction.reba.attention does nothing, as no pooling of ReBA is"),
    ],
)
def test_what_is_typed_and_read_by_nothing_is_refused(typed: list[tuple[str, str | None]], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_config(typed)
    assert str(error.value).startswith(message)
    assert str(error.value).endswith("; leave it out.")
