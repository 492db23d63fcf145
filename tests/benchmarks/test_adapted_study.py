"""What a study of adapters gathers of its folders: whose difference from what."""

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.adapted import ADAPTERS, BASE, TASKS, gather, gather_beside, measure_at_once
from extract.decoders.decoder_spec import DecoderSpec
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from probes.adaptation.abilities import write_scores
from probes.cli.arguments import read_command
from probes.cli.commands import find_command
from probes.metrics.significance import correct_p_values
from probes.runs.run import run
from probes.runs.run_config import RunConfig, TaskSpec
from tests.extract.tiny_decoders import save_decoder
from tests.probes.adaptation.test_abilities import make, scores


def test_a_study_compares_adapters_with_the_decoder_and_their_plans_with_causal(tmp_path: Path) -> None:
    shifts = {"causal": (0.0, 1.0), "wiki-0": (-0.25, -0.5)}
    for system, (causal, hybrid) in shifts.items():
        folder = tmp_path / "infilling" / system
        folder.mkdir(parents=True)
        write_scores(folder, scores(make(shift=causal), make("hybrid", shift=hybrid)))
    rows = {(row["system"], row["plan"]): row for row in gather(tmp_path)["abilities"]}
    base = rows["causal", "causal"]["value"]
    for (system, plan), row in rows.items():
        shift = shifts[system][plan == "hybrid"]
        assert row["value"] == pytest.approx(base * np.exp(shift))
        if system == "wiki-0":  # from the decoder under the same plan
            over = base * np.exp(shifts["causal"][plan == "hybrid"])
            assert row["difference"][0] == pytest.approx(row["value"] - over)
        assert ("p_value" in row) is ((system, plan) in {("causal", "hybrid"), ("wiki-0", "causal")})
        own = row.get("over_own_causal")
        assert (own is None) is (plan == "causal")
        if own:
            assert own[0] == pytest.approx(row["value"] - rows[system, "causal"]["value"])


def test_an_empty_study_gathers_nothing(tmp_path: Path) -> None:
    gathered = gather(tmp_path)
    assert (gathered["adapters"], gathered["abilities"]) == ({}, [])
    assert not any(gathered["tasks"].values())


def test_p_values_of_systems_that_are_added_later_are_those_of_one_study(tmp_path: Path) -> None:
    decoder = DecoderSpec(str(save_decoder(tmp_path / "tiny-llama")), device="cpu")
    for system, plan in {"nosink": "causal", "mntp": "backward", "all": "bidirectional"}.items():
        run(
            RunConfig(
                name=f"{system}-wnut17",
                decoder=decoder,
                extraction=ExtractionSpec(plan=plan, layers=("block_02",), words=WordSpec()),
                task=TaskSpec("words-sample", options={"tags": "ner"}),
                heads={"token-classifier": {"max_epochs": 9, "epoch_steps": 4, "learning_rate": 1e-2}},
                bootstrap=100,
                caches=str(tmp_path / "caches"),
                runs=str(tmp_path / "whole" / "runs"),
            )
        )
    for study, systems in {"first": ["nosink", "mntp"], "second": ["nosink", "all"]}.items():
        for system in systems:
            name = f"runs/{system}-wnut17"
            shutil.copytree(tmp_path / "whole" / name, tmp_path / study / name)
    file = tmp_path / "gathered.json"
    file.write_text(json.dumps(gather(tmp_path / "whole")), encoding="utf-8")
    for study in ("first", "second"):
        file.write_text(json.dumps(gather_beside(tmp_path / study, file)), encoding="utf-8")
    gathered = json.loads(file.read_text(encoding="utf-8"))
    name = "wnut17 token-classifier"
    whole, joined = gathered["tasks"][name], gathered["beside"]["tasks"][name]
    assert joined == whole
    reference, *compared = joined
    assert reference["run"] == "nosink"
    raw, corrected = ([row[key] for row in compared] for key in ("raw_p_value", "p_value"))
    assert corrected == correct_p_values(raw).tolist()
    assert max(corrected) > min(raw), "the test can tell"


def test_a_row_that_was_gathered_without_a_raw_p_value_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(system: str, **p_values: float) -> dict[str, Any]:
        return {"run": system, "device": "cpu", "test": 0.5, "p_value": None, **p_values}

    old, new = row("wiki-0", p_value=0.04), row("all", p_value=0.01, raw_p_value=0.01)
    file = tmp_path / "gathered.json"
    before = {"abilities": [], "trained_here": [], "adapters": {}, "tasks": {"task": [row("nosink"), old]}}
    file.write_text(json.dumps({"beside": before}), encoding="utf-8")
    monkeypatch.setattr("benchmarks.adapted._tasks", lambda _: {"task": [row("nosink"), new]})
    [reference, *compared] = gather_beside(tmp_path, file)["beside"]["tasks"]["task"]
    assert reference == row("nosink")
    assert compared == [old, new | {"p_value": 0.02}]


@pytest.mark.parametrize("task", TASKS)
def test_the_runs_of_a_study_fit_the_heads_that_are_compared(task: str) -> None:
    words, heads = TASKS[task]
    config = read_command(find_command("run"), words).config.check_heads()
    assert tuple(config.heads) == heads
    assert config.task.name == task


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_adapters_of_a_study_are_what_the_command_takes(name: str) -> None:
    args = read_command(find_command("adapt"), [*ADAPTERS[name], "--decoder.name", "tiny", "--name", name])
    assert args.config.name == name
    steps = {"wiki-0": 600, "wiki-1": 600, "wiki-2": 600, "llm2vec": 1000, "magnet": 4200}
    assert sum(phase.steps for phase in args.config.phases) == steps.get(name, 300)
    assert args.config.exclude == ("stsb",)


def test_systems_beside_each_other_have_their_adapter_before_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = "llm2vec"

    def run(command: list[str], **_: object) -> None:
        system, part = command[4], command[-1].removeprefix("--parts=")
        time.sleep(0.0 if part else 0.1)
        if (system, part) == (failing, ""):
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(SystemExit, match=r"llm2vec.*logs says why"):
        measure_at_once(tmp_path, [BASE, "wiki-0", failing], ["stsb", "wnut17"], "tiny", 4)
    said = capsys.readouterr().out.splitlines()
    assert sorted(said) == ["causal stsb", "causal wnut17", "wiki-0 adapter", "wiki-0 stsb", "wiki-0 wnut17"]
    assert said.index("wiki-0 adapter") < said.index("wiki-0 stsb")
