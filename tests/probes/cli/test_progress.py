"""Progress: a bar on a terminal, a line now and then elsewhere."""

import io

import pytest
from rich.console import Console

from extract.run.extraction_spec import ExtractionProgress
from probes.cli.screen import BarProgress


def show(progress: ExtractionProgress) -> None:
    """Show an extraction resumed at row 40 of 100."""
    progress.start(n_rows=100, n_done=40)
    progress.advance(n_rows=10, n_tokens=500)
    progress.advance(n_rows=50, n_tokens=2500)
    progress.finish()


def test_silence(capfd: pytest.CaptureFixture[str]) -> None:
    show(ExtractionProgress())
    assert capfd.readouterr() == ("", "")


def test_a_terminal_gets_a_bar() -> None:
    screen = io.StringIO()
    show(BarProgress(Console(file=screen, force_terminal=True, width=120), title="drilling"))
    assert "drilling" in screen.getvalue()
    assert "100/100" in screen.getvalue()
    assert "rows/s" in screen.getvalue()


def test_anything_else_gets_a_line_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 20.0, 40.0])
    monkeypatch.setattr("probes.runs.watcher.time.monotonic", lambda: next(clock))
    screen = io.StringIO()
    show(BarProgress(Console(file=screen, force_terminal=False, width=200), title="drilling"))
    assert screen.getvalue().split("\n") == ["drilling: 100 of 100 rows, 2 rows/s 75 tokens/s 0 s left", ""]


def test_the_time_left_is_that_of_tokens_where_long_texts_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 40.0])
    monkeypatch.setattr("probes.runs.watcher.time.monotonic", lambda: next(clock))
    screen = io.StringIO()
    progress = BarProgress(Console(file=screen, force_terminal=False, width=80), title="drilling")
    progress.expect(n_tokens=10_000)
    progress.start(n_rows=100, n_done=0)
    progress.advance(n_rows=80, n_tokens=1000)  # rows would say that 10 s are left
    assert screen.getvalue() == "drilling: 80 of 100 rows, 2 rows/s 25 tokens/s 6 min left\n"
