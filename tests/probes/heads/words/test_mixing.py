"""What each layer gives a mix: weights that sum to 1, and scores that equal those of mixes made by hand."""

import numpy as np
import pytest
import torch

from probes.heads.word_fits import predict_ids, tag_scorer
from probes.heads.word_heads import describe_mix
from probes.latents.word_latents import WordLatents
from probes.networks.layerwise_networks import TokenMix
from tests.probes.heads.words.planted_words import LAYERS, WIDTH, make_task, plant

TASK = make_task(sizes={"train": 60, "validation": 40})


@pytest.fixture(scope="module")
def data() -> WordLatents:
    return WordLatents(plant(TASK, cut=[70]), TASK)


def make_mix(seed: int) -> TokenMix:
    head = TokenMix(len(LAYERS), WIDTH, 5)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return head.eval()


def rebuilt(head: TokenMix, weights: torch.Tensor) -> TokenMix:
    """Make the same head with other weights of the layers."""
    other = TokenMix(len(LAYERS), WIDTH, 5)
    other.load_state_dict(head.state_dict())
    with torch.no_grad():
        other.preference.copy_(weights.log().clamp(min=-60).unsqueeze(0))
    return other


def test_scores_are_those_of_mixes_made_by_hand(data: WordLatents) -> None:
    head = make_mix(0)
    judge = tag_scorer(data, "validation")
    found = describe_mix([head], data, judge)
    weights = head.weights().detach()
    assert found["weights"] == pytest.approx(weights.tolist())
    assert sum(found["weights"]) == pytest.approx(1)
    assert found["whole"] == pytest.approx(judge.score(predict_ids(head, data, "validation")[0]))
    for k in range(len(LAYERS)):
        only, without = torch.zeros(len(LAYERS)), weights.clone()
        only[k], without[k] = 1, 0
        alone = judge.score(predict_ids(rebuilt(head, only), data, "validation")[0])
        others = judge.score(predict_ids(rebuilt(head, without / without.sum()), data, "validation")[0])
        assert found["alone"][k] == pytest.approx(alone)
        assert found["without"][k] == pytest.approx(found["whole"] - others)


def test_several_seeds_are_averaged(data: WordLatents) -> None:
    judge = tag_scorer(data, "validation")
    one, other = (describe_mix([make_mix(seed)], data, judge) for seed in (0, 1))
    both = describe_mix([make_mix(0), make_mix(1)], data, judge)
    for key in ("weights", "alone", "without", "whole", "gamma"):
        assert np.allclose(both[key], (np.array(one[key]) + np.array(other[key])) / 2, atol=1e-6)


def test_without_a_judge_there_are_weights_alone(data: WordLatents) -> None:
    assert set(describe_mix([make_mix(0)], data, None)) == {"layers", "weights", "gamma"}
