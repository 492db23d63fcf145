"""All layers at once equal a loop over ordinary modules, forwards and through training."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from extract.errors import UnknownNameError
from probes.heads.layerwise import ENCODERS, LayerwiseLinear, LayerwiseNorm, build_encoder

L, B, D, H = 4, 7, 10, 6


def draw() -> Tensor:
    return torch.randn(L, B, D, generator=torch.Generator().manual_seed(0)) * 3 + 1


def unstack(encoder: nn.Sequential) -> list[nn.Sequential]:
    """Make one ordinary module per layer, with the same weights."""
    made = []
    for k in range(L):
        parts: list[nn.Module] = []
        for part in encoder:
            if isinstance(part, LayerwiseLinear):
                plain: nn.Module = nn.Linear(part.weight.shape[1], part.weight.shape[2])
                state = {"weight": part.weight[k].T, "bias": part.bias[k, 0]}
            elif isinstance(part, LayerwiseNorm):
                plain = nn.LayerNorm(part.weight.shape[2])
                state = {"weight": part.weight[k, 0], "bias": part.bias[k, 0]}
            else:
                parts.append(part)
                continue
            plain.load_state_dict({key: value.detach().clone() for key, value in state.items()})
            parts.append(plain)
        made.append(nn.Sequential(*parts))
    return made


def train(encode: Callable[[Tensor], Tensor], parameters: list[nn.Parameter]) -> list[float]:
    """Pull the codes towards a target for a few steps; give the losses."""
    x = draw()
    target = torch.randn(L, B, H, generator=torch.Generator().manual_seed(1))
    optimiser = torch.optim.AdamW(parameters, lr=1e-2)
    losses = []
    for _ in range(6):
        optimiser.zero_grad()
        loss = ((encode(x) - target) ** 2).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("kind", ENCODERS)
def test_batched_equals_looped_through_training(kind: str) -> None:
    torch.manual_seed(0)
    batched = build_encoder(kind, L, D, bottleneck=H, dropout=0.0)
    looped = unstack(batched)

    def loop(x: Tensor) -> Tensor:
        return torch.stack([module(x[k]) for k, module in enumerate(looped)])

    torch.testing.assert_close(batched(draw()), loop(draw()), rtol=1e-5, atol=1e-5)
    parameters = [parameter for module in looped for parameter in module.parameters()]
    together, alone = train(batched, list(batched.parameters())), train(loop, parameters)
    assert together == pytest.approx(alone, rel=1e-4)
    assert together[-1] < together[0]


@pytest.mark.parametrize("kind", ENCODERS)
def test_codes_have_the_bottleneck(kind: str) -> None:
    assert build_encoder(kind, L, D, bottleneck=H, dropout=0.1)(draw()).shape == (L, B, H)


def test_fresh_weights_spread_as_those_of_linear() -> None:
    torch.manual_seed(0)
    ours, plain = LayerwiseLinear(3, 400, 300), nn.Linear(400, 300)
    for mine, theirs in ((ours.weight, plain.weight), (ours.bias, plain.bias)):
        assert float(mine.detach().std()) == pytest.approx(float(theirs.detach().std()), rel=0.1)
        assert float(mine.detach().abs().max()) <= 400**-0.5
    assert not torch.equal(ours.weight[0], ours.weight[1])


def test_an_unknown_encoder_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown encoder 'linaer': did you mean 'linear'\?"):
        build_encoder("linaer", L, D, bottleneck=H, dropout=0.0)
