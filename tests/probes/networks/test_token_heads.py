"""Token heads: their formulas against plain torch, probes that do not touch each other, logits and no softmax."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from extract.errors import HeadError, UnknownNameError
from extract.linear import multiply_layers
from probes.latents.text_latents import Standardiser
from probes.latents.word_latents import WordBatch
from probes.networks.layerwise_networks import TokenClassifier, TokenHead, TokenMix, TokenNormed

L, W, D, K = 4, 30, 12, 5
HEADS = (TokenClassifier, TokenNormed, TokenMix)
Make = type[TokenClassifier] | type[TokenNormed] | type[TokenMix]


def latents(seed: int = 0) -> Tensor:
    return torch.randn(L, W, D, generator=torch.Generator().manual_seed(seed)) * 3 + 1


def labels() -> Tensor:
    return torch.arange(W) % K


def standardised(head: TokenHead) -> TokenHead:
    x = latents(9)
    head.set_standardiser(Standardiser(x.mean(1), x.std(1)))
    return head


@pytest.mark.parametrize("is_quick", [True, False])
def test_products_and_their_gradients_are_those_of_einsum(is_quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extract.linear.is_quick", lambda *_: is_quick and _quick_here())
    x = latents()[:, ::2]  # as a batch lies in its buffer: layers far apart
    weight = torch.randn(L, K, D, requires_grad=True)
    other = weight.detach().clone().requires_grad_()
    found, wanted = multiply_layers(x, weight), torch.einsum("lwd,lkd->lwk", x, other)
    assert torch.allclose(found, wanted, atol=1e-5)
    slope = torch.randn_like(found)
    torch.autograd.backward([found, wanted], [slope, slope])
    assert weight.grad is not None
    assert other.grad is not None
    assert torch.allclose(weight.grad, other.grad, atol=1e-4)


def _quick_here() -> bool:
    from extract.linear import has_quick_linear

    return has_quick_linear()


def test_the_classifier_is_one_linear_map_a_layer() -> None:
    head = standardised(TokenClassifier(L, D, K, seed=3))
    x = latents()
    with torch.no_grad():
        found = head(x)
        for k in range(L):
            linear = nn.Linear(D, K)
            linear.weight.copy_(head.weight[k])
            linear.bias.copy_(head.bias[k])
            assert torch.allclose(found[k], linear((x[k] - head.mean[k]) / head.scale[k]), atol=1e-5)


def test_the_normed_classifier_maps_layer_normed_layers() -> None:
    head = standardised(TokenNormed(L, D, K, seed=3))
    x = latents()
    with torch.no_grad():
        normed = nn.functional.layer_norm((x - head.mean.unsqueeze(1)) / head.scale.unsqueeze(1), (D,))
        wanted = torch.einsum("lwd,lkd->lwk", normed, head.weight) + head.bias.unsqueeze(1)
        assert torch.allclose(head(x), wanted, atol=1e-5)
        alone = head.only(2)
        assert isinstance(alone, TokenNormed)
        assert torch.allclose(alone(x[2:3])[0], wanted[2], atol=1e-5)


def test_the_mix_is_a_classifier_of_the_mixed_layers() -> None:
    head = TokenMix(L, D, K, seed=3)
    standardised(head)
    with torch.no_grad():
        head.preference.copy_(torch.randn(1, L))
        head.gamma.fill_(1.7)
        x = latents()
        normed = nn.functional.layer_norm((x - head.mean.unsqueeze(1)) / head.scale.unsqueeze(1), (D,))
        mixed = 1.7 * torch.einsum("l,lwd->wd", head.preference[0].softmax(0), normed)
        assert torch.allclose(head(x)[0], mixed @ head.weight[0].T + head.bias[0], atol=1e-5)
    assert float(head.weights().sum().detach()) == pytest.approx(1)


@pytest.mark.parametrize("make", HEADS)
def test_two_predictions_agree_and_leave_the_latents_alone(make: Make) -> None:
    head: Any = standardised(make(L, D, K, dropout=0.5)).train()
    x = latents()
    before = x.clone()
    assert torch.equal(head(x), head(x))
    assert torch.equal(x, before)


def test_the_loss_is_cross_entropy_of_logits_by_probe() -> None:
    head = TokenClassifier(L, D, K)
    logits = torch.randn(L, W, K)
    wanted = torch.stack([nn.functional.cross_entropy(part, labels()) for part in logits])
    assert torch.allclose(head.losses(logits, labels()), wanted, atol=1e-6)
    head.class_weights.copy_(torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0]))
    wanted = torch.stack([nn.functional.cross_entropy(p, labels(), weight=head.class_weights) for p in logits])
    assert torch.allclose(head.losses(logits, labels()), wanted, atol=1e-6)
    assert torch.allclose(head.losses(logits + 100, labels()), wanted, atol=1e-4)  # logits have no scale of their own


def test_a_layer_gets_no_gradient_from_another() -> None:
    head = TokenClassifier(L, D, K)
    torch.autograd.backward(head.losses(head.logits(latents()), labels())[1])
    assert head.weight.grad is not None
    moved = head.weight.grad.flatten(1).abs().sum(1) > 0
    assert moved.tolist() == [False, True, False, False]


def test_every_layer_starts_alike_and_drops_the_same_dimensions() -> None:
    head = TokenClassifier(L, D, K, dropout=0.4, seed=2)
    assert all(torch.equal(head.weight[0], head.weight[k]) for k in range(L))
    assert torch.equal(TokenClassifier(1, D, K, seed=2).weight[0], head.weight[0])
    assert not torch.equal(TokenClassifier(1, D, K, seed=3).weight[0], head.weight[0])
    kept = head._drop(torch.ones(L, W, D))
    assert torch.equal(kept[0], kept[3])
    alone = TokenClassifier(1, D, K, dropout=0.4, seed=2)
    assert torch.equal(alone._drop(torch.ones(1, W, D))[0], kept[0])


@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5])
def test_dropout_keeps_the_mean_and_drops_its_share(dropout: float) -> None:
    head = TokenClassifier(1, 400, K, dropout=dropout)
    kept = head._drop(torch.ones(1, 500, 400))
    assert float((kept == 0).float().mean()) == pytest.approx(dropout, abs=0.005)
    assert float(kept.mean()) == pytest.approx(1, abs=0.01)
    assert float(kept.max()) == pytest.approx(1 / (1 - dropout), abs=1e-3)


@pytest.mark.parametrize("make", HEADS)
def test_one_probe_alone_says_what_it_says_among_others(make: Make) -> None:
    head = standardised(make(L, D, K, seed=1))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter))
        probe = head.n_probes - 1
        alone = head.only(probe)
        x = latents() if alone.n_layers == L else latents()[probe : probe + 1]
        assert torch.allclose(alone(x)[0], head(latents())[probe], atol=1e-5)
        assert alone.training == head.training


def test_preparation_does_nothing_where_nothing_was_fitted() -> None:
    preparation = TokenClassifier(L, D, K).preparation()
    assert preparation.mean is None
    x = latents()
    preparation(x)
    assert torch.equal(x, latents())


def test_a_step_trains_on_labelled_batches_only() -> None:
    head = TokenClassifier(L, D, K)
    with pytest.raises(HeadError, match="a batch without labels cannot be trained on"):
        head.training_step(WordBatch(latents(), torch.arange(W)), 0)


def test_the_arguments_build_the_head_again() -> None:
    head = TokenClassifier(L, D, K, dropout=0.3, learning_rate=2e-3, weight_decay=0.2, schedule="linear", seed=5)
    again = TokenClassifier(**head.arguments())
    assert again.arguments() == head.arguments()
    assert torch.equal(again.weight, head.weight)


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_bad_arguments_are_refused(dropout: float) -> None:
    with pytest.raises(HeadError, match=f"dropout is {dropout}; allowed: a share from 0 to below 1"):
        TokenClassifier(L, D, K, dropout=dropout)
    with pytest.raises(UnknownNameError, match="unknown schedule 'linaer': did you mean 'linear'"):
        TokenMix(L, D, K, schedule="linaer")


def test_masks_do_not_touch_other_generators() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    wanted = (torch.rand(1), np.random.rand())
    torch.manual_seed(0)
    np.random.seed(0)
    TokenClassifier(L, D, K, seed=4)._drop(latents())
    assert (torch.rand(1), np.random.rand()) == wanted


def test_probes_that_stay_keep_their_moments_when_others_leave() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(3, 20, 6, generator=generator) for _ in range(6)]
    labels = torch.arange(20) % 2

    def train(leaves_after: int) -> TokenClassifier:
        head = TokenClassifier(3, 6, 2)
        optimiser = head.configure_optimizers()
        head.loop = SimpleNamespace(trainer=SimpleNamespace(optimizers=[optimiser]))
        for k, latents in enumerate(batches):
            if k == leaves_after:
                head.train_only([1, 2])
            optimiser.zero_grad()  # type: ignore[union-attr]
            head.losses(head.logits(latents[list(head.trained)]), labels).sum().backward()  # type: ignore[no-untyped-call]
            optimiser.step()  # type: ignore[union-attr]
        return head

    two, three = train(leaves_after=3), train(leaves_after=99)
    assert two.weight.shape == (2, 2, 6)
    torch.testing.assert_close(two.weight, three.weight[1:], rtol=0, atol=1e-6)
    torch.testing.assert_close(two.bias, three.bias[1:], rtol=0, atol=1e-6)
