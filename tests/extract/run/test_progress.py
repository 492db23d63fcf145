"""Progress: a bar on a terminal, a line now and then elsewhere."""

import io

import pytest
from rich.console import Console

from extract.run.progress import BarProgress, ExtractionProgress


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
    clock = iter([0.0, 20.0, 20.0, 40.0, 40.0, 40.0])
    monkeypatch.setattr("extract.run.extraction.time.monotonic", lambda: next(clock))
    screen = io.StringIO()
    show(BarProgress(Console(file=screen, force_terminal=False, width=200), title="drilling"))
    assert screen.getvalue().split("\n") == ["drilling: 100 of 100 rows, 2 rows/s 75 tokens/s", ""]
