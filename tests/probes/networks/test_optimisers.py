"""One fused optimiser for all layers takes the steps that one ordinary AdamW per layer would take."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from probes.networks.layerwise_networks import LayerwiseAdamW, adamw

L, LEARNING_RATE, WEIGHT_DECAY = 5, 1e-2, 0.1
# Which layers each stacked parameter holds: groups of interleaved layers, two parameters each.
PLACES: tuple[tuple[int, ...], ...] = ((0, 2, 3), (0, 2, 3), (4, 1), (4, 1))
SHAPES = ((4, 3), (1, 3), (2,), (1, 1))


def stacked() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [
        nn.Parameter(torch.randn(len(layers), *shape, generator=generator))
        for layers, shape in zip(PLACES, SHAPES, strict=True)
    ]


def gradients(step: int) -> list[Tensor]:
    """Make what a backward pass would leave, a different one every step and of very different sizes by layer."""
    generator = torch.Generator().manual_seed(100 + step)
    found = []
    for layers, shape in zip(PLACES, SHAPES, strict=True):
        size = 10.0 ** torch.tensor(layers).view(-1, *[1] * len(shape))
        found.append(size * torch.randn(len(layers), *shape, generator=generator))
    return found


def layerwise(parameters: Sequence[nn.Parameter], *, learning_rate: float = LEARNING_RATE) -> LayerwiseAdamW:
    return LayerwiseAdamW(
        list(zip(parameters, PLACES, strict=True)), L, learning_rate=learning_rate, weight_decay=WEIGHT_DECAY
    )


def separate(parameters: Sequence[nn.Parameter]) -> tuple[list[torch.optim.Optimizer], dict[tuple[int, int], Tensor]]:
    """Make one AdamW per layer over copies of its slices."""
    copies = {
        (p, layer): nn.Parameter(parameter.detach()[row].clone())
        for p, (parameter, layers) in enumerate(zip(parameters, PLACES, strict=True))
        for row, layer in enumerate(layers)
    }
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [copy for (_, of), copy in copies.items() if of == layer],
            lr=LEARNING_RATE * (1 + layer / L),
            weight_decay=WEIGHT_DECAY,
        )
        for layer in range(L)
    ]
    return optimisers, dict(copies)


def set_gradients(parameters: Sequence[nn.Parameter], step: int) -> None:
    for parameter, gradient in zip(parameters, gradients(step), strict=True):
        parameter.grad = gradient


def test_it_equals_one_adamw_per_layer() -> None:
    parameters = stacked()
    optimisers, copies = separate(parameters)
    start = [parameter.detach().clone() for parameter in parameters]
    optimiser = layerwise(parameters)
    for step in range(20):
        optimiser.zero_grad()
        set_gradients(parameters, step)
        optimiser.step()
        for p, gradient in enumerate(gradients(step)):
            for row, layer in enumerate(PLACES[p]):
                copies[p, layer].grad = gradient[row]
        for each in optimisers:
            each.step()
    for p, parameter in enumerate(parameters):
        for row, layer in enumerate(PLACES[p]):
            torch.testing.assert_close(parameter.detach()[row], copies[p, layer].detach(), rtol=0, atol=1e-6)
        assert ((parameter.detach() - start[p]).abs() > 0.05).any()


def test_higher_layers_learn_faster() -> None:
    parameters = stacked()
    start = [parameter.detach().clone() for parameter in parameters]
    optimiser = LayerwiseAdamW(
        list(zip(parameters, PLACES, strict=True)), L, learning_rate=LEARNING_RATE, weight_decay=0.0
    )
    set_gradients(parameters, 0)
    optimiser.step()
    for parameter, before, layers in zip(parameters, start, PLACES, strict=True):
        for row, layer in enumerate(layers):  # the first step of Adam is as long as the learning rate
            moved = (parameter.detach()[row] - before[row]).abs()
            torch.testing.assert_close(
                moved, torch.full_like(moved, LEARNING_RATE * (1 + layer / L)), rtol=1e-3, atol=1e-6
            )


def test_zeroing_forgets_every_gradient() -> None:
    parameters = stacked()
    optimiser = layerwise(parameters)
    set_gradients(parameters, 0)
    optimiser.step()
    optimiser.zero_grad()
    assert all(parameter.grad is None for parameter in parameters)
    assert all(piece.grad is None for group in optimiser.param_groups for piece in group["params"])
    before = [parameter.detach().clone() for parameter in parameters]
    optimiser.step()  # nothing to go by: not even weight decay moves anything
    assert all(torch.equal(now, then) for now, then in zip(parameters, before, strict=True))


def test_layers_that_left_keep_no_memory() -> None:
    parameter = nn.Parameter(torch.ones(4, 5))
    optimiser = LayerwiseAdamW([(parameter, range(4))], 4, learning_rate=LEARNING_RATE, weight_decay=0.0)
    for left in (3, 2, 1):
        parameter.grad = torch.ones_like(parameter)
        optimiser.step()
        parameter.grad = None
        parameter.data = parameter.detach()[:left].clone()
        optimiser.follow([(parameter, range(left))])
        pieces = [piece for group in optimiser.param_groups for piece in group["params"]]
        held = {piece.untyped_storage().data_ptr(): piece.untyped_storage().nbytes() for piece in pieces}
        assert sum(held.values()) == parameter.untyped_storage().nbytes()
        moments = [state["exp_avg"].numel() for state in optimiser.state.values()]
        assert sum(moments) == parameter.numel()


def test_a_closure_gives_the_same_steps_and_its_loss() -> None:
    one, other = stacked(), stacked()
    plain, closing = layerwise(one), layerwise(other)
    grad_modes = []
    for step in range(5):
        plain.zero_grad()
        sum((parameter**2 * (step + 1)).sum() for parameter in one).backward()  # type: ignore[union-attr]
        plain.step()

        def closure(step: int = step) -> float:
            grad_modes.append(torch.is_grad_enabled())
            closing.zero_grad()
            loss = torch.stack([(parameter**2 * (step + 1)).sum() for parameter in other]).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())

        expected = float(sum((step + 1) * float((parameter.detach() ** 2).sum()) for parameter in other))
        assert closing.step(closure) == pytest.approx(expected, rel=1e-5)
    assert all(grad_modes)
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-7)


def run_steps(optimiser: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], steps: range) -> None:
    for step in steps:
        optimiser.zero_grad()
        set_gradients(parameters, step)
        optimiser.step()


def test_its_state_goes_to_a_dictionary_and_back() -> None:
    whole, halved = stacked(), stacked()
    run_steps(layerwise(whole), whole, range(10))
    first = layerwise(halved)
    run_steps(first, halved, range(5))
    again = layerwise(halved, learning_rate=123.0)  # what the dictionary says counts
    again.load_state_dict(first.state_dict())
    run_steps(again, halved, range(5, 10))
    for mine, theirs in zip(whole, halved, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-7)


def test_slices_share_their_memory_with_the_parameters() -> None:
    parameters = stacked()
    optimiser = layerwise(parameters)
    assert sum(piece.numel() for group in optimiser.param_groups for piece in group["params"]) == sum(
        parameter.numel() for parameter in parameters
    )
    rates = [group["lr"] for group in optimiser.param_groups]
    assert rates == pytest.approx([LEARNING_RATE * (1 + layer / L) for layer in range(L)])
    with torch.no_grad():  # as load_state_dict does it, in place
        for parameter in parameters:
            parameter.fill_(7.0)
    assert all(bool((piece == 7).all()) for group in optimiser.param_groups for piece in group["params"])


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_leaves_frozen_parameters_out(weight_decay: float) -> None:
    def make() -> tuple[nn.Module, Callable[[], None]]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        module[0].requires_grad_(False)

        def backward() -> None:
            module(torch.arange(6.0).view(2, 3)).pow(2).sum().backward()

        return module, backward

    (ours, back), (plain, plain_back) = make(), make()
    frozen = ours[0].weight.detach().clone()  # type: ignore[index]
    optimiser = adamw(ours.parameters(), learning_rate=0.01, weight_decay=weight_decay)
    reference = torch.optim.AdamW(plain[1].parameters(), lr=0.01, weight_decay=weight_decay)  # type: ignore[index]
    for _ in range(3):
        optimiser.zero_grad()
        reference.zero_grad()
        back()
        plain_back()
        optimiser.step()
        reference.step()
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert torch.equal(ours[0].weight, frozen)  # type: ignore[index]
