"""The figure of a sweep: what is drawn over what."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

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
