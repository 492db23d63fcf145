"""What would make the host wait for a device, counted on the CPU by decoders on a pretended one."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

aten: Any = torch.ops.aten
ROOT = str(Path(__file__).resolve().parents[2])
READS = {
    "_local_scalar_dense",
    "nonzero",
    "is_nonzero",
    "equal",
    "masked_select",
    "unique_dim",
    "unique_consecutive",
    "_unique",
    "_unique2",
    "bincount",
    "nonzero_numpy",
    "allclose",
}
"""Operators whose result, or its shape, the host needs before it goes on."""
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
COPIES = {aten._to_copy.default: 0, aten.copy_.default: 1}
CPU = torch.device("cpu")


def why_waits(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Say why an operator makes the host wait; empty where it does not."""
    if func in COPIES:
        source = args[COPIES[func]].device
        target = torch.device(kwargs["device"]) if kwargs.get("device") is not None else args[0].device
        is_awaited = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True))
        crosses = (source == CPU) != (target == CPU)
        return f"copy to the {'device' if source == CPU else 'host'}" if crosses and is_awaited else ""
    tensors = [side for side in tree_flatten((args, kwargs))[0] if isinstance(side, Tensor)]
    name = str(func.overloadpacket.__name__)
    if all(side.device == CPU for side in tensors):
        return ""
    if name in INDEXED:
        indices = [side for side in args[1] if isinstance(side, Tensor)]
        by_mask = any(side.dtype in (torch.bool, torch.uint8) for side in indices)
        from_host = any(side.device == CPU and side.dim() for side in indices)
        return f"{name} by a mask" if by_mask else f"{name} by indices of the host" if from_host else ""
    return name if name in READS or func is aten.repeat_interleave.Tensor else ""


def _caller() -> str:
    """Find the innermost line of the library, or of the one it calls, that is at work."""
    frame: Any = sys._getframe(1)
    foreign = ""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(f"{ROOT}/extract/") and not path.endswith("/linear.py"):  # a mode that passes all on
            own = path.removeprefix(f"{ROOT}/").removesuffix(".py").replace("/", ".")
            return f"{own}{foreign}"
        if "/site-packages/transformers/" in path and not foreign:
            foreign = " > transformers." + path.rpartition("/transformers/")[2].removesuffix(".py").replace("/", ".")
        frame = frame.f_back
    return "elsewhere"


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts, inside a `with` block, what would make this thread wait for a device: `where: why` to how often."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if why := why_waits(func, args, kwargs or {}):
            self.found[f"{_caller()}: {why}"] += 1
        return func(*args, **(kwargs or {}))


class LateLane:
    """A lane of the pretended device whose copies arrive when they are waited for, and no sooner."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers: list[Tensor] = []
        self.events: list[str] = []

    @staticmethod
    def pin(side: Tensor) -> Tensor:
        """Return the tensor; the pretended device needs no pinned memory."""
        return side

    def allocate(self, n_bytes: int) -> Tensor:
        """Allocate bytes that are NaN in every dtype, so that what is read too early is seen."""
        self.buffers.append(torch.full((n_bytes,), 0xFF, dtype=torch.uint8))
        return self.buffers[-1]

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
        """Note the copies; they are carried out by the wait for them."""
        number = len([event for event in self.events if event.startswith("copy")])
        self.events.append(f"copy {number}")

        def wait() -> None:
            self.events.append(f"wait {number}")
            for target, source in pairs:
                target.copy_(source)

        return wait
