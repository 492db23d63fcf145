"""SIGKILL at random moments: a head is one of those that were saved or none, and a run goes on to the same files."""

import csv
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from extract.errors import HeadError
from probes.heads.saved import load_head
from probes.runs.scorer import load_scorer
from tests.import_graph import ROOT
from tests.probes.finished_run import Finished, without_times

CHILD = [sys.executable, "-m", "tests.probes.child_run"]
N_KILLS = 12
PAIRS = [("Ice is cold.", "Snow is white.")]

pytestmark = pytest.mark.slow


def test_a_killed_saving_never_mixes_two_heads(tmp_path: Path) -> None:
    drawn, outcomes = random.Random(0), set()
    for _ in range(N_KILLS):
        child = subprocess.Popen([*CHILD, "--save", str(tmp_path / "head")], cwd=ROOT, stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            assert child.stdout.read(1) == b"x"
            time.sleep(drawn.uniform(0, 0.05))
        finally:
            child.kill()
            child.communicate()
        try:
            saved = load_head(tmp_path / "head")
        except HeadError:
            outcomes.add("none")
            continue
        outcomes.add("whole")
        parts = saved.head.state_dict().values()
        assert {value for part in parts for value in part.reshape(-1).tolist()} == {float(saved.record["value"])}
    assert outcomes  # which ones is chance


def content(folder: Path) -> dict[str, Any]:
    """What a run folder holds, apart from times and names of folders."""
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    for result in scores["heads"].values():
        for seed in result["seeds"]:
            seed.pop("seconds", None)
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    return {
        "scores": without_times(scores),
        "predictions": rows,
        "weights": {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")},
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()),
    }


def test_a_killed_run_goes_on_to_the_same_files(finished: Finished, tmp_path: Path) -> None:
    argv = [str(finished.config), f"--runs={tmp_path / 'runs'}", f"--caches={finished.cache.parent}"]
    folder = tmp_path / "runs" / "tiny"
    drawn, n_killed = random.Random(1), 0
    for _ in range(N_KILLS):
        with subprocess.Popen([*CHILD, "fit", *argv], cwd=ROOT, stderr=subprocess.DEVNULL) as child:
            waited = time.monotonic()
            while not folder.is_dir() and child.poll() is None and time.monotonic() - waited < 120:
                time.sleep(0.01)
            time.sleep(drawn.uniform(0, 6) if n_killed else 0.2)
            n_killed += child.poll() is None
            child.kill()
        if (folder / "scores.json").is_file():
            json.loads((folder / "scores.json").read_text(encoding="utf-8"))
            assert len(load_scorer(folder).score(PAIRS)) == 1
    assert n_killed > 0
    subprocess.run([*CHILD, "fit", *argv], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
    assert content(folder) == content(finished.folder)
