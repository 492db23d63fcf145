"""The numbers of a figure are those that were drawn."""

import numpy as np
from matplotlib.figure import Figure

from extract.masks.plan import parse_plan
from probes.report import style
from probes.report.blocks import Table
from probes.report.numbers import Numbers, numbers_of
from probes.report.plan_figures import draw_sweep
from probes.report.run_figures import draw_confusion

LAYERS = ("embedding", "block_01", "final_norm")


def of(draw: style.Draw, *what: object) -> tuple[Numbers, ...]:
    return numbers_of(style.make_figure(draw, *what, title="t"))


def draw_layers(figure: Figure) -> None:
    first, second = style.panels(figure, 2, sharex=True)
    style.draw_line(first, range(3), [1, np.nan, 3], colour="k", label="a\nb", spread=[0.5, 0.5, 0.25])
    style.draw_line(first, range(3), [4, 5, 6], colour="k")
    style.draw_level(first, 0.125, "majority")
    first.axvline(1)
    first.plot(1, 5, "o")
    first.set_ylabel("score\nx 100")
    bars = second.bar(range(3), [1.0, -2.0, 0.5])
    second.errorbar(range(3), [1.0, -2.0, 0.5], [[0.5] * 3, [1.0] * 3], fmt="none", label="interval")
    del bars
    second.set_ylabel("gain")
    style.mark_layers(second, LAYERS)


def test_lines_bands_levels_bars_and_whiskers() -> None:
    first, second = of(draw_layers)
    assert first == Numbers(
        "score x 100",
        Table(
            ("layer", "a b", "score x 100", "a b ± 1 SD", "majority"),
            [
                ("embedding", "1", "4", "0.5 to 1.5", "0.125"),
                ("block_01", "", "5", "", "0.125"),
                ("final_norm", "3", "6", "2.75 to 3.25", "0.125"),
            ],
        ),
    )
    assert second.table == Table(
        ("layer", "gain", "interval"),
        [("embedding", "1", "0.5 to 2"), ("block_01", "-2", "-2.5 to -1"), ("final_norm", "0.5", "0 to 1.5")],
    )


def test_lying_bars_are_named() -> None:
    plans = [parse_plan(text) for text in ("causal", "backward:1", "backward:1+bidirectional:2")]
    [found] = of(lambda figure: draw_sweep(figure, dict(zip(plans, (50.0, 60.0, 55.0), strict=True)), label="score"))
    assert found.table.columns[1:] == ("score",)
    assert [tuple(row) for row in found.table.rows] == [
        ("causal", "50"),
        ("backward:1", "60"),
        (plans[2].text, "55"),
    ]


def test_a_matrix_has_what_is_written_in_its_cells() -> None:
    [found] = of(draw_confusion, np.array([[9, 1], [0, 3000]]), ["a", "b"])
    assert found.table.columns == ("gold \\ predicted", "a", "b")
    assert [tuple(row) for row in found.table.rows] == [("a", "9", "1"), ("b", "0", "3,000")]


def test_very_many_points_are_left_out() -> None:
    assert not of(lambda figure: style.panel(figure).plot(range(400), range(400)))
    assert not of(lambda figure: style.panel(figure).imshow(np.zeros((40, 40))))
