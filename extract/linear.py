"""Faster products on a CPU: linear maps in float32 through oneDNN, where it beats PyTorch's own choice.

This is the one module for it: decoders run inside `QuickLinear`, and the probes call `multiply_layers` and
`affine_layers`. See docs/decisions/onednn-products.md.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode


@cache
def has_quick_linear() -> bool:
    """Return whether linear maps of this process can go through oneDNN, with the same results as PyTorch.

    PyTorch hands float32 products to MKL, which on some processors does not use AVX-512; its build of oneDNN does. The
    operator is not part of PyTorch's public interface, so it is tried before it is used.
    """
    available = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    if not (available and torch.backends.cpu.get_cpu_capability() == "AVX512"):
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((2, 5, 32), (48, 32), (48,)))
    try:
        with torch.inference_mode():
            quick = [quick_product(x, weight, bias), quick_product(x[0], weight.t().contiguous().t(), None)]
    except (AttributeError, RuntimeError, TypeError):
        return False
    plain = [torch.nn.functional.linear(x, weight, bias), torch.nn.functional.linear(x[0], weight)]
    return all(torch.allclose(a, b, atol=1e-4) for a, b in zip(quick, plain, strict=True))


def quick_product(
    x: Float[Tensor, "*R K"], weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None = None
) -> Float[Tensor, "*R N"]:
    """Compute `x @ weight.T + bias` by oneDNN, without a gradient and only where `is_quick`.

    `x` must be contiguous and have at least two dimensions; the weight may have any strides.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def is_quick(*tensors: Any) -> bool:
    """Return whether products of these go through oneDNN: plain, non-empty float32 tensors in main memory.

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


def describe_products(like: Tensor | None = None) -> dict[str, str]:
    """Describe how linear maps with a weight `like` this one are computed, for the record of a run.

    `cpu` are the instructions that PyTorch uses on this processor. Without a weight, one in float32 in main memory.
    """
    weight = torch.empty(1) if like is None else like
    linear = "oneDNN" if is_quick(weight) else "PyTorch"
    return {"linear": linear, "cpu": torch.backends.cpu.get_cpu_capability()}


def bfloat16_gain(weight: Float[Tensor, "N K"], *, n_rows: int = 512, repeats: int = 5) -> float | None:
    """Measure how much less time a product with a float32 weight takes in bfloat16 on this CPU: 2.0 for half of it.

    A few products of each, in turn, in milliseconds; medians. None where bfloat16 has no instructions of its own, or
    the weight is not float32 in main memory.
    """
    is_plain = weight.device.type == "cpu" and weight.dtype is torch.float32 and weight.dim() == 2
    if not is_plain or not any(key.endswith("bf16") and on for key, on in _capabilities().items()):
        return None
    x, weight = torch.ones(n_rows, weight.shape[1]), weight.detach()
    half = x.bfloat16(), weight.bfloat16()
    seconds: tuple[list[float], list[float]] = ([], [])
    with torch.inference_mode():
        for _ in range(repeats + 1):
            for times, operands in zip(seconds, ((x, weight), half), strict=True):
                start = time.perf_counter()
                with QuickLinear():
                    torch.nn.functional.linear(*operands)
                times.append(time.perf_counter() - start)
    return statistics.median(seconds[0][1:]) / statistics.median(seconds[1][1:])


def _capabilities() -> dict[str, bool]:
    return {str(key): bool(value) for key, value in torch.cpu.get_capabilities().items()}


@contextmanager
def estimated_products() -> Iterator[None]:
    """Round factors of float32 products to bfloat16 inside a `with` block, on a CPU with matrix units for it (AMX).

    Sums and results stay float32. For estimates whose own error is much larger than the rounding.
    """
    backend: Any = torch.backends.mkldnn
    products = backend.matmul
    before = products.fp32_precision
    try:
        if _capabilities().get("amx_bf16"):
            products.fp32_precision = "bf16"
        yield
    finally:
        products.fp32_precision = before


def multiply_each(
    x: Float[Tensor, "L B D"], weights: Sequence[Tensor] | Float[Tensor, "L K D"]
) -> Float[Tensor, "L B K"]:
    """Compute `x[l] @ weights[l].T` one by one through oneDNN, without a gradient and only where `is_quick`."""
    return _join([(one, weight, None) for one, weight in zip(x, weights, strict=True)])


def _join(operands: Sequence[tuple[Tensor, Tensor, Tensor | None]]) -> Float[Tensor, "L B K"]:
    """Compute a product per layer, each copied into the result while it is still in the processor's cache."""
    (x, weight, _), *_ = operands
    joined = x.new_empty(len(operands), x.shape[0], weight.shape[0])
    for target, (one, weight, bias) in zip(joined, operands, strict=True):
        target.copy_(quick_product(one.contiguous(), weight, bias))
    return joined


class _MultiplyLayers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return multiply_each(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (x,) = ctx.saved_tensors
        return None, multiply_each(gradients[0].transpose(1, 2), x.transpose(1, 2))


class _AffineLayers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _join([(x[k], weight[k].t(), bias[k, 0]) for k in range(len(x))])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        slope = gradients[0].contiguous()
        for_x = multiply_each(slope, weight) if ctx.needs_input_grad[0] else None
        for_weight = torch.bmm(x.transpose(1, 2), slope)  # oneDNN would need a transposed copy, which costs as much
        return for_x, for_weight, slope.sum(1, keepdim=True)


def multiply_layers(x: Float[Tensor, "L B D"], weight: Float[Tensor, "L K D"]) -> Float[Tensor, "L B K"]:
    """Compute `x[l] @ weight[l].T` for each layer, differentiable once in `weight` alone."""
    if is_quick(x, weight):
        return _MultiplyLayers.apply(x, weight)  # type: ignore[no-untyped-call,no-any-return]
    return torch.bmm(weight, x.transpose(1, 2)).transpose(1, 2).contiguous()  # short rows of classes are slow


def affine_layers(
    x: Float[Tensor, "L B D"], weight: Float[Tensor, "L D H"], bias: Float[Tensor, "L 1 H"]
) -> Float[Tensor, "L B H"]:
    """Compute `x[l] @ weight[l] + bias[l]` for each layer, differentiable once."""
    if is_quick(x, weight, bias) and x.dim() == 3:
        return _AffineLayers.apply(x.contiguous(), weight, bias)  # type: ignore[no-untyped-call,no-any-return]
    return torch.baddbmm(bias, x, weight)


def round_rows(n_rows: int) -> int:
    """Round a number of rows up so that few different numbers occur: eight between a power of two and the next."""
    step = max(1, (1 << (n_rows.bit_length() - 1)) // 8)
    return -(-n_rows // step) * step


class QuickLinear(TorchFunctionMode):
    """Inside a `with` block, linear maps of this thread without gradient go through oneDNN, where `is_quick`.

    Results agree with PyTorch's to rounding. Nothing is patched and no weight is copied, so other models and other
    threads are not affected.

    With `varied`, products may have many different numbers of rows: rows of zeros fill each up to `round_rows`. oneDNN
    compiles a product for each number of rows and keeps it, about 3 MB for the maps of one decoder, so a long
    extraction would otherwise grow with every new shape of a batch.
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
        # Redirect `linear` and `addmm` (GPT-2's way of writing it); pass everything else on.
        if not kwargs and not torch.is_grad_enabled():
            if func is torch.nn.functional.linear and 2 <= len(args) <= 3:
                x, weight, bias = (*args, None)[:3]
                if is_quick(x, weight, *([] if bias is None else [bias])) and x.dim() > 1 and weight.dim() == 2:
                    return self._product(x, weight, bias)
            elif func is torch.addmm and len(args) == 3 and is_quick(*args) and args[0].dim() == 1:
                bias, x, weight = args
                return self._product(x, weight.t(), bias)
        return func(*args, **(kwargs or {}))
