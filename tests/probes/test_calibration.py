"""Calibration against numpy's least squares."""

import numpy as np
import pytest

from probes.calibration import LinearCalibration, fit_linear


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


def test_constant_predictions_give_the_mean_gold() -> None:
    found = fit_linear(np.full(5, 0.3, np.float32), np.array([0.0, 1.0, 2.0, 3.0, 5.0]), score_range=(0.0, 5.0))
    np.testing.assert_allclose(found(np.array([0.0, 0.3, 9.0])), 2.2)


def test_plain_values_build_it_again() -> None:
    found = fit_linear(np.arange(5, dtype=np.float32), np.arange(5.0), score_range=(0.0, 5.0))
    again = LinearCalibration(**found.to_dict())
    assert again == found
    assert all(type(value) is float for value in found.to_dict().values())
