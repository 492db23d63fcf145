"""The figure of a sweep: what is drawn over what."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from extract.masks.grid import plans_over_k_and_k0
from probes.report import sweeps
from probes.report.figures import new_figure
from probes.report.sweeps import _windows, draw_sweep


def row(plan: str, score: float) -> dict[str, Any]:
    head = {"selection": "validation", "chosen": {"layer": "block_01", "score": score}}
    return {"plan": plan, "heads": {"token-classifier": head}}


WINDOWS = [
    row("causal", 0.5), row("nosink-bidirectional@3-4", 0.6), row("nosink-bidirectional@5-6", 0.7),
    row("nosink-bidirectional@4-6", 0.65), row("backward@6-6", 0.4),
]  # fmt: skip


def test_windows_are_lines_over_their_last_block() -> None:
    assert _windows(WINDOWS) == {
        "nosink-bidirectional, 2 blocks": {4: 60.0, 6: 70.0},
        "nosink-bidirectional, 3 blocks": {6: 65.0},
        "backward, 1 block": {6: 40.0},
    }
    assert _windows([*WINDOWS, row("backward:2", 0.3)]) == {}
    assert _windows([row("causal", 0.5)]) == {}


@pytest.mark.parametrize(
    "rows",
    [
        WINDOWS,
        [row("causal", 0.5), row("backward:1", 0.6), row("backward:2", 0.7)],
        [row(f"nosink-bidirectional:{k0}+bidirectional:{k}", 0.1 * (k + k0)) for k in range(3) for k0 in range(3)],
        [*WINDOWS, row("[causal,backward]", 0.3)],
    ],
    ids=["windows", "over k", "grid", "bars"],
)
def test_every_kind_of_sweep_is_drawn(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    draw_sweep(rows, tmp_path / "sweep.png", title="a title")
    with Image.open(tmp_path / "sweep.png") as image:
        assert np.ptp(np.asarray(image.convert("L"))) > 100


def grid_rows(ks: list[int], k0s: list[int]) -> list[dict[str, Any]]:
    return [row(plan.text, 0.01 * place) for place, plan in enumerate(plans_over_k_and_k0(ks, k0s), start=1)]


OVER_K = [row("causal", 0.5), row("backward:1", 0.6), row("backward:2", 0.7), row("bidirectional:1", 0.55)]
PARTLY = grid_rows([1, 2, 3], [0, 1])
"""Two values of k0 alone, with plans that are nosink above and bidirectional below."""


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (PARTLY, "heat map"),
        (grid_rows([2], [1]), "heat map"),
        (grid_rows([0, 1, 2], [0, 1, 2]), "heat map"),
        (grid_rows([0, 1, 2, 3], [0]), "lines"),
        (OVER_K, "lines"),
        (WINDOWS, "lines"),
        ([*OVER_K, row("nosink-bidirectional:1+bidirectional:1", 0.8)], "bars"),
        ([*OVER_K, row("backward:1~skip3@1", 0.8)], "bars"),
        ([*WINDOWS, row("backward:2", 0.3)], "bars"),
        ([row("causal", 0.5), row("[causal,backward]", 0.3)], "bars"),
    ],
    ids=["two k0", "one point", "grid", "k0 is 0", "over k", "windows", "k and combined", "skip", "mixed", "list"],
)
def test_every_plan_stands_in_the_figure(
    rows: list[dict[str, Any]], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Axes] = []

    def spy() -> tuple[Figure, Axes]:
        figure, axes = new_figure()
        drawn.append(axes)
        return figure, axes

    monkeypatch.setattr(sweeps, "new_figure", spy)
    draw_sweep(rows, tmp_path / "sweep.png", title="a title")
    [axes] = drawn
    assert kind == ("heat map" if axes.images else "lines" if axes.lines else "bars")
    if kind == "heat map":
        shown = [float(text.get_text()) for text in axes.texts]
    elif kind == "lines":
        shown = list({float(value) for line in axes.lines for value in np.asarray(line.get_ydata(), float)})
    else:
        shown = [patch.get_width() for patch in axes.patches]  # type: ignore[attr-defined]
    wanted = [100 * each["heads"]["token-classifier"]["chosen"]["score"] for each in rows]
    assert sorted(shown) == pytest.approx(sorted(wanted), abs=0.06)
