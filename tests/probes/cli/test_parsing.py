"""Configurations: YAML merged with the command line, and a sentence for whatever cannot be used."""

from pathlib import Path
from typing import Any

import pytest

from extract.errors import ConfigError, IcecoreError, UnknownNameError, UsageError
from probes.cli.arguments import read_command
from probes.cli.commands import COMMANDS
from probes.runs.run_config import RunConfig

BASE = """
name: base
extraction:
  poolings: [mean, last]
heads:
  layer-cosine: {}
  cosine-mlp:
    batch_size: 32
    hidden: 16
seeds: [0, 1]
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    """A small config file."""
    return write(tmp_path, BASE)


def write(folder: Path, text: str) -> str:
    (folder / "base.yaml").write_text(text, encoding="utf-8")
    return str(folder / "base.yaml")


def read(*argv: str) -> Any:
    """Read the command line of a run, values of heads' options too, which the command checks itself."""
    args = read_command(COMMANDS["run"], argv)
    args.config.check_heads()
    return args


def refusal(*argv: str) -> str:
    with pytest.raises(IcecoreError) as caught:
        read(*argv)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_nothing_at_all_is_the_defaults() -> None:
    assert read().config == RunConfig()


def test_a_configuration_leaves_nothing_to_the_next() -> None:
    """The parser is kept."""
    changed = read("--heads.cosine-mlp.hidden", "8", "--task.options.name", "x", "--seeds", "1,2", "--bootstrap", "200")
    assert set(changed.config.heads) == {"layer-cosine", "cosine-mlp"}
    assert read().config == RunConfig()


def test_a_file_may_stand_first_or_behind_config(base: str) -> None:
    first = read(base)
    assert read("--config", base) == first
    assert first.config.extraction.poolings == ("mean", "last")
    assert first.config.seeds == (0, 1)
    assert first.dry_run is False
    assert read(base, "--dry-run").dry_run is True


@pytest.mark.parametrize("form", [("--heads.cosine-mlp.hidden", "64"), ("--heads.cosine-mlp.hidden=64",)])
def test_a_head_option_is_merged_into_those_of_the_file(base: str, form: tuple[str, ...]) -> None:
    heads = read(base, *form).config.heads
    assert heads == {"layer-cosine": {}, "cosine-mlp": {"batch_size": 32, "hidden": 64}}


def test_a_head_may_be_added_on_the_command_line(base: str) -> None:
    argv = ("--heads.siamese-cosine.bottleneck", "8", "--heads.siamese-cosine.learning_rate=1e-3")
    heads = read(base, *argv).config.heads
    assert set(heads) == {"layer-cosine", "cosine-mlp", "siamese-cosine"}
    assert heads["siamese-cosine"] == {"bottleneck": 8, "learning_rate": 1e-3}


def test_all_heads_may_be_replaced(base: str) -> None:
    assert read(base, "--heads", "{layer-cosine: {}}").config.heads == {"layer-cosine": {}}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("--seeds", "[3,4]"), {"seeds": (3, 4)}),
        (("--name=other",), {"name": "other"}),
        (("--bootstrap", "200", "--runs", "elsewhere"), {"bootstrap": 200, "runs": "elsewhere"}),
    ],
)
def test_keys_of_the_top_level(base: str, argv: tuple[str, ...], expected: dict[str, Any]) -> None:
    config = read(base, *argv).config
    assert {key: getattr(config, key) for key in expected} == expected


@pytest.mark.parametrize("text", ["4, block_08,-1", "[4, block_08, -1]", "['4', block_08, '-1']"])
def test_layers_may_be_numbers_and_lists_need_no_brackets(tmp_path: Path, text: str) -> None:
    expected = ("4", "block_08", "-1")
    assert read("--extraction.layers", text).config.extraction.layers == expected
    file = write(tmp_path, f"extraction:\n  layers: {text}\n  poolings: last\nseeds: 3\n")
    config = read(file, "--heads.layer-cosine.layers", text, "--heads.layer-cosine.pooling=last").config
    assert (config.extraction.layers, config.extraction.poolings, config.seeds) == (expected, ("last",), (3,))
    assert config.resolve_heads()["layer-cosine"].layers == expected
    assert read("--seeds", "0,2", "--extraction.poolings", "mean,last").config.seeds == (0, 2)


def test_nested_keys(base: str) -> None:
    config = read(
        base,
        "--extraction.poolings",
        "[last]",
        "--extraction.layers=[blocks]",
        "--extraction.template.bos",
        "force",
        "--decoder.dtype",
        "bfloat16",
        "--decoder.name=gpt2",
    ).config
    assert (config.extraction.poolings, config.extraction.layers) == (("last",), ("blocks",))
    assert (config.extraction.template.bos, config.decoder.dtype, config.decoder.name) == ("force", "bfloat16", "gpt2")
    assert config.heads["cosine-mlp"] == {"batch_size": 32, "hidden": 16}


def test_task_options_are_merged(tmp_path: Path) -> None:
    file = write(tmp_path, "task:\n  name: pair-files\n  options:\n    files: a.csv\n    score: gold\n")
    options = read(file, "--task.options.files.train=b.csv", "--task.options.header", "false").config.task.options
    assert options == {"files": {"train": "b.csv"}, "score": "gold", "header": False}
    assert read(file, "--task.options.score=s").config.task.options == {"files": "a.csv", "score": "s"}


PRETRAINED = """
heads:
  siamese-cosine: {start: pretrained}
pretraining:
  corpus: text-file
  options: {file: a.txt}
  autoencoder:
    bottleneck: 256, upper half 512
    max_epochs: 20
"""


def test_autoencoder_options_are_merged_into_those_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, PRETRAINED)
    assert read(file).config.pretraining.autoencoder == {"bottleneck": "256, upper half 512", "max_epochs": 20}
    argv = ("--pretraining.autoencoder.max_epochs", "3", "--pretraining.autoencoder.learning_rate=1e-3")
    spec = read(file, *argv, "--pretraining.options.column", "body", "--pretraining.texts=9").config.pretraining
    assert spec.autoencoder == {"bottleneck": "256, upper half 512", "max_epochs": 3, "learning_rate": 1e-3}
    assert spec.options == {"file": "a.txt", "column": "body"}
    assert (spec.corpus, spec.texts, spec.seed) == ("text-file", 9, 0)


def test_a_width_may_be_a_number_a_rule_or_a_list(tmp_path: Path) -> None:
    file = write(tmp_path, PRETRAINED)
    for text, expected in (("64", 64), ("D/4, upper half D/2", "D/4, upper half D/2"), ("[3, 4]", [3, 4])):
        argv = ("--pretraining.autoencoder.bottleneck", text, "--heads.siamese-cosine.bottleneck", text)
        config = read(file, *argv).config
        assert config.pretraining.autoencoder["bottleneck"] == expected
        assert config.heads["siamese-cosine"] == {"start": "pretrained", "bottleneck": expected}


def test_protocol_calibration_and_leaked_rows_are_chosen_by_name(base: str) -> None:
    argv = ("--protocol", "freeze-released", "--calibration=isotonic", "--anchor_identical", "true")
    config = read(base, *argv, "--task.drop_leaked", "sentences").config
    assert (config.protocol, config.calibration, config.anchor_identical) == ("freeze-released", "isotonic", True)
    assert config.task.drop_leaked == "sentences"


@pytest.mark.parametrize(
    "text",
    [
        "task:\n  name: sts-sample\n  options:\n",
        "heads:\n  cosine-mlp:\n",
        "pretraining:\n  corpus: generics\n  options:\n  autoencoder:\n",
    ],
)
def test_a_mapping_may_be_left_empty(tmp_path: Path, text: str) -> None:
    config = read(write(tmp_path, text)).config
    assert config.task.options == config.pretraining.options == config.pretraining.autoencoder == {}


def test_the_resolved_config_reads_back_as_itself(base: str, tmp_path: Path) -> None:
    import yaml

    config = read(base, "--heads.cosine-mlp.learning_rate", "1e-3", "--seeds", "[7]").config
    file = write(tmp_path, yaml.safe_dump(config.to_dict()))
    again = read(file).config
    assert again == config


@pytest.mark.parametrize(
    ("argv", "key", "near"),
    [
        (("--nam", "x"), "nam", "name"),
        (("--dry_run",), "dry_run", "dry-run"),
        (("--seedz", "[1]"), "seedz", "seeds"),
        (("--plan", "causal"), "plan", "extraction.plan"),
        (("--plann", "causal"), "plann", "extraction.plan"),
        (("--pooling", "mean"), "pooling", "extraction.poolings"),
        (("--max_token", "9"), "max_token", "extraction.template.max_tokens"),
        (("--extraction.poolngs", "[mean]"), "extraction.poolngs", "extraction.poolings"),
        (("--extraction.template.boss", "x"), "extraction.template.boss", "extraction.template.bos"),
        (("--task.optoins.files", "x"), "task.optoins.files", "task.options"),
        (("--pretraining.corpsu", "x"), "pretraining.corpsu", "pretraining.corpus"),
    ],
)
def test_an_unknown_key_on_the_command_line(base: str, argv: tuple[str, ...], key: str, near: str) -> None:
    message = refusal(base, *argv)
    assert message.startswith(f"unknown key {key!r}. Did you mean {near!r}? Allowed: ")
    section = near.rpartition(".")[0]
    allowed = message.partition("Allowed: ")[2].removesuffix(".").split(", ")
    assert {name.rpartition(".")[0] for name in allowed} == {section}, "keys of other sections"


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("seedz: [1]", "seedz", "seeds"),
        ("name: x\nheadz: {}", "headz", "heads"),  # an empty mapping is dropped by the parser, name and all
        ("name: x\nextraction:\n  templat: {}", "extraction.templat", "extraction.template"),
        ("extraction:\n  planned: causal", "extraction.planned", "extraction.plan"),
        ("extraction:\n  template:\n    bso: a", "extraction.template.bso", "extraction.template.bos"),
        ("task:\n  nme: stsb", "task.nme", "task.name"),
        ("decoder:\n  nam: x", "decoder.nam", "decoder.name"),
    ],
)
def test_an_unknown_key_in_the_file(tmp_path: Path, text: str, key: str, near: str) -> None:
    found = refusal(write(tmp_path, text + "\n"))
    assert found.startswith(f"unknown key {key!r}. Did you mean {near!r}? Allowed: ")
    allowed = found.rpartition("Allowed: ")[2].removesuffix(".").split(", ")
    assert len(set(allowed)) == len(allowed)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("--heads.cosine-mlp.hiden", "3"), "unknown cosine-mlp option 'hiden': did you mean 'hidden'?"),
        (("--heads.cosine-mpl.hidden", "3"), "unknown head 'cosine-mpl': did you mean 'cosine-mlp'?"),
        (("--heads.cosine-mlp.loss", "mze"), "unknown loss 'mze': did you mean 'mse'?"),
        (("--task.name", "sts-sampel"), "unknown task 'sts-sampel': did you mean 'sts-sample'?"),
        (("--extraction.plan", "causl"), "unknown mask "),
        (("--extraction.poolings", "[meen]"), "unknown pooling 'meen': did you mean 'mean'?"),
        (("--extraction.storage_dtype", "float17"), "unknown storage dtype 'float17': did you mean 'float16'?"),
        (("--decoder.dtype", "float33"), "unknown decoder.dtype 'float33': did you mean 'float32'? Allowed: auto, "),
        (("--protocol", "icecoer"), "unknown protocol 'icecoer': did you mean 'icecore'? Allowed: icecore, freeze-"),
        (("--calibration", "isotone"), "unknown calibration 'isotone': did you mean 'isotonic'? Allowed: linear, iso"),
        (("--task.drop_leaked", "pair"), "unknown task.drop_leaked 'pair': did you mean 'pairs'? Allowed: none, pairs"),
        (("--pretraining.corpus", "genercis"), "unknown corpus 'genercis': did you mean 'generics'?"),
        (("--pretraining.autoencoder.epochs", "3"), "unknown autoencoder option 'epochs': did you mean 'max_epochs'?"),
        (("--pretraining.autoencoder.encoder", "mlq"), "unknown encoder 'mlq': did you mean 'mlp'?"),
        (("--heads.siamese-cosine.start", "forzen"), "unknown start 'forzen': did you mean 'frozen'?"),
        (("--extraction.template.bos", "forse"), "unknown extraction.template.bos 'forse': did you mean 'force'?"),
    ],
)
def test_an_unknown_value_is_named(base: str, argv: tuple[str, ...], sentence: str) -> None:
    with pytest.raises((UnknownNameError, UsageError)):
        read(base, *argv)
    assert refusal(base, *argv).startswith(sentence)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (("--seeds", "[a]"), "seeds is 'a'; allowed: a list, as [1,2] or 1,2. See icecore run --help."),
        (("--bootstrap", "many"), "bootstrap is 'many'; allowed: a whole number. See icecore run --help."),
        (("--anchor_identical", "3"), "anchor_identical is '3'; allowed: true or false."),
        (("--extraction.template.max_tokens=x",), "max_tokens is 'x'; allowed: a whole number, or null."),
        (("--heads", "3"), "section 'heads' is 3 on the command line; allowed: its keys one by one"),
        (("--seeds", "[]"), "seeds are []; allowed: at least one, each once."),
        (("--seeds", "[1,1]"), "seeds are [1, 1]; allowed"),
        (("--bootstrap", "10"), "bootstrap is 10; allowed: 100 resamples or more."),
        (("--name", "a/b"), "the run name is 'a/b'; allowed"),
        (("--heads", "{}"), "no head was named"),
        (("--heads.cosine-mlp.hidden", "[1"), "expected ',' or ']'"),
        (("--heads.cosine-mlp.hidden", "1.5"), "option hidden of head 'cosine-mlp' is 1.5; allowed: a whole number"),
        (
            ("--heads.cosine-mlp.hidden",),
            "--heads.cosine-mlp.hidden lacks its value; allowed: --heads.cosine-mlp.hidden",
        ),
        (("--heads.cosine-mlp.hidden", "null"), "option hidden of head 'cosine-mlp' is None"),
        (("--seeds", "--dry-run"), "--seeds lacks its value; allowed: --seeds VALUE, or --seeds=VALUE."),
        (("--dry-run=3",), "--dry-run is given '3'; allowed: --dry-run alone, without a value."),
        (("--heads.cosine-mlp.hidden.x", "3"), "option hidden of head 'cosine-mlp' is {'x': 3}"),
        (
            ("--heads.cosine-mlp.layers", "1.5"),
            "option layers of head 'cosine-mlp' is 1.5; allowed: a layer, or a list",
        ),
        (("--heads.cosine-mlp.pooling", "max"), "reads the pooling 'max', which is not extracted; allowed: mean, last"),
        (("--heads.cosine-mlp", "3"), "section 'heads.cosine-mlp' is 3 on the command line; allowed: its keys"),
        (("--heads.cosine-mlp.pooling", "mean+max"), "reads the pooling 'max', which is not extracted; allowed: mean,"),
        (("--heads.cosine-mlp.pooling", "mean+"), "pooling is 'mean+'; allowed: names, each once"),
        (("--heads.siamese-cosine.start", "pretrained"), "has start 'pretrained', but `pretraining.corpus` is empty"),
        (("--heads.siamese-cosine.bottleneck", "wide"), "bottleneck is 'wide'; allowed: a size (256, D or D/4)"),
        (("--pretraining.autoencoder.bottleneck", "[4,0]"), "bottleneck is [4, 0]; allowed: a size"),
        (("--pretraining.autoencoder.max_epochs", "0"), "option max_epochs of head 'autoencoder' is 0; allowed"),
        (("--pretraining.texts", "0"), "pretraining.texts is 0; allowed: a whole number of at least 1."),
        (("spare.yaml",), "'spare.yaml' is one word too many; allowed: icecore run [CONFIG] [options]"),
        (("--extraction.batch_tokens", "0"), "batch_tokens is 0; allowed"),
    ],
)
def test_a_value_that_cannot_be_used(base: str, argv: tuple[str, ...], part: str) -> None:
    assert part in refusal(base, *argv)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: [a\n", "base.yaml' is not YAML (while parsing a flow sequence"),
        ("seeds: hello\n", "seeds is 'hello'; allowed: a list, as [1,2] or 1,2."),
        ("bootstrap: [1]\n", "bootstrap is [1]; allowed: a whole number."),
        ("\0", "base.yaml' is not YAML (unacceptable character #x0000"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in refusal(write(tmp_path, text))


def test_a_missing_file_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "demo.yaml").write_text("name: x\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    expected = "there is no config file 'configs/dmo.yaml'. Did you mean 'configs/demo.yaml'?"
    assert refusal("configs/dmo.yaml").startswith(expected)
    assert refusal("zzz").startswith("there is no config file 'zzz'. Give a YAML file")
    assert f"looked for in {str(tmp_path)!r}" in refusal("zzz")


def test_errors_are_config_errors(base: str) -> None:
    with pytest.raises(ConfigError):
        read(base, "--nam", "x")
