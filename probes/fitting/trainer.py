"""Fitting one head with one seed: Lightning's loop, the best validation epoch kept, test never touched."""

import logging
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning
import numpy as np
import torch
from jaxtyping import Float32
from lightning.fabric.utilities import disable_possible_user_warnings
from lightning.pytorch.callbacks import Callback

from extract.errors import HeadError
from extract.poolings.pages import keep_blocks
from probes.fitting.epochs import EpochOptions
from probes.fitting.keep_best import EpochReport, KeepBest, Look, ignore_epoch
from probes.fitting.unfinished import Unfinished
from probes.latents.pair_latents import PairLatents, SimilarityRows
from probes.networks.pair_head import PairHead, collect_similarities


@dataclass(frozen=True)
class FitResult:
    """What a fit gave; the head itself holds the best epoch's weights."""

    seed: int
    best_epoch: int
    """Epoch that was kept, from 1; 0 for a head without epochs."""
    history: tuple[dict[str, float], ...]
    """Per epoch `train_loss`, `validation_pearson` and `validation_spearman`."""
    seconds: float


def fit_head(
    head: PairHead,
    data: PairLatents,
    *,
    options: EpochOptions,
    seed: int = 0,
    device: str = "cpu",
    report: EpochReport = ignore_epoch,
    unfinished: Unfinished | None = None,
) -> FitResult:
    """Fit a head on the training split, choosing the epoch on the split that the data names for it: validation.

    Args:
        head: A fresh head; it ends with the weights of the best epoch, in eval mode, on the CPU.
        data: The pairs, with the batch size and seed that `options` and `seed` say.
        options: Epochs, patience, and which epoch is kept.
        seed: Seed of initialisation-independent randomness (dropout); the caller seeds the initialisation.
        device: `cpu` or a torch device.
        report: Called after every epoch with its number and its values.
        unfinished: Where the state of the fit is kept while it runs, and what a killed one left; none is kept if None.

    Raises:
        HeadError: No epoch had a finite score on the selection split, or, where the last is kept, a finite loss.
        TaskError: The task has no training split or no selection split.
    """
    started = time.monotonic()
    data.split("train")
    data.split(data.selection)
    head.selection = data.selection
    head.prepare(data, data.standardiser())
    data.fixed.clear()  # another head's similarities are none of this one's
    if head.has_fixed_similarities:
        for split in ("train", data.selection):
            data.fixed[split] = SimilarityRows(collect_similarities(head, data, split), data.split(split).gold)
    if not head.is_trained:
        head.eval()
        return FitResult(seed, 0, (), time.monotonic() - started)
    metric = f"{data.selection}_pearson" if options.keep == "best" else ""
    every = min(options.every, options.max_epochs)
    keeper = _keep(metric, every=every, patience=options.patience if metric else options.max_epochs, report=report)
    run_trainer(
        head,
        data,
        seed=seed,
        device=device,
        unfinished=unfinished,
        max_epochs=options.max_epochs,
        callbacks=[keeper],
        check_val_every_n_epoch=every,
    )
    [best_epoch] = keeper.best_epochs.tolist()
    if not best_epoch:
        raise HeadError(
            f"no epoch of {type(head).__name__} had a finite {metric.replace('_', ' ') or 'loss'} (last loss "
            f"{keeper.history[-1].get('train_loss', float('nan')):g}); lower learning_rate or change the loss."
        )
    keeper.restore(head.cpu())
    head.eval()
    seconds = time.monotonic() - started + (unfinished.seconds_before if unfinished else 0)
    return FitResult(seed, best_epoch, tuple(keeper.history), seconds)


def _keep(metric: str, *, every: int, patience: int, report: EpochReport) -> KeepBest:
    """Keep the epoch with the highest value of a logged metric; without one, the last epoch of finite loss."""

    def look(epoch: int, trainer: lightning.Trainer, _: Any, __: Any) -> Look:
        values = {key: float(value) for key, value in trainer.callback_metrics.items()}
        if epoch % every:  # what was logged before is of an earlier epoch
            values = {key: value for key, value in values.items() if key.startswith("train_")}
        score = values.get(metric, float("nan"))
        if not metric and np.isfinite(values["train_loss"]):
            score = float(epoch)
        return Look(np.array([score]), values, {**values, "max_epochs": float(trainer.max_epochs or 0)})

    return KeepBest(
        1,
        parts=lambda module: ((tensor, None) for tensor in module.state_dict().values()),
        look=look,
        patience=patience,
        report=report,
    )


def predict_pairs(head: PairHead, data: PairLatents, split: str) -> Float32[np.ndarray, " N"]:
    """Score every pair of a split, in order."""
    head.eval()
    device = head.mean.device
    with torch.no_grad():
        parts = [head(batch.a.to(device), batch.b.to(device)).cpu() for batch in data.loader(split)]
    return torch.cat(parts).float().numpy()


def run_trainer(
    module: lightning.LightningModule,
    data: lightning.LightningDataModule,
    *,
    seed: int,
    device: str,
    callbacks: Sequence[Callback] = (),
    unfinished: Unfinished | None = None,
    **options: Any,
) -> None:
    """Run Lightning's loop, quietly, with this process's generators left alone and Ctrl-C meaning Ctrl-C.

    `seed` is that of torch's own generator meanwhile, `unfinished` keeps the state of the fit, `options` are more of
    `lightning.Trainer`.
    """
    kind, _, index = device.partition(":")
    keep_blocks()  # every step makes the same intermediate results
    with torch.random.fork_rng(), quiet_lightning(), _interruptible():
        torch.manual_seed(seed)
        trainer = lightning.Trainer(
            accelerator={"cuda": "gpu"}.get(kind, kind),
            devices=[int(index)] if index else 1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            callbacks=[*callbacks, *([unfinished] if unfinished else [])],
            plugins=[unfinished.files] if unfinished else None,
            **options,
        )
        trainer.fit(module.train(), datamodule=data, ckpt_path=unfinished.find() if unfinished else None)
    module.trainer = data.trainer = None  # a trainer holds on to its loaders, and with them to their buffers


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt: Lightning answers it with `sys.exit(1)` and ignores every further one."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as stop:
        if not isinstance(stop.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from stop


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence Lightning's greetings and its advice on workers inside the block; other warnings pass."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        # Its advice: workers (a batch is gathered in one call from a mapped file; workers would only copy it again),
        # and modules in eval mode (frozen encoders are left there on purpose).
        disable_possible_user_warnings()
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"lightning\b")  # its use of torch
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
