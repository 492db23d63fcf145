"""What a run may be given as in Python: a record, plain values, a file of YAML or of data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError, TaskError, UsageError
from extract.inputs.template import InputTemplate
from extract.run.extraction_spec import ExtractionSpec
from probes.runs.config_file import as_config, nest_options
from probes.runs.run_config import RunConfig, TaskSpec

PLAIN = {
    "decoder": "gpt2",
    "task": {"name": "class-sample", "options": {}},
    "extraction": {"plan": "backward", "layers": [0, 10, -1], "template": "prompt-eol"},
    "heads": "logistic-probe",
    "seeds": 3,
}
RECORD = RunConfig(
    decoder=DecoderSpec("gpt2"),
    task=TaskSpec("class-sample"),
    extraction=ExtractionSpec(plan="backward", layers=("0", "10", "-1"), template=InputTemplate(name="prompt-eol")),
    heads={"logistic-probe": {}},
    seeds=(3,),
)


def test_plain_values_are_the_record(tmp_path: Path) -> None:
    assert as_config(RECORD) is RECORD
    values: Any = PLAIN
    assert as_config(PLAIN) == RunConfig(**values) == RECORD
    assert as_config({**PLAIN, "decoder": Path("gpt2"), "heads": ["logistic-probe"], "seeds": np.int64(3)}) == RECORD
    (tmp_path / "x.yaml").write_text("task: {name: class-sample}\nheads: {logistic-probe: {}}\n", encoding="utf-8")
    assert as_config(tmp_path / "x.yaml") == RunConfig(task="class-sample", heads="logistic-probe")  # type: ignore[arg-type]


def test_a_file_of_data_is_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text("text,label\n" + "".join(f"a text of number {k},{'ab'[k % 2]}\n" for k in range(40)), "utf-8")
    said: list[str] = []
    config = as_config(str(path), report=said.append)
    assert (config.name, config.task.name, [*config.heads]) == ("reviews", "class-files", ["logistic-probe"])
    assert said == ["reviews.csv: 40 rows, text = 'text', label = 'label' (2 classes)"]
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(TaskError, match="no column looks like a text"):
        as_config(path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"decode": "gpt2"}, "unknown key 'decode'. Did you mean 'decoder'"),
        ({"decoder": {"nme": "gpt2"}}, r"unknown key 'decoder\.nme'"),
        ({"seeds": "x"}, "seeds is 'x'; allowed: a list"),
        ({"bootstrap": "many"}, "bootstrap is 'many'"),
        (3, "the configuration is a int; allowed: a RunConfig"),
        ("nope.yaml", "there is no config file 'nope.yaml'"),
    ],
)
def test_what_stands_for_no_configuration_ends_in_a_sentence(source: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_config(source)


def test_options_are_found_by_their_names() -> None:
    assert nest_options({"plan": "causal", "poolings": "mean", "seeds": [1], "dtype": "float32"}) == {
        "extraction": {"plan": "causal", "poolings": "mean"},
        "seeds": [1],
        "decoder": {"dtype": "float32"},
    }
    assert nest_options({"words__poolings": "last"}) == {"extraction": {"words": {"poolings": "last"}}}
    assert nest_options({"instruction": "x", "template": "prompt-eol"}) == {
        "extraction": {"template": {"name": "prompt-eol", "instruction": "x"}}
    }
    with pytest.raises(UsageError, match="option 'options' is one of several sections"):
        nest_options({"options": {}})
    with pytest.raises(UsageError, match=r"unknown key 'plam'\. Did you mean 'plan'"):
        nest_options({"plam": "causal"})


def test_values_of_the_caller_stay_as_they_are() -> None:
    template = {"name": "prompt-eol"}
    nest_options({"template": template, "instruction": "x"})
    assert template == {"name": "prompt-eol"}
