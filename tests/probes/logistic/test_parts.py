"""Theorems on the parts of the solver: loss, turned rows, memory of L-BFGS, line search."""

import pytest
import torch
from torch import Tensor

from probes.logistic.problem import Targets, build_design, standardise_rows
from probes.logistic.solver import SUFFICIENT, History, Ray, search


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_loss_and_residual_agree_with_cross_entropy(n_classes: int) -> None:
    codes = torch.randint(n_classes, (3, 20), generator=torch.Generator().manual_seed(0))
    weights = draw(3, 20).abs()
    targets = Targets(codes, weights, None, n_classes)
    logits = (3 * draw(3, targets.n_outputs, 20, seed=1)).requires_grad_()
    whole = torch.cat([torch.zeros_like(logits), logits], 1) if n_classes == 2 else logits
    expected = (torch.nn.functional.cross_entropy(whole, codes, reduction="none") * weights).sum(1)
    (gradient,) = torch.autograd.grad(expected.sum(), logits)
    value, residual = targets.loss(logits.detach())
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(residual, gradient)


@pytest.mark.parametrize("code", [0, 1])
def test_a_sure_sigmoid_keeps_its_digits(code: int) -> None:
    targets = Targets(torch.tensor([[code]]), None, None, 2)
    value, residual = targets.loss(torch.tensor([[[40.0 if code else -40.0]]]))
    assert float(value) == pytest.approx(4.248354e-18, rel=1e-4)
    assert abs(float(residual)) == pytest.approx(4.248354e-18, rel=1e-4)


@pytest.mark.parametrize(("n_rows", "width"), [(30, 8), (8, 30), (12, 12)])
def test_turned_rows_are_the_rows_on_other_axes(n_rows: int, width: int) -> None:
    x, weights = draw(n_rows, width), draw(n_rows, seed=1).abs() + 0.1
    standardise_rows(x, weights)
    z, energy, turn = build_design(x, weights, n_padded=n_rows + 3, dtype=torch.float64)
    rank = min(n_rows + 3, width)
    assert z.shape == (n_rows + 3, rank + 1)
    torch.testing.assert_close(z[:n_rows, :-1] @ turn.T, x)  # nothing of the rows is lost
    torch.testing.assert_close(turn.T @ turn, torch.eye(rank, dtype=torch.float64))
    assert not z[n_rows:].any()
    gram = z[:n_rows].T @ (weights[:, None] * z[:n_rows])
    torch.testing.assert_close(gram, torch.diag(energy[0]), rtol=1e-9, atol=1e-9)  # the intercept's column too


def test_standardised_rows_have_mean_0_and_scale_1() -> None:
    rows, weights = 100 + 5 * draw(50, 4), draw(50, seed=1).abs()
    rows[:, 2] = 7.0
    expected = rows.clone()
    mean, scale = standardise_rows(rows, weights)
    share = weights / weights.sum()
    torch.testing.assert_close(share @ rows, torch.zeros(4, dtype=torch.float64), atol=1e-10, rtol=0)
    torch.testing.assert_close(share @ rows**2, torch.tensor([1.0, 1, 0, 1], dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(rows * scale + mean, expected)


def pushed(n_pairs: int, *, limit: int) -> tuple[History, Tensor]:
    """Fill a history with pairs of a positive definite Hessian, and give the dense inverse that BFGS makes of them."""
    root = draw(12, 12, seed=2)
    hessian = root @ root.T + torch.eye(12, dtype=torch.float64)
    history, dense = History(limit), torch.eye(12, dtype=torch.float64) / 3
    for k in range(n_pairs):
        step = draw(1, 3, 4, seed=10 + k)
        change = (hessian @ step.flatten()).reshape(1, 3, 4)
        history.push(step, change, usable=torch.tensor([True]))
        if k >= n_pairs - limit:
            s, y = step.flatten(), change.flatten()
            shift = torch.eye(12, dtype=torch.float64) - torch.outer(s, y) / (s @ y)
            dense = shift @ dense @ shift.T + torch.outer(s, s) / (s @ y)
    return history, dense


@pytest.mark.parametrize("n_pairs", [0, 1, 4, 9])
def test_the_two_loops_equal_the_dense_formula(n_pairs: int) -> None:
    history, dense = pushed(n_pairs, limit=5)
    gradient = draw(1, 3, 4, seed=1)
    found = history.direction(gradient, torch.full((1, 1, 4), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(found.flatten(), -dense @ gradient.flatten())


def test_a_forgotten_problem_follows_the_first_guess_alone() -> None:
    history, _ = pushed(3, limit=5)
    history.forget(torch.tensor([True]))
    gradient, guess = draw(1, 3, 4), torch.full((1, 1, 4), 0.5, dtype=torch.float64)
    torch.testing.assert_close(history.direction(gradient, guess), -0.5 * gradient)


def test_retired_problems_come_back_in_order_with_their_own_pairs() -> None:
    history = History(3)
    for k in range(2):
        step = torch.full((2, 1, 1), k + 1.0)
        history.push(step, step, usable=torch.tensor([True, True]))
    history.retire(torch.tensor([1]), torch.tensor([1]))
    history.select(torch.tensor([0]))
    history.push(torch.full((1, 1, 1), 9.0), torch.full((1, 1, 1), 9.0), usable=torch.tensor([True]))
    history.retire(torch.tensor([0]), torch.tensor([0]))
    together = history.reunited()
    assert [step.flatten().tolist() for step, _, _ in together.pairs] == [[1.0, 0.0], [2.0, 1.0], [9.0, 2.0]]
    assert together.pairs[0][2].tolist() == [1.0, 0.0]


def test_another_penalty_changes_the_gradient_changes_only() -> None:
    history = History(3)
    step, change = draw(2, 2, 3), draw(2, 2, 3)
    history.push(step, change, usable=torch.tensor([True, True]))
    penalty = torch.tensor([[[2.0, 2.0, 0.0]]], dtype=torch.float64)
    ((same, changed, weight),) = history.under(penalty).pairs
    assert torch.equal(same, step)
    torch.testing.assert_close(changed, change + penalty * step)
    torch.testing.assert_close(weight, 1 / (step * changed).sum((1, 2)))


@pytest.mark.parametrize("curvature", [0.9, 0.5, 0.05])
@pytest.mark.parametrize("stretch", [1e-3, 1.0, 1e3])
def test_lengths_satisfy_the_strong_wolfe_conditions(curvature: float, stretch: float) -> None:
    codes = torch.randint(3, (5, 40), generator=torch.Generator().manual_seed(0))
    targets = Targets(codes, None, None, 3)
    logits = draw(5, 3, 40, seed=1)
    value, residual = targets.loss(logits)
    step = -stretch * residual * (1 + draw(5, 1, 40, seed=2).abs())
    penalty = torch.stack([torch.ones(5), torch.zeros(5), torch.full((5,), 1e-3 * stretch**2)], 1).double()
    ray = Ray(logits, step, value + 1, (residual * step).sum((1, 2)), penalty, targets)
    landing = search(ray, curvature=curvature)
    assert landing.is_found.all()
    found, slope, at, _ = ray.at(landing.length)
    torch.testing.assert_close(landing.value, found)
    torch.testing.assert_close(landing.logits, at)
    assert (found <= ray.value + SUFFICIENT * landing.length * ray.slope + 1e-12 * ray.value).all()
    assert (slope.abs() <= curvature * ray.slope.abs()).all()


def test_a_line_that_rises_leaves_its_problem_where_it_was() -> None:
    targets = Targets(torch.tensor([[0, 1]]), None, None, 2)
    logits = torch.tensor([[[-1.0, 1.0]]], dtype=torch.float64)
    value, residual = targets.loss(logits)
    lie = torch.tensor([-1.0], dtype=torch.float64)
    ray = Ray(logits, residual.clone(), value, lie, torch.zeros(1, 3, dtype=torch.float64), targets)
    landing = search(ray, curvature=1e-9)
    assert not landing.is_found.any()
    assert float(landing.length) == 0.0
    torch.testing.assert_close(landing.logits, logits)
