"""Standardisation against numpy."""

from pathlib import Path

import numpy as np
import pytest
import torch

import probes.latents.text_latents
from extract.store.cache import LatentCache
from probes.latents.text_latents import Channels, fit_standardiser
from tests.probes.planted_latents import write_latents


@pytest.fixture
def odd_cache(tmp_path: Path) -> tuple[LatentCache, np.ndarray]:
    """Ten rows whose means are far from zero; one dimension is constant, one is huge."""
    latents = np.random.default_rng(0).normal(size=(3, 10, 5)).astype(np.float32) + 100
    latents[1, :, 2] = 0.7
    latents[2, :, 3] = 3e4 + 50 * latents[2, :, 3]
    return write_latents(tmp_path / "odd.h5", [f"text {i}" for i in range(10)], {"mean": latents}), latents


@pytest.mark.parametrize("chunk", [1, 3, 4, 1024])
def test_chunks_equal_numpy(
    odd_cache: tuple[LatentCache, np.ndarray], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, latents = odd_cache
    monkeypatch.setattr(probes.latents.text_latents, "CHUNK_ROWS", chunk)
    rows = torch.tensor([9, 0, 3, 4, 5, 7, 8])
    found = fit_standardiser(cache, rows, channels=Channels(("mean",), cache.layers))
    wide = latents[:, rows.numpy()].astype(np.float64)
    std = wide.std(1, ddof=1)
    std[1, 2] = 1.0  # constant there
    np.testing.assert_allclose(found.mean.numpy(), wide.mean(1), rtol=1e-6)
    np.testing.assert_allclose(found.scale.numpy(), std, rtol=1e-5)


def test_a_repeated_row_counts_once(odd_cache: tuple[LatentCache, np.ndarray]) -> None:
    cache, _ = odd_cache
    once = fit_standardiser(cache, torch.tensor([1, 2, 3]), channels=Channels(("mean",), cache.layers))
    often = fit_standardiser(cache, torch.tensor([3, 1, 1, 1, 2, 3]), channels=Channels(("mean",), cache.layers))
    assert torch.equal(once.mean, often.mean)
    assert torch.equal(once.scale, often.scale)


def test_a_constant_dimension_has_scale_one(odd_cache: tuple[LatentCache, np.ndarray]) -> None:
    cache, _ = odd_cache
    found = fit_standardiser(cache, torch.arange(10), channels=Channels(("mean",), cache.layers))
    assert found.scale[1, 2] == 1.0
    assert found.mean[1, 2] == pytest.approx(0.7)
    assert (found.scale > 0).all()


def test_layers_are_those_asked_for(odd_cache: tuple[LatentCache, np.ndarray]) -> None:
    cache, latents = odd_cache
    found = fit_standardiser(cache, torch.arange(10), channels=Channels(("mean",), ("final_norm",)))
    np.testing.assert_allclose(found.mean.numpy(), latents[2:].mean(1), rtol=1e-5)
