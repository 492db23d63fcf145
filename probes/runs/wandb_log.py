"""The log of a run in Weights & Biases, by Lightning's logger: every epoch, then scores, table and figures."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.errors import ConfigError, first_line
from probes.fitting.epoch_report import LIMITS, EpochReport

if TYPE_CHECKING:
    from probes.runs.predict import LoadedRun

PROJECT = "icecore"
"""Where `WANDB_PROJECT` names none."""


class WandbLog:
    """One run of W&B for one run of icecore; its files are in `wandb/` beside the run's folder, as W&B makes links.

    The modes are those of W&B: `WANDB_MODE=offline` sends nothing, and `wandb sync` sends it later.

    Raises:
        ConfigError: W&B cannot start, mostly because nobody is logged in.
    """

    def __init__(self, folder: Path, settings: dict[str, object]) -> None:
        from lightning.pytorch.loggers import WandbLogger

        self.logger: Any = WandbLogger(
            name=folder.name,
            save_dir=folder.parent,
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            config=settings,
            reinit="create_new",
            settings={"silent": True, "console": "off"},
        )
        try:
            self.run: Any = self.logger.experiment
        except Exception as error:  # of W&B's own kinds
            raise ConfigError(
                f"W&B cannot start ({first_line(error)}); run `wandb login`, set WANDB_MODE=offline, or leave wandb "
                "out of loggers."
            ) from error

    def epochs(self, make: Callable[[str, int], EpochReport]) -> Callable[[str, int], EpochReport]:
        """Log the epochs of every head and seed too."""

        def reporter(head: str, seed: int) -> EpochReport:
            report = make(head, seed)

            def log(epoch: int, values: dict[str, float]) -> None:
                report(epoch, values)
                logged = {f"{head}/seed_{seed}/{key}": value for key, value in values.items() if key not in LIMITS}
                self.logger.log_metrics(logged, step=epoch)

            return log

        return reporter

    def finish(self, run: "LoadedRun") -> None:
        """Log scores with their intervals, the table and the figures of a finished run, and end the log."""
        for name, head in run.record.heads.items():
            for split, metrics in head.summary.items():
                for metric, score in metrics.items():
                    ends = {"": score.mean, "/low": score.low, "/high": score.high}
                    self.run.summary.update({f"{name}/{split}/{metric}{end}": value for end, value in ends.items()})
        self.logger.log_table("table", dataframe=run.table())
        figures = sorted((run.folder / "figures").glob("*.png"))
        if figures:
            self.logger.log_image("figures", list(map(str, figures)), caption=[figure.stem for figure in figures])
        self.run.finish()
