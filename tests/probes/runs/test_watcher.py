"""The line of a notebook: written over while something works, and gone afterwards."""

import sys
from types import ModuleType
from typing import Any

import pytest

from probes.runs import watcher as watchers
from probes.runs.watcher import SILENT, in_notebook, notebook_line, watching


class ZMQInteractiveShell:
    """What IPython calls the shell of a kernel."""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pretend to be a kernel; return what it shows."""
    texts: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            assert raw
            texts.append(data["text/plain"])

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        texts.append(data["text/plain"])
        return Handle()

    ipython, displays = ModuleType("IPython"), ModuleType("IPython.display")
    vars(ipython)["get_ipython"], vars(displays)["display"] = ZMQInteractiveShell, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    monkeypatch.setattr(watchers, "EVERY", 0.0)
    return texts


def test_a_notebook_shows_bars_and_takes_them_away(shown: list[str]) -> None:
    with watching(None) as watcher:
        progress: Any = watcher.extraction("extracting\x1b[2J texts")
        progress.start(n_rows=10, n_done=0)
        progress.advance(n_rows=5, n_tokens=50)
        watcher.epochs("siamese-cosine", 3)(4, {"train_loss": 1.0, "validation_pearson": 0.51, "max_epochs": 8})
        watcher.say("a remark")
    assert shown[0].startswith("extracting[2J texts [....")
    assert "[############............] 5 of 10 rows, " in shown[1]
    assert "tokens/s" in shown[1]
    assert (
        shown[2] == "fitting siamese-cosine, seed 3 [############............] 4 of 8 epochs, validation_pearson 0.510"
    )
    assert shown[3:] == ["a remark", ""]


def test_it_is_silent_when_asked_and_elsewhere(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with watching(SILENT) as watcher:
        watcher.say("a remark")
    assert not shown
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()
    with notebook_line() as line:
        assert line is None
