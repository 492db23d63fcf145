"""Lightning's loop around plain modules, data and hooks.

Lightning takes seconds to import, so what loads a fitted head imports neither it nor this module.
"""

import logging
import signal
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import lightning
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.fabric.utilities import disable_possible_user_warnings
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from extract.poolings.memory import keep_blocks
from probes.fitting.fit_options import FitHooks
from probes.fitting.saved_fits import Unfinished
from probes.networks.layerwise_networks import TrainedModule


class Loop(lightning.LightningModule):
    """Lightning's view of a module: it calls the module's steps, and its weights are the module's."""

    def __init__(self, module: TrainedModule) -> None:
        super().__init__()
        self.module = module
        object.__setattr__(module, "loop", self)  # a plain attribute: as a submodule each would hold the other

    def state_dict(self, **options: Any) -> Any:
        """Return the tensors of the module, by its names."""
        return self.module.state_dict(**options)

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False) -> Any:
        """Replace the tensors of the module."""
        return self.module.load_state_dict(state_dict, strict, assign)

    def training_step(self, batch: object, index: int) -> Tensor:
        """Compute the loss of a batch."""
        return self.module.training_step(batch, index)

    def validation_step(self, batch: object, index: int) -> None:
        """Look at a held-out batch."""
        self.module.validation_step(batch, index)

    def on_validation_epoch_end(self) -> None:
        """Log what the held-out batches gave."""
        self.module.on_validation_epoch_end()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Make the optimiser."""
        return self.module.configure_optimizers()

    def on_fit_start(self) -> None:
        """Start or continue a fit."""
        self.module.on_fit_start()

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Add to the state of a fit."""
        self.module.on_save_checkpoint(checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Read that back."""
        self.module.on_load_checkpoint(checkpoint)


State = TypeVar("State")


@runtime_checkable
class TrainingData(Protocol[State]):
    """Data that a head is fitted on."""

    def train_dataloader(self) -> Iterable[object]:
        """Return the batches of the next epoch."""

    def state_dict(self) -> dict[str, State]:
        """Return where the order of the next epoch begins."""

    def load_state_dict(self, state_dict: dict[str, State]) -> None:
        """Continue from a `state_dict`."""


@runtime_checkable
class HeldOutData(TrainingData[State], Protocol[State]):
    """The same with rows held out, which are looked at after an epoch."""

    def val_dataloader(self) -> Iterable[object]:
        """Return the batches of the rows held out."""


class _Data(lightning.LightningDataModule, Generic[State]):
    """Lightning's view of data: its loaders, and where the next order of rows begins."""

    def __init__(self, data: TrainingData[State]) -> None:
        super().__init__()
        self.data = data

    def train_dataloader(self) -> Iterable[object]:
        return self.data.train_dataloader()

    def state_dict(self) -> dict[str, State]:
        return self.data.state_dict()

    def load_state_dict(self, state_dict: dict[str, State]) -> None:
        self.data.load_state_dict(state_dict)


class _HeldOutData(_Data[State]):
    """The same of data that has held-out rows."""

    data: HeldOutData[State]

    def val_dataloader(self) -> Iterable[object]:
        return self.data.val_dataloader()


def _data(data: TrainingData[State]) -> _Data[State]:
    """Give data to Lightning under the name of its own class, which is that of its state in a checkpoint."""
    base = _HeldOutData if isinstance(data, HeldOutData) else _Data
    named: type[_Data[State]] = type(type(data).__qualname__, (base,), {})
    return named(data)


class _Hooks(Callback):
    """Lightning's view of hooks, which get the module itself."""

    def __init__(self, hooks: FitHooks) -> None:
        self.hooks = hooks

    @property
    def state_key(self) -> str:
        return self.hooks.state_key

    def on_train_start(self, trainer: object, pl_module: nn.Module) -> None:
        del trainer
        self.hooks.on_train_start(pl_module)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: object) -> None:
        del pl_module
        self.hooks.on_train_epoch_end(trainer)

    def on_save_checkpoint(self, trainer: object, pl_module: nn.Module, checkpoint: dict[str, object]) -> None:
        del trainer
        self.hooks.on_save_checkpoint(pl_module, checkpoint)

    def on_load_checkpoint(self, trainer: object, pl_module: object, checkpoint: dict[str, object]) -> None:
        del trainer, pl_module
        self.hooks.on_load_checkpoint(checkpoint)

    def state_dict(self) -> dict[str, object]:
        return self.hooks.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        self.hooks.load_state_dict(state_dict)


class _Files(TorchCheckpointIO):
    """Lightning's view of the sealed files of an unfinished fit."""

    def __init__(self, unfinished: Unfinished) -> None:
        self.files = unfinished.files

    def save_checkpoint(self, checkpoint: dict[str, object], path: str | Path, storage_options: object = None) -> None:
        del storage_options
        self.files.save_checkpoint(checkpoint, Path(path))

    def load_checkpoint(
        self, path: object, map_location: object = None, weights_only: bool | None = None
    ) -> dict[str, object]:
        del path, map_location, weights_only
        return self.files.load_checkpoint()


def run_trainer(
    module: TrainedModule | lightning.LightningModule,
    data: TrainingData[State],
    *,
    seed: int,
    device: str,
    hooks: Sequence[FitHooks | Callback] = (),
    unfinished: Unfinished | None = None,
    **options: Any,
) -> None:
    """Run Lightning's loop, quietly; global generators are left alone, and Ctrl-C raises KeyboardInterrupt.

    `data` has loaders (`train_dataloader`, and `val_dataloader` where rows are held out), `state_dict` and
    `load_state_dict`. Modules, data and hooks that are Lightning's own are used as they are.
    """
    kind, _, index = device.partition(":")
    loop = module if isinstance(module, lightning.LightningModule) else Loop(module)
    datamodule = data if isinstance(data, lightning.LightningDataModule) else _data(data)
    calls = (*hooks, *([unfinished] if unfinished else []))
    try:
        with keep_blocks(), torch.random.fork_rng(), quiet_lightning(), _interruptible():
            torch.manual_seed(seed)
            trainer = lightning.Trainer(
                accelerator={"cuda": "gpu"}.get(kind, kind),
                devices=[int(index)] if index else 1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                callbacks=[call if isinstance(call, Callback) else _Hooks(call) for call in calls],
                plugins=[_Files(unfinished)] if unfinished else None,
                **options,
            )
            trainer.fit(loop.train(), datamodule=datamodule, ckpt_path=unfinished.find() if unfinished else None)
    finally:
        loop.trainer = datamodule.trainer = None  # it holds on to its loaders, and with them to their buffers
        if isinstance(module, TrainedModule):
            module.loop = None


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
