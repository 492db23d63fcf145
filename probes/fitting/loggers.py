"""Loggers of Lightning beside a fit: every epoch's values in a file, which nothing of the fit depends on."""

import shutil
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from probes.fitting.keep_best import EpochReport

LOGGERS = {
    "csv": "a table, log/metrics.csv",
    "tensorboard": "an event file in log/, to look at with: tensorboard --logdir RUN/heads",
}
"""Loggers by name; files are in the folder of a head and seed."""


def check_loggers(names: Sequence[str]) -> None:
    """Refuse an unknown logger."""
    for name in names:
        if name not in LOGGERS:
            raise unknown_name("logger", name, LOGGERS)


def require_loggers(names: Sequence[str]) -> None:
    """Refuse a logger whose package is not installed, before anything is computed."""
    if "tensorboard" in names and not any(map(find_spec, ("tensorboard", "tensorboardX"))):
        raise ConfigError(
            "logger 'tensorboard' needs the extra package tensorboard; install it with: pip install "
            "tensorboard, or use loggers: [csv]."
        )


def with_loggers(
    watch: "Callable[[int], EpochReport]", names: Sequence[str], folder: Path
) -> "Callable[[int], EpochReport]":
    """Log what is reported of every epoch of every seed, in `folder/seed_N/log`; an earlier log there goes first."""

    def watch_and_log(seed: int) -> "EpochReport":
        report = watch(seed)
        loggers: list[Any] = []

        def log(epoch: int, values: dict[str, float]) -> None:
            report(epoch, values)
            if not loggers:
                shutil.rmtree(folder / f"seed_{seed}" / "log", ignore_errors=True)
                loggers.extend(_make(name, folder / f"seed_{seed}") for name in names)
            for logger in loggers:
                logger.log_metrics({key: value for key, value in values.items() if key != "max_epochs"}, step=epoch)
                logger.save()

        return log

    return watch_and_log if names else watch


def _make(name: str, folder: Path) -> Any:
    from lightning.pytorch import loggers

    if name == "csv":
        return loggers.CSVLogger(folder, name="log", version="")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the package, when it is imported
        return loggers.TensorBoardLogger(folder, name="log", version="", default_hp_metric=False)
