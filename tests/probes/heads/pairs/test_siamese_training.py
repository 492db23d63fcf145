"""How the siamese head is trained: learning rates, weight decay and dropout of its encoders and of its network."""

from typing import Any

import pytest
import torch

from extract.errors import HeadError
from probes.heads.head_table import resolve_head
from probes.networks.pair_networks import SiameseCosine

L, WIDTH = 5, 12


def build(*, seed: int = 0, **options: Any) -> SiameseCosine:
    torch.manual_seed(seed)
    return SiameseCosine(L, WIDTH, **{"bottleneck": [4, 7, 4, 3, 7], "hidden": 8, **options}).eval()


def steps_of(head: SiameseCosine) -> dict[str, float]:
    """Take one step of the head's own optimiser; give the largest change of encoders, projections and network."""
    before = {name: parameter.detach().clone() for name, parameter in head.named_parameters()}
    optimiser = head.configure_optimizers()
    a, b = torch.randn(2, L, 9, WIDTH, generator=torch.Generator().manual_seed(4))
    head(a, b).sum().backward()
    optimiser.step()
    found: dict[str, float] = {}
    for name, parameter in head.named_parameters():
        part, change = name.split(".")[0], float((parameter.detach() - before[name]).abs().max())
        found[part] = max(found.get(part, 0.0), change)
    return found


@pytest.mark.parametrize("start", ["fresh", "pretrained"])
@pytest.mark.parametrize(("rate", "step"), [(None, 1e-2), (1e-4, 1e-4), (0.0, 0.0)])
def test_encoders_may_learn_at_a_rate_of_their_own(start: str, rate: float | None, step: float) -> None:
    """The first step of Adam is as long as its learning rate."""
    head = build(start=start, learning_rate=1e-2, encoder_learning_rate=rate, pair_features=3)
    with torch.no_grad():
        head.network[-2].bias.zero_()  # type: ignore[operator]  # within the slope of the hard sigmoid
    found = steps_of(head)
    assert found == pytest.approx({"encoder": step, "projections": 1e-2, "network": 1e-2}, rel=1e-2)


def test_a_learning_rate_for_frozen_encoders_is_refused() -> None:
    with pytest.raises(
        HeadError, match=r"encoder_learning_rate is 0\.0001, but start is 'frozen', which trains no enc"
    ):
        resolve_head("siamese-cosine", {"start": "frozen", "encoder_learning_rate": 1e-4})


def test_weight_decay_shrinks_encoders_and_network_alike() -> None:
    for rate, factors in ((None, (0.995, 0.995)), (0.1, (0.95, 0.995))):
        head = build(start="pretrained", learning_rate=1e-2, weight_decay=0.5, encoder_learning_rate=rate)
        optimiser = head.configure_optimizers()
        parts = (head.encoder, head.network)
        before = [[parameter.detach().clone() for parameter in part.parameters()] for part in parts]
        for parameter in head.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
        for part, old, factor in zip(parts, before, factors, strict=True):
            for now, then in zip(part.parameters(), old, strict=True):
                torch.testing.assert_close(now.detach(), factor * then)


def test_the_network_drops_hidden_units_in_training_alone() -> None:
    head = build(hidden=64, dropout=0.0, network_dropout=0.5)
    plain = build(hidden=64, dropout=0.0, seed=1)
    plain.load_state_dict(head.state_dict())  # dropout adds no weight and renames none
    cosines = torch.rand(L, 9)
    with torch.no_grad():
        assert torch.equal(head.eval().combine(cosines), plain.eval().combine(cosines))
        head.train()
        hidden = head.network[:2](cosines.T)
        share = float((hidden == 0).float().mean())
        assert not torch.equal(head.combine(cosines), head.combine(cosines))
    assert 0.4 < share < 0.6
