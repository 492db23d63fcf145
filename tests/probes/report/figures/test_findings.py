"""Figures of findings: every value where its layer is, the set shaded, intervals and units named."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from probes.layers.findings import VIEWS
from probes.report.figures.findings import draw_agreement, draw_alone, draw_view, findings_note, shade_set
from probes.report.figures.style import make_figure, panel
from tests.probes.report.made_findings import GAINS, LAYERS, ORDER, SCORES, make_findings

FINDINGS = make_findings()


@pytest.fixture
def axes() -> Axes:
    return panel(Figure())


def test_single_layers_have_their_set_shaded_and_controls_beside_them(axes: Axes) -> None:
    assert draw_alone(axes, FINDINGS) is axes
    shades = [
        (patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches if isinstance(patch, Rectangle)
    ]
    assert shades == [(4.5, 8.5), (12.5, 13.5)]
    lines = {line.get_label(): line for line in axes.get_lines()}
    np.testing.assert_allclose(np.asarray(lines["alone"].get_ydata(), float), 100 * np.array(SCORES))
    assert {"control, word types", "control, shuffled gold"} <= set(lines)
    assert lines["alone"].get_linestyle() != lines["control, word types"].get_linestyle()
    assert axes.get_ylabel() == "Pearson x 100"


def test_gains_are_bars_with_intervals_around_zero(axes: Axes) -> None:
    draw_view(axes, FINDINGS, "shapley")
    heights = [bar.get_height() for bar in axes.containers[0]]
    np.testing.assert_allclose(heights, 100 * np.array(GAINS))
    assert any(isinstance(each, ErrorbarContainer) for each in axes.containers)
    assert axes.get_ylabel() == "Shapley value,\nPearson x 100"


@pytest.mark.parametrize(
    ("view", "label", "ticks"),
    [
        ("shapley-group", "Shapley value of a group,\nPearson x 100", ["embedding", "lower half", "upper half"]),
        ("greedy", "Pearson x 100", [layer.replace("_", " ") for layer in ORDER]),
        ("new-information", "new information,\nbits", None),
        ("mix", "weight", None),
        ("without", "lost without,\nretrained,\nPearson x 100", None),
    ],
)
def test_every_view_names_its_layers_and_its_unit(view: str, label: str, ticks: list[str] | None, axes: Axes) -> None:
    draw_view(axes, FINDINGS, view)
    assert axes.get_ylabel() == label
    names = [text.get_text() for text in axes.get_xticklabels()]
    assert names == ticks if ticks else {"emb", "norm"} <= set(names)
    curve = FINDINGS.curve(view)
    assert curve
    assert [axes.format_xdata(k) for k in range(len(curve.layers))] == list(curve.layers)


def test_agreement_has_its_intervals_and_the_views_that_were_compared(axes: Axes) -> None:
    draw_agreement(axes, FINDINGS)
    written = sorted(text.get_text() for text in axes.texts)
    assert written == sorted(2 * ["+0.82\n0.60 to 0.93", "-0.15\n-0.60 to 0.35", "+0.40\n-0.10 to 0.70"])
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "alone",
        "Shapley value",
        "lost without,\nretrained",
    ]
    low, high = axes.images[0].get_clim()
    assert (low, high) == (-1, 1)


def test_the_note_says_sample_size_and_level(axes: Axes) -> None:
    assert findings_note(FINDINGS, has_set=True) == (
        "cosine-mlp, pooling mean; intervals: 95 % for all layers together, drawn from 1,379 rows of test; shaded: the "
        "layers that cannot be told from the best (circle)"
    )
    assert "shaded" not in findings_note(FINDINGS)
    assert len(shade_set(axes, make_findings(best_set=LAYERS)).patches) == 1


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_can_be_drawn_in_the_style_of_the_house(view: str) -> None:
    curve = make_findings().curves[0]
    findings = make_findings(curves=(type(curve)(view, "accuracy", LAYERS, SCORES),))
    figure = make_figure(lambda figure: draw_view(panel(figure), findings, view), title="t")
    assert figure.axes[0].get_ylabel()


def test_baselines_are_levels_beside_the_layers(axes: Axes) -> None:
    draw_alone(axes, FINDINGS)
    levels = {line.get_label(): np.asarray(line.get_ydata(), float)[0] for line in axes.get_lines()}
    assert levels["bag-of-words"] == pytest.approx(35)
    assert levels["<majority>"] == pytest.approx(20)
