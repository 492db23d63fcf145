"""A process's place in its group, from what the launcher says."""

import pytest
import torch

from extract.run.extraction import Workers, join_workers, launched_size, place_worker

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_LOCALID")
BY_TORCHRUN = {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"}
BY_SLURM = {"SLURM_NTASKS": "8", "SLURM_PROCID": "6", "SLURM_LOCALID": "2", "SLURM_STEP_ID": "0"}


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


@pytest.mark.parametrize(
    ("environment", "n_devices", "place"),
    [
        ({}, 4, (0, 1, "auto")),
        (BY_TORCHRUN, 4, (5, 8, "cuda:1")),
        (BY_SLURM, 4, (6, 8, "cuda:2")),
        (BY_SLURM, 1, (6, 8, "cuda:0")),  # each task sees its own device alone
        (BY_SLURM, 0, (6, 8, "auto")),
    ],
)
def test_place_and_device_without_joining(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], n_devices: int, place: tuple[int, int, str]
) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_devices)
    worker = place_worker()
    assert (worker.rank, worker.world_size, worker.device) == place
    assert place_worker("cpu").device == "cpu"
    assert not torch.distributed.is_initialized()


def test_torchrun_inside_an_allocation_of_several_nodes_counts_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    class Fabric:
        device, global_rank, world_size, barrier = "cpu", 5, 8, staticmethod(lambda: None)

        def __init__(self, **options: object) -> None:
            asked.update(options)

        def launch(self) -> None:
            pass

    for name in (*LAUNCHERS, "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**BY_TORCHRUN, "GROUP_WORLD_SIZE": "1", **BY_SLURM, "SLURM_NNODES": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("lightning.fabric.Fabric", Fabric)
    assert join_workers("cpu").rank == 5
    assert (asked["devices"], asked["num_nodes"]) == (8, 1)
    for name in BY_TORCHRUN:
        monkeypatch.delenv(name)
    join_workers("cpu")
    assert (asked["devices"], asked["num_nodes"]) == (4, 2)
