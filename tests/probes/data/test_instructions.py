"""Instructions of papers are data: every one has a source, and the tasks they are for exist."""

import pytest

from extract.inputs.template import InputTemplate
from probes.cli.main import main
from probes.data.task_table import INSTRUCTIONS, LBW_DOMAIN, TASKS


def test_every_instruction_is_for_a_task_there_is() -> None:
    tasks = [entry.task for entry in INSTRUCTIONS.values() if entry.task]
    assert len(set(tasks)) == len(tasks)
    assert set(tasks) <= set(TASKS)
    for entry in INSTRUCTIONS.values():
        assert entry.source.startswith("Look Both Ways")
        assert bool(entry.text) != (entry.source == LBW_DOMAIN)
        assert InputTemplate(instruction=entry.prompt).instruction == entry.prompt
        assert bool(entry.prompt) == bool(entry.text)


def test_the_form_is_the_released_one() -> None:
    assert INSTRUCTIONS["STS"].prompt == "Instruct: Retrieve semantically similar text.\nQuery: "
    assert INSTRUCTIONS["MQP"].prompt == ""


def test_they_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["list", "instructions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(INSTRUCTIONS)
    prompt = r"Instruct: Given an online banking query, find the corresponding intents.\nQuery: "
    banking = f"{prompt} (Look Both Ways, Table 3; task banking77)"
    assert any(banking in line for line in lines)
    assert any("none (Look Both Ways, section 4.1; task scotus)" in line for line in lines)
