"""Paths in a configuration are relative to its file, and in the folder of a run to where the run was made."""

import os
import shutil
import warnings
from pathlib import Path

import pytest

from extract.errors import ConfigError, ConfigWarning
from probes.cli.main import main
from probes.data.pair_task import PairTask
from probes.runs.config_file import read_config
from probes.runs.folder import RunFolder
from probes.runs.run_config import RunConfig, load_run_task
from tests.probes.data.test_bare_file import delimited

PAIRS = "task: {name: pair-files, options: {files: data/pairs.csv}}\n"
WHERE = "task.options.files"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config in `configs` and its pairs beside the config; the working folder."""
    write_pairs(tmp_path / "configs" / "data")
    (tmp_path / "configs" / "mine.yaml").write_text(PAIRS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_pairs(folder: Path, word: str = "ice") -> None:
    folder.mkdir(parents=True)
    rows = [[f"{word} {k}", f"snow {k}", str(k % 5)] for k in range(40)]
    text = delimited(["sentence1", "sentence2", "score"], *map(list, zip(*rows, strict=True)))
    (folder / "pairs.csv").write_text(text, encoding="utf-8")


def files_of(config: RunConfig) -> object:
    return config.task.options["files"]


@pytest.mark.parametrize("folder", [".", "configs", "elsewhere"])
def test_a_path_is_relative_to_the_config_wherever_the_command_is_typed(
    project: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(folder).mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    for file in (project / "configs/mine.yaml", os.path.relpath(project / "configs/mine.yaml")):
        config = read_config([], file=str(file))
        expected = {".": "configs/data/pairs.csv", "configs": "data/pairs.csv"}
        assert files_of(config) == expected.get(folder, "../configs/data/pairs.csv")
        assert load_run_task(config).source == files_of(config)


def test_that_beside_the_config_is_read_where_there_are_two(project: Path) -> None:
    write_pairs(project / "data", "hail")
    task = load_run_task(read_config([], file="configs/mine.yaml"))
    assert isinstance(task, PairTask)
    assert all(text.startswith(("ice", "snow")) for text in task.texts())


@pytest.mark.filterwarnings("always::extract.errors.ConfigWarning")
def test_a_path_from_the_working_folder_is_still_read_and_said(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.move(project / "configs/data", project / "data")
    with pytest.warns(ConfigWarning, match=r"'data/pairs\.csv' is in the working folder, and not beside the config"):
        config = read_config([], file="configs/mine.yaml")
    assert files_of(config) == "data/pairs.csv"  # as an earlier version recorded it
    assert main(["sweep", "configs/mine.yaml", "--plans", "causal", "--dry-run"]) == 0
    assert capsys.readouterr().err.startswith(f"icecore: {WHERE} of 'configs/mine.yaml': 'data/pairs.csv' is in the")


def test_what_is_in_neither_folder_is_said_with_both_when_it_is_read(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree("configs/data")
    places = f"is not in {str(project / 'configs')!r} nor in {str(project)!r}"
    config = read_config([], file="configs/mine.yaml")
    assert config.missing.keys() == {WHERE}
    with pytest.raises(ConfigError, match=r"'data/pairs\.csv', which is not in"):
        load_run_task(config)
    assert main(["run", "configs/mine.yaml"]) == 1
    assert places in capsys.readouterr().err
    assert not read_config([(WHERE, "other.csv")], file="configs/mine.yaml").missing
    assert not read_config([("task", "{name: sts-sample}")], file="configs/mine.yaml").missing


def test_files_by_split_folders_decoders_and_sections_of_other_files(project: Path) -> None:
    (project / "configs/decoders/tiny").mkdir(parents=True)
    text = (
        "task: {name: pair-files, options: {files: {train: data/pairs.csv, test: data/pairs.csv}, name: data}}\n"
        "decoder: {name: decoders/tiny@random-3, adapter: decoders/tiny}\n"
        "pretraining: {corpus: text-file, options: {file: data/pairs.csv}}\n"
    )
    Path("configs/all.yaml").write_text(text, encoding="utf-8")
    config = read_config([], file="configs/all.yaml")
    assert files_of(config) == dict.fromkeys(("train", "test"), "configs/data/pairs.csv")
    assert config.task.options["name"] == "data"  # a folder of that name is not meant
    assert (config.decoder.name, config.decoder.adapter) == (
        "configs/decoders/tiny@random-3",
        "configs/decoders/tiny",
    )
    assert config.pretraining.options == {"file": "configs/data/pairs.csv"}
    merge = "decoder: {merge: [{name: decoders/tiny, weight: 0.5}, {name: gpt2, weight: 0.5}]}\n"
    Path("configs/merge.yaml").write_text(merge, encoding="utf-8")
    parts = read_config([], file="configs/merge.yaml").decoder.merge
    assert [part.name for part in parts] == ["configs/decoders/tiny", "gpt2"]
    for adapters in ("[decoders/tiny, me/lora]", "'decoders/tiny,me/lora'"):
        stacked = f"decoder: {{name: gpt2, adapter: {adapters}}}\n"
        Path("configs/stacked.yaml").write_text(stacked, encoding="utf-8")
        assert read_config([], file="configs/stacked.yaml").decoder.adapter == ("configs/decoders/tiny", "me/lora")
    Path("configs/part.yaml").write_text("name: decoders/tiny\n", encoding="utf-8")
    assert read_config([("decoder", "configs/part.yaml")]).decoder.name == "configs/decoders/tiny"
    Path("configs/gone.yaml").write_text("decoder: {name: ./models/gone}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"'\./models/gone', which is not in"):
        read_config([], file="configs/gone.yaml").require_files("decoder")


def test_in_the_folder_of_a_run_they_are_relative_to_where_it_was_made(
    project: Path, monkeypatch: pytest.MonkeyPatch, decoder_folder: Path, tmp_path: Path
) -> None:
    words = ["run", "configs/mine.yaml", "--quiet", "--name", "mine", "--decoder.name", str(decoder_folder)]
    assert main([*words, "--bootstrap", "100", "--heads", "{layer-cosine: {}}"]) == 0
    recorded = Path("runs/mine/config.yaml").read_text(encoding="utf-8")
    assert "files: configs/data/pairs.csv" in recorded
    moved = tmp_path.parent / f"{tmp_path.name}-moved"
    project.rename(moved)
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    expected = f"../{moved.name}/configs/data/pairs.csv"
    with warnings.catch_warnings(action="error"):
        assert files_of(read_config([], file=str(moved / "runs/mine/config.yaml"))) == expected
        assert files_of(RunFolder(moved / "runs/mine").config) == expected
    assert main(["layers", str(moved / "runs/mine"), "--views", "alone", "--resamples", "100"]) == 0
