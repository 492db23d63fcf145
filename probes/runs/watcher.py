"""What follows a run: progress callbacks, a line in a notebook, and Weights & Biases; loads no torch."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.errors import ConfigError, first_line, printable
from extract.run.extraction_spec import ExtractionProgress
from probes.fitting.fit_options import LIMITS, EpochReport, ignore_epoch

if TYPE_CHECKING:
    from probes.runs.predict import LoadedRun


WIDTH = 24
EVERY = 0.2  # seconds between two drawings


class Pace:
    """Rows and tokens that are done, and the seconds left: by tokens where their number is known, as texts may vary."""

    def __init__(self) -> None:
        self.n_rows = self.n_done = self.n_before = self.n_tokens = self.n_expected = 0
        self.started = 0.0

    def start(self, *, n_rows: int, n_done: int) -> None:
        """Begin to count."""
        self.n_rows, self.n_done, self.n_before, self.n_tokens = n_rows, n_done, n_done, 0
        self.started = time.monotonic()

    def advance(self, *, n_rows: int, n_tokens: int) -> float:
        """Count a batch; return the seconds since the start."""
        self.n_done += n_rows
        self.n_tokens += n_tokens
        return max(time.monotonic() - self.started, 1e-9)

    def left(self, seconds: float) -> float | None:
        """Estimate the seconds that are left; None where the number of rows is not known."""
        if self.n_rows and self.n_done >= self.n_rows:
            return 0.0
        if self.n_expected and self.n_tokens:
            return seconds * max(self.n_expected - self.n_tokens, 0) / self.n_tokens
        return seconds * (self.n_rows - self.n_done) / max(self.n_done - self.n_before, 1) if self.n_rows else None


def short_time(seconds: float) -> str:
    """Write a time in the unit that a reader needs.

    Example:
        >>> short_time(8.4), short_time(200.0), short_time(7300.0)
        ('8 s', '3 min', '2.0 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class Line:
    """The line, displayed when it is first written."""

    def __init__(self) -> None:
        self._display: Any = None
        self._drawn = 0.0

    def extraction(self, title: str) -> ExtractionProgress:
        """Make the progress of an extraction."""
        return _Bar(self, title)

    def epochs(self, head: str, seed: int) -> EpochReport:
        """Make what receives the epochs of a head."""

        def report(epoch: int, values: dict[str, float]) -> None:
            scores = [f"{key} {value:.3f}" for key, value in values.items() if key not in (*LIMITS, "train_loss")]
            most = int(values.get("max_epochs", 0))
            self.bar(f"fitting {head}, seed {seed}", epoch, most, "epochs", ", ".join(scores[:1]))

        return report

    def bar(self, title: str, n_done: int, n_all: int, noun: str, more: str = "") -> None:
        """Show how far something is, at most every `EVERY` seconds but for the end."""
        if time.monotonic() - self._drawn < EVERY and n_done < n_all:
            return
        self._drawn = time.monotonic()
        full = WIDTH * n_done // n_all if n_all else 0
        of = f" of {n_all:,}" if n_all else ""
        text = f"{title} [{'#' * full}{'.' * (WIDTH - full)}] {n_done:,}{of} {noun}"
        self.say(f"{text}, {more}" if more else text)

    def clear(self) -> None:
        """Take the line away."""
        if self._display is not None:
            self._display.update({"text/plain": ""}, raw=True)

    def say(self, text: str) -> None:
        """Show a remark."""
        from IPython.display import display

        data = {"text/plain": printable(text)}
        if self._display is None:
            self._display = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._display.update(data, raw=True)


class _Bar(ExtractionProgress):
    """The bar of an extraction, with rows, tokens per second and the time left."""

    def __init__(self, line: Line, title: str) -> None:
        self.line, self.title, self.pace = line, title, Pace()

    def expect(self, *, n_tokens: int) -> None:
        """Let tokens decide the time left."""
        self.pace.n_expected = n_tokens

    def start(self, *, n_rows: int, n_done: int) -> None:
        """Show an empty bar."""
        self.pace.start(n_rows=n_rows, n_done=n_done)
        self.line.bar(self.title, n_done, n_rows, "rows")

    def advance(self, *, n_rows: int, n_tokens: int) -> None:
        """Move the bar."""
        seconds = self.pace.advance(n_rows=n_rows, n_tokens=n_tokens)
        left = self.pace.left(seconds)
        more = f"{self.pace.n_tokens / seconds:,.0f} tokens/s" + ("" if left is None else f", {short_time(left)} left")
        self.line.bar(self.title, self.pace.n_done, self.pace.n_rows, "rows", more)


@contextmanager
def notebook_line() -> Iterator[Line | None]:
    """Give a line in a notebook, which is gone after the block, and None elsewhere."""
    line = Line() if in_notebook() else None
    try:
        yield line
    finally:
        if line is not None:
            line.clear()


@dataclass(frozen=True)
class Watcher:
    """Progress callbacks of a run; silent by default."""

    say: Callable[[str], None] = lambda _: None
    """Receives one-line remarks."""
    extraction: Callable[[str], ExtractionProgress] = lambda _: ExtractionProgress()
    """Makes the progress of an extraction from its title."""
    epochs: Callable[[str, int], EpochReport] = lambda *_: ignore_epoch
    """Makes, for a head and a seed, the function that receives every epoch."""


SILENT = Watcher()


@contextmanager
def watching(watcher: Watcher | None) -> Iterator[Watcher]:
    """Give the watcher, or where there is none one that shows a bar in a notebook and nothing elsewhere."""
    with notebook_line() as line:
        if watcher is not None or line is None:
            yield watcher or SILENT
        else:
            yield Watcher(say=line.say, extraction=line.extraction, epochs=line.epochs)


# --- The log of a run in Weights & Biases, by Lightning's logger ---


PROJECT = "icecore"
"""Where `WANDB_PROJECT` names none."""


class WandbLog:
    """One run of W&B for one run of icecore; its files are in `wandb/` beside the run's folder, as W&B makes links."""

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
