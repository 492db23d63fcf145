"""Every latent that cannot be stored is found, wherever it stands, and no other."""

import math

import pytest
import torch

from extract.store.rounding import TORCH_STORAGE, refuse_latent, round_latents

SHAPE = (3, 2, 50, 7)


@pytest.mark.parametrize("storage", TORCH_STORAGE)
@pytest.mark.parametrize("place", [(0, 0, 0, 0), (1, 1, 23, 4), (2, 1, 49, 6)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_found(storage: str, place: tuple[int, ...], value: float) -> None:
    latents = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    stored, unfit = round_latents(latents, storage)
    assert unfit is None
    assert torch.equal(stored, latents.to(TORCH_STORAGE[storage]))
    latents[place] = value
    assert round_latents(latents, storage)[1] == place


def test_infinities_that_cancel_are_found() -> None:
    latents = torch.zeros(SHAPE)
    latents[0, 0, 1], latents[2, 0, 1] = math.inf, -math.inf
    assert round_latents(latents, "float32")[1] == (0, 0, 1, 0)


def test_a_sum_that_overflows_is_no_latent_that_does() -> None:
    stored, unfit = round_latents(torch.full(SHAPE, 3e38), "float32")
    assert not math.isfinite(float(stored.sum()))
    assert unfit is None


def test_a_latent_that_overflows_its_storage_is_found() -> None:
    latents = torch.zeros(SHAPE)
    latents[1, 0, 4, 2] = 1e6
    assert round_latents(latents, "float16")[1] == (1, 0, 4, 2)
    assert round_latents(latents, "bfloat16")[1] is None


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (1e6, "float32", r"latent 1e\+06 at here does not fit the storage dtype float16; choose storage_dtype bfloat"),
        (math.nan, "float32", "latent nan at here is not finite although computed in float32; check the decoder's"),
        (math.inf, "float16", "latent inf at here is not finite; compute in float32 or bfloat16 instead of float16"),
    ],
)
def test_the_refusal_says_what_to_change(value: float, dtype: str, message: str) -> None:
    error = refuse_latent(value, where="here", storage="float16", dtype=dtype)
    with pytest.raises(type(error), match=message):
        raise error
