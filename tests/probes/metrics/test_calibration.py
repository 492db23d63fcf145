"""Calibration against numpy's least squares and scikit-learn's isotonic regression, and with an anchor."""

import json

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

from extract.errors import UnknownNameError
from extract.records import to_plain
from probes.metrics.prediction_metrics import (
    CALIBRATIONS,
    IsotonicCalibration,
    LinearCalibration,
    fit_calibration,
    fit_isotonic,
    fit_linear,
    read_calibration,
)

RANGE = (0.0, 5.0)


def draw(n_rows: int = 300, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Draw predictions as a head gives them, and gold that bends with them."""
    rng = np.random.default_rng(seed)
    predicted = rng.uniform(0.2, 0.9, n_rows).astype(np.float32)
    return predicted, np.clip(5 * predicted.astype(np.float64) ** 2 + rng.normal(size=n_rows), 0, 5)


@pytest.mark.parametrize("seed", range(3))
def test_equals_polyfit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    predicted = rng.uniform(size=80)
    gold = np.clip(4 * predicted + rng.normal(size=80), 0, 5)
    found = fit_linear(predicted, gold, score_range=(0.0, 5.0))
    slope, intercept = np.polyfit(predicted, gold, 1)
    assert [found.slope, found.intercept] == pytest.approx([slope, intercept])
    np.testing.assert_allclose(found(predicted), np.clip(slope * predicted + intercept, 0, 5))


def test_scores_stay_inside_the_range() -> None:
    calibrated = LinearCalibration(10.0, -2.0, 1.0, 4.0)(np.array([-1.0, 0.2, 0.45, 3.0]))
    np.testing.assert_allclose(calibrated, [1.0, 1.0, 2.5, 4.0])


@pytest.mark.parametrize("identical", [None, 0.3, 0.9])
def test_constant_predictions_give_the_mean_gold(identical: float | None) -> None:
    gold = np.array([0.0, 1.0, 2.0, 3.0, 5.0])
    line = fit_linear(np.full(5, 0.3, np.float32), gold, score_range=(0.0, 5.0), identical=identical)
    np.testing.assert_allclose(line(np.array([0.0, 0.3, 9.0])), 2.2)


def test_plain_values_build_it_again() -> None:
    found = fit_linear(np.arange(5, dtype=np.float32), np.arange(5.0), score_range=(0.0, 5.0))
    again = LinearCalibration(**to_plain(found))
    assert again == found
    assert all(type(value) is float for value in to_plain(found).values())


@pytest.mark.parametrize("seed", range(3))
def test_isotonic_equals_scikit_learn(seed: int) -> None:
    predicted, gold = draw(seed=seed)
    found = fit_isotonic(predicted, gold, score_range=RANGE)
    reference = IsotonicRegression(y_min=0, y_max=5, out_of_bounds="clip").fit(predicted.astype(np.float64), gold)
    asked = np.linspace(-0.5, 1.5, 301)
    np.testing.assert_allclose(found(asked), reference.predict(asked), atol=1e-9)


@pytest.mark.parametrize("identical", [None, 0.55, 0.95])
@pytest.mark.parametrize("seed", range(3))
def test_isotonic_never_falls_and_stays_inside_the_range(seed: int, identical: float | None) -> None:
    predicted, gold = draw(seed=seed)
    found = fit_isotonic(predicted, gold, score_range=RANGE, identical=identical)
    scores = found(np.linspace(-1, 2, 3001))
    assert (np.diff(scores) >= 0).all()
    assert scores.min() >= 0
    assert scores.max() <= 5
    assert scores[-1] > scores[0] + 1
    assert list(found.predictions) == sorted(found.predictions)


@pytest.mark.parametrize("kind", CALIBRATIONS)
def test_gold_outside_the_range_gives_no_score_outside_it(kind: str) -> None:
    predicted, gold = draw()
    scores = fit_calibration(kind, predicted, 3 * gold - 5, score_range=RANGE)(np.linspace(-1, 2, 301))
    assert scores.min() >= 0
    assert scores.max() <= 5


@pytest.mark.parametrize("identical", [0.95, 1.0, 0.85])
@pytest.mark.parametrize("kind", CALIBRATIONS)
def test_the_anchor_gets_the_highest_score(kind: str, identical: float) -> None:
    predicted, gold = draw()
    [free] = fit_calibration(kind, predicted, gold, score_range=RANGE)(np.array([identical]))
    anchored = fit_calibration(kind, predicted, gold, score_range=RANGE, identical=identical)
    assert free < 4.9  # otherwise this shows nothing
    np.testing.assert_allclose(anchored(np.array([identical])), 5.0, atol=1e-3)
    scores = anchored(np.linspace(0, identical, 500))
    assert (np.diff(scores) >= 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_an_anchored_line_is_the_best_of_all_lines_through_the_anchor(seed: int) -> None:
    predicted, gold = draw(seed=seed)
    found = fit_linear(predicted, gold, score_range=RANGE, identical=0.95)
    shifted = predicted.astype(np.float64)[:, None] - 0.95
    [slope], *_ = np.linalg.lstsq(shifted, gold - 5.0, rcond=None)
    assert [found.slope, found.intercept] == pytest.approx([slope, 5 - 0.95 * slope])
    assert found.slope * 0.95 + found.intercept == pytest.approx(5.0)


@pytest.mark.parametrize("identical", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_an_anchor_amid_the_predictions_gives_a_line_that_never_falls(seed: int, identical: float) -> None:
    """FREEZE's own head gives identical texts less than many pairs; a plain line through that point would fall."""
    predicted, gold = draw(seed=seed)
    found = fit_linear(predicted, gold, score_range=RANGE, identical=identical)
    assert found.slope > 0
    np.testing.assert_allclose(found(np.array([identical, 0.9, 1.0])), 5.0)

    # No other slope gives a line through the anchor, kept inside the range, with a smaller error.
    def error(slope: float) -> float:
        line = LinearCalibration(slope, 5 - slope * identical, -np.inf, 5.0)
        return float(((line(predicted) - gold) ** 2).sum())

    assert error(found.slope) <= min(error(found.slope * factor) for factor in (0.0, 0.5, 0.9, 1.1, 2.0))


def test_an_anchored_line_over_falling_gold_does_not_fall() -> None:
    predicted = np.linspace(0.1, 0.9, 50)
    gold = 5 - 5 * predicted
    for identical in (0.05, 0.1, 0.3, 0.95):
        found = fit_linear(predicted, gold, score_range=RANGE, identical=identical)
        assert found.slope >= 0
        np.testing.assert_allclose(found(np.array([identical, 1.0])), 5.0)


def test_an_anchor_below_every_prediction_leaves_one_score() -> None:
    predicted, gold = draw()
    for kind in CALIBRATIONS:
        found = fit_calibration(kind, predicted, gold, score_range=RANGE, identical=0.1)
        np.testing.assert_allclose(found(predicted), 5.0, atol=1e-3)


def test_an_anchored_curve_stays_near_the_free_one_below() -> None:
    predicted, gold = draw()
    asked = np.linspace(0.2, 0.8, 50)
    free, anchored = (fit_isotonic(predicted, gold, score_range=RANGE, identical=i)(asked) for i in (None, 1.0))
    np.testing.assert_allclose(free, anchored, atol=1e-9)


@pytest.mark.parametrize("kind", CALIBRATIONS)
@pytest.mark.parametrize("identical", [None, 0.95])
def test_a_calibration_goes_to_json_and_back(kind: str, identical: float | None) -> None:
    predicted, gold = draw()
    found = fit_calibration(kind, predicted, gold, score_range=RANGE, identical=identical)
    assert type(found) is {"linear": LinearCalibration, "isotonic": IsotonicCalibration}[kind]
    again = read_calibration(json.loads(json.dumps(to_plain(found))))
    assert again == found
    asked = np.linspace(-1, 2, 100)
    np.testing.assert_array_equal(again(asked), found(asked))


def test_constant_predictions_give_the_mean_gold_on_any_curve() -> None:
    gold = np.array([0.0, 1.0, 2.0, 3.0, 5.0])
    for kind in CALIBRATIONS:
        found = fit_calibration(kind, np.full(5, 0.3, np.float32), gold, score_range=RANGE)
        np.testing.assert_allclose(found(np.array([0.0, 0.3, 9.0])), 2.2)


def test_an_unknown_kind_is_named() -> None:
    predicted, gold = draw()
    with pytest.raises(
        UnknownNameError, match=r"unknown calibration 'isotone': did you mean 'isotonic'\? Allowed: lin"
    ):
        fit_calibration("isotone", predicted, gold, score_range=RANGE)
