"""Poolings from masks alone, on either padding side, whatever stands in the padding."""

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.errors import UnknownNameError
from extract.poolings.pooling_table import POOLINGS, select_poolings
from extract.poolings.poolings import index_batch, pool_mean, pool_median

N_PADS, N_TEXT, WIDTH = 3, 4, 5
OF_ONE_COPY = [name for name in POOLINGS if not name.startswith(("echo", "reba"))]  # see test_token_sets, test_reba


def pad(values: Tensor, side: str, fill: float) -> Tensor:
    """Put `N_PADS` columns of a value on one side of `(T, ...)`."""
    pads = torch.full((N_PADS, *values.shape[1:]), fill, dtype=values.dtype)
    return torch.cat([values, pads] if side == "right" else [pads, values])


def expected(name: str, text: Tensor) -> Tensor:
    """Pool one text of `(T, D)` by the textbook."""
    ranks = torch.arange(1, len(text) + 1, dtype=text.dtype).unsqueeze(1)
    table = {
        "last": text[-1],
        "first": text[0],
        "mean": text.mean(0),
        "weighted-mean": (text * ranks).sum(0) / ranks.sum(),
        "max": text.max(0).values,
        "median": text.quantile(0.5, dim=0),
    }
    return table[name]


@pytest.mark.parametrize("fill", [0.0, 1e4, float("nan"), float("inf")])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", OF_ONE_COPY)
def test_padding_never_reaches_a_latent(name: str, side: str, fill: float) -> None:
    text = torch.randn(N_TEXT, WIDTH, generator=torch.Generator().manual_seed(3))
    full = torch.randn(N_TEXT + N_PADS, WIDTH, generator=torch.Generator().manual_seed(4))
    hidden = torch.stack([pad(text, side, fill), full])
    is_real = torch.stack([pad(torch.ones(N_TEXT, dtype=torch.bool), side, 0), torch.ones(N_TEXT + N_PADS).bool()])
    pooled = POOLINGS[name][0](hidden, index_batch(is_real, is_real))
    assert torch.allclose(pooled[0], expected(name, text), atol=1e-6)
    assert torch.allclose(pooled[1], expected(name, full), atol=1e-6)


@pytest.mark.parametrize("name", OF_ONE_COPY)
def test_specials_before_the_text_are_left_out(name: str) -> None:
    text = torch.randn(N_TEXT, WIDTH, generator=torch.Generator().manual_seed(5))
    hidden = torch.cat([torch.full((2, WIDTH), 1e6), text]).unsqueeze(0)
    is_real = torch.ones(1, N_TEXT + 2, dtype=torch.bool)
    is_text = is_real.clone()
    is_text[:, :2] = False
    assert torch.allclose(POOLINGS[name][0](hidden, index_batch(is_text, is_real))[0], expected(name, text), atol=1e-6)


def test_last_takes_the_special_that_closes_the_text() -> None:
    hidden = torch.arange(4.0).reshape(1, 4, 1)
    is_real = torch.tensor([[True, True, True, False]])
    is_text = torch.tensor([[True, True, False, False]])
    assert POOLINGS["last"][0](hidden, index_batch(is_text, is_real)).item() == 2
    assert POOLINGS["first"][0](hidden, index_batch(is_text, is_real)).item() == 0


@pytest.mark.parametrize("name", OF_ONE_COPY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_latents_are_float32_and_share_no_memory(name: str, dtype: torch.dtype) -> None:
    hidden = torch.randn(2, 3, WIDTH).to(dtype)
    mask = torch.ones(2, 3, dtype=torch.bool)
    pooled = POOLINGS[name][0](hidden, index_batch(mask, mask))
    assert pooled.dtype == torch.float32
    before = pooled.clone()
    hidden.fill_(7)
    assert torch.equal(pooled, before)
    assert pooled.untyped_storage().nbytes() <= pooled.numel() * 4


@pytest.mark.parametrize("name", ["mean", "weighted-mean"])
def test_half_precision_is_summed_in_float32(name: str) -> None:
    hidden = torch.full((1, 4096, 1), 60000.0, dtype=torch.float16)  # a float16 sum overflows
    mask = torch.ones(1, 4096, dtype=torch.bool)
    assert POOLINGS[name][0](hidden, index_batch(mask, mask)).item() == pytest.approx(60000, rel=1e-4)


@pytest.mark.parametrize("name", OF_ONE_COPY)
def test_one_token_is_its_own_pooling(name: str) -> None:
    hidden = torch.randn(1, 1, WIDTH)
    mask = torch.ones(1, 1, dtype=torch.bool)
    assert torch.allclose(POOLINGS[name][0](hidden, index_batch(mask, mask))[0], hidden[0, 0], atol=1e-6)


def test_index_is_full_only_without_padding_and_specials() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    assert index_batch(mask, mask).is_full
    holed = mask.clone()
    holed[0, 0] = False
    assert not index_batch(holed, mask).is_full


def test_names_are_checked_and_repeats_dropped() -> None:
    assert select_poolings(["max", "mean", "max"]) == ("max", "mean")
    assert select_poolings("last") == ("last",)
    with pytest.raises(UnknownNameError, match="unknown pooling 'wheighted-mean': did you mean 'weighted-mean'"):
        select_poolings(["wheighted-mean"])
    with pytest.raises(UnknownNameError, match=r"no pooling was selected\. Allowed: last, mean"):
        select_poolings([])


@pytest.mark.parametrize("n_tokens", [1, 4, 5])
def test_the_median_is_numpys_and_ignores_an_outlier(n_tokens: int) -> None:
    hidden = torch.randn(1, n_tokens + 1, 6, generator=torch.Generator().manual_seed(n_tokens))
    is_text = torch.tensor([[True] * n_tokens + [False]])
    index = index_batch(is_text, is_text)
    found = pool_median(hidden, index)
    np.testing.assert_allclose(found.numpy()[0], np.median(hidden[0, :n_tokens].numpy(), axis=0), rtol=1e-6)
    hidden[0, 0, 0] = float("nan")
    assert pool_median(hidden, index).isnan().tolist() == [[True, *[False] * 5]]


def test_a_massive_activation_moves_the_mean_and_not_the_median() -> None:
    hidden = torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(0))
    index = index_batch(*[torch.ones(1, 9, dtype=torch.bool)] * 2)
    massive = hidden.clone()
    massive[0, 0] = 1e4
    assert float((pool_median(massive, index) - pool_median(hidden, index)).abs().max()) < 1
    assert float((pool_mean(massive, index) - pool_mean(hidden, index)).abs().min()) > 1000
