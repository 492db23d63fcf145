"""SIGKILL and SIGTERM at any moment of a run or a sweep; afterwards it ends as if unharmed."""

import json
import multiprocessing
import os
import random
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import yaml

from probes.cli import configured, main, sweep
from tests.probes.finished_run import write_config

N_KILLS = 12
COMMANDS: dict[str, list[str]] = {"run": [], "sweep": ["--plans", "causal; backward:1"]}

pytestmark = pytest.mark.slow


def work(arguments: list[str]) -> None:
    """Run a command in a process of its own, and say so by the exit code."""
    raise SystemExit(main.main(arguments))


def start(command: str, config: Path) -> ForkServerProcess:
    """Start a command, forked from a server that has the imports behind it."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__, configured.__name__, sweep.__name__])
    child = server.Process(target=work, args=([command, str(config), *COMMANDS[command]],))
    child.start()
    return child


def config_in(folder: Path, decoder: Path) -> Path:
    """Write the configuration of a small run with all its folders in one."""
    folder.mkdir()
    path = write_config(folder, decoder)
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values["heads"].pop("cosine-mlp")
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def results(folder: Path) -> dict[str, Any]:
    """Read what a run reports, without times, paths and the command."""
    found: dict[str, Any] = {}
    for path in sorted((folder / "runs").rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "scores.json":
            found[name] = without_times(json.loads(path.read_text(encoding="utf-8")))
        elif path.suffix in (".csv", ".safetensors"):
            found[name] = path.read_bytes()
    return found


def without_times(value: Any) -> Any:
    """Leave out what differs between two runs that agree."""
    if isinstance(value, dict):
        unequal = ("seconds", "command", "commit", "source", "fit_id", "sha256", "config_sha256")
        return {key: without_times(item) for key, item in value.items() if key not in unequal}
    return [without_times(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_any_moment(command: str, decoder_folder: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    whole = start(command, config_in(tmp_path / "whole", decoder_folder))
    whole.join()
    assert whole.exitcode == 0
    seconds = time.monotonic() - began
    config = config_in(tmp_path / "killed", decoder_folder)
    chance, n_killed = random.Random(4), 0
    for kill in range(N_KILLS):
        child = start(command, config)
        child.join(chance.uniform(0, seconds))
        if child.is_alive():
            number = signal.SIGTERM if kill % 4 == 3 else signal.SIGKILL
            os.kill(child.pid or 0, number)
            child.join()
            n_killed += 1
            assert child.exitcode in ((-signal.SIGKILL,) if number == signal.SIGKILL else (130, -signal.SIGTERM, 0))
    assert n_killed >= N_KILLS // 3
    last = start(command, config)
    last.join()
    assert last.exitcode == 0
    expected = results(tmp_path / "whole")
    assert len(expected) > 1
    assert results(tmp_path / "killed") == expected
