"""A process's place in its group, from what the launcher says."""

import pytest

from extract.run.workers import Workers, join_workers, launched_size

LAUNCHERS = ("RANK", "WORLD_SIZE", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_ID")


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "4", "RANK": "1"}, 4),
        ({"WORLD_SIZE": "4"}, 1),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, 8),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, 1),  # an interactive allocation, not srun
    ],
)
def test_the_launcher_says_how_many(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], size: int) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launched_size() == size


def test_alone_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    workers = join_workers("cpu")
    assert (workers.rank, workers.world_size, workers.device) == (0, 1, "cpu")
    workers.barrier()
    assert Workers().device == "auto"
