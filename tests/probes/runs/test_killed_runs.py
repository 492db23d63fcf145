"""SIGKILL and SIGTERM at any moment of a run, a sweep and a saving; afterwards all is as if unharmed."""

import itertools
import random
import time
from pathlib import Path

import pytest
import torch

from extract.errors import HeadError
from probes.fitting.saved_fits import FitRecord, save_fitted
from probes.heads.layer_head import load_head
from probes.heads.linear_probes import LinearProbe
from tests.probes.runs.random_kills import COMMANDS, kill_at_random, start

N_KILLS, N_KILLS_OF_SAVING = 6, 12

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_any_moment(command: str, tmp_path: Path) -> None:
    assert kill_at_random(N_KILLS, tmp_path, commands=[command], terminations=4).total() == N_KILLS


def save_for_ever(folder: Path) -> None:
    """Save one head after the other into the same folder, each of one value that its record says too."""
    head = LinearProbe(64, ["a", "b", "c"])
    for value in itertools.count():
        head.load_state_dict({key: torch.full_like(part, value) for key, part in head.state_dict().items()})
        save_fitted(folder, head, FitRecord("logistic-probe", details={"value": value}))


def test_a_killed_saving_never_mixes_two_heads(tmp_path: Path) -> None:
    drawn, outcomes = random.Random(0), set()
    for _ in range(N_KILLS_OF_SAVING):
        child = start(save_for_ever, tmp_path / "head")
        while not (tmp_path / "head").is_dir():
            assert child.is_alive()
            time.sleep(0.001)
        time.sleep(drawn.uniform(0, 0.3))
        child.kill()
        child.join()
        try:
            saved = load_head(tmp_path / "head")
        except HeadError:
            outcomes.add("none")
            continue
        outcomes.add("whole")
        parts = saved.head.state_dict().values()
        assert {value for part in parts for value in part.reshape(-1).tolist()} == {float(saved.record["value"])}
    assert outcomes  # which ones is chance
