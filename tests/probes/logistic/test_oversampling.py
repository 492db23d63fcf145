"""SMOTE inside the fold: counts, neighbours, seeds, and rows that lie between two of their class."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from probes.logistic.estimator import MODES, LogisticProbe, describe_oversampling, oversample, plan_growth
from probes.logistic.problem import SolverOptions
from probes.logistic.solver import fit_logistic
from tests.probes.logistic.problems import TIGHT, as_sklearn, plant

CODES = torch.tensor([0] * 30 + [1] * 12 + [2] * 3 + [3] * 2 + [4])


def draw() -> Tensor:
    latents, _ = plant(2, len(CODES), 5, n_classes=2)
    return latents


def test_balance_gives_every_class_the_rows_of_the_largest() -> None:
    more = oversample(draw(), CODES, mode="balance", seed=0)
    assert torch.bincount(more.codes).tolist() == [30] * 5
    assert plan_growth(CODES, "balance") == {1: (12, 18, 5), 2: (3, 27, 2), 3: (2, 28, 1), 4: (1, 29, 0)}


def test_times_5_gives_every_class_five_times_its_rows() -> None:
    more = oversample(draw(), CODES, mode="times-5", seed=0)
    assert torch.bincount(more.codes).tolist() == [5 * n for n in (30, 12, 3, 2, 1)]
    assert plan_growth(CODES[:-1], "times-5") == {0: (30, 120, 1), 1: (12, 48, 1), 2: (3, 12, 1), 3: (2, 8, 1)}
    assert plan_growth(CODES[:42], "times-5") == {0: (30, 120, 5), 1: (12, 48, 5)}


@pytest.mark.parametrize("mode", MODES)
def test_given_rows_come_first_and_standardised(mode: str) -> None:
    latents = draw()
    more = oversample(latents, CODES, mode=mode, seed=0)
    n = len(CODES)
    assert torch.equal(more.codes[:n], CODES)
    mean, spread = latents.double().mean(1, keepdim=True), latents.double().std(1, correction=0, keepdim=True)
    torch.testing.assert_close(more.latents[:, :n], ((latents.double() - mean) / spread).float())
    assert more.latents.dtype is torch.float32


def test_new_rows_lie_between_two_of_their_class() -> None:
    more = oversample(draw(), CODES, mode="balance", seed=0)
    n = len(CODES)
    for layer in more.latents.double():
        for row, code in zip(layer[n:], more.codes[n:].tolist(), strict=True):
            own = layer[:n][code == CODES]
            along = torch.cdist(row[None], own)[0]
            # On the segment from a to b the two distances add up to that between a and b.
            gap = (along[:, None] + along[None]) - torch.cdist(own, own)
            assert float(gap.min()) < 1e-5


def test_a_single_row_is_repeated() -> None:
    more = oversample(draw(), CODES, mode="balance", seed=0)
    (row,) = more.latents[0, : len(CODES)][CODES == 4]
    assert bool((more.latents[0][more.codes == 4] == row).all())


def test_a_seed_draws_the_same_rows_again() -> None:
    first, again, other = (oversample(draw(), CODES, mode="balance", seed=seed).latents for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_each_layer_is_drawn_as_it_would_be_alone() -> None:
    latents = draw()
    together = oversample(latents, CODES, mode="times-5", seed=0)
    for k in range(2):
        assert torch.equal(
            oversample(latents[k : k + 1], CODES, mode="times-5", seed=0).latents[0], together.latents[k]
        )


def test_a_fit_on_grown_rows_scores_raw_latents() -> None:
    latents = draw()
    more = oversample(latents, CODES, mode="balance", seed=0)
    options = SolverOptions(is_standardised=False, precision="float64")
    fit = fit_logistic(more.latents, more.codes, Cs=[1.0], options=options)
    scaled = fit.logits(more.latents[:, : len(CODES)])
    raw = fit.before(more.mean, more.scale).logits(latents)
    torch.testing.assert_close(raw, scaled, rtol=1e-4, atol=1e-4)


def test_unscaled_rows_are_smote_and_logistic_regression_on_raw_rows() -> None:
    latents, _ = plant(1, 42, 5, n_classes=2)
    codes = torch.tensor([0] * 30 + [1] * 12)
    x, y = latents[0].double().numpy(), codes.numpy()
    smote = import_module("imblearn.over_sampling").SMOTE  # it comes without types
    grown, labels = smote(sampling_strategy={1: 30}, k_neighbors=5, random_state=7 + 1).fit_resample(x, y)
    theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=20000).fit(grown, labels)
    more = oversample(latents, codes, mode="balance", seed=7, is_standardised=False, dtype=torch.float64)
    np.testing.assert_allclose((more.latents + more.mean[:, None])[0].numpy(), grown, atol=1e-9)
    assert bool((more.scale == 1).all())
    fit = fit_logistic(more.latents, more.codes, Cs=[0.5], options=replace(TIGHT, is_standardised=False))
    weight, bias = as_sklearn(*fit.before(more.mean, more.scale).raw(0, 0))
    np.testing.assert_allclose(weight, theirs.coef_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(bias, theirs.intercept_, rtol=1e-5, atol=1e-6)
    probe = LogisticProbe(C=0.5, tol=1e-10, standardise=False, oversampling="balance", random_state=0).fit(x, y)
    scaled = LogisticProbe(C=0.5, tol=1e-10, oversampling="balance", random_state=0).fit(x, y)
    units = np.array([1000.0, 1, 1, 1, 1])
    np.testing.assert_allclose(
        clone(scaled).fit(x * units, y).decision_function(x * units), scaled.decision_function(x), rtol=1e-4, atol=1e-4
    )
    moved = clone(probe).fit(x * units, y).decision_function(x * units)
    assert np.abs(moved - probe.decision_function(x)).max() > 0.01


def test_what_it_does_is_told_without_doing_it() -> None:
    names = ["a", "b", "c", "d", "e"]
    more = oversample(draw(), CODES, mode="balance", seed=0)
    told = describe_oversampling(CODES, mode="balance", class_names=names)
    assert told["n_synthetic"] == len(more.codes) - len(CODES)
    assert (told["clipped"], told["duplicated"]) == ({"c": 2, "d": 1}, ["e"])
