"""Keep the best epoch of each of several stacks that are trained together; a pair head is one stack."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import lightning
import numpy as np
import torch
from jaxtyping import Bool, Float
from lightning.pytorch.callbacks import Callback
from torch import Tensor

_ARRAYS = ("scores", "best_epochs", "is_done")
EpochReport = Callable[[int, dict[str, float]], None]


def ignore_epoch(epoch: int, values: dict[str, float]) -> None:
    """Ignore an epoch. Another report receives its number and, by name, the logged values and `max_epochs`."""


@dataclass(frozen=True, eq=False)
class Look:
    """What an epoch gave: scores of the stacks, values to keep and values to report."""

    scores: Float[np.ndarray, " S"]
    """Higher is better; NaN where there is none."""
    history: dict[str, Any]
    reported: dict[str, float]


Part = tuple[Tensor, Sequence[int] | None]
"""A tensor, and the stack of each entry of its first axis; None for a tensor of the only stack."""


class KeepBest(Callback):
    """Keeps the weights of the best epoch of every stack; one is done after `patience` epochs without a better one.

    Training stops when all are done. A stack that is done keeps the weights it had, whatever the others do.

    Args:
        n_stacks: Stacks `S`.
        parts: Every tensor to keep of a module, always in the same order.
        look: Scores the epoch that has ended (Lightning validates before), given its number, the trainer, the module
            and which stacks are done.
        patience: Epochs without a better score after which a stack is done.
        report: Called after every epoch.
    """

    def __init__(
        self,
        n_stacks: int,
        *,
        parts: Callable[[Any], Iterable[Part]],
        look: Callable[[int, lightning.Trainer, Any, Bool[np.ndarray, " S"]], Look],
        patience: int,
        report: EpochReport = ignore_epoch,
    ) -> None:
        self.parts, self.look, self.patience, self.report = parts, look, patience, report
        self.scores = np.full(n_stacks, -np.inf)
        self.best_epochs = np.zeros(n_stacks, dtype=np.int64)
        """From 1; 0 for a stack without a finite score."""
        self.is_done = np.zeros(n_stacks, dtype=bool)
        self.history: list[dict[str, Any]] = []
        self.kept: list[Tensor] = []

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Begin with the initial weights, unless an earlier process left better ones."""
        del trainer
        self.kept = self.kept or [tensor.detach().cpu().clone() for tensor, _ in self.parts(pl_module)]

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Look at the epoch that has ended."""
        epoch = len(self.history) + 1
        found = self.look(epoch, trainer, pl_module, self.is_done)
        is_better = np.isfinite(found.scores) & (found.scores > self.scores) & ~self.is_done
        for (tensor, stacks), kept in zip(self.parts(pl_module), self.kept, strict=True):
            if stacks is None and is_better.all():
                kept.copy_(tensor.detach())
            elif stacks is not None:
                rows = torch.from_numpy(np.flatnonzero(is_better[list(stacks)]))
                kept[rows] = tensor.detach()[rows.to(tensor.device)].cpu()
        self.scores[is_better], self.best_epochs[is_better] = found.scores[is_better], epoch
        self.is_done = self.is_done | (epoch - self.best_epochs >= self.patience)
        self.history.append(found.history)
        self.report(epoch, found.reported)
        trainer.should_stop = bool(self.is_done.all())

    def state_dict(self) -> dict[str, Any]:
        """Return all that a fit needs to go on from here."""
        arrays = {name: torch.from_numpy(getattr(self, name)) for name in _ARRAYS}
        return {"kept": self.kept, "history": self.history, **arrays}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.kept, self.history = state_dict["kept"], state_dict["history"]
        for name in _ARRAYS:
            setattr(self, name, state_dict[name].numpy())

    @torch.no_grad()
    def restore(self, module: lightning.LightningModule) -> None:
        """Put the kept weights back."""
        for (tensor, _), kept in zip(self.parts(module), self.kept, strict=True):
            tensor.copy_(kept)
