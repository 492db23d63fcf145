"""All layers' heads in one computation against a loop over one module per layer, and their share of the matmul rate."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.extraction import matmul_rate
from benchmarks.timing import Comparison, compare
from probes.networks.layerwise_networks import LayerAutoencoder, LayerGroups, LayerwiseLinear, LayerwiseNorm
from probes.networks.pair_networks import SiameseCosine, log_variance_loss

L, D = 32, 576  # SmolLM2-135M: embedding, 30 blocks, final norm
TEXTS, TEXTS_PER_BATCH = 20_000, 64
PAIRS, PAIRS_PER_BATCH = 5_749, 128  # STS-B's training pairs
Step = Callable[[], Tensor]


def compare_heads(device: torch.device, *, repeats: int, steps: int = 5) -> tuple[list[Comparison], dict[str, Any]]:
    """Compare training steps of `L` layers at once with a loop over `L` plain modules, from the same weights.

    Args:
        device: Where.
        repeats: Timed pairs.
        steps: Training steps per timing.

    Returns:
        One comparison per head, loop / at once, and for each the seconds of an epoch of both sides and the share of
        the machine's matmul rate that the side at once reaches.
    """
    comparisons, facts = [], {}
    rate = matmul_rate(device)
    for name, made, n_steps in (
        ("autoencoders", _autoencoders(device), TEXTS // TEXTS_PER_BATCH),
        ("siamese cosine, encoder linear", _siamese(device, "linear"), PAIRS // PAIRS_PER_BATCH),
        ("siamese cosine, encoder mlp", _siamese(device, "mlp"), PAIRS // PAIRS_PER_BATCH),
    ):
        at_once, one_by_one, flops = made
        drift = max(float((at_once() - one_by_one()).abs().max()) for _ in range(3))
        if drift > 1e-5:
            raise RuntimeError(f"{name}: the two sides train differently, losses drift by {drift:g}")
        sides = (("loop", _repeated(one_by_one, steps)), ("at once", _repeated(at_once, steps)))
        siamese = ">= 2.5" if name.startswith("siamese") else ">= 1.5"
        bar = ">= 4" if device.type == "cuda" else siamese
        comparisons.append(compare(f"{L} layers, {name}: loop vs at once", sides, bar=bar, repeats=repeats))
        seconds = comparisons[-1].seconds
        facts[name] = {
            "epoch_seconds": {label: value / steps * n_steps for label, value in seconds.items()},
            "gflops": flops * steps / seconds["at once"] / 1e9,
            "matmul_gflops": rate,
            "share": flops * steps / seconds["at once"] / 1e9 / rate,
        }
    return comparisons, facts


def _repeated(step: Step, steps: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(steps):
            step()

    return run


def _autoencoders(device: torch.device) -> tuple[Step, Step, float]:
    """Build one training step of the default autoencoders, dropout aside, in both ways; and its floating operations."""
    torch.manual_seed(0)
    together = LayerAutoencoder(L, D, dropout=0.0).to(device)
    alone = [nn.Sequential(*_plain(together.encoder, k), *_plain(together.decoder, k)).to(device) for k in range(L)]
    x = torch.randn(L, TEXTS_PER_BATCH, D, device=device)
    optimiser = together.configure_optimizers()
    others = [
        torch.optim.AdamW(module.parameters(), lr=together.learning_rate * (1 + k / L), weight_decay=0.01)
        for k, module in enumerate(alone)
    ]

    def at_once() -> Tensor:
        losses = together.losses(x)
        optimiser.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return losses.detach()

    def one_by_one() -> Tensor:
        found = []
        for k, (module, other) in enumerate(zip(alone, others, strict=True)):
            wanted = (x[k] - together.mean[k]) / together.scale[k]
            loss = ((module(wanted) - wanted) ** 2).mean()
            other.zero_grad()
            loss.backward()
            other.step()
            found.append(loss.detach())
        return torch.stack(found)

    return at_once, one_by_one, training_flops(together, TEXTS_PER_BATCH)


def _siamese(device: torch.device, encoder: str) -> tuple[Step, Step, float]:
    """Build one training step of the siamese head, dropout aside, in both ways; and its floating operations."""
    torch.manual_seed(0)
    head = SiameseCosine(L, D, encoder=encoder, dropout=0.0).to(device)
    encoders = nn.ModuleList([nn.Sequential(*_plain(head.encoder, k)) for k in range(L)]).to(device)
    network = nn.Sequential(*(_copy(part) for part in head.network)).to(device)
    a, b = torch.randn(2, L, PAIRS_PER_BATCH, D, device=device)
    gold = torch.rand(PAIRS_PER_BATCH, device=device)
    mean, scale = head.mean, head.scale
    optimiser = head.configure_optimizers()
    other = torch.optim.AdamW([*encoders.parameters(), *network.parameters()], lr=3e-4, weight_decay=0.0)

    def at_once() -> Tensor:
        loss = log_variance_loss(head(a, b), gold)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss.detach()

    def one_by_one() -> Tensor:
        cosines = []
        for k, encode in enumerate(encoders):
            u, v = (encode((latents[k] - mean[k]) / scale[k]) for latents in (a, b))
            cosines.append(nn.functional.cosine_similarity(u, v, dim=-1))
        loss = log_variance_loss(network(torch.stack(cosines, dim=1)).squeeze(-1), gold)
        other.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        other.step()
        return loss.detach()

    return at_once, one_by_one, training_flops(head, 2 * PAIRS_PER_BATCH)


def _plain(groups: LayerGroups, layer: int) -> list[nn.Module]:
    """Make ordinary modules with the weights of one layer."""
    group, row = next(
        (group, layers.index(layer))
        for group, layers in zip(groups.groups, groups.members, strict=True)
        if layer in layers
    )
    made: list[nn.Module] = []
    for part in group.children():
        if isinstance(part, LayerwiseLinear):
            linear = nn.Linear(part.weight.shape[1], part.weight.shape[2])
            linear.weight.data.copy_(part.weight[row].T)
            linear.bias.data.copy_(part.bias[row, 0])
            made.append(linear)
        elif isinstance(part, LayerwiseNorm):
            norm = nn.LayerNorm(part.weight.shape[2])
            norm.weight.data.copy_(part.weight[row, 0])
            norm.bias.data.copy_(part.bias[row, 0])
            made.append(norm)
        else:
            made.append(_copy(part))
    return made


def _copy(part: nn.Module) -> nn.Module:
    if isinstance(part, nn.Linear):
        linear = nn.Linear(part.in_features, part.out_features)
        linear.load_state_dict({key: value.detach().cpu() for key, value in part.state_dict().items()})
        return linear
    return type(part)(part.p) if isinstance(part, nn.Dropout) else type(part)()


def training_flops(module: LayerAutoencoder | SiameseCosine, rows: int) -> float:
    """Count the products of a training step: forwards, and backwards to weights and, above the latents, to inputs."""
    sizes = [part.weight.numel() for part in module.modules() if isinstance(part, LayerwiseLinear)]
    lowest = [
        next(part.weight.numel() for part in group.modules() if isinstance(part, LayerwiseLinear))
        for group in module.encoder.groups
    ]
    return 6.0 * rows * sum(sizes) - 2.0 * rows * sum(lowest)
