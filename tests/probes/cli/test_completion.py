"""Shell completion: what bash and zsh offer once the script is read."""

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from probes.cli.commands import COMMANDS
from probes.cli.listing import write_script
from probes.cli.main import main
from probes.data.task_table import TASKS
from probes.heads.head_table import HEADS

BASH, ZSH = shutil.which("bash"), shutil.which("zsh")


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


def read_until(terminal: int, wanted: str) -> str:
    """Read what a terminal shows until it shows something, for ten seconds at most."""
    shown, last = "", time.monotonic() + 10
    while wanted not in shown and select.select([terminal], [], [], max(0.0, last - time.monotonic()))[0]:
        shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


@pytest.mark.skipif(ZSH is None, reason="zsh is not there")
def test_zsh_completes_what_is_typed_before_a_tab(tmp_path: Path) -> None:
    """In a terminal, by a zsh whose only settings are the script."""
    (tmp_path / ".zshrc").write_text(f"{write_script('zsh')}PS1='ready> '\nunsetopt zle_bracketed_paste\n")
    (tmp_path / "some.h5").touch()
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [str(ZSH), "-d", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        start_new_session=True,
        env={**os.environ, "ZDOTDIR": str(tmp_path), "TERM": "dumb"},
    ) as shell:
        try:
            assert "not found" not in read_until(ours, "ready> ")
            for typed, expected in (
                ("icecore pre", "icecore predict "),
                ("icecore run --task.name wor", "words-sample"),
                ("icecore sweep --extraction.plan nosink", "nosink-bidirectional"),
                ("icecore inspect so", "icecore inspect some.h5"),  # a file
            ):
                os.write(ours, f"\x15{typed}\t\t".encode())  # the line before is taken away
                assert expected in read_until(ours, expected)
        finally:
            shell.kill()
    os.close(ours)
    os.close(theirs)


def test_the_script_is_registered_and_may_be_read_by_zsh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    out = capsys.readouterr().out
    assert "bashcompinit" in out.splitlines()[2]
    assert out.endswith("complete -o default -F _icecore icecore\n")
    assert out.split("\n", 3)[3] == write_script("bash").split("\n", 1)[1]
