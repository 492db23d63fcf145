"""Figures of heads show what they are given, whatever kind of head it is of; a new figure is a row."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from probes.heads.result import Curve, Residuals
from probes.report import run_figures as heads
from probes.report.document import Context
from probes.report.run_figures import (
    FIGURES,
    MOST_NAMED,
    FigureInput,
    HeadFigure,
    confusion_frame,
    curve_frame,
    curve_table,
    draw_autoencoders,
    draw_confusion,
    draw_curves,
    draw_figures,
    draw_history,
    draw_losses,
    draw_parts,
    draw_residuals,
    draw_row_scores,
    group_means,
    history_frame,
    history_table,
    loss_frame,
    parts_frame,
    residual_frame,
    residual_table,
    rows_frame,
    rows_note,
)
from probes.report.style import PALE, Album, make_figure
from tests.probes.report.made_runs import AUTOENCODERS, NAN, MadeRun, make_result


def drawn(draw: Any, frame: pd.DataFrame | None) -> Figure:
    return make_figure(draw, frame, title="A title")


def values(line: Any) -> list[float]:
    return [float(value) for value in line.get_ydata()]


def make_input(**fields: Any) -> FigureInput:
    return FigureInput(make_result(**fields), "test", ())


def texts(axes: Any) -> list[str]:
    return [text.get_text().strip() for text in axes.texts]


def test_curves_show_every_line_of_the_metric_its_spread_the_majority_and_the_choice() -> None:
    curves = (
        Curve("standardised", "validation", "accuracy", (0.4, 0.5), (0.1, 0.2)),
        Curve("raw", "validation", "accuracy", (0.3, NAN)),
        Curve("raw", "train", "accuracy", (0.9, 0.9)),
        Curve("raw", "validation", "f1-macro", (0.8, 0.8)),
    )
    result = make_result(
        curves=curves, baselines={"majority": {"validation": 0.25}}, chosen={"layer": "final_norm", "kind": "raw"}
    )
    [axes] = drawn(draw_curves, curve_frame(result)).axes
    labels = {str(line.get_label()): line for line in axes.lines}
    np.testing.assert_allclose(values(labels["standardised"]), [40, 50])
    np.testing.assert_allclose(values(labels["raw"]), [30, NAN])
    assert labels["raw"].get_linewidth() > labels["standardised"].get_linewidth()
    assert [25, 25] in [values(line) for line in axes.lines]
    assert [1, 1] in [np.asarray(line.get_xdata()).tolist() for line in axes.lines]  # the chosen final_norm
    assert {"standardised", "raw", "majority", "chosen: final_norm, raw"} == set(texts(axes))
    band = axes.collections[0]
    assert np.ptp(np.asarray(band.get_paths()[0].vertices)[:, 1]) == pytest.approx(40)  # 30 to 70
    assert axes.get_ylabel() == "accuracy x 100"
    whiskers = [mark.lines[2][0].get_segments()[0].tolist() for mark in axes.containers]  # type: ignore[attr-defined]
    np.testing.assert_allclose(whiskers, [[[0.98, 40], [0.98, 60]], [[1.02, 40], [1.02, 60]]])
    notes = [row.note(FigureInput(result, "test", ())) for row in FIGURES if row.draw is draw_curves]
    assert "circle: validation 50.0 (40.0 to 60.0), diamond: test 50.0 (40.0 to 60.0)" in notes[0]


def test_the_curves_of_a_penalty_are_the_best_one_with_a_band() -> None:
    curves = (
        Curve("C 0.1", "validation", "accuracy", (0.4, NAN, 0.2)),
        Curve("C 1", "validation", "accuracy", (0.3, 0.6, 0.5)),
    )
    layers = ("block_01", "block_02", "final_norm")
    result = make_result(curves=curves, layers=layers, chosen={"layer": "block_02", "C": 1.0})
    frame = curve_frame(result)
    assert frame is not None
    [axes] = drawn(draw_curves, frame).axes
    [line] = [line for line in axes.lines if line.get_label() == "best C"]
    np.testing.assert_allclose(values(line), [40, 60, 50])
    corners = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert {(0.0, 30.0), (0.0, 40.0), (2.0, 20.0), (2.0, 50.0)} <= {(x, round(y, 6)) for x, y in corners.tolist()}
    assert list(curve_table(frame)) == ["layer", "C 1, validation", "C 0.1, validation"]
    notes = [row.note(FigureInput(result, "test", ())) for row in FIGURES if row.draw is draw_curves]
    assert "band: from the best to the worst of 2 values of C" in notes[0]


def test_a_baseline_far_below_the_curves_is_named_and_squeezes_nothing() -> None:
    curve = Curve("", "validation", "accuracy", (0.8, 0.9))
    far = make_result(curves=(curve,), summary={}, baselines={"majority": {"validation": 0.05}})
    [axes] = drawn(draw_curves, curve_frame(far)).axes
    assert "majority 5.0 ↓" in texts(axes)
    assert axes.get_ylim()[0] > 70
    near = make_result(curves=(curve,), summary={}, baselines={"majority": {"validation": 0.79}})
    assert "majority" in texts(drawn(draw_curves, curve_frame(near)).axes[0])


def test_the_heads_of_a_run_share_the_scale_of_their_curves(pairs: MadeRun, tmp_path: Path) -> None:
    limits: dict[str, set[tuple[float, ...]]] = {}

    def keep(figure: Figure, title: str, note: str, table: Any) -> None:
        del note, table
        for axes in figure.axes:
            if "score of each layer" in title or "What each layer gives" in title:
                limits.setdefault(axes.get_ylabel(), set()).add(axes.get_ylim())

    first = pairs.scores.heads["layer-cosine"]
    lower = replace(first, curves=tuple(replace(c, values=tuple(v / 2 for v in c.values)) for c in first.curves))
    made = replace(pairs.scores, heads={"layer-cosine": first, "again": lower}, baselines={})
    context = Context(made, pairs.kind.report.rows(pairs.task), pairs.kind.report)
    draw_figures(Album(tmp_path, (), keep), context)
    assert limits
    assert {len(both) for both in limits.values()} == {1}


@pytest.mark.parametrize(("lowest", "is_near"), [(-0.1, True), (0.1, True), (0.6, False)])
def test_a_correlation_is_compared_with_0_where_that_is_near(lowest: float, is_near: bool) -> None:
    curve = Curve("", "validation", "pearson", (lowest, 0.7))
    [axes] = drawn(draw_curves, curve_frame(make_result(metric="pearson", curves=(curve,), summary={}))).axes
    assert ("chance" in texts(axes)) is is_near


def test_of_curves_of_one_name_the_first_is_drawn() -> None:
    curves = tuple(Curve("", "validation", "accuracy", values) for values in ((0.1, 0.2), (0.3, 0.4)))
    frame = curve_frame(make_result(curves=curves))
    assert frame is not None
    assert curve_table(frame)["validation"].tolist() == ["10", "20"]
    np.testing.assert_allclose(values(drawn(draw_curves, frame).axes[0].lines[0]), [10, 20])


def test_lines_of_several_poolings_do_not_join() -> None:
    layers = ("mean/block_01", "mean/final_norm", "last/block_01", "last/final_norm")
    curve = Curve("", "validation", "accuracy", (0.1, 0.2, 0.3, 0.4))
    [axes] = drawn(draw_curves, curve_frame(make_result(curves=(curve,), layers=layers, chosen={}))).axes
    np.testing.assert_allclose(values(axes.lines[0]), [10, 20, NAN, 30, 40])
    assert {"mean", "last"} < set(texts(axes))


def test_lines_beyond_the_palette_are_pale() -> None:
    curves = tuple(Curve(f"way {k}", "validation", "accuracy", (0.1, k / 20)) for k in range(12))
    [axes] = drawn(draw_curves, curve_frame(make_result(curves=curves, chosen={"kind": "way 11"}))).axes
    colours = {str(line.get_label()): mpl.colors.to_hex(line.get_color()) for line in axes.lines}
    assert colours["way 11"] == "#0072b2"
    assert len(set(colours.values())) == 8
    assert list(colours.values()).count(PALE) == 5


def test_a_history_has_a_panel_for_the_loss_and_one_for_the_score() -> None:
    steps = ({"train_loss": 0.3, "validation_accuracy": NAN}, {"train_loss": 0.2, "validation_accuracy": 0.4})
    seeds = ({"seed": 0, "best_epoch": 2, "history": steps}, {"seed": 1, "best_epoch": 0, "history": steps[:1]})
    losses, scores = drawn(draw_history, history_frame(make_result(seeds=seeds))).axes
    assert [values(line) for line in losses.lines] == [[0.3, 0.2], [0.3]]
    assert [values(line) for line in scores.lines] == [[40.0], [40.0], []]  # line and dot of seed 0
    assert scores.get_ylabel() == "validation accuracy x 100"
    released = ({**seeds[0], "history": ({"train_loss": 0.3}, {"train_loss": 0.1, "test_accuracy": 0.5})},)
    assert drawn(draw_history, history_frame(make_result(seeds=released))).axes[1].get_ylabel() == "test accuracy x 100"
    words = ({**seeds[0], "history": ({"train_loss": 0.3, "best_layer_score": 0.9, "validation_score": 0.5},) * 2},)
    assert values(drawn(draw_history, history_frame(make_result(seeds=words))).axes[1].lines[0]) == [50.0, 50.0]
    last = ({**seeds[0], "history": ({"train_loss": 0.3},)},)
    assert len(drawn(draw_history, history_frame(make_result(seeds=last))).axes) == 1


def test_parts_of_a_head_have_a_panel_each() -> None:
    parts = {"layers": ["block_01", "final_norm"], "alone": [0.1, None], "without": [0.0, -0.2], "split": "validation"}
    alone, without = drawn(draw_parts, parts_frame(parts)).axes
    np.testing.assert_allclose(values(alone.lines[0]), [10, NAN])
    assert [bar.get_height() for bar in without.patches] == [0, -20]  # type: ignore[attr-defined]
    assert [text.get_text() for text in without.get_xticklabels()] == ["1", "norm"]
    weights = drawn(draw_parts, parts_frame({**parts, "weights": [0.25, 0.75]})).axes[0]
    assert [bar.get_height() for bar in weights.patches] == [0.25, 0.75]  # type: ignore[attr-defined]


def test_autoencoders_show_losses_widths_and_epochs() -> None:
    record = AUTOENCODERS["mean+last"]
    raw, losses, widths = drawn(draw_parts, parts_frame(record)).axes
    np.testing.assert_allclose(values(raw.lines[0]), np.insert(record["held_out_squared_errors"], 2, NAN))
    np.testing.assert_allclose(values(losses.lines[0]), np.insert(record["held_out_losses"], 2, NAN))
    assert [bar.get_height() for bar in widths.patches] == record["codes"]  # type: ignore[attr-defined]
    [axes] = drawn(draw_losses, loss_frame(record)).axes
    assert [values(line) for line in axes.lines[:2]] == [[0.9, 0.6], [0.8, 0.5]]
    assert [line.get_xdata()[0] for line in axes.lines[2:]] == [1, 2]  # type: ignore[index]
    assert axes.get_ylabel() == "mean squared error / variance"
    without: Any = {**record, "standardises_latents": False}
    [axes] = drawn(draw_losses, loss_frame(without)).axes
    assert axes.get_ylabel() == "mean squared error"


def test_a_pooling_named_by_a_strange_cache_leads_nowhere(tmp_path: Path) -> None:
    found = next(iter(AUTOENCODERS.values()))
    album = Album(tmp_path / "run")
    draw_autoencoders(album, {"autoencoders": {"../../x": found}}, plan="causal")
    files = {"figures/autoencoder_______x.png", "figures/autoencoder_______x_history.png"}
    assert {file for drawn in album.drawn.values() for file in drawn} == files
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_row_scores_are_an_empirical_distribution() -> None:
    scores = np.array([-0.5, NAN, -2.0, -0.5, 0.0])
    [axes] = drawn(draw_row_scores, rows_frame(scores)).axes
    wanted = stats.ecdf(scores[np.isfinite(scores)]).cdf
    curve, mean = axes.lines
    for place in (-2.0, -1.0, -0.5, -0.1, 0.0):  # the last step at or before a place
        steps = np.asarray(curve.get_xydata())
        assert steps[steps[:, 0] <= place][-1][1] == pytest.approx(100 * float(wanted.evaluate(place)))
    assert np.asarray(mean.get_xdata()).tolist() == [-0.75, -0.75]
    assert texts(axes) == ["mean -0.75"]
    assert rows_note(scores) == "4 rows, 1 more without a score"


@pytest.mark.parametrize(
    ("scores", "applies"), [([-0.5, NAN, -2.0, 0.0], True), ([0.0, 1.0, 1.0, NAN], False), ([NAN], False), ([], False)]
)
def test_rows_that_are_right_or_wrong_have_no_distribution(scores: list[float], applies: bool) -> None:
    [row] = [each for each in FIGURES if each.stem == "rows"]
    assert (row.frame(make_input(row_scores={"test": np.array(scores)})) is not None) is applies


def test_a_confusion_counts_gold_against_predicted() -> None:
    names, gold = ("O", "B-X"), ["O", "O", "B-X", "B-X"]
    assert confusion_frame(names, gold, np.array([0, 1, 1, 1])).to_numpy().tolist() == [[1, 1], [0, 2]]
    missing = confusion_frame(names, gold, np.array([0, -1, 1, 1]))
    assert missing.to_numpy().tolist() == [[1, 0, 1], [0, 2, 0]]
    axes = drawn(draw_confusion, 1000 * missing).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["O", "B-X", "none"]
    np.testing.assert_allclose(np.asarray(axes.images[0].get_array()), np.array([[0.5, 0, 0.5], [0, 1, 0]]))
    assert texts(axes) == ["1,000", "0", "1,000", "0", "2,000", "0"]


def test_names_that_do_not_fit_are_left_out() -> None:
    names = tuple(f"class {k}" for k in range(MOST_NAMED + 1))
    axes = drawn(draw_confusion, pd.DataFrame(np.eye(len(names), dtype=np.int64), names, names)).axes[0]
    labels = [text.get_text().replace("\N{MINUS SIGN}", "-") for text in axes.get_xticklabels()]
    assert labels
    assert all(float(label) == int(label) for label in labels)
    assert not axes.texts
    long = drawn(draw_confusion, pd.DataFrame(np.eye(2, dtype=np.int64), *[["short", 40 * "x"]] * 2)).axes[0]
    assert [text.get_text() for text in long.get_yticklabels()] == ["short", 21 * "x" + "…"]


def test_no_head_has_two_figures_of_one_name(made: MadeRun) -> None:
    for result in made.scores.heads.values():
        gold = [result.names["test"][0]] * len(result.predictions["test"]) if result.names else ()
        source = FigureInput(result, "test", gold, None)
        stems = [row.stem for row in FIGURES if row.frame(source) is not None]
        assert len(stems) == len(set(stems))


def test_a_new_figure_is_one_row_for_every_kind(made: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = HeadFigure("Rows of {head}, {split}", "rows", lambda _: pd.DataFrame(), lambda *_: None)
    monkeypatch.setattr(heads, "FIGURES", (row,))
    album = Album(tmp_path)
    draw_figures(album, Context(made.scores, made.kind.report.rows(made.task), made.kind.report))
    assert album.drawn == {
        f"Rows of {name}, test, plan causal": (f"figures/{name.replace('-', '_')}_rows.png",)
        for name in made.scores.heads
    }
    assert all((tmp_path / file).is_file() for files in album.drawn.values() for file in files)


def make_residuals(n_rows: int, *, kind: str = "noisy") -> Residuals:
    rng = np.random.default_rng(0)
    gold = np.full(n_rows, 2.0) if kind == "constant gold" else rng.uniform(0, 5, n_rows)
    off = np.zeros(n_rows) if kind == "exact" else rng.normal(size=n_rows)
    words = np.full(n_rows, 3.0) if kind == "exact" else rng.integers(2, 30, n_rows).astype(float)
    texts = tuple((f"first {i}", f"second {i}") for i in range(n_rows))
    return Residuals(gold + off, gold, words, rng.uniform(size=n_rows), texts)


@pytest.mark.parametrize(("n_rows", "kind"), [(60, "noisy"), (8, "noisy"), (30, "exact"), (30, "constant gold")])
def test_panels_show_the_residuals_they_are_given(n_rows: int, kind: str) -> None:
    found = make_residuals(n_rows, kind=kind)
    histogram, quantiles, calibration, gold, words, overlap = drawn(draw_residuals, residual_frame(found)).axes
    assert sum(bar.get_height() for bar in histogram.patches) == n_rows  # type: ignore[attr-defined]
    np.testing.assert_allclose(values(quantiles.lines[0]), np.sort(found.values))
    x, y, _ = group_means(found.predicted, found.gold, max(2, n_rows // 10))
    np.testing.assert_allclose(np.asarray(calibration.lines[1].get_xydata()), np.transpose([x, y]))
    for axes, side in ((gold, found.gold), (words, found.n_words), (overlap, found.overlap)):
        np.testing.assert_allclose(np.asarray(axes.lines[0].get_xydata()), np.transpose([side, found.values]))
    assert gold.get_ylim() == words.get_ylim() == overlap.get_ylim()


def test_bins_and_groups_follow_the_number_of_rows() -> None:
    few, many = (drawn(draw_residuals, residual_frame(make_residuals(n_rows))).axes for n_rows in (40, 2500))
    assert len(few[0].patches) < len(many[0].patches) <= 60
    assert [len(np.asarray(axes[2].lines[1].get_xydata())) for axes in (few, many)] == [4, 12]


GOLD = np.array([5.0, 4.0, 0.0, 1.0, 2.5, 2.0, 3.0, 1.5])
PREDICTED = np.array([3.0, 4.5, 0.5, 1.5, 2.0, 4.5, 2.5, 1.25])


@pytest.mark.parametrize(
    ("n_groups", "predicted", "gold"),
    [
        (1, [2.46875], [2.375]),
        # sorted by prediction: rows 2 7 3 4 6 0 1 5
        (2, [1.3125, 3.625], [1.25, 3.5]),
        (3, [3.25 / 3, 2.5, 4.5], [2.5 / 3, 3.5, 3.0]),  # the larger groups first
    ],
)
def test_groups_have_equal_sizes(n_groups: int, predicted: list[float], gold: list[float]) -> None:
    x, y, _ = group_means(PREDICTED, GOLD, n_groups)
    np.testing.assert_allclose(x, predicted)
    np.testing.assert_allclose(y, gold)


def test_means_of_groups_have_intervals() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=400)
    middles, means, sizes = group_means(x, 3 * x + rng.normal(size=400), 4)
    np.testing.assert_allclose(middles, [0.125, 0.375, 0.625, 0.875], atol=0.05)
    assert (np.abs(means - 3 * middles) < 2 * sizes).all()
    np.testing.assert_allclose(sizes, 1.96 / 10, rtol=0.25)
    assert [len(each) for each in group_means(x[:3], x[:3], 5)] == [3, 3, 3]


def test_the_tables_of_a_run_are_those_of_the_frames() -> None:
    curves = (
        Curve("C 0.1", "validation", "accuracy", (0.4, NAN), (0.1, 0.0)),
        Curve("C 1", "validation", "accuracy", (0.3, 0.123456)),
    )
    result = make_result(curves=curves, baselines={"majority": {"validation": 0.25}}, chosen={"C": 1.0})
    frame = curve_frame(result)
    assert frame is not None
    table = curve_table(frame)
    assert table.columns.name == "accuracy x 100"
    assert table.to_dict("list") == {
        "layer": ["block_01", "final_norm"],
        "C 1, validation": ["30", "12.35"],
        "C 0.1, validation": ["40 ± 10", ""],
        "majority": [25.0, 25.0],
    }
    steps = ({"train_loss": 0.3, "validation_accuracy": 0.5}, {"train_loss": 0.2, "validation_accuracy": 0.4})
    seeds = tuple({"seed": seed, "best_epoch": 2, "history": steps} for seed in (0, 3))
    history = history_frame(make_result(seeds=seeds))
    assert history is not None
    assert history["is_kept"].tolist() == [False, True, False, True]
    assert list(history_table(history)) == [
        "epoch",
        "training loss, seed 0",
        "training loss, seed 3",
        "validation accuracy x 100, seed 0",
        "validation accuracy x 100, seed 3",
    ]
    residuals = make_residuals(40)
    table = residual_table(residual_frame(residuals))
    bars = table[table["of"] == "number of rows"]
    assert bars["mean, or number"].sum() == 40
    means = table[table["of"] == "gold"]
    np.testing.assert_allclose(means["mean, or number"], group_means(residuals.predicted, residuals.gold, 4)[1])
