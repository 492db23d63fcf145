"""One fitted probe as a plain module."""

import pytest
import torch

from extract.errors import HeadError
from probes.heads.linear_probes import LinearProbe
from probes.logistic.solver import fit_logistic
from tests.probes.logistic.problems import plant


def test_it_scores_as_the_fit_it_was_taken_from() -> None:
    latents, codes = plant(1, 60, 6, n_classes=4)
    fit = fit_logistic(latents, codes, Cs=[1.0])
    probe = LinearProbe.of(fit, ["a", "b", "c", "d"])
    torch.testing.assert_close(probe(latents[0]), fit.logits(latents)[0, 0])
    assert probe.predict(latents[0]) == ["abcd"[code] for code in fit.logits(latents)[0, 0].argmax(-1)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_named(value: float) -> None:
    latents, codes = plant(1, 60, 6, n_classes=2)
    probe = LinearProbe.of(fit_logistic(latents, codes, Cs=[1.0]), ["a", "b"])
    latents[0, 7, 2] = value
    with pytest.raises(HeadError, match=rf"to predict: layer 0, row 7 holds {value} in dimension 2; allowed: finite"):
        probe.predict(latents[0])
