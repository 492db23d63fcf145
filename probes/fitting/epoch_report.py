"""What a caller may watch of a fit, and what is called while it runs; loads no torch."""

import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn

EpochReport = Callable[[int, dict[str, float]], None]
LIMITS = ("max_epochs", "patience", "patience_left")
"""What is reported beside the values of an epoch: the most epochs, the epochs without a better one after which a fit
stops, and how many of these are left."""


def ignore_epoch(epoch: int, values: dict[str, float]) -> None:
    """Report nothing. Another report receives the epoch's number and, by name, the logged values and `LIMITS`."""


@runtime_checkable
class Trainer(typing.Protocol):
    """What hooks read and set of Lightning's trainer."""

    should_stop: bool

    @property
    def max_epochs(self) -> int | None:
        """The most epochs."""

    @property
    def callback_metrics(self) -> "Mapping[str, Tensor]":
        """The values logged last."""

    def save_checkpoint(self, filepath: Path) -> None:
        """Write the state of the fit."""


class FitHooks:
    """What Lightning's loop calls while a head is fitted, with its trainer and the module; by default nothing."""

    @property
    def state_key(self) -> str:
        """The name of its state in the checkpoint of an unfinished fit."""
        return type(self).__qualname__

    def on_train_start(self, module: "nn.Module") -> None:
        """Begin the first epoch of this process."""

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Look at the epoch that has ended."""

    def on_save_checkpoint(self, module: "nn.Module", checkpoint: dict[str, object]) -> None:
        """Add to the state of an unfinished fit."""

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Read that back."""

    def state_dict(self) -> dict[str, object]:
        """Return what it needs to be resumed."""
        return {}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Continue from a `state_dict`."""
