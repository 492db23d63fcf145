"""Linear maps through oneDNN where that is faster: a frozen decoder on a CPU with AVX-512, in float32."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode


@cache
def has_quick_linear() -> bool:
    """Tell whether linear maps of this process can go through oneDNN, and give there what PyTorch gives.

    PyTorch hands float32 products to MKL, which on some processors does not use AVX-512; its build of oneDNN
    does. The operator is not part of PyTorch's public interface, so it is tried before it is relied on.
    """
    available = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    if not (available and torch.backends.cpu.get_cpu_capability() == "AVX512"):
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((2, 5, 32), (48, 32), (48,)))
    try:
        with torch.inference_mode():
            found = [quick_product(x, weight, bias), quick_product(x[0], weight.t().contiguous().t(), None)]
    except (AttributeError, RuntimeError, TypeError):
        return False
    wanted = [torch.nn.functional.linear(x, weight, bias), torch.nn.functional.linear(x[0], weight)]
    return all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, wanted, strict=True))


def quick_product(
    x: Float[Tensor, "*R K"], weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None = None
) -> Float[Tensor, "*R N"]:
    """Compute `x @ weight.T + bias` by oneDNN; only where `is_quick` allows it, and without a gradient of its own.

    Args:
        x: `(..., K)` contiguous, at least two dimensions.
        weight: `(N, K)`, any strides.
        bias: `(N,)`.

    Returns:
        `(..., N)`.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def is_quick(*tensors: Any) -> bool:
    """Tell whether products of these go through oneDNN: all are plain, filled float32 tensors in main memory.

    `torch.backends.mkldnn.enabled = False` switches it off.
    """
    fits = all(
        type(t) in (Tensor, torch.nn.Parameter)
        and t.device.type == "cpu"
        and t.dtype is torch.float32
        and t.layout is torch.strided
        and t.numel() > 0
        for t in tensors
    )
    return fits and bool(torch.backends.mkldnn.enabled) and has_quick_linear()


def round_rows(n_rows: int) -> int:
    """Round a number of rows up, so that few different numbers are left: eight between a power of two and the next.

    Example:
        >>> [round_rows(n) for n in (7, 100, 1023, 1025)]
        [7, 104, 1024, 1152]
    """
    step = max(1, (1 << (n_rows.bit_length() - 1)) // 8)
    return -(-n_rows // step) * step


class QuickLinear(TorchFunctionMode):
    """While entered, linear maps of this thread that need no gradient go through oneDNN where `has_quick_linear`.

    Results agree with PyTorch's to rounding. Nothing is patched and weights are not copied, so other models
    and other threads are untouched.

    Args:
        varied: Whether the rows of the products come in many different numbers. oneDNN compiles a product anew for
            each number of rows and keeps what it compiled, about 3 MB for the maps of one decoder, so a long
            extraction would grow with every new shape of a batch. Rows of zeros then fill a product up to
            `round_rows`.
    """

    def __init__(self, *, varied: bool = False) -> None:
        super().__init__()
        self._varied = varied

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        n_rows = x.numel() // x.shape[-1]
        n_computed = round_rows(n_rows) if self._varied else n_rows
        if n_computed == n_rows:
            return quick_product(x.contiguous(), weight, bias)
        padded = x.new_empty(n_computed, x.shape[-1])
        padded[:n_rows] = x.reshape(n_rows, -1)
        padded[n_rows:] = 0
        return quick_product(padded, weight, bias)[:n_rows].view(*x.shape[:-1], len(weight))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send `linear` and `addmm` (GPT-2's way of writing it) on; everything else passes."""
        if not kwargs and not torch.is_grad_enabled():
            if func is torch.nn.functional.linear and 2 <= len(args) <= 3:
                x, weight, bias = (*args, None)[:3]
                if is_quick(x, weight, *([] if bias is None else [bias])) and x.dim() > 1 and weight.dim() == 2:
                    return self._product(x, weight, bias)
            elif func is torch.addmm and len(args) == 3 and is_quick(*args) and args[0].dim() == 1:
                bias, x, weight = args
                return self._product(x, weight.t(), bias)
        return func(*args, **(kwargs or {}))
