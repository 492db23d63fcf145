"""What a study of adapters gathers of its folders: whose difference from what."""

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.adapted import ADAPTERS, BASE, TASKS, gather, measure_at_once
from probes.adaptation.abilities import write_scores
from probes.cli.arguments import read_command
from probes.cli.commands import find_command
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
