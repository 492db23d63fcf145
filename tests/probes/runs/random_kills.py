"""Kills at random moments of runs and sweeps, which must then end with the same files as if unharmed.

By itself, for a hundred kills: `python -m tests.probes.runs.random_kills 100`, which says how many hit which stage.
"""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import yaml

from extract.errors import CacheError, HeadError
from extract.store.cache import LatentCache
from probes.cli import main, run_commands
from probes.fitting import saved_fits as unfinished
from probes.runs.predict import read_run_folder
from tests.extract.tiny_decoders import read_arrays, save_decoder
from tests.probes.finished_run import write_config

OVER = ["--over", "plan=causal,backward:1", "--over", "poolings=mean,last"]
COMMANDS: dict[str, list[str]] = {
    "run": [],
    "sweep": ["--plans", "causal; backward:1"],
    "sweep-over": OVER,
    "sweep-search": [*OVER, "--search", "halving", "--budget", "0.9"],
}
"""Arguments behind the configuration, by a name that begins with the command's."""
UNEQUAL = ("seconds", "command", "commit", "source", "fit_id", "sha256", "config_sha256")
"""What differs between two runs that agree."""
MOST_KILLS_IN_A_FOLDER = 25


def work(arguments: list[str]) -> None:
    """Run a command that keeps its fits after every epoch in a process of its own, and say so by the exit code."""
    unfinished.PAUSE_SECONDS, unfinished.LARGEST_SHARE = 0.0, float("inf")
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    raise SystemExit(main.main(arguments))


def start(target: Any, *arguments: Any) -> ForkServerProcess:
    """Start a process, forked from a server that has the imports behind it."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__, run_commands.__name__])
    child = server.Process(target=target, args=arguments)
    child.start()
    return child


def start_command(command: str, config: Path) -> ForkServerProcess:
    """Start a command on a configuration."""
    return start(work, [command.partition("-")[0], str(config), *COMMANDS[command]])


def config_in(folder: Path, decoder: Path) -> Path:
    """Write the configuration of a small run with all its folders in one."""
    folder.mkdir()
    path = write_config(folder, decoder)
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values["heads"].pop("cosine-mlp")
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def results(folder: Path) -> dict[str, Any]:
    """Read what caches and runs hold, every file by name, without times, paths and the command."""
    found: dict[str, Any] = {}
    for path in sorted(path for part in ("caches", "runs") for path in (folder / part).rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".h5":
            found |= {f"{name}:{key}": values.tobytes() for key, values in read_arrays(path).items()}
        elif path.name == "scores.json":
            found[name] = without_times(json.loads(path.read_text(encoding="utf-8")))
        else:
            found[name] = path.read_bytes() if path.suffix in (".csv", ".safetensors") else ""
    return found


def without_times(value: Any) -> Any:
    """Leave out what differs between two runs that agree."""
    if isinstance(value, dict):
        # How many batches were proved depends on when rows were closed.
        return {key: without_times(item) for key, item in value.items() if key not in {*UNEQUAL, "batches"}}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def stage_of(folder: Path) -> str:
    """Say how far a killed command had come, by the files it left; what can be opened must be whole."""
    caches = list((folder / "caches").glob("*.h5"))
    try:
        if not caches or not all(LatentCache(path, allow_partial=True).is_complete for path in caches):
            return "extraction"
    except CacheError:
        return "extraction"
    scores = list((folder / "runs").rglob("scores.json"))
    if not scores:
        if list(folder.rglob("unfinished-*")):
            return "fits, within one"
        return "saving" if list((folder / "runs").rglob(".new-*")) else "fits"
    if any(path.parent.name == "tiny" for path in scores):
        try:
            read_run_folder(scores[0].parent)
        except HeadError as error:
            raise AssertionError(f"a kill left scores that do not open: {error}") from error
    return "end" if list((folder / "runs").rglob("summary.md")) else "report"


def kill_at_random(
    n_kills: int,
    base: Path,
    *,
    commands: Sequence[str] = tuple(COMMANDS),
    terminations: int = 0,
    say: Callable[[str], object] = lambda _: None,
) -> Counter[str]:
    """Kill commands so often, at moments that are uniform over the time they take, and compare what they end with.

    Args:
        n_kills: Kills.
        base: An empty folder.
        commands: Which commands, in turn.
        terminations: Every so many-th kill is a SIGTERM; none when 0.
        say: Receives a line after every comparison.

    Returns:
        Number of kills by command and stage.
    """
    decoder = save_decoder(base / "tiny-llama", max_position_embeddings=256)
    chance, found, seconds, expected = random.Random(4), Counter[str](), {}, {}
    for command in commands:
        whole = start_command(command, config_in(base / f"whole-{command}", decoder))
        began = time.monotonic()
        whole.join()
        assert whole.exitcode == 0
        seconds[command], expected[command] = time.monotonic() - began, results(base / f"whole-{command}")
        assert len(expected[command]) > 1
    while found.total() < n_kills:
        for command in commands:
            config = config_in(base / "killed", decoder)
            for turn in range(MOST_KILLS_IN_A_FOLDER + 1):
                child = start_command(command, config)
                is_last = turn == MOST_KILLS_IN_A_FOLDER or found.total() == n_kills
                child.join(None if is_last else chance.uniform(0, seconds[command]))
                if not child.is_alive():
                    assert child.exitcode == 0
                    break
                ends = terminations > 0 and found.total() % terminations == terminations - 1
                os.kill(child.pid or 0, signal.SIGTERM if ends else signal.SIGKILL)
                child.join()
                assert child.exitcode in ((130, -signal.SIGTERM, 0) if ends else (-signal.SIGKILL,))
                found[f"{command}, {stage_of(base / 'killed')}"] += 1
            assert results(base / "killed") == expected[command]
            say(f"{found.total()} kills, all files the same: {dict(sorted(found.items()))}\n")
            shutil.rmtree(base / "killed")
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        kill_at_random(int(sys.argv[1]), Path(name), say=lambda line: (sys.stdout.write(line), sys.stdout.flush()))
