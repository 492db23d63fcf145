"""Ranks on a common scale, centres of gravity and paired layers, on numbers worked out by hand."""

import numpy as np
import pytest
from scipy.stats import rankdata

from probes.metrics.significance import centre_of_gravity, normalised_ranks

RNG = np.random.default_rng(0)


def test_evenly_spaced_scores_have_their_ranks() -> None:
    values = np.array([[0.9, 10.0], [0.7, 30.0], [0.8, 20.0]])
    expected = np.stack([rankdata(-column) - 1 for column in values.T], axis=1)
    np.testing.assert_allclose(normalised_ranks(values), expected)


def test_ranks_follow_distances_and_scales_do_not_matter() -> None:
    values = RNG.normal(size=(5, 3))
    found = normalised_ranks(values)
    np.testing.assert_allclose(found, normalised_ranks(values * [1, 100, 0.1] + [0, 50, -2]))
    assert found.min(axis=0).tolist() == [0, 0, 0]
    assert found.max(axis=0).tolist() == [4, 4, 4]
    assert normalised_ranks(np.array([[1.0], [0.99], [0.0]]))[1, 0] == pytest.approx(0.02)


def test_equal_systems_and_missing_scores_have_no_rank() -> None:
    assert np.isnan(normalised_ranks(np.ones((3, 1)))).all()
    assert np.isnan(normalised_ranks(np.array([[1.0], [np.nan]]))).all()


def test_the_centre_is_where_the_score_is_gained() -> None:
    depths = np.linspace(0, 1, 5)
    step = np.array([0.1, 0.1, 0.1, 0.6, 0.6])
    assert float(centre_of_gravity(step, depths)) == 0.75
    line = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    assert float(centre_of_gravity(line, depths)) == pytest.approx(np.mean([0.25, 0.5, 0.75, 1]))
    assert float(centre_of_gravity(np.array([0.2, 0.4, 0.1, 0.4, 0.3]), depths)) == 0.25  # a dip gains nothing back
    assert np.isnan(centre_of_gravity(line[::-1], depths))  # the lowest layer is the best
    many = centre_of_gravity(np.stack([step, line]), depths)
    assert many.tolist() == [0.75, 0.625]
    missing = np.array([0.1, np.nan, 0.1, 0.6, 0.6])
    assert float(centre_of_gravity(missing, depths)) == 0.75
    assert float(centre_of_gravity(np.array([np.nan, 0.1, 0.1, 0.6, 0.6]), depths)) == 0.75
    assert np.isnan(centre_of_gravity(np.full(5, np.nan), depths))
