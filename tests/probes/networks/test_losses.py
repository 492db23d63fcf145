"""Losses against their formulas, and where a variance goes wrong."""

import numpy as np
import pytest
import torch

from extract.errors import HeadError
from probes.networks.network_options import LOSSES
from probes.networks.pair_networks import cosent_loss, log_variance_loss


def draw(n_rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n_rows, generator=generator), torch.rand(n_rows, generator=generator)


@pytest.mark.parametrize("n_rows", [2, 3, 128])
def test_log_variance_is_its_formula(n_rows: int) -> None:
    predicted, gold = draw(n_rows)
    expected = np.log(np.var((predicted - gold).double().numpy(), ddof=1) + 1e-6)
    assert float(log_variance_loss(predicted, gold)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("offset", [-0.5, 0.25, 3.0])
def test_log_variance_ignores_a_constant_offset(offset: float) -> None:
    predicted, gold = draw(64)
    loss = log_variance_loss(predicted.double(), gold.double())
    assert float(log_variance_loss(predicted.double() + offset, gold.double())) == pytest.approx(float(loss), abs=1e-10)


@pytest.mark.parametrize("shift", [0.0, 0.25])
def test_equal_residuals_give_a_finite_loss_and_gradient(shift: float) -> None:
    _, gold = draw(16)
    predicted = (gold + shift).requires_grad_()
    loss = log_variance_loss(predicted, gold)
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    assert predicted.grad is not None
    assert torch.isfinite(predicted.grad).all()


@pytest.mark.parametrize("n_rows", [0, 1])
def test_a_variance_of_one_row_is_refused(n_rows: int) -> None:
    predicted, gold = draw(n_rows)
    with pytest.raises(HeadError, match=rf"got a batch of {n_rows}; allowed: at least 2 rows.*Raise batch_size"):
        log_variance_loss(predicted, gold)


@pytest.mark.parametrize("n_rows", [4, 8, 32, 128])
def test_the_bias_of_the_logarithm_shrinks_with_the_batch(n_rows: int) -> None:
    residuals = torch.randn(20_000, n_rows, generator=torch.Generator().manual_seed(1)).double()
    zeros = torch.zeros(n_rows).double()
    bias = np.mean([float(log_variance_loss(row, zeros)) for row in residuals[:4000]])
    # E log(chi2_k / k) = digamma(k / 2) - log(k / 2), about -1 / k, with k = B - 1.
    assert bias == pytest.approx(-1 / (n_rows - 1), abs=0.06 + 0.15 / (n_rows - 1))


def test_mse_is_its_formula() -> None:
    predicted, gold = draw(100)
    assert float(LOSSES["mse"][0](predicted, gold)) == pytest.approx(float(((predicted - gold) ** 2).mean()), abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_a_scalar_that_is_lowest_at_the_gold(name: str) -> None:
    predicted, gold = draw(64)
    function, description = LOSSES[name]
    assert function(predicted, gold).shape == ()
    assert function(gold, gold) < function(0.5 * (predicted + gold), gold) < function(predicted, gold)
    assert description


def looped_cosent(predicted: torch.Tensor, gold: torch.Tensor, scale: float) -> float:
    total = 1.0
    for i in range(len(gold)):
        for j in range(len(gold)):
            if gold[i] > gold[j]:
                total += float(np.exp(scale * float(predicted[j] - predicted[i])))
    return float(np.log(total))


@pytest.mark.parametrize("n_rows", [2, 3, 40])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_cosent_is_its_formula(n_rows: int, scale: float) -> None:
    predicted, gold = (values.double() for values in draw(n_rows))
    gold = (5 * gold).round()  # with ties, which say nothing of the order
    found = cosent_loss(predicted, gold, scale=scale)
    assert float(found) == pytest.approx(looped_cosent(predicted, gold, scale), rel=1e-9, abs=1e-12)


def test_cosent_has_the_scale_of_its_author() -> None:
    predicted, gold = (values.double() for values in draw(40))
    assert float(cosent_loss(predicted, gold)) == pytest.approx(looped_cosent(predicted, gold, 20.0))


@pytest.mark.parametrize("offset", [-0.5, 0.25, 3.0])
def test_cosent_ignores_a_constant_offset(offset: float) -> None:
    predicted, gold = (values.double() for values in draw(64))
    assert float(cosent_loss(predicted + offset, gold)) == pytest.approx(float(cosent_loss(predicted, gold)), abs=1e-9)


def test_cosent_reads_the_order_of_the_gold_alone() -> None:
    predicted, gold = (values.double() for values in draw(64))
    assert float(cosent_loss(predicted, gold**3 * 7 - 2)) == float(cosent_loss(predicted, gold))
    assert float(cosent_loss(gold**3, gold)) < float(cosent_loss(-(gold**3), gold))


@pytest.mark.parametrize("name", LOSSES)
def test_equal_predictions_give_a_finite_loss_and_gradient(name: str) -> None:
    _, gold = draw(16)
    predicted = torch.full((16,), 0.5).requires_grad_()
    loss = LOSSES[name][0](predicted, gold)
    loss.backward()
    assert torch.isfinite(loss)
    assert predicted.grad is not None
    assert torch.isfinite(predicted.grad).all()
    assert predicted.grad.abs().sum() > 0


def test_cosent_stays_finite_where_every_pair_is_in_the_wrong_order() -> None:
    gold = torch.linspace(0, 1, 256)
    predicted = (-100 * gold).requires_grad_()
    loss = cosent_loss(predicted, gold)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(2000, rel=1e-3)  # scale times the worst distance
    assert predicted.grad is not None
    assert torch.isfinite(predicted.grad).all()


def test_cosent_of_equal_gold_is_zero_with_a_gradient_of_zero() -> None:
    predicted, _ = draw(8)
    predicted.requires_grad_()
    loss = cosent_loss(predicted, torch.full((8,), 0.4))
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0.0
    assert predicted.grad is not None
    assert not predicted.grad.any()


@pytest.mark.parametrize("n_rows", [0, 1])
def test_an_order_of_one_row_is_refused(n_rows: int) -> None:
    predicted, gold = draw(n_rows)
    with pytest.raises(HeadError, match=rf"CoSENT loss got a batch of {n_rows}; allowed: at least 2 rows.*Raise batch"):
        cosent_loss(predicted, gold)
