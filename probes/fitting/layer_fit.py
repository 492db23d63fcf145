"""Fitting layer-wise autoencoders: every layer keeps its own best epoch, as if it were trained alone."""

import time
from dataclasses import dataclass

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from extract.errors import HeadError
from probes.fitting.trainer import EpochReport, FitOptions, ignore_epoch, run_trainer
from probes.latents.text_latents import TextLatents
from probes.networks.autoencoder import LayerAutoencoder


@dataclass(frozen=True)
class LayerFit:
    """What a fit gave; the autoencoders themselves hold the weights that were kept.

    Attributes:
        best_epochs: Epoch of the weights kept, from 1, for each layer.
        losses: Held-out loss of the weights kept, for each layer.
        history: Per epoch `train_loss` and `held_out_loss`, means over layers, and `held_out_loss_K` of layer K.
        seconds: Duration.
    """

    best_epochs: tuple[int, ...]
    losses: tuple[float, ...]
    history: tuple[dict[str, float], ...]
    seconds: float


class _KeepBestOfEach(Callback):
    """Keeps the weights of the best epoch of every layer; one is done after `patience` epochs without a better one.

    Training stops when all are done. A layer that is done is kept as it was then, so that the others do not change it.
    """

    def __init__(self, module: LayerAutoencoder, patience: int, report: EpochReport) -> None:
        self.patience, self.report = patience, report
        self.losses = np.full(module.n_layers, np.inf)
        self.best_epochs = np.zeros(module.n_layers, dtype=np.int64)
        self.is_done = np.zeros(module.n_layers, dtype=bool)
        self.stacks = [*module.encoder.stacks(), *module.decoder.stacks()]
        self.kept: list[Tensor] = [parameter.detach().cpu().clone() for parameter, _ in self.stacks]
        self.history: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Look at the epoch that has ended (Lightning validates before this hook)."""
        del pl_module
        values = {key: float(value) for key, value in trainer.callback_metrics.items()}
        self.history.append(values)
        epoch = len(self.history)
        losses = np.array([values[f"held_out_loss_{k}"] for k in range(len(self.losses))])
        is_better = (losses < self.losses) & ~self.is_done
        for (parameter, layers), kept in zip(self.stacks, self.kept, strict=True):
            rows = torch.from_numpy(np.flatnonzero(is_better[list(layers)]))
            kept[rows] = parameter.detach()[rows.to(parameter.device)].cpu()
        self.losses[is_better], self.best_epochs[is_better] = losses[is_better], epoch
        self.is_done |= epoch - self.best_epochs >= self.patience
        self.report(epoch, {**values, "max_epochs": float(trainer.max_epochs or 0)})
        trainer.should_stop = bool(self.is_done.all())

    @torch.no_grad()
    def restore(self) -> None:
        """Put the weights that were kept back."""
        for (parameter, _), kept in zip(self.stacks, self.kept, strict=True):
            parameter.copy_(kept)


def fit_layers(
    module: LayerAutoencoder, data: TextLatents, *, options: FitOptions, seed: int = 0, device: str = "cpu",
    report: EpochReport = ignore_epoch,
) -> LayerFit:  # fmt: skip
    """Fit all layers together, the epoch of each chosen on held-out texts.

    Args:
        module: Fresh autoencoders; they end with the weights of each layer's best epoch, in eval mode, on the CPU.
        data: The texts, with the batch size that `options` says.
        options: Epochs and patience.
        seed: Seed of dropout.
        device: `cpu` or a torch device.
        report: Called after every epoch with its number and its values.

    Returns:
        What happened.

    Raises:
        HeadError: A layer without an epoch of finite loss.
        KeyboardInterrupt: Ctrl-C.
    """
    started = time.monotonic()
    module.prepare(data.standardiser())
    keeper = _KeepBestOfEach(module, options.patience, report)
    run_trainer(module, data, seed=seed, device=device, max_epochs=options.max_epochs, callbacks=[keeper])
    module.cpu()
    broken = [name for name, epoch in zip(data.channels.names, keeper.best_epochs, strict=True) if not epoch]
    if broken:
        raise HeadError(
            f"the autoencoders of {', '.join(broken)} had no epoch with a finite held-out loss; lower learning_rate."
        )
    keeper.restore()
    module.eval()
    return LayerFit(
        tuple(keeper.best_epochs.tolist()), tuple(keeper.losses.tolist()), tuple(keeper.history),
        time.monotonic() - started,
    )  # fmt: skip
