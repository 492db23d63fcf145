"""`icecore weights`, and merges in a configuration."""

from pathlib import Path

import pandas as pd
import peft
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from extract.decoders.decoder_spec import read_recorded_decoder
from probes.cli.main import main
from probes.runs.config_file import read_config
from probes.runs.folder import RunFolder
from probes.runs.run_config import RunConfig
from tests.extract.tiny_decoders import save_decoder

MERGE = "[{name: one, weight: 0.5}, {name: other, weight: 0.5, adapter: mine}]"


@pytest.mark.usefixtures("rendered_figures")
def test_weights_of_two_checkpoints_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(["one", "other"]):
        save_decoder(Path(name), seed=seed)
    assert main(["weights", "./one", "./other", "--out", "found", "--figures", "svg"]) == 0
    table = pd.read_csv(tmp_path / "found" / "weights.csv")
    shown = capsys.readouterr().out
    cosine = table.query("layer == 'block_02' and part == 'mlp'")["cosine"].item()
    assert f"{cosine:.4f}" in next(line for line in shown.splitlines() if "block_02" in line)
    assert (tmp_path / "found" / "weights.svg").read_text().count("MLP") >= 1
    assert main(["weights", "./one", "./nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_checkpoint_is_compared_with_itself_after_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save_decoder(Path("one"))
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], layers_to_transform=[1], init_lora_weights=False)
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config).save_pretrained("lora")
    assert main(["weights", "./one", "--other-adapter", "./lora", "--out", "found"]) == 0
    assert "one and one+lora" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "found" / "weights.csv")
    changed = table[table["cosine"] < 1 - 1e-6]
    assert set(zip(changed["layer"], changed["part"], strict=True)) == {
        ("block_02", "attention"),
        ("block_02", "block"),
    }
    assert main(["weights", "./one", "./one", "--adapter", "./lora", "--other-adapter", "./lora", "--out", "same"]) == 0
    assert pd.read_csv("same/weights.csv")["distance"].max() < 1e-6
    capsys.readouterr()
    assert main(["weights", "./one"]) == 2
    assert "OTHER is missing" in capsys.readouterr().err


def test_a_merge_is_read_and_written_only_where_there_is_one(tmp_path: Path) -> None:
    config = read_config([("decoder.merge", MERGE)])
    assert [(part.name, part.weight, part.adapter) for part in config.decoder.merge] == [
        ("one", 0.5, None),
        ("other", 0.5, "mine"),
    ]
    written = config.to_dict()["decoder"]
    assert written["name"] == "0.5*one+0.5*other+mine"
    assert read_recorded_decoder(written) == config.decoder
    assert "merge" not in RunConfig().to_dict()["decoder"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
    assert RunFolder(tmp_path).config == config


def test_a_list_of_adapters_is_read_and_found_from_the_folder_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_config([("decoder.adapter", "mine,other")])
    assert config == read_config([("decoder.adapter", "[mine, other]")])
    written = config.to_dict()
    assert written["decoder"]["adapter"] == ["mine", "other"]
    assert read_config([("decoder.adapter", "mine")]).to_dict()["decoder"]["adapter"] == "mine"
    folder = tmp_path / "runs" / "demo"
    folder.mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(written))
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    found = RunFolder(folder)
    assert [Path(name).resolve() for name in found.decoder.adapters] == [Path("mine").resolve(), tmp_path / "other"]
    assert found.config.decoder.adapters == ("mine", "../other")
    merged = {**written, "decoder": {"merge": [{"name": "one", "weight": 1.0, "adapter": ["other", "mine"]}]}}
    (folder / "config.yaml").write_text(yaml.safe_dump(merged))
    assert Path(RunFolder(folder).decoder.merge[0].adapters[0]).resolve() == tmp_path / "other"


@pytest.mark.parametrize(
    ("merge", "message"),
    [
        ("[{name: one, weight: 0.4}]", "weights that sum to 1"),
        ("[{name: one, weigt: 1}]", "unknown key 'decoder.merge.weigt'. Did you mean 'decoder.merge.weight'?"),
    ],
)
def test_a_merge_that_is_none_is_a_sentence(merge: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--decoder.merge", merge, "--dry-run"]) != 0
    assert message in capsys.readouterr().err
