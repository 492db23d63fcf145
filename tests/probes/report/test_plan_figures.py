"""Figures of sweeps: every plan is in them, and every layer of every plan."""

from dataclasses import replace
from functools import partial

import matplotlib as mpl
import numpy as np
import pytest

from probes.heads.result import Curve, HeadResult
from probes.report.document import points_of
from probes.report.kind_reports import CLASSES_REPORT
from probes.report.plan_figures import (
    MOST_COLOURED,
    Points,
    _lines,
    best_scores,
    draw_layer_curves,
    draw_sweep,
    has_layer_curves,
    layer_curves_note,
)
from probes.report.scores import PlansScores
from probes.report.style import PALE, make_figure
from tests.probes.report.made_runs import NAN, make_result
from tests.probes.report.test_sweeps import OVER_K, WINDOWS, Plans, grid, make_plans


def points(plans: Plans) -> Points:
    return points_of(make_plans(plans), CLASSES_REPORT)


def test_windows_are_lines_over_their_last_block() -> None:
    assert _lines(points(WINDOWS), of_windows=True) == {
        "nosink-bidirectional, 2 blocks": {4: 60.0, 6: 70.0},
        "nosink-bidirectional, 3 blocks": {6: 65.0},
        "backward, 1 block": {6: 40.0},
    }
    assert _lines(points([*WINDOWS, ("backward:2", 0.3)]), of_windows=True) == {}
    assert _lines(points([("causal", 0.5)]), of_windows=True) == {}


def test_lines_over_k_begin_at_causal() -> None:
    found = _lines(points(OVER_K), of_windows=False)
    assert found["backward"] == pytest.approx({0: 50, 1: 60, 2: 70})
    assert found["bidirectional"] == pytest.approx({0: 50, 1: 55})
    assert _lines(points(WINDOWS), of_windows=False) == {}


@pytest.mark.parametrize(
    ("plans", "kind"),
    [
        (grid([1, 2, 3], [0, 1]), "heat map"),
        (grid([2], [1]), "heat map"),
        (grid([0, 1, 2], [0, 1, 2]), "heat map"),
        (grid([0, 1, 2, 3], [0]), "lines"),
        (OVER_K, "lines"),
        (WINDOWS, "lines"),
        ([*OVER_K, ("nosink-bidirectional:1+bidirectional:1", 0.8)], "bars"),
        ([*OVER_K, ("backward:1~skip3@1", 0.8)], "bars"),
        ([*WINDOWS, ("backward:2", 0.3)], "bars"),
        ([("causal", 0.5), ("[causal,backward]", 0.3)], "bars"),
    ],
    ids=["two k0", "one point", "grid", "k0 is 0", "over k", "windows", "k and combined", "skip", "mixed", "list"],
)
def test_every_plan_is_in_the_figure(plans: Plans, kind: str) -> None:
    axes = make_figure(partial(draw_sweep, label="accuracy"), points(plans), title="t").axes[0]
    assert kind == ("heat map" if axes.images else "lines" if axes.lines else "bars")
    if kind == "heat map":
        shown = [float(text.get_text()) for text in axes.texts]
    elif kind == "lines":
        shown = list({float(value) for line in axes.lines for value in np.asarray(line.get_ydata(), float)})
        assert all(float(tick).is_integer() for tick in axes.get_xticks())
    else:
        shown = [patch.get_width() for patch in axes.patches]  # type: ignore[attr-defined]
    assert sorted(shown) == pytest.approx(sorted(100 * score for _, score in plans), abs=0.06)


def with_curves(result: HeadResult) -> HeadResult:
    """Give a result two lines on validation, the better of which is its score at the top, and one on test."""
    best = result.selection_score
    curves = (
        Curve("C 1", "validation", "accuracy", (0.1, best)),
        Curve("C 2", "validation", "accuracy", (0.2, NAN)),
        Curve("C 1", "test", "accuracy", (0.9, 0.9)),
    )
    return replace(result, curves=curves, baselines={"majority": {"validation": 0.25}})


def sweep_with_curves(plans: Plans) -> PlansScores:
    scores = make_plans(plans)
    rows = tuple(replace(row, heads={"head": with_curves(row.heads["head"])}) for row in scores.plans)
    choice = replace(scores.chosen["head"], result=with_curves(scores.chosen["head"].result))
    return replace(scores, plans=rows, chosen={"head": choice})


def test_every_layer_of_every_plan_is_on_one_scale() -> None:
    plans = [("causal", 0.3), *((f"backward:{k}", 0.5 + 0.01 * k) for k in range(1, 12))]
    scores = sweep_with_curves(plans)
    assert scores.chosen["head"].plan.text == "backward:11"
    [axes] = make_figure(draw_layer_curves, scores, "head", title="t").axes
    lines = [line for line in axes.lines if len(np.asarray(line.get_ydata())) == 2 and line.get_marker() == "."]
    tops = sorted(float(np.asarray(line.get_ydata(), float)[1]) for line in lines)
    assert tops == pytest.approx(sorted(100 * score for _, score in plans))
    labels = {text.get_text().strip() for text in axes.texts}
    assert labels == {"causal", "majority", *(f"backward:{k}" for k in range(6, 12))}  # the best, and what is bare
    pale = [line for line in lines if mpl.colors.to_hex(line.get_color()) == PALE]
    assert len(pale) == len(plans) - MOST_COLOURED
    [thick] = [line for line in lines if line.get_linewidth() > 2]
    assert thick.get_label() == "backward:11"
    assert layer_curves_note(scores, "head") == (
        "thick: chosen, backward:11 at final_norm; pale: 5 other plans; the best of the head's values at each layer"
    )


def test_a_layer_has_the_best_score_on_validation() -> None:
    result = with_curves(make_result(score=0.5))
    np.testing.assert_allclose(best_scores(result), [0.2, 0.5])
    assert has_layer_curves(result)
    assert not has_layer_curves(replace(result, curves=result.curves[2:]))
    assert not has_layer_curves(replace(result, layers=("final_norm",)))


def test_plans_with_more_blocks_share_the_axis() -> None:
    scores = sweep_with_curves([("causal", 0.3), ("bidirectional:1", 0.5)])
    longer = replace(
        with_curves(make_result("head", 0.5, layers=("block_01", "block_02", "final_norm"))),
        curves=(Curve("", "validation", "accuracy", (0.1, 0.2, 0.3)),),
    )
    rows = (scores.plans[0], replace(scores.plans[1], heads={"head": longer}))
    [axes] = make_figure(draw_layer_curves, replace(scores, plans=rows), "head", title="t").axes
    ends = {str(line.get_label()): np.asarray(line.get_xdata()).tolist() for line in axes.lines}
    assert ends["causal"] == [0, 2]
    assert ends["bidirectional:1"] == [0, 1, 2]
