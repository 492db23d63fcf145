"""Measures of clouds whose geometry is known in closed form."""

import numpy as np
import pytest
from numpy.typing import NDArray

from probes.layers.geometry import (
    FAMILIES,
    MEASURES,
    jackknife,
    massive_dimensions,
    mean_cosine,
    measure_rows,
    norm_profile,
    ranks,
)

RNG = np.random.default_rng(0)
GROUPS = np.arange(400) % 10


def cloud(n: int = 400, d: int = 12) -> NDArray[np.float64]:
    return np.random.default_rng(n + d).normal(size=(n, d))


def test_the_mean_cosine_is_that_of_all_pairs() -> None:
    x = cloud(30, 5) + 1
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[np.triu_indices(30, 1)]
    assert mean_cosine(x)["mean-cosine"] == pytest.approx(cosines.mean())


def test_isotropic_rows_have_no_common_direction_and_shifted_ones_have() -> None:
    [isotropic] = measure_rows(cloud(), GROUPS, ["cosine"]).values()
    assert isotropic.low < 0 < isotropic.high
    assert isotropic.high - isotropic.low < 0.02
    shifted = mean_cosine(cloud() + 10)["mean-cosine"]
    assert shifted == pytest.approx(100 / 101, abs=0.002)  # |mean|^2 over mean |x|^2


def test_a_row_of_zeros_points_nowhere() -> None:
    x = np.ones((11, 3))
    x[0] = 0
    assert mean_cosine(x)["mean-cosine"] == pytest.approx(10 * 9 / (11 * 10))


def test_the_norm_profile_is_that_of_the_norms() -> None:
    x = np.diag(np.arange(1.0, 102.0))
    assert norm_profile(x) == {"norm": 51.0, "norm-q05": 6.0, "norm-median": 51.0, "norm-q95": 96.0}


def test_a_planted_massive_dimension_is_found_with_its_share() -> None:
    x = cloud()
    assert massive_dimensions(x).tolist() == []
    x[:, 7] *= 100
    assert massive_dimensions(x).tolist() == [7]
    found = measure_rows(x, GROUPS, ["massive"])
    squares = np.square(x).sum(axis=0)
    assert found["massive-dimensions"][:1] == (1.0,)
    assert found["massive-share"].value == pytest.approx(squares[7] / squares.sum())
    assert massive_dimensions(x, multiple=1000.0).tolist() == []


def test_the_ranks_of_a_known_spectrum() -> None:
    left = np.linalg.qr(cloud(40, 4) - cloud(40, 4).mean(axis=0))[0]
    singular = np.array([8.0, 4.0, 2.0, 2.0])
    right = np.linalg.qr(cloud(12, 12))[0][:4]
    found = ranks(left * singular @ right + 5)  # centred, so that a common shift does not matter
    shares = singular / singular.sum()
    assert found["effective-rank"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-6)
    variances = singular**2
    assert found["participation-ratio"] == pytest.approx(variances.sum() ** 2 / (variances**2).sum())
    assert np.isnan(ranks(np.ones((5, 3)))["effective-rank"])


@pytest.mark.parametrize("n", [400, 20])  # more rows than dimensions, and fewer
def test_leaving_out_groups_of_a_spectrum_is_computing_it_without_them(n: int) -> None:
    x, groups = cloud(n, 30), np.arange(n) % 10
    whole, *parts = FAMILIES["rank"](x, groups)
    assert whole == pytest.approx(ranks(x))
    for number, part in enumerate(parts):
        assert part == pytest.approx(ranks(x[groups != number]))


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    x = RNG.normal(size=1000)
    without = np.array([np.delete(x, np.arange(k, 1000, 10)).mean() for k in range(10)])
    found = jackknife(float(x.mean()), without)
    means = x.reshape(100, 10).mean(axis=0)  # of the groups
    error = means.std(ddof=1) / np.sqrt(10)
    assert found.high - found.value == pytest.approx(2.262157 * error)
    assert found.value - found.low == pytest.approx(2.262157 * error)


@pytest.mark.slow
def test_intervals_of_the_mean_cosine_have_their_coverage() -> None:
    shift = np.full(12, 0.5)
    truth = mean_cosine(np.random.default_rng(99).normal(size=(200_000, 12)) + shift)["mean-cosine"]
    found = [
        measure_rows(np.random.default_rng(k).normal(size=(200, 12)) + shift, np.arange(200) % 10, ["cosine"])
        for k in range(1000)
    ]
    is_inside = [each["mean-cosine"].low <= truth <= each["mean-cosine"].high for each in found]
    assert 0.93 <= np.mean(is_inside) <= 0.97


def test_every_measure_is_computed_by_its_family() -> None:
    found = measure_rows(cloud(), GROUPS, FAMILIES)
    assert list(found) == list(MEASURES)
    assert all(np.isfinite(each.low) == MEASURES[name].has_interval for name, each in found.items())
