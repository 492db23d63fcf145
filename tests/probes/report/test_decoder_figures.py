"""Figures of geometry show what they are given, on axes that can be used by themselves."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from probes.report.comparison_figures import (
    MOST_PANELS,
    draw_geometry,
    draw_maps,
    draw_measure,
    draw_similarity,
    draw_sink_mass,
    split_series,
)
from probes.report.style import make_figure, on_panel

LAYERS = ("embedding", "block_01", "block_02", "final_norm")
WHERE = {"cache": "c", "decoder": "tiny", "plan": "causal", "pooling": "mean"}


def rows(measure: str, *values: float, half: float = 0.5, **where: str) -> list[dict[str, Any]]:
    return [
        {
            **WHERE,
            **where,
            "layer": layer,
            "depth": k / 3,
            "measure": measure,
            "value": value,
            "low": value - half,
            "high": value + half,
            "n_rows": 100,
        }
        for k, (layer, value) in enumerate(zip(LAYERS, values, strict=False))
    ]


def test_lines_are_named_by_what_tells_them_apart() -> None:
    one, last = rows("norm", 1.0, 2.0), rows("norm", 1.0, 2.0, pooling="last")
    assert list(split_series(pd.DataFrame(one))) == ["causal"]
    assert list(split_series(pd.DataFrame([*one, *last]))) == ["mean", "last"]
    other = rows("norm", 1.0, 2.0, cache="d")
    assert list(split_series(pd.DataFrame([*one, *other]))) == ["c", "d"]
    both = rows("norm", 1.0, 2.0, cache="d", plan="backward:1")
    assert list(split_series(pd.DataFrame([*one, *both]))) == ["causal", "backward:1"]


def test_a_measure_is_drawn_into_axes_that_are_given_and_returned() -> None:
    axes = Figure().subplots()
    frame = pd.DataFrame(rows("effective-rank", 4, 3, 2, 1))
    assert draw_measure(axes, frame, "effective-rank") is axes
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == [4, 3, 2, 1]
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert (band[:, 1].min(), band[:, 1].max()) == (0.5, 4.5)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["emb", "1", "2", "norm"]
    assert axes.get_ylabel() == "dimensions"
    assert not axes.texts  # one line needs no label


def test_norms_show_the_quantiles_of_rows() -> None:
    norms = [rows("norm-q05", 1, 2, 3, 4), rows("norm-median", 10, 20, 30, 40), rows("norm-q95", 50, 60, 70, 80)]
    axes = draw_measure(Figure().subplots(), pd.DataFrame([row for each in norms for row in each]), "norm-median")
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert (band[:, 1].min(), band[:, 1].max()) == (1, 80)
    assert axes.get_yscale() == "log"


def test_decoders_of_other_depths_share_relative_depth() -> None:
    frame = pd.DataFrame([*rows("norm", 1, 2, 3, 4), *rows("norm", 5, 6, decoder="small", cache="d")])
    axes = draw_measure(Figure().subplots(), frame, "norm")
    assert np.asarray(axes.lines[1].get_xdata()).tolist() == pytest.approx([0, 1 / 3])
    assert axes.get_xlabel().startswith("relative depth")


def test_panels_are_filled_and_gold_takes_the_place_of_the_spare_one() -> None:
    measures = (
        "mean-cosine",
        "norm-median",
        "massive-share",
        "effective-rank",
        "participation-ratio",
        "intrinsic-dimension",
    )
    frame = pd.DataFrame([row for name in measures for row in rows(name, 1, 2, 3, 4)])
    gold = pd.concat([frame, pd.DataFrame(rows("gold-pearson", 0.1, 0.2, 0.3, 0.4))])
    plain, with_gold = Figure(), Figure()
    draw_geometry(plain, frame)
    draw_geometry(with_gold, gold)
    titles = [[axes.get_title(loc="left") for axes in each.axes] for each in (plain, with_gold)]
    assert [len(each) for each in titles] == [6, 6]
    assert set(titles[0]) - set(titles[1]) == {"participation ratio"}
    assert titles[1][-1] == "cosine of pairs against gold"


def similarity(**other: str) -> pd.DataFrame:
    there = {**WHERE, **other}
    return pd.DataFrame(
        [
            {
                **WHERE,
                "layer": one,
                **{f"other_{key}": value for key, value in there.items()},
                "other_layer": two,
                "value": np.nan if two == "embedding" else 0.25 * i,
                "n_rows": 50,
            }
            for i, one in enumerate(LAYERS)
            for two in LAYERS
        ]
    )


def test_similarity_has_one_scale_and_says_what_is_on_each_side() -> None:
    axes, key = make_figure(on_panel(draw_similarity), similarity(plan="backward:1"), title="t").axes
    [image] = axes.images
    values: Any = np.ma.filled(np.ma.asarray(image.get_array()), np.nan)
    np.testing.assert_array_equal(values[:, 1], [0, 0.25, 0.5, 0.75])
    assert np.isnan(values[:, 0]).all()
    assert image.get_clim() == (0, 1)
    assert axes.get_ylabel().startswith("causal, block")
    assert axes.get_xlabel().startswith("backward:1, block")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["emb", "1", "2", "norm"]
    assert key.get_ylabel() == "debiased linear CKA"
    alone = draw_similarity(Figure().subplots(), similarity(), has_key=False)
    assert alone.get_xlabel().startswith("block")


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
    assert len(maps) == MOST_PANELS
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
