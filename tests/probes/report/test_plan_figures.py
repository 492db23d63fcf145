"""Figures of sweeps: every plan is in them, and every layer of every plan."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from probes.heads.result import Curve, HeadResult
from probes.report.comparison_figures import (
    MOST_COLOURED,
    best_scores,
    draw_plan_curves,
    draw_search,
    draw_sweep,
    has_layer_curves,
    plan_curves_frame,
    plan_curves_note,
    plan_curves_table,
    search_frame,
    search_table,
    sweep_frame,
)
from probes.report.document import plan_scores
from probes.report.kind_reports import REPORTS
from probes.report.scores import PlansScores
from probes.report.style import PALE, make_figure
from tests.probes.report.made_plans import OVER_K, WINDOWS, Plans, grid, make_plans, make_search
from tests.probes.report.made_runs import NAN, make_result


def frame_of(plans: Plans) -> pd.DataFrame:
    return sweep_frame(make_plans(plans), REPORTS["classes"])


def test_windows_are_placed_over_their_last_block() -> None:
    frame = frame_of(WINDOWS)
    assert frame["plan"].tolist() == [text for text, _ in WINDOWS]
    assert frame["form"].tolist() == ["causal", *["window"] * 4]
    assert frame["line"].tolist() == [
        "",
        "nosink-bidirectional, 2 blocks",
        "nosink-bidirectional, 2 blocks",
        "nosink-bidirectional, 3 blocks",
        "backward, 1 block",
    ]
    assert frame["x"].tolist() == [0, 4, 6, 6, 6]
    assert frame["score"].tolist() == pytest.approx([50, 60, 70, 65, 40])


def test_lines_over_k_begin_at_causal() -> None:
    axes = make_figure(draw_sweep, frame_of(OVER_K), title="t").axes[0]
    lines = {str(line.get_label()): np.asarray(line.get_xydata()) for line in axes.lines}
    np.testing.assert_allclose(lines["backward"], [[0, 50], [1, 60], [2, 70]])
    np.testing.assert_allclose(lines["bidirectional"], [[0, 50], [1, 55]])


def test_a_grid_is_a_frame_of_k_and_k0() -> None:
    frame = frame_of([*grid([2], [1]), ("[causal,backward]", 0.5)])
    assert frame[["k", "k0"]].iloc[0].tolist() == [2, 1]
    assert frame["k"].isna().tolist() == [False, True]
    assert frame["form"].iloc[1] == ""


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
    axes = make_figure(draw_sweep, frame_of(plans).rename(columns={"score": "accuracy"}), title="t").axes[0]
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
    [axes] = make_figure(draw_plan_curves, plan_curves_frame(scores, "head"), title="t").axes
    lines = [line for line in axes.lines if len(np.asarray(line.get_ydata())) == 2 and line.get_marker() == "."]
    tops = sorted(float(np.asarray(line.get_ydata(), float)[1]) for line in lines)
    assert tops == pytest.approx(sorted(100 * score for _, score in plans))
    labels = {text.get_text().strip() for text in axes.texts}
    assert labels == {"causal", "majority", *(f"backward:{k}" for k in range(6, 12))}  # the best, and what is bare
    pale = [line for line in lines if mpl.colors.to_hex(line.get_color()) == PALE]
    assert len(pale) == len(plans) - MOST_COLOURED
    [thick] = [line for line in lines if line.get_linewidth() > 2]
    assert thick.get_label() == "backward:11"
    assert plan_curves_note(scores, "head") == (
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
    [axes] = make_figure(draw_plan_curves, plan_curves_frame(replace(scores, plans=rows), "head"), title="t").axes
    ends = {str(line.get_label()): np.asarray(line.get_xdata()).tolist() for line in axes.lines}
    assert ends["causal"] == [0, 2]
    assert ends["bidirectional:1"] == [0, 1, 2]


def test_the_tables_of_plans_are_those_of_the_frames() -> None:
    scores = sweep_with_curves([("causal", 0.3), ("backward:1", 0.5)])
    table = plan_curves_table(plan_curves_frame(scores, "head"))
    assert table.columns.name == "accuracy x 100, validation"
    assert table.to_dict("records") == [
        {"layer": "block_01", "backward:1": "20", "causal": "20", "majority": 25.0},
        {"layer": "final_norm", "backward:1": "50", "causal": "30", "majority": 25.0},
    ]
    searched = make_plans([("causal", 0.9)], search=make_search(["backward:1", "causal"]), cost=None)
    assert searched.search
    frame = search_frame(searched.search, "causal")
    assert frame["is_found"].tolist() == [False, True, True]
    table = search_table(frame).fillna("")
    assert table.to_dict("list") == {
        "plan": ["backward:1", "causal"],
        "trial 1, 16 rows": ["0", "10"],
        "trial 2, 2,000 rows": ["", "90"],
    }
    assert len(make_figure(draw_search, frame, title="t").axes) == 1  # no key, since the plans are on no grid
    assert list(plan_scores(scores, REPORTS["classes"]).values()) == pytest.approx([30, 50])
