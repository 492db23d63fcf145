"""TwoNN against scikit-dimension, against manifolds of known dimension, and on points that repeat."""

import numpy as np
import pytest
from numpy.typing import NDArray

from probes.layers.geometry import find_neighbours, measure_rows, two_nn


def ball() -> NDArray[np.float64]:
    return np.random.default_rng(0).normal(size=(500, 5))


def wide() -> NDArray[np.float64]:
    return np.random.default_rng(2).normal(size=(600, 40))


def plane() -> NDArray[np.float64]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(800, 3)) @ rng.normal(size=(3, 20))


CLOUDS = {"ball": ball, "plane": plane, "wide": wide}
# Computed with scikit-dimension 0.5.0: TwoNN with discard_fraction=0, method="mle".
PUBLISHED = {"ball": 4.510008254775901, "plane": 2.784897864742193, "wide": 26.208266493691422}


@pytest.mark.parametrize("name", CLOUDS)
def test_the_estimate_is_that_of_scikit_dimension(name: str) -> None:
    x = CLOUDS[name]()
    unbiased = two_nn(find_neighbours(x)) * (len(x) - 1) / len(x)  # which divides N - 1
    assert unbiased == pytest.approx(PUBLISHED[name])


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_a_curved_manifold_has_its_own_dimension(dimension: int) -> None:
    rng = np.random.default_rng(dimension)
    flat = rng.uniform(size=(1500, dimension))
    bent = np.concatenate([np.sin(3 * flat), np.cos(3 * flat), flat**2], axis=1)
    x = bent @ rng.normal(size=(3 * dimension, 50))
    assert two_nn(find_neighbours(x)) == pytest.approx(dimension, rel=0.1)


def test_neighbours_are_those_of_all_distances_even_far_from_the_origin() -> None:
    x = np.random.default_rng(3).normal(size=(700, 4)) + 1e6
    near = find_neighbours(x, n_nearest=3)
    apart = np.linalg.norm(x[:, None] - x[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    np.testing.assert_allclose(near.distances, np.sort(apart, axis=1)[:, :3])
    np.testing.assert_array_equal(near.nearest, np.argsort(apart, axis=1)[:, :3])


def test_equal_rows_count_once() -> None:
    x = CLOUDS["ball"]()
    near = find_neighbours(np.concatenate([x, x[:200]]))
    assert near.points.tolist() == list(range(500))
    assert two_nn(near) == two_nn(find_neighbours(x))
    zeros = np.array([[0.0, 1.0], [-0.0, 1.0], [2.0, 3.0]])
    assert find_neighbours(zeros).points.tolist() == [0, 2]


def test_leaving_out_points_is_searching_without_them() -> None:
    x = CLOUDS["plane"]()
    keep = np.arange(len(x)) % 10 != 4
    assert two_nn(find_neighbours(x), keep=keep) == pytest.approx(two_nn(find_neighbours(x[keep])))


def test_a_few_distinct_points_have_no_dimension() -> None:
    x = np.repeat(np.random.default_rng(0).normal(size=(20, 3)), 20, axis=0)
    [found] = measure_rows(x, np.arange(400) % 10, ["dimension"]).values()
    assert np.isnan(found).all()
    assert np.isnan(two_nn(find_neighbours(np.ones((40, 3)))))


def test_paraphrases_bring_the_dimension_down() -> None:
    """Why of pairs one text each is measured."""
    x = np.random.default_rng(0).normal(size=(300, 20))
    pairs = np.concatenate([x, x + 0.01 * np.random.default_rng(1).normal(size=x.shape)])
    assert two_nn(find_neighbours(pairs)) < 1
    assert two_nn(find_neighbours(x)) > 10
