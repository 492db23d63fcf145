"""Maps of attention share one scale; blocks are counted in whole numbers."""

from functools import partial

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from probes.report.figures.attention import SHOWN, draw_maps, draw_sink_mass
from probes.report.figures.style import make_figure

BLOCKS = tuple(f"block_{k:02d}" for k in range(1, 31))


def shades(figure: Figure) -> list[float]:
    """Return how dark the darkest cell of every panel is, from 0 to 1."""
    return [float(np.max(image.norm(np.asarray(image.get_array())))) for axes in figure.axes for image in axes.images]


def test_uniform_attention_is_paler_than_a_sink() -> None:
    uniform, sink = torch.full((8, 8), 1 / 8), torch.zeros(8, 8)
    sink[:, 0] = 1.0
    pale, dark = shades(make_figure(draw_maps, torch.stack([uniform, sink]), BLOCKS[:2], title="t"))
    assert dark == 1.0
    assert pale == pytest.approx((1 / 8) ** 0.5)


def test_panels_are_named_and_few_and_have_one_key() -> None:
    figure = make_figure(draw_maps, torch.rand(30, 6, 6), BLOCKS, title="t")
    *maps, key = figure.axes
    assert len(maps) == SHOWN
    assert [axes.get_title() for axes in maps][:: len(maps) - 1] == ["block 01", "block 30"]
    assert key.get_ylabel().startswith("attention")
    assert all(float(tick).is_integer() for axes in maps for tick in (*axes.get_xticks(), *axes.get_yticks()))
    masks = make_figure(partial(draw_maps, label=""), torch.ones(3, 4, 4, dtype=torch.bool), BLOCKS[:3], title="t")
    assert len(masks.axes) == 3


def test_the_mass_on_the_first_tokens_is_over_blocks() -> None:
    [axes] = make_figure(draw_sink_mass, torch.rand(30, 4), title="t").axes
    assert [text.get_text().strip() for text in axes.texts] == [f"token {k}" for k in (1, 2, 3, 4)]
    assert np.asarray(axes.lines[0].get_xdata())[[0, -1]].tolist() == [1, 30]
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
