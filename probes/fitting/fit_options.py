"""How heads are fitted: what a caller may watch of a fit, protocols, options and loggers; loads no torch."""

import shutil
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, runtime_checkable

from extract.errors import ConfigError, HeadError, require_counts, require_name

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


Options = Mapping[str, Any]
"""Options by name, as a config holds them."""


@dataclass(frozen=True)
class Protocol:
    """A protocol: defaults of a run, over which the options of a config take precedence."""

    description: str
    """One line."""
    kinds: tuple[str, ...] = ()
    """Kinds of tasks it is for; all where empty."""
    selection: str = "validation"
    """The split that epochs are chosen on."""
    optimistic_because: str = ""
    """Why its numbers are optimistic; empty where they are not."""
    heads: Mapping[str, Options] = field(default_factory=dict)
    """Head to the options that replace its defaults."""
    started_heads: Mapping[str, Options] = field(default_factory=dict)
    """The same for heads that start from autoencoders."""
    autoencoder: Options = field(default_factory=dict)
    """Options of autoencoders that replace their defaults."""
    task: Options = field(default_factory=dict)
    """Options of the task's reader, set where the reader has them."""
    extraction: Mapping[str, Options] = field(default_factory=dict)
    """Kind of task to part of the extraction to what replaces its default, value by value where it has several."""
    cut: Mapping[str, str] = field(default_factory=dict)
    """Kind of task to the name of a cut that is applied to the task first."""

    def options_of(self, head: str, options: Options) -> dict[str, Any]:
        """Complete the options of a head in a config with those of the protocol."""
        is_started = head in self.started_heads and options.get("start", "fresh") != "fresh"
        return {**(self.started_heads if is_started else self.heads).get(head, {}), **options}


_FREEZE_LATENTS: dict[str, Any] = {"pooling": "last", "layers": "blocks"}
_FREEZE_MLP = {
    **_FREEZE_LATENTS,
    "standardises_latents": False,
    "cosine_scaling": "global",
    "activation": "relu",
    "hidden": 128,
    "loss": "mse",
    "learning_rate": 3e-4,
    "weight_decay": 0.01,
    "batch_size": 32,
    "max_epochs": 100,
    "keep": "last",
}
_FREEZE_SIAMESE = {
    **_FREEZE_LATENTS,
    "standardises_latents": False,
    "encoder": "deep-mlp",
    "bottleneck": 512,
    "hidden": 512,
    "hidden_layers": 1,
    "norms_network": True,
    "loss": "mse",
    "learning_rate": 3e-5,
    "weight_decay": 0.01,
    "batch_size": 32,
    "max_epochs": 100,
    "patience": 100,
}
_FREEZE_STARTED = {
    **_FREEZE_LATENTS,
    "hidden": 512,
    "hidden_layers": 3,
    "norms_network": True,
    "dropout": 0.1,
    "network_dropout": 0.1,
    "loss": "log-variance",
    "learning_rate": 3e-4,
    "weight_decay": 0.0,
    "batch_size": 128,
    "max_epochs": 150,
    "patience": 150,
    "every": 10,
}
_FREEZE_AUTOENCODER = {
    "encoder": "normed-mlp",
    "bottleneck": "256, upper half 512",
    "standardises_latents": False,
    "dropout": 0.1,
    "learning_rate": 3e-4,
    "weight_decay": 0.01,
    "batch_size": 64,
    "max_epochs": 250,
}
_MAGNET_TOKENS = {
    "steps": 4000,
    "batch_size": 8,
    "learning_rate": 5e-4,
    "weight_decay": 0.0,
    "keep": "last",
    "is_standardised": False,
    "start": "random",
    "offset": "none",
    "decoding": "plain",
    "layers": "final_norm",
}
_LBW_TOKENS = {
    "max_epochs": 3,
    "epoch_steps": 1,
    "batch_size": 32,
    "learning_rate": 5e-3,
    "schedule": "linear",
    "weight_decay": 0.0,
    "keep": "last",
    "is_standardised": False,
    "start": "random",
    "offset": "none",
    "decoding": "plain",
    "layers": "final_norm",
    "leaves_out_cut": True,
}
_LBW_PROBE = {
    "Cs": [1.0],
    "is_standardised": False,
    "max_iterations": 100,
    "oversampling": "times-5",
    "seed": 42,
    "layers": "final_norm",
}
LBW_TOKENS = 32
"""Tokens that the code released with Look Both Ways keeps of a sentence of words."""

LBW_TEXT_TOKENS = 512
"""Tokens that it keeps of a domain text."""

ICECORE, FREEZE, LBW, MAGNET = "icecore", "freeze-released", "look-both-ways", "magnet"

PROTOCOLS: dict[str, Protocol] = {
    ICECORE: Protocol("everything is chosen on validation, test is read once"),
    FREEZE: Protocol(
        "FREEZE's networks as its notebooks fit them; optimistic where they keep the best epoch on test",
        kinds=("pairs",),
        selection="test",
        optimistic_because="the epoch is chosen on the test split that is reported",
        heads={
            "layer-cosine": _FREEZE_LATENTS,
            "cosine-mlp": _FREEZE_MLP,
            "cosine-linear": {**_FREEZE_LATENTS, "every": 10, "patience": 100},
            "siamese-cosine": _FREEZE_SIAMESE,
        },
        started_heads={"siamese-cosine": _FREEZE_STARTED},
        autoencoder=_FREEZE_AUTOENCODER,
        extraction={"pairs": {"template": {"bos": "force"}, "poolings": ("last",), "layers": ("blocks",)}},
    ),
    LBW: Protocol(
        "the splits and settings of the code released with Look Both Ways",
        kinds=("classes", "words"),
        heads={
            "logistic-probe": _LBW_PROBE,
            "few-shot-probe": {"layers": "final_norm"},
            "cosine-threshold": {
                "choose_on": "all",
                "kind": "raw",
                "thresholds": "hundred",
                "layers": "final_norm",
            },
            "token-classifier": _LBW_TOKENS,
            "token-mix": _LBW_TOKENS,
            "token-logistic": {
                "is_standardised": False,
                "max_iterations": 100,
                "decoding": "plain",
                "layers": "final_norm",
                "leaves_out_cut": True,
            },
        },
        task={"rare": "drop"},
        extraction={
            "classes": {"template": {"max_tokens": LBW_TEXT_TOKENS}},
            "words": {"template": {"max_tokens": LBW_TOKENS}},
        },
        cut={"classes": "released-split", "words": "every-token"},
    ),
    MAGNET: Protocol(
        "MAGNET's linear classifier of words (appendix A)",
        kinds=("words",),
        heads={"token-classifier": _MAGNET_TOKENS, "token-mix": _MAGNET_TOKENS},
        extraction={"words": {"words": {"shift": True, "poolings": ("mean",)}}},
    ),
}


def find_protocol(name: str, *, kind: str = "", task: str = "") -> Protocol:
    """Look up a protocol of `PROTOCOLS` for a kind of task, any where empty; `task` is its name, for the message."""
    require_name("protocol", name, PROTOCOLS)
    protocol = PROTOCOLS[name]
    if kind and protocol.kinds and kind not in protocol.kinds:
        raise ConfigError(
            f"protocol {name!r} is for tasks of {' or '.join(protocol.kinds)}, but {task!r} is one of {kind}; use "
            f"protocol {ICECORE}."
        )
    return protocol


@dataclass(frozen=True)
class FitOptions:
    """How a head is fitted."""

    batch_size: int = 128
    """Pairs per batch."""
    max_epochs: int = 100
    """Most passes over the training pairs."""
    patience: int = 20
    """Epochs without a better validation score after which fitting stops."""

    def __post_init__(self) -> None:
        require_counts(self, "batch_size", "max_epochs", "patience")


KEPT = {"best": "the epoch with the highest Pearson on the selection split", "last": "the last epoch"}


@dataclass(frozen=True)
class EpochOptions(FitOptions):
    """How a pair head is fitted, and which epoch is kept."""

    every: int = 1
    """Epochs from one look at the selection split to the next; a shorter fit is looked at once, at its end."""
    keep: str = "best"
    """A name from `KEPT`; `last` never stops early."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "every")
        require_name("epoch to keep", self.keep, KEPT)
        if self.keep == "best" and self.patience < self.every:
            raise HeadError(
                f"patience is {self.patience}, but every is {self.every}, so fitting would stop before the first look; "
                f"allowed: a patience of at least {self.every}."
            )


# Loggers of Lightning beside a fit: every epoch's values in a file, which nothing of the fit depends on.

LOGGERS = {
    "csv": "a table, log/metrics.csv",
    "tensorboard": "an event file in log/, to look at with: tensorboard --logdir RUN/heads",
    "wandb": "a run of Weights & Biases with epochs, scores, table and figures; WANDB_MODE=offline sends nothing",
}
"""Loggers by name; files are in the folder of a head and seed, those of `wandb` in that of all runs."""
PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",)}
"""What a logger needs, one of several."""


def check_loggers(names: Sequence[str]) -> None:
    """Refuse an unknown logger."""
    for name in names:
        require_name("logger", name, LOGGERS)


def require_loggers(names: Sequence[str]) -> None:
    """Refuse a logger whose package is not installed, before anything is computed."""
    for name in names:
        if name in PACKAGES and not any(map(find_spec, PACKAGES[name])):
            raise ConfigError(
                f"logger {name!r} needs the extra package {name}; install it with: pip install {name}, or use "
                "loggers: [csv]."
            )


def with_loggers(
    reporter: "Callable[[int], EpochReport]", names: Sequence[str], folder: Path
) -> "Callable[[int], EpochReport]":
    """Log all epochs of every seed too, in `folder/seed_N/log`; an earlier log there is removed."""
    files = [name for name in names if name != "wandb"]  # which logs a run as a whole

    def logging_reporter(seed: int) -> "EpochReport":
        report = reporter(seed)
        loggers: list[Any] = []

        def log(epoch: int, values: dict[str, float]) -> None:
            report(epoch, values)
            if not loggers:
                shutil.rmtree(folder / f"seed_{seed}" / "log", ignore_errors=True)
                loggers.extend(_make(name, folder / f"seed_{seed}") for name in files)
            for logger in loggers:
                logger.log_metrics({key: value for key, value in values.items() if key not in LIMITS}, step=epoch)
                logger.save()

        return log

    return logging_reporter if files else reporter


def _make(name: str, folder: Path) -> Any:
    from lightning.pytorch import loggers

    if name == "csv":
        return loggers.CSVLogger(folder, name="log", version="")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the package, when it is imported
        return loggers.TensorBoardLogger(folder, name="log", version="", default_hp_metric=False)
