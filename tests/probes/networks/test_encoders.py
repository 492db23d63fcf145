"""Layers of one width computed together equal a loop over layers, whatever widths stand beside them."""

from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from extract.errors import UnknownNameError
from probes.networks.layerwise_networks import ENCODERS, LayerGroups, pick_layers

L, B, D = 6, 7, 10
CODES = {
    "one width": (4, 4, 4, 4, 4, 4),
    "upper half": (4, 4, 4, 6, 6, 6),
    "interleaved": (4, 6, 4, 3, 6, 4),
    "all different": (6, 5, 4, 3, 2, 1),
}


def draw(n_layers: int = L, *, width: int = D, seed: int = 0) -> Tensor:
    return torch.randn(n_layers, B, width, generator=torch.Generator().manual_seed(seed)) * 3 + 1


def build(kind: str, codes: tuple[int, ...], *, is_decoder: bool = False, seed: int = 0) -> LayerGroups:
    torch.manual_seed(seed)
    return LayerGroups(kind, D, codes, dropout=0.0, is_decoder=is_decoder)


def split_up(groups: LayerGroups, kind: str, codes: tuple[int, ...], *, is_decoder: bool = False) -> list[LayerGroups]:
    """Make a module of one layer for each layer, with copied weights."""
    made = []
    for k, code in enumerate(codes):
        single = build(kind, (code,), is_decoder=is_decoder, seed=k + 1)
        single.copy_layers(groups, [k])
        made.append(single)
    return made


def of_layers(groups: LayerGroups, codes: list[Tensor]) -> list[Tensor]:
    """Sort codes by layer."""
    found = {
        layer: code[row] for layers, code in zip(groups.members, codes, strict=True) for row, layer in enumerate(layers)
    }
    return [found[k] for k in range(L)]


@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
@pytest.mark.parametrize("kind", ENCODERS)
def test_encoding_together_equals_a_loop_over_layers(kind: str, codes: tuple[int, ...]) -> None:
    together = build(kind, codes)
    alone = split_up(together, kind, codes)
    x, y = draw().requires_grad_(), draw().requires_grad_()
    found = of_layers(together, together.encode(x))
    looped = [single.encode(y[k : k + 1])[0][0] for k, single in enumerate(alone)]
    for k, code in enumerate(codes):
        assert found[k].shape == (B, code)
        torch.testing.assert_close(found[k], looped[k], rtol=1e-5, atol=1e-5)
    # Gradients of a loss that weighs layers, rows and dimensions differently.
    for outputs in (found, looped):
        weighed = [
            ((k + 1) * code * torch.linspace(-1, 1, code.numel()).view_as(code)).sum() for k, code in enumerate(outputs)
        ]
        torch.stack(weighed).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    assert_same_gradients(together, alone)


@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
@pytest.mark.parametrize("kind", ENCODERS)
def test_decoding_together_equals_a_loop_over_layers(kind: str, codes: tuple[int, ...]) -> None:
    together = build(kind, codes, is_decoder=True)
    alone = split_up(together, kind, codes, is_decoder=True)
    inputs = [draw(1, width=code, seed=k)[0] for k, code in enumerate(codes)]
    found = together.decode([torch.stack([inputs[layer] for layer in layers]) for layers in together.members])
    looped = torch.cat([single.decode([inputs[k].unsqueeze(0)]) for k, single in enumerate(alone)])
    assert found.shape == (L, B, D)
    torch.testing.assert_close(found, looped, rtol=1e-5, atol=1e-5)
    weights = draw(seed=9)
    (found * weights).sum().backward()  # type: ignore[no-untyped-call]
    (looped * weights).sum().backward()  # type: ignore[no-untyped-call]
    assert_same_gradients(together, alone)


def assert_same_gradients(together: LayerGroups, alone: list[LayerGroups]) -> None:
    n_checked = 0
    for group, layers in zip(together.groups, together.members, strict=True):
        for row, layer in enumerate(layers):
            for mine, theirs in zip(group.parameters(), alone[layer].parameters(), strict=True):
                assert mine.grad is not None
                assert theirs.grad is not None
                torch.testing.assert_close(mine.grad[row], theirs.grad[0], rtol=1e-4, atol=1e-4)
                n_checked += 1
    assert n_checked == L * len(list(alone[0].parameters()))


@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
def test_ungrouping_restores_the_order_of_the_layers(codes: tuple[int, ...]) -> None:
    groups = build("linear", codes)
    assert sorted(layer for layers in groups.members for layer in layers) == list(range(L))
    assert all(len({codes[layer] for layer in layers}) == 1 for layers in groups.members)
    assert all(codes[a[0]] != codes[b[0]] for a, b in combinations(groups.members, 2))
    parts = [torch.tensor(layers).view(-1, 1).expand(-1, B) for layers in groups.members]
    assert torch.equal(groups.ungroup(parts), torch.arange(L).view(L, 1).expand(L, B))


@pytest.mark.parametrize("kind", ENCODERS)
def test_copying_takes_the_layers_that_were_picked(kind: str) -> None:
    codes = CODES["interleaved"]
    source = build(kind, codes)
    before = [parameter.detach().clone() for parameter in source.parameters()]
    picks = [5, 1, 0, 3]  # any order; widths 4, 6, 4, 3
    target = build(kind, tuple(codes[k] for k in picks), seed=1)
    target.copy_layers(source, picks)
    x = draw()
    whole = of_layers(source, source.encode(x))
    taken = target.encode(x[picks])
    for layers, code in zip(target.members, taken, strict=True):
        for row, layer in enumerate(layers):
            torch.testing.assert_close(code[row], whole[picks[layer]], rtol=1e-6, atol=1e-6)
    with torch.no_grad():  # a copy, not a view
        for parameter in target.parameters():
            parameter.zero_()
    assert all(torch.equal(now, then) for now, then in zip(source.parameters(), before, strict=True))


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
def test_stacks_give_every_parameter_with_its_layers(kind: str, codes: tuple[int, ...]) -> None:
    groups = build(kind, codes)
    found = list(groups.stacks())
    assert {id(parameter) for parameter, _ in found} == {id(parameter) for parameter in groups.parameters()}
    assert len(found) == len(list(groups.parameters()))
    for parameter, layers in found:
        assert isinstance(parameter, nn.Parameter)
        assert parameter.shape[0] == len(layers)
    per_layer = [sum(layer in layers for _, layers in found) for layer in range(L)]
    assert per_layer == [len(list(build(kind, (4,)).parameters()))] * L


@pytest.mark.parametrize("layers", [(0, 1, 2), (2, 3), (5,), (0, 2), (3, 1), (0, 1, 2, 3, 4, 5), (1, 1)])
def test_picking_layers_equals_indexing(layers: tuple[int, ...]) -> None:
    x = draw()
    found = pick_layers(x, layers)
    assert torch.equal(found, x[list(layers)])
    follows = list(layers) == list(range(layers[0], layers[0] + len(layers)))
    assert (
        found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    ) == follows  # no copy where none needed


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown encoder 'mpl': did you mean 'mlp'\? Allowed: linear, mlp"):
        build("mpl", (4, 6))
