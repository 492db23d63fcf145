"""Every latent that cannot be stored is found, wherever it stands, and no other."""

import math

import pytest
import torch
from torch import Tensor

from extract.store.writer import TORCH_STORAGE, Unfit, read_report, refuse_latent, report_on, round_latents

SHAPE = (3, 2, 50, 7)


def unfit_in(latents: Tensor, storage: str) -> Unfit | None:
    """Find the first latent that does not fit."""
    report = round_latents(latents, storage)[1]
    of_device = report_on(latents, latents.to(TORCH_STORAGE[storage]))  # without the short cut through a sum
    assert torch.equal(report[:1], of_device[:1])
    assert not report[0] or torch.equal(report, of_device)
    return read_report(report, latents.shape)


@pytest.mark.parametrize("storage", TORCH_STORAGE)
@pytest.mark.parametrize("place", [(0, 0, 0, 0), (1, 1, 23, 4), (2, 1, 49, 6)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_found(storage: str, place: tuple[int, ...], value: float) -> None:
    latents = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    assert unfit_in(latents, storage) is None
    assert torch.equal(round_latents(latents, storage)[0], latents.to(TORCH_STORAGE[storage]))
    latents[place] = value
    found = unfit_in(latents, storage)
    assert found is not None
    assert found.indices == place
    assert found.value == value or (math.isnan(found.value) and math.isnan(value))
    latents[2, 1, 49, 6] = math.inf  # the last one
    again = unfit_in(latents, storage)
    assert again is not None
    assert again.indices == place  # the first of two


def test_infinities_that_cancel_are_found() -> None:
    latents = torch.zeros(SHAPE)
    latents[0, 0, 1], latents[2, 0, 1] = math.inf, -math.inf
    assert unfit_in(latents, "float32") == ((0, 0, 1, 0), math.inf)


def test_a_sum_that_overflows_is_no_latent_that_does() -> None:
    latents = torch.full(SHAPE, 3e38)
    assert not math.isfinite(float(round_latents(latents, "float32")[0].sum()))
    assert unfit_in(latents, "float32") is None
    assert round_latents(latents[:, :, :0], "float32")[1].tolist() == [0, 0, 0]


def test_a_latent_that_overflows_its_storage_is_found() -> None:
    latents = torch.zeros(SHAPE)
    latents[1, 0, 4, 2] = 1e6
    assert unfit_in(latents, "float16") == ((1, 0, 4, 2), 1e6)  # its value before rounding
    assert unfit_in(latents, "bfloat16") is None


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
