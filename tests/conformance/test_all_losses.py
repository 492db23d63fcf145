"""Every registered loss keeps the contract of a loss of pair heads."""

import pytest
import torch
from jaxtyping import TypeCheckError

from extract.errors import HeadError
from probes.networks.network_options import COMPARING, LOSSES
from probes.networks.pair_networks import MIN_BATCH

IGNORES_OFFSET = {"log-variance": True, "mse": False, "cosent": True}

pytestmark = pytest.mark.parametrize("name", list(LOSSES))


def draw(n_rows: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n_rows)
    predicted, gold = torch.rand(2, n_rows, dtype=torch.float64, generator=generator)
    return predicted.requires_grad_(), gold


def test_it_is_one_finite_number_with_a_gradient_for_every_row(name: str) -> None:
    predicted, gold = draw()
    loss = LOSSES[name][0](predicted, gold)
    assert loss.shape == ()
    assert torch.isfinite(loss)
    (gradient,) = torch.autograd.grad(loss, predicted)
    assert torch.isfinite(gradient).all()
    assert gradient.count_nonzero() == len(gold)


def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    predicted, gold = draw(6)
    assert torch.autograd.gradcheck(lambda values: LOSSES[name][0](values, gold), (predicted,))


def test_perfect_predictions_are_a_minimum_with_a_finite_gradient(name: str) -> None:
    _, gold = draw()
    perfect = gold.clone().requires_grad_()
    loss = LOSSES[name][0](perfect, gold)
    assert torch.isfinite(torch.autograd.grad(loss, perfect)[0]).all()
    for seed in range(10):
        noise = 0.3 * torch.randn(len(gold), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        assert LOSSES[name][0](gold + noise, gold) > loss
    assert LOSSES[name][0](gold.flip(0), gold) > loss
    if name == "mse":
        assert loss == 0


def test_an_offset_counts_only_where_the_scale_does(name: str) -> None:
    predicted, gold = draw()
    moved, still = LOSSES[name][0](predicted + 0.25, gold), LOSSES[name][0](predicted, gold)
    assert torch.isclose(moved, still, rtol=0, atol=1e-10) == IGNORES_OFFSET[name]


def test_the_documented_smallest_batch_is_the_smallest(name: str) -> None:
    predicted, gold = draw(MIN_BATCH)
    assert torch.isfinite(LOSSES[name][0](predicted, gold))
    if name in COMPARING:
        with pytest.raises(HeadError, match=rf"got a batch of 1; allowed: at least {MIN_BATCH}"):
            LOSSES[name][0](predicted[:1], gold[:1])
    else:
        assert torch.isfinite(LOSSES[name][0](predicted[:1], gold[:1]))


def test_the_order_of_rows_does_not_count(name: str) -> None:
    predicted, gold = draw()
    order = torch.randperm(len(gold), generator=torch.Generator().manual_seed(1))
    assert torch.isclose(LOSSES[name][0](predicted[order], gold[order]), LOSSES[name][0](predicted, gold))


@pytest.mark.parametrize("shape", [(31,), (32, 1)])
@pytest.mark.usefixtures("checked_calls")
def test_another_shape_is_an_error_and_not_broadcast(name: str, shape: tuple[int, ...]) -> None:
    predicted, _ = draw()
    with pytest.raises(TypeCheckError):
        LOSSES[name][0](predicted, torch.rand(shape, dtype=torch.float64))
