"""How far an extraction is: what a caller may watch, and a bar for a terminal; loads no torch."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


class ExtractionProgress:
    """Progress callback of an extraction; silent by default."""

    def expect(self, *, n_tokens: int) -> None:
        """About `n_tokens` tokens are left to compute; comes before `start`, if at all."""

    def start(self, *, n_rows: int, n_done: int) -> None:
        """An extraction of `n_rows` rows (0 if unknown) begins, of which `n_done` are already done."""

    def advance(self, *, n_rows: int, n_tokens: int) -> None:
        """A batch has been written."""

    def finish(self) -> None:
        """The extraction has ended, well or not."""


class Pace:
    """Rows and tokens that are done, how fast, and the seconds that are left.

    Time goes with tokens, and long texts may come last, so tokens decide where their number is known.
    """

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


class BarProgress(ExtractionProgress):
    """A bar with rows/s, tokens/s and time left; off a terminal, a line every half minute."""

    def __init__(self, console: Console, *, title: str) -> None:
        self._console, self._title, self._pace = console, title, Pace()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rates]}"),
            console=console,
            transient=False,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=None, rates="")
        self._printed = 0.0

    def expect(self, *, n_tokens: int) -> None:
        """Let tokens decide the time left."""
        self._pace.n_expected = n_tokens

    def start(self, *, n_rows: int, n_done: int) -> None:
        """Show the bar."""
        self._pace.start(n_rows=n_rows, n_done=n_done)
        self._printed = self._pace.started
        self._bar.update(self._task, total=n_rows or None, completed=n_done)
        self._bar.start()

    def advance(self, *, n_rows: int, n_tokens: int) -> None:
        """Move the bar."""
        pace = self._pace
        seconds = pace.advance(n_rows=n_rows, n_tokens=n_tokens)
        rates = f"{(pace.n_done - pace.n_before) / seconds:,.0f} rows/s {pace.n_tokens / seconds:,.0f} tokens/s"
        left = pace.left(seconds)
        rates += "" if left is None else f" {short_time(left)} left"
        self._bar.update(self._task, completed=pace.n_done, rates=rates)
        now = pace.started + seconds
        if not self._console.is_terminal and now - self._printed > 30:
            self._printed = now
            of = f" of {pace.n_rows:,}" if pace.n_rows else ""
            self._console.print(f"{self._title}: {pace.n_done:,}{of} rows, {rates}", soft_wrap=True)

    def finish(self) -> None:
        """Stop the bar."""
        self._bar.stop()
