"""All layers' heads in one computation against a loop over one module per layer."""

import torch
from torch import Tensor, nn

from benchmarks.timing import Comparison, compare
from probes.heads.layerwise import LayerwiseLinear, LayerwiseNorm, build_encoder

L, B, D, H = 32, 256, 576, 256


def compare_layerwise(device: torch.device, *, repeats: int, steps: int = 5) -> list[Comparison]:
    """Compare training steps of `L` encoders at once with a loop over `L` modules, from the same weights.

    Args:
        device: Where.
        repeats: Timed pairs.
        steps: Training steps per timing.

    Returns:
        One comparison per encoder kind.
    """
    return [_compare(kind, device, repeats=repeats, steps=steps) for kind in ("linear", "mlp")]


def _compare(kind: str, device: torch.device, *, repeats: int, steps: int) -> Comparison:
    torch.manual_seed(0)
    together = build_encoder(kind, L, D, bottleneck=H, dropout=0.0).to(device)
    alone = nn.ModuleList([_single(together, k) for k in range(L)]).to(device)
    x, y = torch.randn(L, B, D, device=device), torch.randn(L, B, H, device=device)
    first = torch.optim.AdamW(together.parameters(), lr=1e-4)
    # One optimiser per module, as a script that trains its layers one after the other has.
    others = [torch.optim.AdamW(module.parameters(), lr=1e-4) for module in alone]

    def at_once() -> Tensor:
        loss: Tensor = torch.zeros(L)
        for _ in range(steps):
            loss = ((together(x) - y) ** 2).mean(dim=(1, 2))
            first.zero_grad()
            loss.sum().backward()  # type: ignore[no-untyped-call]
            first.step()
        return loss.detach()

    def one_by_one() -> Tensor:
        for _ in range(steps):
            losses = []
            for k, (module, optimiser) in enumerate(zip(alone, others, strict=True)):
                loss = ((module(x[k]) - y[k]) ** 2).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                losses.append(loss.detach())
        return torch.stack(losses)

    drift = float((at_once() - one_by_one()).abs().max())
    if drift > 1e-5:
        raise RuntimeError(f"the two sides train differently: losses drift by {drift:g}")
    bar = ">= 4" if device.type == "cuda" else ">= 1.5"
    name = f"{L} {kind} encoders: loop vs at once"
    return compare(name, (("loop", one_by_one), ("at once", at_once)), bar=bar, repeats=repeats)


def _single(together: nn.Sequential, k: int) -> nn.Sequential:
    """Build layer `k` of a layer-wise encoder as plain modules with the same weights."""
    modules: list[nn.Module] = []
    for module in together:
        if isinstance(module, LayerwiseLinear):
            linear = nn.Linear(module.weight.shape[1], module.weight.shape[2])
            linear.weight.data.copy_(module.weight.data[k].T)
            linear.bias.data.copy_(module.bias.data[k, 0])
            modules.append(linear)
        elif isinstance(module, nn.Dropout | nn.GELU):
            modules.append(type(module)())
        elif isinstance(module, LayerwiseNorm):
            modules.append(nn.LayerNorm(int(module.weight.shape[-1])))
    for module in modules:
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return nn.Sequential(*modules)
