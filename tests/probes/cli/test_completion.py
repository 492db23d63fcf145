"""Shell completion: what bash offers once the script is read."""

import shutil
import subprocess

import pytest

from probes.cli.completion import write_script
from probes.cli.main import main
from probes.cli.table import COMMANDS
from probes.heads.registry import HEADS
from probes.tasks.table import TASKS

BASH = shutil.which("bash")


@pytest.fixture(scope="module")
def script() -> str:
    return write_script("bash")


def offers(script: str, line: str) -> list[str]:
    """Ask bash what it offers for the last word of a line, which may be empty."""
    if BASH is None:
        pytest.skip("bash is not there")
    asked = f"COMP_WORDS=({line})\nCOMP_CWORD={len(line.split()) - 1}\n_icecore\n"
    asked = f'{script}\n{asked}printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run([BASH, "-c", asked], capture_output=True, text=True, check=True, timeout=60)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("icecore pre", ["predict"]),
        ("icecore ''", [*COMMANDS, "--help", "--version"]),
        ("icecore predict --pro", ["--probabilities"]),
        ("icecore predict runs/demo --format ''", ["csv", "jsonl"]),
        ("icecore run configs/demo.yaml --extraction.pl", ["--extraction.plan"]),
        ("icecore sweep --extraction.plan nosink", ["nosink-causal", "nosink-bidirectional"]),
        ("icecore run --task.name ''", list(TASKS)),
        ("icecore score runs/demo --head ''", [*HEADS, "autoencoder"]),
        ("icecore embed a.txt --decoder.name distil", ["distilgpt2"]),
        ("icecore list he", ["heads"]),
        ("icecore verify gpt2-x", ["gpt2-xl"]),
        ("icecore completion ''", ["bash", "zsh"]),
        ("icecore inspect ''", []),  # bash goes on with files
        ("icecore rnu ''", []),
    ],
)
def test_bash_offers(script: str, line: str, expected: list[str]) -> None:
    assert offers(script, line) == expected


def test_the_script_is_registered_and_may_be_read_by_zsh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    out = capsys.readouterr().out
    assert "bashcompinit" in out.splitlines()[1]
    assert out.endswith("complete -o default -F _icecore icecore\n")
    assert out.split("\n", 2)[2] == write_script("bash").split("\n", 1)[1]
