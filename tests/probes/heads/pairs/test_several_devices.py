"""Losses of a whole batch (a variance, a ranking) under several processes: as one process on the joined batches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from probes.fitting.loop import Loop, quiet_lightning
from probes.latents.text_latents import PairBatch
from probes.networks.pair_networks import SiameseCosine

pytestmark = pytest.mark.slow

L, D, N_ROWS, N_BATCHES, N_PROCESSES = 3, 6, 24, 4, 2


def draw_batches(seed: int = 0) -> list[PairBatch]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(N_BATCHES):
        a, b = torch.randn(2, L, N_ROWS, D, generator=generator)
        # The two halves differ in level and spread: each by itself says something else than both together.
        gold = torch.rand(N_ROWS, generator=generator) * torch.linspace(0.1, 1, N_ROWS)
        found.append(PairBatch(a, b, gold))
    return found


def as_is(batch: Any) -> Any:
    return batch


class Shares(lightning.LightningDataModule):
    """Gives every process its share of each batch; one process gets all."""

    def __init__(self, batches: Sequence[PairBatch]) -> None:
        super().__init__()
        self.batches = list(batches)

    def train_dataloader(self) -> DataLoader[Any]:
        assert self.trainer is not None
        rank, n_processes = self.trainer.global_rank, self.trainer.world_size
        rows = slice(rank * N_ROWS // n_processes, (rank + 1) * N_ROWS // n_processes)
        shares = [PairBatch(batch.a[:, rows], batch.b[:, rows], batch.gold[rows]) for batch in self.batches]
        return DataLoader(shares, batch_size=None, collate_fn=as_is)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Any]:
        return self.train_dataloader()


class PlainSteps(SiameseCosine):
    """Trained by plain gradient steps: AdamW would blow up the rounding of a gradient that is zero, as that of an
    offset is here."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Alone(PlainSteps):
    """Takes its share for the whole batch, as a head that knows nothing of other processes."""

    def _n_processes(self) -> int:
        return 1


def build(kind: type[SiameseCosine], loss: str) -> SiameseCosine:
    torch.manual_seed(0)
    return kind(L, D, bottleneck=[3, 4, 3], hidden=8, dropout=0.0, loss=loss)


def fit(
    kind: type[SiameseCosine], loss: str, folder: Path, *, n_processes: int
) -> tuple[list[Tensor], dict[str, float]]:
    """Fit for two epochs; give the weights and what was logged."""
    head = build(kind, loss)
    with quiet_lightning():
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=n_processes,
            strategy="ddp_spawn" if n_processes > 1 else "auto",
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            default_root_dir=folder,
        )
        trainer.fit(Loop(head), datamodule=Shares(draw_batches()))
    weights = [parameter.detach().clone() for parameter in head.parameters()]
    return weights, {key: float(value) for key, value in trainer.callback_metrics.items()}


@pytest.mark.parametrize("loss", ["log-variance", "cosent"])
def test_two_processes_equal_one_on_the_joined_batches(loss: str, tmp_path: Path) -> None:
    one, logged = fit(PlainSteps, loss, tmp_path, n_processes=1)
    two, logged_by_two = fit(PlainSteps, loss, tmp_path, n_processes=N_PROCESSES)
    start = build(PlainSteps, loss)
    assert (
        max(float((now - then.detach()).abs().max()) for now, then in zip(one, start.parameters(), strict=True)) > 3e-3
    )
    for mine, theirs in zip(one, two, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
    assert set(logged) == {"train_loss", "validation_pearson", "validation_spearman"}  # of every row, as of one process
    assert logged_by_two == pytest.approx(logged, abs=1e-4)


def test_a_head_that_knows_nothing_of_the_others_ends_elsewhere(tmp_path: Path) -> None:
    """The batches above do tell a loss of the whole from a mean of losses of its parts."""
    one, logged = fit(Alone, "log-variance", tmp_path, n_processes=1)
    two, logged_by_two = fit(Alone, "log-variance", tmp_path, n_processes=N_PROCESSES)
    assert max(float((mine - theirs).abs().max()) for mine, theirs in zip(one, two, strict=True)) > 1e-3
    assert abs(logged["validation_pearson"] - logged_by_two["validation_pearson"]) > 1e-3
