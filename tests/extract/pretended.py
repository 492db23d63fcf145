"""Devices that are pretended on the CPU: tensors that say they are on one, and refuse to meet those of another.

Their device type is one that PyTorch has a name but no code for, so that nothing is initialised. Whatever is computed
runs on the CPU; only copies (`to`, `copy_`) go from one device to another, as between GPUs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

aten: Any = torch.ops.aten
CPU = torch.device("cpu")
COPIES = {aten._to_copy.default, aten.copy_.default}
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
"""Their indices may be on the CPU, as on a GPU."""


class Placed(Tensor):
    """A tensor on a pretended device; its values are in `held`, on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls: "type[Placed]", inner: Tensor, device: torch.device) -> "Placed":
        make: Any = torch.Tensor._make_wrapper_subclass
        made: Placed = make(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
        )
        made.held = inner
        return made

    @classmethod
    def _dispatch(cls, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return compute(func, args, dict(kwargs or {}))

    __torch_dispatch__: Any = _dispatch


def compute(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, copy: Callable[..., Tensor] | None = None
) -> Any:
    """Compute on the CPU what is asked on pretended devices; `copy` changes what goes from one of them to another."""
    sides = [side for side in tree_flatten((args, kwargs))[0] if isinstance(side, Tensor)]
    asked = kwargs.pop("device", None)
    counted = args[:1] if func in INDEXED else sides
    places = {side.device for side in counted if side.dim() or side.device != CPU}
    if len(places) > 1 and func not in COPIES:
        raise RuntimeError(f"expected all tensors of {func} on one device, found {sorted(map(str, places))}")
    source = {aten._to_copy.default: 0, aten.copy_.default: 1}.get(func)
    origin = next((side.device for side in sides[source or 0 :] if side.device != CPU), CPU)
    target = torch.device(asked) if asked is not None else args[0].device if func is aten.copy_.default else origin
    plain = {side.held: side for side in sides if isinstance(side, Placed)}
    given, named = tree_map(lambda side: side.held if isinstance(side, Placed) else side, (list(args), kwargs))
    if copy is not None and source is not None and CPU not in (origin, target) and origin != target:
        given[source] = copy(given[source])
    found = func(*given, **named, **({} if asked is None else {"device": CPU}))

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or target == CPU:
            return value
        return plain[value] if value in plain else Placed(value, target)

    return tree_map(wrap, found)


def pretending(copy: Callable[..., Tensor] | None) -> Any:
    """Make a mode in which tensors can be made on pretended devices."""

    def dispatch(
        _: Any, func: Any, __: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return compute(func, args, dict(kwargs or {}), copy=copy)

    return type("Pretending", (TorchDispatchMode,), {"__torch_dispatch__": dispatch})()


@contextmanager
def spread(
    module: nn.Module, places: Mapping[str, str], *, copy: Callable[..., Tensor] | None = None
) -> Iterator[None]:
    """Spread a decoder over pretended devices with accelerate until the `with` block ends."""
    hooks: Any = import_module("accelerate.hooks")
    # Views of such tensors cannot be made in inference mode.
    with pretending(copy), patch("torch.inference_mode", torch.no_grad):
        for name, place in places.items():
            part = module.get_submodule(name)
            for each in part.modules():
                for key, parameter in each.named_parameters(recurse=False):
                    setattr(each, key, nn.Parameter(parameter.data.to(place), requires_grad=False))
                for key, buffer in each.named_buffers(recurse=False):
                    each._buffers[key] = buffer.to(place)
            hooks.add_hook_to_module(part, hooks.AlignDevicesHook(torch.device(place)))
        yield
