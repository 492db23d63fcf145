"""A progress that counts, and acts at chosen moments of an extraction."""

from collections.abc import Callable

from extract.run.extraction_spec import ExtractionProgress


class Recorder(ExtractionProgress):
    """Counts what it is told; calls `on_start` once and `on_advance` with the number of batches written so far."""

    def __init__(
        self, *, on_start: Callable[[], object] = lambda: None, on_advance: Callable[[int], object] = lambda _: None
    ) -> None:
        self.on_start, self.on_advance = on_start, on_advance
        self.n_rows = self.n_done = self.n_batches = self.n_written = self.n_tokens = self.n_finished = 0

    def start(self, *, n_rows: int, n_done: int) -> None:
        self.n_rows, self.n_done = n_rows, n_done
        self.on_start()

    def advance(self, *, n_rows: int, n_tokens: int) -> None:
        self.n_batches += 1
        self.n_written += n_rows
        self.n_tokens += n_tokens
        self.on_advance(self.n_batches)

    def finish(self) -> None:
        self.n_finished += 1


def interrupt_after(n_batches: int) -> Callable[[int], None]:
    """Make an action that raises KeyboardInterrupt once so many batches are written."""

    def act(n_written: int) -> None:
        if n_written == n_batches:
            raise KeyboardInterrupt

    return act
