"""Certificates in float32 for decoders in half precision: rounding flips no router, and hides no small influence."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from extract.decoders.decoder import Decoder

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@contextmanager
def in_float32(decoder: Decoder) -> Iterator[Decoder]:
    """Compute in float32 until the `with` block ends, and yield the decoder as one of that dtype.

    Weights are widened, which is exact, one module at a time while it runs, and are their old tensors again afterwards.
    """
    if decoder.description.dtype == "float32":
        yield decoder
        return
    with ExitStack() as stack:
        for part in decoder.module.modules():
            held = {name: p for name, p in part.named_parameters(recurse=False) if p.is_floating_point()}
            if held:
                before, after = _widening(part, held)
                stack.callback(after)
                stack.enter_context(part.register_forward_pre_hook(before, with_kwargs=True))
                stack.enter_context(part.register_forward_hook(after, always_call=True))
        yield replace(decoder, description=replace(decoder.description, dtype="float32"))


def _widening(part: nn.Module, held: dict[str, nn.Parameter]) -> tuple[Callable[..., Any], Callable[..., None]]:
    # Parameters are replaced and not changed: accelerate puts others in their place while an offloaded module runs, in
    # the dtype that it finds.
    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for name, narrow in held.items():
            setattr(part, name, nn.Parameter(narrow.data.float(), requires_grad=False))
        return tuple(map(_wide, args)), {name: _wide(value) for name, value in kwargs.items()}

    def after(*_: object) -> None:
        for name, narrow in held.items():
            setattr(part, name, narrow)

    return before, after


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16) else value


def has_experts(decoder: Decoder) -> bool:
    """Whether a router chooses experts for each token, so that rounding can change a latent by any amount."""
    config: Any = decoder.module.config
    text_config = config.get_text_config()
    return any((getattr(text_config, name, None) or 0) > 1 for name in EXPERTS)
