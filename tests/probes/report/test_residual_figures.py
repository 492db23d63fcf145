"""Figures of residuals and of autoencoders are drawn whatever the numbers are, and show what they are given."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from probes.heads.pairs.residuals import Residuals
from probes.report.residual_figures import draw_pretraining, draw_reconstruction, draw_residuals


def make_residuals(n_rows: int, *, kind: str = "noisy") -> Residuals:
    rng = np.random.default_rng(0)
    gold = np.full(n_rows, 2.0) if kind == "constant gold" else rng.uniform(0, 5, n_rows)
    off = {"noisy": rng.normal(size=n_rows), "exact": np.zeros(n_rows), "constant gold": rng.normal(size=n_rows)}[kind]
    words = np.full(n_rows, 3.0) if kind == "exact" else rng.integers(2, 30, n_rows).astype(float)
    texts = tuple((f"first {i}", f"second {i}") for i in range(n_rows))
    return Residuals(gold + off, gold, words, rng.uniform(size=n_rows), texts)


def autoencoders(n_layers: int, *, n_epochs: int = 3) -> dict[str, Any]:
    return {
        "layers": [f"block_{k:02d}" for k in range(n_layers)], "codes": [4] * n_layers,
        "best_epochs": [n_epochs] * n_layers,
        "held_out_losses": np.linspace(0.2, 0.6, n_layers).tolist(),
        "history": [{"train_loss": 1 / (k + 1), "held_out_loss": 0.9 / (k + 1)} for k in range(n_epochs)],
    }  # fmt: skip


def assert_drawn(path: Path) -> None:
    with Image.open(path) as image:
        assert min(image.size) > 300
        assert np.ptp(np.asarray(image.convert("L"))) > 100


@pytest.mark.parametrize(("n_rows", "kind"), [(60, "noisy"), (8, "noisy"), (30, "exact"), (30, "constant gold")])
def test_residuals_are_drawn(tmp_path: Path, n_rows: int, kind: str) -> None:
    before = dict(mpl.rcParams)
    draw_residuals(make_residuals(n_rows, kind=kind), tmp_path / "r.png", title="Residuals")
    assert_drawn(tmp_path / "r.png")
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(("n_layers", "n_epochs"), [(1, 1), (5, 3), (62, 20)])
def test_autoencoders_are_drawn(tmp_path: Path, n_layers: int, n_epochs: int) -> None:
    found = autoencoders(n_layers, n_epochs=n_epochs)
    draw_reconstruction(found, tmp_path / "a.png", title="Losses")
    draw_pretraining(found, tmp_path / "b.png", title="Fitting")
    assert_drawn(tmp_path / "a.png")
    assert_drawn(tmp_path / "b.png")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that were saved, in turn."""
    found: list[Figure] = []
    save = Figure.savefig

    def note(figure: Figure, *args: Any, **how: Any) -> None:
        found.append(figure)
        save(figure, *args, **how)

    monkeypatch.setattr(Figure, "savefig", note)
    return found


def test_panels_show_the_residuals_they_are_given(tmp_path: Path, drawn: list[Figure]) -> None:
    found = make_residuals(60)
    draw_residuals(found, tmp_path / "r.png", title="A title")
    [figure] = drawn
    histogram, quantiles, calibration, gold, words, overlap = figure.axes
    assert sum(bar.get_height() for bar in histogram.patches) == 60  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.asarray(quantiles.lines[0].get_ydata()), np.sort(found.values))
    np.testing.assert_allclose(np.asarray(calibration.lines[1].get_xydata()), np.transpose(found.calibration_curve()))
    for axes, side in ((gold, found.gold), (words, found.n_words), (overlap, found.overlap)):
        np.testing.assert_allclose(np.asarray(axes.lines[0].get_xydata()), np.transpose([side, found.values]))
    assert figure.get_suptitle() == "A title"


def test_the_reconstruction_shows_losses_and_widths(tmp_path: Path, drawn: list[Figure]) -> None:
    found = {**autoencoders(4), "codes": [2, 2, 6, 6]}
    draw_reconstruction(found, tmp_path / "a.png", title="Losses")
    losses, widths = drawn[0].axes
    np.testing.assert_allclose(np.asarray(losses.lines[0].get_ydata()), found["held_out_losses"])
    np.testing.assert_allclose(np.asarray(widths.lines[0].get_ydata()), found["codes"])
    assert losses.get_ylim()[0] == 0
