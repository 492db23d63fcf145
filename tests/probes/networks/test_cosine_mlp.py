"""The cosine MLP: which cosines it sees, and that only the network is trained."""

import pytest
import torch

from probes.latents.pair_latents import PairLatents
from probes.networks.cosine_mlp import CosineMLP
from tests.probes.planted_latents import LAYERS, WIDTH


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
