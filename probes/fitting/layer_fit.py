"""Fitting layer-wise autoencoders: every layer keeps its own best epoch, as if it were trained alone."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import lightning
import numpy as np
import torch

from extract.errors import HeadError
from probes.fitting.epochs import FitOptions
from probes.fitting.keep_best import EpochReport, KeepBest, Look, Part, ignore_epoch
from probes.fitting.trainer import run_trainer
from probes.fitting.unfinished import Unfinished
from probes.latents.text_latents import TextLatents
from probes.networks.autoencoder import LayerAutoencoder


@dataclass(frozen=True)
class LayerFit:
    """What a fit gave; the autoencoders themselves hold the weights that were kept."""

    best_epochs: tuple[int, ...]
    """Epoch of the weights kept, from 1, for each layer."""
    losses: tuple[float, ...]
    """Held-out loss of the weights kept, for each layer."""
    raw_losses: tuple[float, ...]
    """The same as a mean squared error in the units of the latents, for each layer."""
    history: tuple[dict[str, float], ...]
    """Per epoch `train_loss` and `held_out_loss`, means over layers, and `held_out_loss_K` of layer K."""
    seconds: float


def _parts(module: LayerAutoencoder) -> Iterable[Part]:
    return chain(module.encoder.stacks(), module.decoder.stacks())


def _look(_: int, trainer: lightning.Trainer, module: LayerAutoencoder, __: Any) -> Look:
    values = {key: float(value) for key, value in trainer.callback_metrics.items()}
    losses = np.array([values[f"held_out_loss_{k}"] for k in range(module.n_layers)])
    return Look(-losses, values, {**values, "max_epochs": float(trainer.max_epochs or 0)})


def fit_layers(
    module: LayerAutoencoder,
    data: TextLatents,
    *,
    options: FitOptions,
    seed: int = 0,
    device: str = "cpu",
    report: EpochReport = ignore_epoch,
    unfinished: Unfinished | None = None,
) -> LayerFit:
    """Fit all layers together, the epoch of each chosen on held-out texts.

    Args:
        module: Fresh autoencoders; they end with the weights of each layer's best epoch, in eval mode, on the CPU.
        data: The texts, with the batch size that `options` says.
        options: Epochs and patience.
        seed: Seed of dropout.
        device: `cpu` or a torch device.
        report: Called after every epoch with its number and its values.
        unfinished: Where the state of the fit is kept while it runs, and what a killed one left; none is kept if None.

    Raises:
        HeadError: A layer without an epoch of finite loss.
    """
    started = time.monotonic()
    module.prepare(data.standardiser())
    keeper = KeepBest(module.n_layers, parts=_parts, look=_look, patience=options.patience, report=report)
    run_trainer(
        module, data, seed=seed, device=device, unfinished=unfinished, max_epochs=options.max_epochs, callbacks=[keeper]
    )
    module.cpu()
    broken = [name for name, epoch in zip(data.channels.names, keeper.best_epochs, strict=True) if not epoch]
    if broken:
        raise HeadError(
            f"the autoencoders of {', '.join(broken)} had no epoch with a finite held-out loss; lower learning_rate."
        )
    keeper.restore(module)
    module.eval()
    seconds = time.monotonic() - started + (unfinished.seconds_before if unfinished else 0)
    return LayerFit(
        tuple(keeper.best_epochs.tolist()),
        tuple((-keeper.scores).tolist()),
        _raw_losses(module, data),
        tuple(keeper.history),
        seconds,
    )


@torch.no_grad()
def _raw_losses(module: LayerAutoencoder, data: TextLatents) -> tuple[float, ...]:
    sums = torch.stack([module.raw_losses(batch) * batch.shape[1] for batch in data.val_dataloader()]).sum(0)
    return tuple((sums / len(data.held_out_rows)).tolist())
