"""Figures show what they are given, whatever kind of head it is of; a new figure is a row."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from probes.heads.pairs.residuals import Residuals
from probes.heads.result import Curve
from probes.report import figures
from probes.report.figures import (
    FIGURES,
    FigureInput,
    HeadFigure,
    confusion,
    draw_confusion,
    draw_curves,
    draw_figures,
    draw_history,
    draw_losses,
    draw_parts,
    draw_row_scores,
)
from probes.report.residual_figure import draw_residuals
from probes.report.style import new_figure, save_figure
from tests.probes.report.made_runs import AUTOENCODERS, NAN, MadeRun, make_result

NAMES = {"test": ("O", "B-X")}


def drawn(draw: Any, *what: Any) -> Figure:
    figure = new_figure()
    draw(figure, *what)
    figure.canvas.draw()
    return figure


def values(line: Any) -> list[float]:
    return [float(value) for value in line.get_ydata()]


def make_input(**fields: Any) -> FigureInput:
    return FigureInput(make_result(**fields), "test", ())


def test_curves_show_every_line_of_the_metric_its_spread_and_the_majority() -> None:
    curves = (
        Curve("C 0.1", "validation", "accuracy", (0.4, 0.5), (0.1, 0.2)),
        Curve("C 1", "validation", "accuracy", (0.3, NAN)),
        Curve("C 1", "train", "accuracy", (0.9, 0.9)),
        Curve("C 1", "validation", "f1-macro", (0.8, 0.8)),
    )
    [axes] = drawn(draw_curves, make_input(curves=curves, baselines={"majority": {"validation": 0.25}})).axes
    labels = {str(line.get_label()): values(line) for line in axes.lines}
    assert list(labels) == ["C 0.1, validation", "C 1, validation", "majority, validation", "chosen"]
    np.testing.assert_allclose(labels["C 0.1, validation"], [40, 50])
    np.testing.assert_allclose(labels["C 1, validation"], [30, NAN])
    assert labels["majority, validation"] == [25, 25]
    assert np.asarray(axes.lines[3].get_xdata()).tolist() == [1, 1]  # the chosen final_norm
    [band] = axes.collections
    assert np.ptp(np.asarray(band.get_paths()[0].vertices)[:, 1]) == pytest.approx(40)  # 30 to 70
    assert axes.get_ylabel() == "accuracy x 100"


def test_many_lines_have_many_colours() -> None:
    curves = tuple(Curve(f"C {k}", "validation", "accuracy", (0.1, k / 20)) for k in range(12))
    [axes] = drawn(draw_curves, make_input(curves=curves, chosen={})).axes
    assert len({mpl.colors.to_hex(line.get_color()) for line in axes.lines}) == 12


def test_a_history_has_a_panel_for_the_loss_and_one_for_the_score() -> None:
    steps = ({"train_loss": 0.3, "validation_accuracy": NAN}, {"train_loss": 0.2, "validation_accuracy": 0.4})
    seeds = ({"seed": 0, "best_epoch": 2, "history": steps}, {"seed": 1, "best_epoch": 0, "history": steps[:1]})
    losses, scores = drawn(draw_history, make_input(seeds=seeds)).axes
    assert [values(line) for line in losses.lines] == [[0.3, 0.2], [0.3]]
    assert [values(line) for line in scores.lines] == [[40.0], [40.0], []]  # line and dot of seed 0
    assert scores.get_ylabel() == "validation accuracy x 100"
    released = ({**seeds[0], "history": ({"train_loss": 0.3}, {"train_loss": 0.1, "test_accuracy": 0.5})},)
    assert drawn(draw_history, make_input(seeds=released)).axes[1].get_ylabel() == "test accuracy x 100"
    words = ({**seeds[0], "history": ({"train_loss": 0.3, "best_layer_score": 0.9, "validation_score": 0.5},) * 2},)
    assert values(drawn(draw_history, make_input(seeds=words)).axes[1].lines[0]) == [50.0, 50.0]
    last = ({**seeds[0], "history": ({"train_loss": 0.3},)},)
    assert len(drawn(draw_history, make_input(seeds=last)).axes) == 1


def test_parts_of_a_head_have_a_panel_each() -> None:
    parts = {"layers": ["block_01", "final_norm"], "alone": [0.1, None], "without": [0.0, -0.2], "split": "validation"}
    alone, without = drawn(draw_parts, parts).axes
    np.testing.assert_allclose(values(alone.lines[0]), [10, NAN])
    assert [bar.get_height() for bar in without.patches] == [0, -20]  # type: ignore[attr-defined]
    assert [text.get_text() for text in without.get_xticklabels()] == ["01", "final_norm"]
    weights = drawn(draw_parts, {**parts, "weights": [0.25, 0.75]}).axes[0]
    assert [bar.get_height() for bar in weights.patches] == [0.25, 0.75]  # type: ignore[attr-defined]


def test_autoencoders_show_losses_widths_and_epochs() -> None:
    record = AUTOENCODERS["mean+last"]
    raw, losses, widths = drawn(draw_parts, record).axes
    assert values(raw.lines[0]) == record["held_out_squared_errors"]
    assert values(losses.lines[0]) == record["held_out_losses"]
    assert [bar.get_height() for bar in widths.patches] == record["codes"]  # type: ignore[attr-defined]
    [axes] = drawn(draw_losses, record).axes
    assert [values(line) for line in axes.lines[:2]] == [[0.9, 0.6], [0.8, 0.5]]
    assert [line.get_xdata()[0] for line in axes.lines[2:]] == [1, 2]  # type: ignore[index]
    assert axes.get_ylabel() == "mean squared error / variance, mean over layers"
    [axes] = drawn(draw_losses, {**record, "standardises_latents": False}).axes
    assert axes.get_ylabel() == "mean squared error, mean over layers"


def test_a_pooling_named_by_a_strange_cache_leads_nowhere(tmp_path: Path) -> None:
    found = next(iter(AUTOENCODERS.values()))
    (tmp_path / "run" / "figures").mkdir(parents=True)
    drawn = figures.draw_autoencoders(tmp_path / "run", {"autoencoders": {"../../x": found}})
    assert set(drawn.values()) == {"figures/autoencoder_______x.png", "figures/autoencoder_______x_history.png"}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_row_scores_are_an_empirical_distribution() -> None:
    scores = {"test": np.array([-0.5, NAN, -2.0, -0.5, 0.0])}
    found = make_input(row_scores=scores)
    [axes] = drawn(draw_row_scores, found).axes
    wanted = stats.ecdf(scores["test"][np.isfinite(scores["test"])]).cdf
    curve, mean = axes.lines
    for place in (-2.0, -1.0, -0.5, -0.1, 0.0):  # the last step at or before a place
        steps = np.asarray(curve.get_xydata())
        assert steps[steps[:, 0] <= place][-1][1] == pytest.approx(float(wanted.evaluate(place)))
    assert np.asarray(mean.get_xdata()).tolist() == [-0.75, -0.75]
    assert axes.get_xlabel().endswith("(n = 4 rows, 1 more without a score)")
    [row] = [each for each in FIGURES if each.stem == "rows"]
    assert row.applies(found)
    assert not row.applies(make_input(row_scores={"test": np.array([NAN])}))
    assert not row.applies(make_input())


def test_a_confusion_counts_gold_against_predicted() -> None:
    result = make_result(names=NAMES, predictions={"test": np.array([0, 1, 1, 1])})
    found = FigureInput(result, "test", ["O", "O", "B-X", "B-X"])
    assert confusion(found).tolist() == [[1, 1], [0, 2]]
    missing = replace(found, result=make_result(names=NAMES, predictions={"test": np.array([0, -1, 1, 1])}))
    assert confusion(missing).tolist() == [[1, 0, 1], [0, 2, 0]]
    axes = drawn(draw_confusion, missing).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["O", "B-X", "none"]
    np.testing.assert_allclose(np.asarray(axes.images[0].get_array()), np.array([[0.5, 0, 0.5], [0, 1, 0]]))


def test_names_that_do_not_fit_are_left_out() -> None:
    names = tuple(f"class {k}" for k in range(figures.MOST_NAMED + 1))
    result = make_result(names={"test": names}, predictions={"test": np.arange(len(names))})
    axes = drawn(draw_confusion, FigureInput(result, "test", names)).axes[0]
    assert not any(text.get_text().startswith("class") for text in axes.get_xticklabels())


def test_no_head_has_two_figures_of_one_name(made: MadeRun) -> None:
    for result in made.scores.heads.values():
        found = FigureInput(result, "test", (), None)
        stems = [each.stem for each in FIGURES if each.applies(found)]
        assert len(stems) == len(set(stems))


def test_a_new_figure_is_one_row_for_every_kind(made: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "figures").mkdir()
    row = HeadFigure("Rows of {head} ({split})", "rows", lambda _: True, lambda *_: None)
    monkeypatch.setattr(figures, "FIGURES", (row,))
    found = draw_figures(tmp_path, made.scores.heads, made.task, made.kind.report)
    assert found == {
        f"Rows of {name} (test)": f"figures/{name.replace('-', '_')}_rows.png" for name in made.scores.heads
    }
    assert all((tmp_path / file).is_file() for file in found.values())


def make_residuals(n_rows: int, *, kind: str = "noisy") -> Residuals:
    rng = np.random.default_rng(0)
    gold = np.full(n_rows, 2.0) if kind == "constant gold" else rng.uniform(0, 5, n_rows)
    off = np.zeros(n_rows) if kind == "exact" else rng.normal(size=n_rows)
    words = np.full(n_rows, 3.0) if kind == "exact" else rng.integers(2, 30, n_rows).astype(float)
    texts = tuple((f"first {i}", f"second {i}") for i in range(n_rows))
    return Residuals(gold + off, gold, words, rng.uniform(size=n_rows), texts)


@pytest.mark.parametrize(("n_rows", "kind"), [(60, "noisy"), (8, "noisy"), (30, "exact"), (30, "constant gold")])
def test_panels_show_the_residuals_they_are_given(n_rows: int, kind: str, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    found = make_residuals(n_rows, kind=kind)
    figure = drawn(draw_residuals, found)
    histogram, quantiles, calibration, gold, words, overlap = figure.axes
    assert sum(bar.get_height() for bar in histogram.patches) == n_rows  # type: ignore[attr-defined]
    np.testing.assert_allclose(values(quantiles.lines[0]), np.sort(found.values))
    np.testing.assert_allclose(np.asarray(calibration.lines[1].get_xydata()), np.transpose(found.calibration_curve()))
    for axes, side in ((gold, found.gold), (words, found.n_words), (overlap, found.overlap)):
        np.testing.assert_allclose(np.asarray(axes.lines[0].get_xydata()), np.transpose([side, found.values]))
    save_figure(figure, tmp_path / "r.png", title="A title")
    assert figure.get_suptitle() == "A title"
    assert dict(mpl.rcParams) == before
