"""Several processes that write one store together (torchrun, SLURM), through Lightning Fabric."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from extract.errors import ConfigError

PlacementKey = Literal["device_map", "tp_plan"]
SPREADS: dict[PlacementKey, str] = {
    "device_map": "spreads one decoder over all devices of one process",
    "tp_plan": "splits one decoder over all processes, while each computes shards of its own",
}
"""What keys of a decoder that do not go with several processes do."""


@dataclass(frozen=True)
class Workers:
    """This process's place in a group that extracts together.

    Attributes:
        rank: Position of this process, 0 for the one that creates and certifies the store.
        world_size: Number of processes.
        barrier: Waits until every process has come here.
        device: Device of this process, or `auto`.
        shares_decoder: Whether one decoder is split over all processes (tensor parallel): then each computes every
            batch, and the first writes them.
    """

    rank: int = 0
    world_size: int = 1
    barrier: Callable[[], None] = lambda: None
    device: str = "auto"
    shares_decoder: bool = False

    @property
    def writes(self) -> bool:
        """Whether this process writes what it computes."""
        return self.rank == 0 or not self.shares_decoder

    def computes(self, batch: int) -> bool:
        """Whether this process computes a batch, by its number."""
        return self.shares_decoder or batch % self.world_size == self.rank


def launched_size() -> int:
    """Count the processes that torchrun or SLURM launched, this one included."""
    if "WORLD_SIZE" in os.environ and "RANK" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    if "SLURM_NTASKS" in os.environ and "SLURM_PROCID" in os.environ and "SLURM_STEP_ID" in os.environ:
        return int(os.environ["SLURM_NTASKS"])
    return 1


def require_one_process(key: PlacementKey) -> None:
    """Refuse several processes where a decoder was placed by a key of `SPREADS` (`ConfigError`)."""
    if launched_size() > 1:
        raise ConfigError(
            f"{launched_size()} processes were started, and decoder.{key} {SPREADS[key]}; start one process, or leave "
            f"decoder.{key} out."
        )


def place_worker(device: str = "auto") -> Workers:
    """Give this process its place and device among those launched, without joining them: none waits for another."""
    size = launched_size()
    if size == 1:
        return Workers(device=device)
    by_torchrun = "WORLD_SIZE" in os.environ and "RANK" in os.environ
    rank, local = ("RANK", "LOCAL_RANK") if by_torchrun else ("SLURM_PROCID", "SLURM_LOCALID")
    n_devices = torch.cuda.device_count()
    if device == "auto" and n_devices:
        device = f"cuda:{int(os.environ.get(local, '0')) % n_devices}"
    return Workers(int(os.environ[rank]), size, device=device)


def join_workers(device: str = "auto", *, shares_decoder: bool = False) -> Workers:
    """Join the group this process was launched into, on `auto` or a torch device; alone, this costs nothing."""
    size = launched_size()
    if size == 1:
        return Workers(device=device)
    from lightning.fabric import Fabric

    n_nodes = int(os.environ.get("SLURM_NNODES", os.environ.get("GROUP_WORLD_SIZE", "1")))
    accelerator = "cpu" if device == "cpu" else "auto"
    fabric = Fabric(accelerator=accelerator, devices=size // n_nodes, num_nodes=n_nodes, strategy="ddp")
    fabric.launch()
    own = "auto" if shares_decoder else str(fabric.device)
    return Workers(fabric.global_rank, fabric.world_size, fabric.barrier, own, shares_decoder)
