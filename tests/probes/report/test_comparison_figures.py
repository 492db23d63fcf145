"""Figures of many runs show what they are given."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from probes.report.comparison_figures import (
    PARTS_OF_BLOCK,
    draw_centres,
    draw_layer_map,
    draw_runs,
    draw_weights,
    name_curves,
    runs_table,
)
from probes.report.style import make_figure, on_panel

CURVE = {"run": "r", "decoder": "tiny", "plan": "causal", "head": "h", "pooling": "mean", "metric": "accuracy"}


def frame(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([{**CURVE, **row} for row in rows])


LAYERS = frame(
    *({"task": "x", "depth": depth, "value": depth / 2, "share": depth} for depth in (0.0, 0.5, 1.0)),
    *({"task": "y", "depth": depth, "value": 0.9 - depth, "share": 1 - depth} for depth in (0.5, 1.0)),
)


def test_curves_are_named_by_what_tells_them_apart() -> None:
    assert list(name_curves(LAYERS)) == ["x", "y"]
    twice = frame({"task": "x"}, {"task": "x", "plan": "backward:1"}, {"task": "y", "head": "other"})
    assert list(name_curves(twice)) == ["x causal", "x backward:1", "y causal"]


def test_a_row_of_the_map_is_a_curve_on_its_own_scale() -> None:
    axes, key = make_figure(on_panel(draw_layer_map), LAYERS, title="t").axes
    first, second = axes.images
    np.testing.assert_array_equal(np.asarray(first.get_array()), [[0, 0.5, 1]])
    np.testing.assert_array_equal(np.asarray(second.get_array()), [[0.5, 0]])
    assert first.get_clim() == second.get_clim() == (0, 1)
    assert list(first.get_extent()[:2]) == [-0.25, 1.25]
    assert list(second.get_extent()[:2]) == [0.25, 1.25]
    assert [text.get_text().strip() for text in axes.texts] == ["0.0 to 50.0 accuracy", "-10.0 to 40.0 accuracy"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y"]
    assert [line.get_xdata()[0] for line in axes.lines] == [1, 0.5]  # type: ignore[index]
    assert "share" in key.get_xlabel()


def test_centres_are_sorted_and_have_bars_over_seeds() -> None:
    nan = float("nan")
    rows = frame(
        {"task": "deep", "centre": 0.8, "low": 0.7, "high": 0.9},
        {"task": "low", "centre": 0.2, "low": nan, "high": nan},
    )
    [axes] = make_figure(on_panel(draw_centres), rows, title="t").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["low", "deep"]
    dots = [line for line in axes.lines if len(np.asarray(line.get_xdata())) == 1]
    bars = [line for line in axes.lines if len(np.asarray(line.get_xdata())) == 2]
    assert [float(np.asarray(dot.get_xdata())[0]) for dot in dots] == [0.2, 0.8]
    assert np.asarray(bars[0].get_xdata()).tolist() == pytest.approx([0.7, 0.9])
    assert len(bars) == 1


def test_runs_are_drawn_from_the_frame_of_their_results() -> None:
    columns = ["record", "run", "layer", "curve", "value"]
    rows = [
        ("curve", "one", "block_01", "C 1", 0.2),
        ("curve", "one", "final_norm", "C 1", 0.4),
        ("curve", "one", "block_01", "C 2", 0.3),
        ("curve", "one", "final_norm", "C 2", float("nan")),
        ("curve", "two", "block_01", "", 0.5),
        ("curve", "two", "final_norm", "", 0.6),
        ("score", "one", "block_01", None, 0.3),
        ("score", "two", None, None, 0.6),
    ]
    frame = pd.DataFrame(rows, columns=columns).assign(metric="accuracy", split="validation")
    [axes] = make_figure(on_panel(draw_runs), frame, title="t").axes
    first, ring, second, no_ring = axes.lines
    assert np.asarray(first.get_ydata()).tolist() == pytest.approx([30, 40])
    assert np.asarray(second.get_ydata()).tolist() == pytest.approx([50, 60])
    assert np.asarray(ring.get_xydata()).tolist() == [[0, 30]]
    assert len(np.asarray(no_ring.get_xydata())) == 0
    assert axes.get_ylabel() == "accuracy x 100, validation"
    table = runs_table(frame)
    assert table.to_dict("list") == {"layer": ["block_01", "final_norm"], "one": ["30", "40"], "two": ["50", "60"]}
    other = frame.assign(layer=frame["layer"].where(frame["run"] == "one", "block_02")).iloc[:5]
    [axes] = make_figure(on_panel(draw_runs), other, title="t").axes
    assert axes.get_xlabel().startswith("relative depth")


def test_views_of_a_run_are_lines_beside_the_layers_of_another() -> None:
    layers = {"plain": ["block_01", "block_02"], "views": ["a/block_01", "a/block_02", "b/block_01", "b/block_02"]}
    rows = [("curve", run, layer, 0.1 * k) for run, names in layers.items() for k, layer in enumerate(names)]
    frame = pd.DataFrame([*rows, ("score", "views", "b/block_01", 0.2)], columns=["record", "run", "layer", "value"])
    [axes] = make_figure(on_panel(draw_runs), frame.assign(metric="accuracy", split="test"), title="t").axes
    lines, rings = axes.lines[::2], axes.lines[1::2]
    assert [np.asarray(line.get_xdata()).tolist() for line in lines] == [[0, 1]] * 3
    assert [np.asarray(ring.get_xydata()).tolist() for ring in rings] == [[], [], [[0, 20]]]
    assert {text.get_text().strip() for text in axes.texts} >= {"plain", "views, a", "views, b"}


@pytest.mark.parametrize(("cosine", "drawn"), [(0.9, "cosine"), (0.99999, "relative distance")])
def test_weights_that_hardly_differ_are_drawn_by_their_distance(cosine: float, drawn: str) -> None:
    rows = [(f"block_{k:02d}", part, cosine, 0.01) for k in (1, 2) for part in PARTS_OF_BLOCK]
    frame = pd.DataFrame(rows, columns=["layer", "part", "cosine", "distance"])
    [axes] = make_figure(on_panel(draw_weights), frame, title="t").axes
    assert axes.get_ylabel() == f"{drawn} of the weights"
    assert set(np.asarray(axes.lines[0].get_ydata())) == {cosine if drawn == "cosine" else 0.01}
