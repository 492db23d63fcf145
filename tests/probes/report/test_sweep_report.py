"""Frames, figures and report of sweeps over axes, of a sweep made by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probes.data.task import TOO_NARROW
from probes.report.blocks import Table
from probes.report.document import plans_lead
from probes.report.scores import Lead, PointGap
from probes.report.style import Album, make_figure, on_panel
from probes.report.sweep_document import grid_document, grid_lead, seen_on
from probes.report.sweep_figures import (
    MOST_PANELS,
    draw_gains,
    draw_grid,
    draw_layer_maps,
    draw_numbers,
    draw_points,
    layer_table,
    numbers_of,
    panel_axes,
)
from probes.report.sweep_frames import COLUMNS, gains_frame, layer_scores, points_frame, score_rows
from tests.probes.report.made_grid import AXES, LAYERS, make_grid


def test_the_frame_has_a_column_per_axis_and_a_row_per_number() -> None:
    frame = points_frame(make_grid())
    assert list(frame.columns) == ["plan", "encoder", *(name for name in COLUMNS if name != "plan")]
    curves = frame[(frame["record"] == "curve") & (frame["split"] == "validation")]
    assert len(curves) == 6 * len(LAYERS)
    assert curves[curves["layer"] == "final_norm"]["depth"].eq(1.0).all()
    scores = frame[(frame["record"] == "score") & (frame["split"] == "validation")]
    assert scores["gap"].isna().tolist() == [True, *[False] * 5]
    assert scores["is_reference"].tolist() == [True, *[False] * 5]
    assert scores["is_chosen"].tolist() == [*[False] * 5, True]


@pytest.mark.parametrize(
    ("axes", "n_panels", "rows"),
    [
        ({"encoder": ("plain", "echo", "last")}, 1, "encoder"),
        (AXES, 2, "encoder"),
        ({**AXES, "seed": ("0", "1")}, 4, "encoder"),
    ],
)
def test_layers_are_drawn_over_one_axis_and_the_others_are_panels_of_one_scale(
    axes: dict[str, tuple[str, ...]], n_panels: int, rows: str
) -> None:
    frame = layer_scores(points_frame(make_grid(axes)), "head", "accuracy")
    assert panel_axes(frame)[0] == rows
    figure = make_figure(draw_layer_maps, frame, title="t")
    panels = [panel for panel in figure.axes if panel.images]
    assert len(panels) == n_panels
    assert {image.get_clim() for panel in panels for image in panel.images} == {
        (100 * frame["value"].min(), 100 * frame["value"].max())
    }
    drawn = np.concatenate([np.asarray(image.get_array()).ravel() for panel in panels for image in panel.images])
    assert sorted(drawn) == pytest.approx(sorted(100 * frame["value"]))
    stars = [line for panel in panels for line in panel.lines if line.get_marker() == "*"]
    [star] = stars
    best = frame.loc[frame["value"].idxmax()]
    assert float(np.asarray(star.get_xdata())[0]) == LAYERS.index(best["layer"])
    rings = [line for panel in panels for line in panel.lines if line.get_marker() == "o"]
    assert len(rings) == 1
    assert list(layer_table(frame).columns) == ["layer", *dict.fromkeys(frame["point"])]


def test_of_very_many_panels_the_choice_and_the_best_are_drawn(tmp_path: Path) -> None:
    axes = {name: tuple(f"{name}{number}" for number in range(4)) for name in "abc"}
    scores = make_grid(axes)
    frame = layer_scores(points_frame(scores), "head", "accuracy")
    figure = make_figure(draw_layer_maps, frame, title="t")
    panels = [panel for panel in figure.axes if panel.images]
    assert len(panels) == MOST_PANELS
    marks = [line.get_marker() for panel in panels for line in panel.lines]
    assert (marks.count("*"), marks.count("o")) == (1, 1)  # the chosen point is the last of 16 panels
    album = Album(tmp_path, ("svg",))
    draw_grid(album, scores)
    assert "4 more panels in the table alone" in (tmp_path / "layers_head.svg").read_text(encoding="utf-8")


def test_points_of_another_metric_have_figures_of_their_own(tmp_path: Path) -> None:
    scores = make_grid({"task": ("one", "two")})
    first, other = scores.plans
    result = first.heads["head"]
    summary = {split: {"pearson": score} for split, parts in result.summary.items() for score in parts.values()}
    curves = tuple(replace(curve, metric="pearson") for curve in result.curves)
    first = replace(first, heads={"head": replace(result, metric="pearson", summary=summary, curves=curves)})
    album = Album(tmp_path, ("png",))
    draw_grid(album, replace(scores, plans=(first, other)))
    drawn = {"layers_head", "points_head", "layers_head_pearson", "points_head_pearson"}
    assert {path.stem for path in tmp_path.iterdir()} == drawn
    assert len(album.drawn) == len(drawn)


def test_a_layer_without_a_score_leaves_its_place_empty() -> None:
    frame = layer_scores(points_frame(make_grid({"encoder": ("plain", "last")})), "head", "accuracy")
    frame.loc[0, "value"] = np.nan
    figure = make_figure(draw_layer_maps, frame, title="t")
    first = np.asarray(figure.axes[0].images[0].get_array(), float).ravel()
    assert np.isnan(np.ma.filled(first, np.nan)[0])
    assert len(first) == len(LAYERS)


def test_every_point_is_drawn_with_its_interval() -> None:
    rows = score_rows(points_frame(make_grid()), "head", "accuracy")
    axes = make_figure(draw_points, rows, title="t").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(dict.fromkeys(rows["point"]))


def test_numbers_are_drawn_as_a_line_in_their_order() -> None:
    frame = score_rows(points_frame(make_grid({"ratio": ("0", "1", "0.5")})), "head", "accuracy")
    assert numbers_of(frame["ratio"]) == {"0": 0.0, "1": 1.0, "0.5": 0.5}
    axes = make_figure(on_panel(draw_numbers), frame, title="t").axes[0]
    line = next(line for line in axes.lines if str(line.get_label()) == "validation")
    np.testing.assert_allclose(np.asarray(line.get_xydata(), float), np.array([[0, 50], [0.5, 52], [1, 51]]))
    steps = score_rows(points_frame(make_grid({"step": ("step512", "step4000")})), "head", "accuracy")
    assert numbers_of(steps["step"]) == {"step512": 512.0, "step4000": 4000.0}
    assert numbers_of(steps["point"].str.replace("step", "x:y")) == {}
    signed = numbers_of(pd.Series(["-1", "k=-2.5", "step-512", "3"]))
    assert signed == {}, "names before numbers differ"
    assert numbers_of(pd.Series(["-1", ".5", "1e-3"])) == {"-1": -1.0, ".5": 0.5, "1e-3": 1e-3}
    assert numbers_of(pd.Series(["k=-2.5", "k=3"])) == {"k=-2.5": -2.5, "k=3": 3.0}
    assert numbers_of(pd.Series(["step-512", "step-8"])) == {"step-512": 512.0, "step-8": 8.0}
    assert numbers_of(pd.Series(["qwen-0.6", "llama-1"])) == {}


def test_gains_are_drawn_with_their_mean_last() -> None:
    frame = gains_frame(make_grid())
    axes = make_figure(on_panel(draw_gains), frame, title="t").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "other", "third", "mean"]


def test_the_first_sentence_names_the_winner_and_says_whether_it_is_certain() -> None:
    scores = make_grid()
    assert "n = 60) over the reference, `plan=causal, encoder=plain` (50.0), a certain gain." in grid_lead(scores)
    assert grid_lead(scores).startswith("The best of 6 points is `plan=backward:1, encoder=last`, with the head `head`")
    assert (
        "Over 3 tasks, chosen on the task one, a gain was seen on 2 of 3 and is certain, each by itself"
        in grid_lead(scores)
    )
    assert ", on 1: +5.0 on average" in grid_lead(scores)
    choice = scores.chosen["head"]
    unsure = replace(scores, chosen={"head": replace(choice, lead=Lead(0.05, -0.02, 0.12, 60))})
    assert "so the gain is **not certain**" in grid_lead(unsure)
    lost = replace(scores, chosen={"head": replace(choice, lead=Lead(-0.05, -0.12, -0.02, 60))})
    assert "**worse** than the reference" in grid_lead(lost)
    assert "(50.0), so choosing gained nothing" in grid_lead(lost)
    few = replace(scores, chosen={"head": replace(choice, lead=Lead(0.05, 0.02, 0.12, 9))})
    assert "too few rows" in grid_lead(few)
    assert "a certain gain" not in grid_lead(few)
    first = scores.plans[0]
    assert scores.grid is not None
    [transfer] = scores.grid.transfers
    small = replace(transfer, parts=tuple(replace(part, n_units=8) for part in transfer.parts))
    assert ", on 0: " in seen_on(small)
    chose, *others = transfer.parts
    unseen = replace(transfer, parts=(replace(chose, is_chosen_on=True), *others))
    assert seen_on(unseen).startswith(
        "With the point chosen on the task one, over the 2 other tasks, a gain was seen on 1 of 2"
    )
    alone = replace(transfer, parts=(replace(chose, is_chosen_on=True), others[0]))
    assert (
        "over the other task, a gain was seen on 1 of 1 and is certain, each by itself, on 0: +5.0 (-5.0 to +15.0)."
        in seen_on(alone)
    )
    assert "different metrics" not in seen_on(transfer)
    mixed = replace(transfer, parts=(chose, replace(others[0], metric="f1-macro")))
    assert "on average, in points of different metrics, spread" in seen_on(mixed)
    by = replace(scores, grid=replace(scores.grid, choose_by="sources"))
    assert "The best of 6 plans, by the mean over sources, is `backward:1`, with" in plans_lead(by)
    assert "the next plan" not in plans_lead(by)
    assert grid_lead(by).startswith(
        "The best of 6 points, by the mean over sources, is `plan=backward:1, encoder=last`"
    )
    same = replace(scores, chosen={"head": replace(choice, point=first.point, result=first.heads["head"])})
    assert "which is the reference itself" in grid_lead(same)
    assert "On validation, 1 of the 5 other points is statistically tied with it" in grid_lead(scores)
    task: Any = {**scores.header.task, "shared_rows": {"test": f"test: 9 of 60 rows share a text and are {TOO_NARROW}"}}
    linked = replace(scores, header=replace(scores.header, task=task))
    assert "a gain whose interval is too narrow, as most rows share texts" in grid_lead(linked)
    assert any("not independent" in str(block) for block in grid_document(linked).blocks)
    of_tasks = replace(scores, grid=replace(scores.grid, task_axis="encoder"))
    assert "the reference, `plan=causal, encoder=last` (50.0)" in grid_lead(of_tasks)  # on the task of the choice
    assert "The reference is `plan=causal`." in grid_document(of_tasks).blocks
    at_reference = replace(choice, point={"plan": "causal", "encoder": "last"}, lead=None)
    assert "which is the reference itself" in grid_lead(replace(of_tasks, chosen={"head": at_reference}))
    choices = [
        block for block in grid_document(replace(scores, chosen={"head 1": choice})).blocks if isinstance(block, Table)
    ]
    assert choices[0].rows[0][0] == "head 1, there head"  # where points have heads of other names
    early = replace(scores, grid=replace(scores.grid, tied={}))
    assert "tied with" not in grid_lead(early)


def test_a_gap_is_certain_after_correction_and_with_enough_units() -> None:
    gap = PointGap({}, "head", "validation", 0.1, 0.05, 0.15, p_value=0.001, p_corrected=0.01, n_units=60)
    assert gap.is_certain
    assert not replace(gap, p_corrected=0.06).is_certain
    assert not replace(gap, n_units=29).is_certain


def test_the_report_lists_every_point_and_what_failed() -> None:
    texts = [str(block) for block in grid_document(make_grid()).blocks]
    assert any("encoder=broken` **failed**: it has no weights" in text for text in texts)
    assert any("backward:1" in text and "echo" in text for text in texts)
