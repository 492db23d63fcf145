"""All layers at once equal a loop over ordinary modules, forwards and through training."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from extract.errors import UnknownNameError
from extract.linear import affine_layers, has_quick_linear
from probes.networks.layerwise_networks import ENCODERS, LayerwiseLinear, LayerwiseNorm, build_map

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
    batched = build_map(kind, L, n_in=D, n_out=H, dropout=0.0)
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
    assert build_map(kind, L, n_in=D, n_out=H, dropout=0.1)(draw()).shape == (L, B, H)


def test_fresh_weights_spread_as_those_of_linear() -> None:
    torch.manual_seed(0)
    ours, plain = LayerwiseLinear(3, 400, 300), nn.Linear(400, 300)
    for mine, theirs in ((ours.weight, plain.weight), (ours.bias, plain.bias)):
        assert float(mine.detach().std()) == pytest.approx(float(theirs.detach().std()), rel=0.1)
        assert float(mine.detach().abs().max()) <= 400**-0.5
    assert not torch.equal(ours.weight[0], ours.weight[1])


def test_an_unknown_encoder_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown encoder 'linaer': did you mean 'linear'\?"):
        build_map("linaer", L, n_in=D, n_out=H, dropout=0.0)


@pytest.fixture(params=["oneDNN", "plain"])
def is_plain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Products by oneDNN where this machine has them, and the same with oneDNN switched off."""
    if request.param == "plain":
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    return bool(request.param == "plain")


def leaves(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("shape", [(L, B, D, H), (1, 1, 1, 1), (3, 1, 40, 33), (2, 65, 3, 70), (L, 0, D, H)])
def test_an_affine_map_equals_baddbmm_forwards_and_backwards(shape: tuple[int, int, int, int], is_plain: bool) -> None:
    n_layers, n_rows, n_in, n_out = shape
    sizes = ((n_layers, n_rows, n_in), (n_layers, n_in, n_out), (n_layers, 1, n_out))
    ours, theirs = leaves(*sizes), leaves(*sizes)
    found, expected = affine_layers(*ours), torch.baddbmm(theirs[2], theirs[0], theirs[1])
    is_quick = has_quick_linear() and not is_plain and n_rows > 0
    assert ("AffineLayers" in type(found.grad_fn).__name__) == is_quick
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    slope = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    found.backward(slope)  # type: ignore[no-untyped-call]
    expected.backward(slope)  # type: ignore[no-untyped-call]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("is_plain")
def test_inputs_and_gradients_of_any_strides_are_taken() -> None:
    x, weight, bias = leaves((B, D, L), (L, D, H), (L, 1, H))
    y, v, c = leaves((B, D, L), (L, D, H), (L, 1, H))
    turned, expected = affine_layers(x.permute(2, 0, 1), weight, bias), torch.baddbmm(c, y.permute(2, 0, 1), v)
    torch.testing.assert_close(turned, expected, rtol=1e-5, atol=1e-5)
    turned.mean().backward()  # type: ignore[no-untyped-call] # one number, expanded over the whole gradient
    expected.mean().backward()  # type: ignore[no-untyped-call]
    for mine, other in ((x, y), (weight, v), (bias, c)):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("is_plain")
def test_only_what_asks_for_a_gradient_gets_one() -> None:
    x, weight, bias = leaves((L, B, D), (L, D, H), (L, 1, H))
    frozen = [weight.detach(), bias.detach()]
    affine_layers(x, *frozen).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, weight.detach().sum(2).unsqueeze(1).expand(L, B, D), rtol=1e-4, atol=1e-4)
    affine_layers(x.detach(), weight, bias).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, x.detach().sum(1).unsqueeze(2).expand(L, D, H), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert not affine_layers(x, weight, bias).requires_grad
    assert not affine_layers(x.detach(), *frozen).requires_grad


@pytest.mark.usefixtures("is_plain")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_number_formats_take_pytorchs_way(dtype: torch.dtype) -> None:
    x, weight, bias = (tensor.detach().to(dtype) for tensor in leaves((L, B, D), (L, D, H), (L, 1, H)))
    torch.testing.assert_close(affine_layers(x, weight, bias), torch.baddbmm(bias, x, weight))
