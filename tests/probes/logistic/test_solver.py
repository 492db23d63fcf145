"""The solver against scikit-learn, against autograd and against itself."""

from collections.abc import Iterator
from dataclasses import replace
from threading import current_thread, main_thread
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from extract.linear import has_quick_linear
from probes.logistic import problem as design
from probes.logistic import solver
from probes.logistic.problem import Designs, SolverOptions
from probes.logistic.solver import fit_logistic
from tests.probes.logistic.problems import TIGHT, as_sklearn, objective, oracle, plant

CS = (0.01, 1.0, 100.0)
# layers, rows, width, classes: more rows than dimensions, fewer, two classes of either, many classes
SHAPES = [(2, 120, 9, 4), (2, 30, 60, 3), (2, 80, 7, 2), (1, 20, 40, 2), (1, 150, 12, 20)]


@pytest.mark.parametrize("shape", SHAPES)
def test_objectives_are_at_least_as_low_as_sklearns(shape: tuple[int, int, int, int]) -> None:
    latents, codes = plant(*shape[:3], n_classes=shape[3])
    fit = fit_logistic(latents, codes, Cs=CS)
    assert fit.report.is_converged.all()
    for layer, x in enumerate(latents):
        for c, C in enumerate(CS):
            model = oracle(x, codes, C, tol=1e-4)
            theirs = objective(x, codes, model.coef_, model.intercept_, C)
            ours = objective(x, codes, *as_sklearn(fit.weight[layer, c, 0], fit.bias[layer, c, 0]), C)
            assert ours <= theirs * (1 + 1e-7)
            assert float(fit.report.objective[layer, c, 0]) == pytest.approx(ours, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_coefficients_agree_with_sklearn_at_tight_convergence(shape: tuple[int, int, int, int]) -> None:
    latents, codes = plant(*shape[:3], n_classes=shape[3])
    fit = fit_logistic(latents, codes, Cs=CS, options=TIGHT)
    assert fit.report.is_converged.all()
    for layer, x in enumerate(latents):
        for c, C in enumerate(CS):
            model = oracle(x, codes, C)
            weight, bias = as_sklearn(fit.weight[layer, c, 0], fit.bias[layer, c, 0])
            assert np.abs(weight - model.coef_).max() <= 1e-4 * np.abs(model.coef_).max()
            np.testing.assert_allclose(bias, model.intercept_, rtol=1e-4, atol=1e-5)
            optimum = objective(x, codes, model.coef_, model.intercept_, C)
            assert objective(x, codes, weight, bias, C) <= optimum * (1 + 1e-10)


def test_unscaled_features_agree_with_sklearn_on_raw_features() -> None:
    latents, codes = plant(1, 100, 6, n_classes=3)
    fit = fit_logistic(latents, codes, Cs=[0.1], options=replace(TIGHT, is_standardised=False))
    model = LogisticRegression(C=0.1, tol=1e-10, max_iter=20000).fit(latents[0].double().numpy(), codes.numpy())
    weight, bias = fit.raw(0, 0)
    np.testing.assert_allclose(weight.numpy(), model.coef_, atol=1e-4 * np.abs(model.coef_).max())
    np.testing.assert_allclose(bias.numpy(), model.intercept_, rtol=1e-3)


def test_weights_agree_with_sklearns_and_with_repeated_rows() -> None:
    latents, codes = plant(1, 90, 8, n_classes=3)
    weights = torch.randint(0, 3, (90,), generator=torch.Generator().manual_seed(0)).double()
    fit = fit_logistic(latents, codes, Cs=[1.0], weights=weights[None], options=TIGHT)
    often = weights.long()
    repeated = fit_logistic(
        latents.repeat_interleave(often, 1), codes.repeat_interleave(often), Cs=[1.0], options=TIGHT
    )
    torch.testing.assert_close(fit.weight, repeated.weight, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(fit.mean, repeated.mean)
    model = oracle(latents[0], codes, 1.0, weights=weights)
    np.testing.assert_allclose(fit.weight[0, 0, 0].numpy(), model.coef_, atol=1e-4 * np.abs(model.coef_).max())


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_convergence_is_reported_truthfully(precision: str, n_classes: int) -> None:
    latents, codes = plant(2, 120, 9, n_classes=n_classes)
    options = SolverOptions(precision=precision, tol=1e-5, gap_tol=1e-6)
    for most in (2, 500):
        fit = fit_logistic(latents, codes, Cs=CS, options=replace(options, max_iterations=most))
        report = fit.report
        assert bool(report.is_converged.all()) == (most == 500)
        assert int(report.n_iterations.max()) <= most
        for layer in range(2):
            for c, C in enumerate(CS):
                value, norm = _by_autograd(fit.weight[layer, c, 0], fit.bias[layer, c, 0], latents[layer], codes, C)
                assert float(report.objective[layer, c, 0]) == pytest.approx(value, rel=1e-5)
                assert float(report.gradient_norm[layer, c, 0]) == pytest.approx(norm, rel=1e-2, abs=1e-6)
                assert bool(report.is_converged[layer, c, 0]) <= (norm <= 1.1e-5)


def _by_autograd(weight: Tensor, bias: Tensor, x: Tensor, codes: Tensor, C: float) -> tuple[float, float]:
    """Recompute objective and gradient norm by the definition; two classes count as one row, as in scikit-learn."""
    w, b = weight.double(), bias.double()
    is_binary = len(w) == 2
    free = (w[1:] - w[:1] if is_binary else w).requires_grad_()
    shift = (b[1:] - b[:1] if is_binary else b).requires_grad_()
    x = x.double()
    logits = (x - x.mean(0)) / x.std(0, correction=0) @ free.T + shift
    if is_binary:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    value = C * torch.nn.functional.cross_entropy(logits, codes, reduction="sum") + free.square().sum() / 2
    gradients = torch.autograd.grad(value, (free, shift))
    return float(value.detach()), max(float(g.abs().max()) for g in gradients) / (C * len(x))


@pytest.mark.long
def test_batched_equals_alone() -> None:
    latents, codes = plant(3, 80, 10, n_classes=3)
    folds = torch.rand(2, 80, generator=torch.Generator().manual_seed(1)) < 0.8
    together = fit_logistic(latents, codes, Cs=CS, weights=folds, options=TIGHT)
    for layer in range(3):
        for fold in range(2):
            rows = folds[fold]
            for c, C in enumerate(CS):
                alone = fit_logistic(latents[layer : layer + 1, rows], codes[rows], Cs=[C], options=TIGHT)
                scale = float(alone.weight.abs().max())
                found = together.weight[layer, c, fold]
                torch.testing.assert_close(found, alone.weight[0, 0, 0], rtol=0, atol=1e-6 * scale)
                expected = float(alone.report.objective)
                assert float(together.report.objective[layer, c, fold]) == pytest.approx(expected, rel=1e-9)


def test_problems_are_shared_out_over_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    latents, codes = plant(4, 60, 8, n_classes=3)
    n_threads, follow = torch.get_num_threads(), solver.follow_path
    seen: set[tuple[bool, int]] = set()

    def watched(designs: Designs, **options: Any) -> list[Tensor]:
        seen.add((current_thread() is main_thread(), torch.get_num_threads()))
        return follow(designs, **options)

    monkeypatch.setattr(solver, "follow_path", watched)
    try:
        torch.set_num_threads(2)
        together = fit_logistic(latents, codes, Cs=CS, options=TIGHT)
        assert torch.get_num_threads() == 2
        assert seen == {(False, 1)}
        torch.set_num_threads(1)
        alone = fit_logistic(latents, codes, Cs=CS, options=TIGHT)
        assert seen == {(False, 1), (True, 1)}
    finally:
        torch.set_num_threads(n_threads)
    torch.testing.assert_close(together.weight, alone.weight, atol=1e-6, rtol=1e-5)


def test_chunks_of_layers_and_of_memory_change_nothing() -> None:
    latents, codes = plant(5, 60, 8, n_classes=3)

    def chunks() -> Iterator[Tensor]:
        yield latents[:2]
        yield latents[2:]

    whole = fit_logistic(latents, codes, Cs=CS, options=TIGHT)
    parts = fit_logistic(chunks(), codes, Cs=CS, options=replace(TIGHT, chunk_bytes=1))
    torch.testing.assert_close(whole.weight, parts.weight, rtol=0, atol=1e-5 * float(whole.weight.abs().max()))
    assert torch.equal(whole.mean, parts.mean)


def test_the_order_of_c_is_that_of_the_caller() -> None:
    latents, codes = plant(1, 60, 8, n_classes=3)
    up = fit_logistic(latents, codes, Cs=[0.01, 1.0, 100.0], options=TIGHT)
    mixed = fit_logistic(latents, codes, Cs=[1.0, 100.0, 0.01, 1.0], options=TIGHT)
    assert mixed.Cs == (1.0, 100.0, 0.01, 1.0)
    torch.testing.assert_close(mixed.weight, up.weight[:, [1, 2, 0, 1]])


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e9])
def test_rows_outside_the_fold_change_nothing(poison: float) -> None:
    latents, codes = plant(2, 60, 8, n_classes=3)
    folds = torch.ones(2, 60)
    folds[:, 50:] = 0
    folds[1, :10] = 0
    clean = fit_logistic(latents, codes, Cs=CS, weights=folds)
    latents[:, 50:] = poison
    poisoned = fit_logistic(latents, codes.clone().index_fill_(0, torch.arange(50, 60), 2), Cs=CS, weights=folds)
    assert torch.equal(clean.weight, poisoned.weight)
    assert torch.equal(clean.bias, poisoned.bias)
    assert torch.equal(clean.report.objective, poisoned.report.objective)


def test_standardisation_is_of_the_training_rows() -> None:
    latents, codes = plant(2, 60, 5, n_classes=3)
    latents[1, :, 3] = 0.7  # constant
    folds = torch.ones(2, 60, dtype=torch.bool)
    folds[0, 40:] = False
    fit = fit_logistic(latents, codes, Cs=[1.0], weights=folds)
    for fold, rows in enumerate(folds):
        x = latents[:, rows].double()
        torch.testing.assert_close(fit.mean[:, fold], x.mean(1))
        scale = x.std(1, correction=0)
        scale[1, 3] = 1.0
        torch.testing.assert_close(fit.scale[:, fold], scale)


def test_shuffled_labels_score_at_chance() -> None:
    latents, codes = plant(1, 600, 10, n_classes=4, signal=3.0)
    training = torch.arange(600) < 300
    real = fit_logistic(latents, codes, Cs=[1.0], weights=training[None])
    shuffled = codes[torch.randperm(600, generator=torch.Generator().manual_seed(0))]
    control = fit_logistic(latents, shuffled, Cs=[1.0], weights=training[None])
    held_out = latents[:, ~training]
    assert float((real.logits(held_out)[0, 0].argmax(-1) == codes[~training]).float().mean()) > 0.9
    assert float((control.logits(held_out)[0, 0].argmax(-1) == shuffled[~training]).float().mean()) < 0.35


def test_a_class_without_rows_in_a_fold_is_never_predicted() -> None:
    latents, codes = plant(1, 80, 6, n_classes=4)
    rows = codes != 2
    fit = fit_logistic(latents, codes, Cs=CS, weights=rows[None], options=TIGHT)
    assert bool((fit.bias[:, :, :, 2] == -torch.inf).all())
    assert not bool((fit.logits(latents).argmax(-1) == 2).any())
    kept = codes[rows]
    model = oracle(latents[0, rows], torch.where(kept == 3, 2, kept), 1.0)
    np.testing.assert_allclose(fit.weight[0, 1, 0, [0, 1, 3]].numpy(), model.coef_, atol=1e-5)


def test_logits_and_raw_weights_agree() -> None:
    latents, codes = plant(2, 60, 5, n_classes=3)
    fit = fit_logistic(latents, codes, Cs=CS, options=TIGHT)
    weight, bias = fit.raw(1, 2)
    torch.testing.assert_close(latents[1].double() @ weight.T + bias, fit.logits(latents)[1, 2])


@pytest.mark.parametrize("n_rows", [40, 12])
def test_onednn_and_batched_products_agree(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_quick_linear():
        pytest.skip("this processor has no quicker linear map")
    latents, codes = plant(4, n_rows, 20, n_classes=3)
    looped = fit_logistic(latents, codes, Cs=CS)
    monkeypatch.setattr(design, "is_quick", lambda *_: False)
    batched = fit_logistic(latents, codes, Cs=CS)
    torch.testing.assert_close(looped.report.objective, batched.report.objective, rtol=2e-3, atol=0)


def test_separable_classes_and_a_repeated_feature_converge() -> None:
    latents, codes = plant(1, 40, 30, n_classes=2, signal=5.0)
    latents = torch.cat([latents, latents], 2)
    fit = fit_logistic(latents, codes, Cs=[1e-4, 1e4], options=SolverOptions(tol=1e-6))
    assert fit.report.is_converged.all()
    assert bool(torch.isfinite(fit.weight).all())


def test_a_tolerance_beyond_float32_ends_and_is_not_called_converged() -> None:
    latents, codes = plant(1, 100, 8, n_classes=3)
    fit = fit_logistic(latents, codes, Cs=[1.0], options=SolverOptions(tol=1e-12, gap_tol=1e-15, max_iterations=5000))
    assert not fit.report.is_converged.any()
    assert int(fit.report.n_iterations) < 1000


@pytest.mark.gpu
def test_an_accelerator_agrees_with_the_cpu() -> None:
    latents, codes = plant(4, 200, 30, n_classes=5)
    there = fit_logistic(latents, codes, Cs=CS, options=replace(TIGHT, device="cuda"))
    here = fit_logistic(latents, codes, Cs=CS, options=TIGHT)
    torch.testing.assert_close(there.weight, here.weight, rtol=1e-5, atol=1e-5)  # in float32: 6e-6 on an H200
