"""Read-out transforms: what they do to the rows they were fitted on, and to others."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import ledoit_wolf_shrinkage

from extract.errors import HeadError, UnknownNameError
from extract.store.cache import LatentCache
from probes.latents.text_latents import Channels, Transform, TransformOptions, channels_of, fit_transform, ledoit_wolf
from tests.probes.planted_latents import LAYERS, write_latents

N, WIDTH = 200, 12


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    """Latents with an offset, unequal scales and dependent dimensions; another mix at each layer."""
    rng = np.random.default_rng(0)
    mixes = rng.normal(size=(len(LAYERS), WIDTH, WIDTH)) * np.geomspace(5, 0.2, WIDTH)
    latents = rng.normal(size=(len(LAYERS), N, WIDTH)) @ mixes + 7
    path = tmp_path_factory.mktemp("transform") / "c.h5"
    return write_latents(path, [f"text {k}" for k in range(N)], {"mean": latents.astype(np.float32)})


def fit(cache: LatentCache, name: str, n_rows: int = N, **options: Any) -> tuple[Transform, torch.Tensor]:
    channels, rows = channels_of(cache, "mean"), torch.arange(n_rows)
    found = fit_transform(name, cache, rows, channels=channels, options=TransformOptions(name, **options))
    return found, channels.gather(cache, rows)


@pytest.mark.parametrize("name", ["centre", "standardise", "abtt", "whiten"])
def test_the_mean_of_training_rows_becomes_zero(cache: LatentCache, name: str) -> None:
    transform, rows = fit(cache, name)
    assert float(transform(rows).mean(1).abs().max()) < 1e-3


def test_whitening_makes_the_covariance_the_identity(cache: LatentCache) -> None:
    transform, rows = fit(cache, "whiten")
    for layer in transform(rows):
        np.testing.assert_allclose(np.cov(layer.numpy().T), np.eye(WIDTH), atol=2e-3)
    few, _ = fit(cache, "whiten", components=4)
    torch.testing.assert_close(few(rows), transform(rows)[..., :4])  # the first of the components


def test_standardising_makes_every_deviation_one(cache: LatentCache) -> None:
    transform, rows = fit(cache, "standardise")
    np.testing.assert_allclose(transform(rows).std(1), 1.0, atol=1e-4)


@pytest.mark.parametrize("removed", [0, 3])
def test_abtt_removes_the_first_components(cache: LatentCache, removed: int) -> None:
    transform, rows = fit(cache, "abtt", components=removed)
    n_removed = removed or 1  # a hundredth of 12 dimensions, at least one
    for raw, layer in zip(rows.double().numpy(), transform(rows).double().numpy(), strict=True):
        before = np.linalg.eigvalsh(np.cov(raw.T))[::-1]
        after = np.linalg.eigvalsh(np.cov(layer.T))[::-1]
        np.testing.assert_allclose(after[: WIDTH - n_removed], before[n_removed:], rtol=1e-3)
        np.testing.assert_allclose(after[WIDTH - n_removed :], 0, atol=1e-4 * before[0])


def test_few_rows_are_shrunk_as_ledoit_and_wolf_say_or_truncated(cache: LatentCache) -> None:
    transform, rows = fit(cache, "whiten", 8)
    for layer, raw in enumerate(rows.double()):
        centred = raw - raw.mean(0)
        share = ledoit_wolf_shrinkage(raw.numpy())
        found = ledoit_wolf(centred.T @ centred, float(((centred**2).sum(1) ** 2).sum()), 8)
        assert found == pytest.approx(share)
        covariance = np.cov(raw.numpy().T)
        target = (1 - share) * covariance + share * np.trace(covariance) / WIDTH * np.eye(WIDTH)
        basis = transform.basis[layer].double().numpy()
        np.testing.assert_allclose(basis.T @ target @ basis, np.eye(WIDTH), atol=1e-3)
    cut, _ = fit(cache, "whiten", 8, shrinkage=0.0)
    assert cut.basis.shape[2] == 7  # eight centred rows vary in seven directions
    for layer_rows in cut(rows):
        np.testing.assert_allclose(np.cov(layer_rows.numpy().T), np.eye(7), atol=2e-3)


def test_layers_are_transformed_each_by_itself(cache: LatentCache) -> None:
    transform, rows = fit(cache, "whiten")
    alone = fit_transform(
        "whiten", cache, torch.arange(N), channels=Channels(("mean",), (LAYERS[2],)), options=TransformOptions("whiten")
    )
    torch.testing.assert_close(alone(rows[2:3]), transform(rows)[2:3])
    torch.testing.assert_close(transform.of(2)(rows[2:3]), transform(rows)[2:3])


def test_what_cannot_be_fitted_is_refused(cache: LatentCache) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown transform 'whitten': did you mean 'whiten'\?"):
        TransformOptions("whitten")
    with pytest.raises(HeadError, match=r"transform is 'abtt\+abtt'; allowed: names joined by '\+', each once"):
        TransformOptions("abtt+abtt")
    with pytest.raises(HeadError, match="components is -1; allowed: a whole number of at least 0"):
        TransformOptions(components=-1)
    with pytest.raises(HeadError, match=r"shrinkage is 1\.5; allowed: a number from 0 to 1, or null"):
        TransformOptions(shrinkage=1.5)
    with pytest.raises(HeadError, match="takes 9 components at embedding, but latents of 8 texts vary in 7 directions"):
        fit(cache, "abtt", 8, components=9)
    with pytest.raises(HeadError, match="is fitted on 1 texts; give at least 2"):
        fit(cache, "centre", 1)
