"""The cosine heads: which cosines they see, the formula of the linear one, and its weights."""

import numpy as np
import pytest
import torch

from probes.fitting.fit import fit_head, predict_pairs
from probes.fitting.fit_options import EpochOptions
from probes.latents.text_latents import PairLatents
from probes.metrics.prediction_metrics import pearson
from probes.networks.pair_networks import CosineLinear, CosineMLP
from tests.probes.planted_latents import LAYERS, PLANTED, WIDTH


@pytest.mark.parametrize("standardises_latents", [True, False])
def test_similarities_are_plain_cosines(data: PairLatents, standardises_latents: bool) -> None:
    head = CosineMLP(len(LAYERS), WIDTH, standardises_latents=standardises_latents)
    standardiser = data.standardiser()
    head.prepare(data, standardiser)
    batch = next(iter(data.loader("validation")))
    a, b = batch.a, batch.b
    if standardises_latents:
        a, b = ((x - standardiser.mean.unsqueeze(1)) / standardiser.scale.unsqueeze(1) for x in (a, b))
    expected = (a * b).sum(-1) / a.norm(dim=-1) / b.norm(dim=-1)
    torch.testing.assert_close(head.similarities(batch.a, batch.b), expected, rtol=1e-4, atol=1e-5)


def test_the_network_sees_cosines_of_mean_zero_and_deviation_one(data: PairLatents) -> None:
    head = CosineMLP(len(LAYERS), WIDTH, standardises_latents=False)
    head.prepare(data, data.standardiser())
    seen = []
    head.network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for batch in data.loader("train"):
        head(batch.a, batch.b)
    inputs = torch.cat(seen)
    torch.testing.assert_close(inputs.mean(0), torch.zeros(len(LAYERS)), rtol=0, atol=1e-4)
    torch.testing.assert_close(inputs.std(0), torch.ones(len(LAYERS)), rtol=1e-4, atol=1e-4)


def test_the_linear_head_is_a_weighted_sum_of_standardised_cosines(data: PairLatents) -> None:
    head = CosineLinear(len(LAYERS), WIDTH)
    head.prepare(data, data.standardiser())
    torch.nn.init.normal_(head.network.weight, generator=torch.Generator().manual_seed(0))
    [train], [batch] = data.loader("train"), data.loader("test")

    def cosines(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = ((x - head.mean) / head.scale for x in (a, b))
        norms = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
        found: torch.Tensor = torch.einsum("lbd,lbd->lb", a, b) / norms
        return found

    seen, found = cosines(train.a, train.b), cosines(batch.a, batch.b)
    z = (found - seen.mean(1, keepdim=True)) / seen.std(1, keepdim=True)
    wanted = 1 / (1 + torch.exp(-(head.weights() @ z + head.network.bias)))
    torch.testing.assert_close(head(batch.a, batch.b), wanted, rtol=1e-4, atol=1e-5)
    assert head.weights().shape == (len(LAYERS),)


def test_the_planted_layer_gets_the_largest_weight(data: PairLatents) -> None:
    head = CosineLinear(len(LAYERS), WIDTH, learning_rate=3e-2)
    fit_head(head, data, options=EpochOptions(batch_size=40, max_epochs=20), seed=0, device="cpu")
    assert int(head.weights().abs().argmax()) == LAYERS.index(PLANTED)
    gold = data.split("test").gold.numpy()
    assert float(pearson(np.asarray(predict_pairs(head, data, "test")), gold)) > 0.5
