"""How far an extraction is: what a caller may watch, and a bar for a terminal; loads no torch."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ExtractionProgress:
    """Progress callback of an extraction; silent by default."""

    def start(self, *, n_rows: int, n_done: int) -> None:
        """An extraction of `n_rows` rows (0 if unknown) begins, of which `n_done` are already done."""

    def advance(self, *, n_rows: int, n_tokens: int) -> None:
        """A batch has been written."""

    def finish(self) -> None:
        """The extraction has ended, well or not."""


class BarProgress(ExtractionProgress):
    """A bar with rows/s, tokens/s and time left; off a terminal, a line every half minute."""

    def __init__(self, console: Console, *, title: str) -> None:
        self._console, self._title = console, title
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rates]}"),
            TimeRemainingColumn(),
            console=console,
            transient=False,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=None, rates="")
        self._rows = self._tokens = self._total = 0
        self._started = self._printed = 0.0

    def start(self, *, n_rows: int, n_done: int) -> None:
        """Show the bar."""
        self._total = n_rows
        self._rows = self._n_before = n_done
        self._started = self._printed = time.monotonic()
        self._bar.update(self._task, total=n_rows or None, completed=n_done)
        self._bar.start()

    def advance(self, *, n_rows: int, n_tokens: int) -> None:
        """Move the bar."""
        self._rows += n_rows
        self._tokens += n_tokens
        seconds = max(time.monotonic() - self._started, 1e-9)
        rates = f"{(self._rows - self._n_before) / seconds:,.0f} rows/s {self._tokens / seconds:,.0f} tokens/s"
        self._bar.update(self._task, completed=self._rows, rates=rates)
        if not self._console.is_terminal and time.monotonic() - self._printed > 30:
            self._printed = time.monotonic()
            of = f" of {self._total:,}" if self._total else ""
            self._console.print(f"{self._title}: {self._rows:,}{of} rows, {rates}")

    def finish(self) -> None:
        """Stop the bar."""
        self._bar.stop()
